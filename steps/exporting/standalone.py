"""Standalone programs: a step's kernel, the host code of its launch, a check and a benchmark, as one Python file.

The kernel is what ``written.written_out`` makes. The host code is one of the templates in ``hosts``, one for each way
of launching, filled in with what the step's launch says (``launches``).
"""

from __future__ import annotations

import ast
import inspect
import math
import re
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

from steps.core.fused import FusedStep
from steps.core.ladder import get_step
from steps.core.step import Step, Unsupported
from steps.exporting.launches import Launch, Raw, launch_of, with_lse
from steps.exporting.others import for_another_head_dim
from steps.writing.flat import formatted, import_lines
from steps.writing.trees import LINE_LENGTH, fresh
from steps.writing.values import plain_function
from steps.writing.written import flat_text, module_in
from tutorial_lib.passes import pass_of
from tutorial_lib.problem import FEATURES, FP8, Problem

HOSTS = Path(__file__).parent / "hosts"
CONSTANTS = re.compile(
    r"(?:^[A-Z]\w*(?:, \w+)* = (?:map\()?[\w.]*(?:, )?\(?-?\d.*\n)+", re.MULTILINE
)  # numbers, in lines
CHECK = re.compile(r'^def check\((?P<inputs>.*)\):\n +""".*"""\n(?P<statements>(?: .*\n)+)\n*', re.MULTILINE)
VALUE = re.compile(r"\bHOST\.(\w+)")
NAMES = {  # of the host code's constants, and what kernels call them
    "head_dim": ("D", "HEAD_DIM", "head_dim"),
    "rows": ("TILE_Q", "TILE_QUERY", "queries of a tile"),
    "tile_key": ("TILE_K", "TILE_KEY", "keys of a tile"),
    "group_size": ("GROUP", "GROUP_SIZE", "query heads for each head of keys and values"),
}
OF_KERNEL = {  # other numbers of the host code, and what kernels call them
    **{
        name: name.upper()
        for name in (
            *("ahead", "members", "output_columns", "page_size", "parts", "query_columns", "query_rows"),
            *("rows_prepared", "rows_scaled", "small_rows", "sum_columns", "warpgroups"),
        )
    },
    "columns": "PANEL_COLUMNS",
    "merged_columns": "COLUMNS",
    "own_rows": "ROWS",
    "value_columns": "VALUE_DIM",
}
NO_PADDING = (", or the key is padding", ", or there is no key")  # what is not said where no tile is ragged
CHOSEN = (
    "mma exp2 load_order latency occupancy approx_division larger_tile persistent mask_loop "
    "explicit swizzle split_q stages gluon_larger_tile "
    "wgmma producer intra_warpgroup_overlap lpt_scheduler epilogue_overlap pv_wait_after_max next_softmax_first "
    "two_level_accumulation two_blocks deferred_reduce_add two_cta_mma next_scores_first xcd_swizzle paged pack_gqa "
    "attention_sinks"
)
MOST_LINES = {"torch": 300, "cutile": 300, "gluon": 300, "cdna": 300, "triton": 300, "hopper": 450, "blackwell": 450}
FUNCTIONS = {"forward": "attention", "backward": "gradients", "paged": "paged"}
INPUTS = {
    "forward": "q, k, v",
    "backward": "q, k, v, o, lse, do",
    "paged": "q, k_pages, v_pages, page_table, lengths",
}
BESIDE = {  # what a problem asks for: inputs of the forward pass, their dtype, their shape as far as others give it
    "lengths": (("cu_seqlens_q", "cu_seqlens_k"), "torch.int32", "cu_seqlens_q.shape[:1]"),
    "sinks": (("sinks",), "torch.float32", "q.shape[1:2]"),
    "fp8": (("q_scale", "k_scale", "v_scale"), "torch.float32", "k.shape[:2]"),
    "kv_dtype": (("k_scale", "v_scale"), "torch.float32", "k.shape[:2]"),
}
TAKEN = {
    "cutile": ("lengths", "sinks", "fp8"),
    "tma": ("sinks", "fp8"),
    "decoding": ("kv_dtype",),
    "pytorch": ("fp8", "kv_dtype"),
}  # by templates
HALVES = {"forward": "q, k, v", "backward": "q, k, v, o, do", "paged": "q, k_pages, v_pages"}  # of the problem's type
COMPARED = {
    "forward": '[("o", ours(), theirs(), exact(q, k, v))]',
    "lengths": '[("o", ours(), theirs(), right)]',
    "sinks": '[("o", ours(), theirs(), exact(q, k, v, sinks))]',
    "fp8": '[("o", ours(), exact(*whole, rounded=True), exact(*whole))]',
    "kv_dtype": '[("o", ours(), exact(*whole, rounded=True), exact(*whole))]',
    "backward": 'zip(("dq", "dk", "dv"), ours(), theirs(), right)',
    "paged": '[("o", ours(), theirs(), right)]',
}
SCALES = "Scales, float32 [batch, kv_heads], multiply "
TOLD = {
    "lengths": "Sequences stand behind each other in tensors [tokens, heads, head_dim], and a query sees its own. "
    "cu_seqlens hold where each begins, and last the number of tokens.",
    "sinks": "A sink, float32 [heads], is a logit that takes part in every softmax of its head and has no value.",
    "fp8": f"{SCALES}q, k and v.",
    "kv_dtype": f"{SCALES}k and v.",
}
OUTPUTS = {"forward": ("o",), "backward": ("dq", "dk", "dv"), "paged": ("o",)}
GPUS = {
    "sm_80": "A100",
    "sm_90": "H100, H200",
    "sm_100": "B200",
    "sm_103": "B300",
    "gfx942": "MI300",
    "gfx950": "MI350",
}


def standalone(step: Step, problem: Problem, arch: str | None = None, lse: bool = False) -> str:
    """The program of ``step`` for ``problem`` on ``arch`` (None: what the step is made for).

    lse: whether attention returns each query's log-sum-exp, too, which a backward pass needs.

    Raises Unsupported for a step that has no kernel for one device, or needs more than Triton and cuTile offer.
    """
    arch = arch or step.made_for
    launch, text = program(step, problem, arch, lse)
    others = for_another_head_dim(step, problem, text, lambda other: program(step, other, arch, lse)[1])
    whole = formatted(f'"""{header(step, problem, arch, launch, others, lse)}"""\n\n{text}')
    if others and whole.count("\n") > MOST_LINES[step.backend]:  # then it tells of itself alone
        whole = formatted(f'"""{header(step, problem, arch, launch, "", lse)}"""\n\n{text}')
    return whole


def program(step: Step, problem: Problem, arch: str, lse: bool) -> tuple[Launch, str]:
    """(what a program is made of, its text without the header). Raises as ``standalone`` does."""
    in_pytorch = step.backend == "torch"
    if step.several:
        raise Unsupported(f"step {step.label} has no kernel of its own to export: it {of_parts(step, problem, arch)}")
    if reason := step.unsupported(problem, arch):
        raise Unsupported(f"step {step.label}: {reason}")
    launch = launch_of(step if in_pytorch else step.configured(problem, arch), problem, arch)
    beside = [name for name in problem.features if name in BESIDE]
    if others := [name for name in beside if name not in TAKEN.get(launch.hosts[-1], ())]:
        raise Unsupported(f"step {step.label} cannot be exported with {FEATURES[others[0]]}")
    if (problem.page_size and beside) or (problem.lengths and len(problem.features) > 1):
        both = " and ".join(FEATURES[name] for name in problem.features)
        raise Unsupported(f"step {step.label} cannot be exported with {both} at once")
    launch = with_lse(step, launch) if lse else launch
    kernels = {name: (entry, tuple(sorted(bound.items()))) for name, (entry, bound) in launch.kernels.items()}
    if in_pytorch:
        text = source_of(step.function) if launch.values["written"] else ""
    else:
        text = without_docstring(flat_text(*kernels.values(), alone=True))
    for said in () if launch.values["ragged"] else NO_PADDING:
        text = text.replace(said, "")
    names: dict[str, Raw] = {}
    for name, (entry, _) in kernels.items():
        function = entry if in_pytorch else plain_function(entry)
        names[name] = Raw(fresh(function.__name__, names.values()))
    values = {**common(step, problem, arch, lse), **launch.values, **names, "lse": lse}
    values |= {name: _constant(text, layout) for name, layout in launch.layouts.items()}
    constants, host = host_code((*launch.hosts, "main"), values, text)
    if in_pytorch:
        text, places = f"{constants}\n\n{text}", 1
    else:
        text, places = CONSTANTS.subn(lambda found: found[0] + constants, text, count=1)
    if constants and not places:
        raise Unsupported(f"step {step.label} cannot be exported: its kernel has no constants to put the host's beside")
    text = joined(text, host)
    if found := re.search(r"^(?:from|import) (?:steps|tutorial_lib)\b.*", text, re.MULTILINE):
        raise Unsupported(f"step {step.label} cannot be exported: it needs `{found[0]}`")
    return launch, text


def of_parts(step: Step, problem: Problem, arch: str) -> str:
    """What to do about a step over several GPUs, whose parts are computed by other steps' kernels."""
    its, forward = step.computing(problem, arch), step.direction == "forward"
    asked = f"python -m steps.export {its.name} --head-dim {problem.head_dim} --dtype {problem.dtype}"
    asked += " --lse" * forward
    module = inspect.getmodule(step.function if inspect.isfunction(step.function) else type(step.function)).__name__
    masks = f"{asked} --causal` and `{asked} --no-causal" if problem.causal else f"{asked} --no-causal"
    return (
        "computes over several GPUs. Export the kernels of its parts with "
        f"`{masks}`, and call these as {module.replace('.', '/')}.py does"
    )


def header(step: Step, problem: Problem, arch: str, launch: Launch, others: str, lse: bool) -> str:
    """What the program says of itself. others: what it says of another head_dim. lse: whether it returns that."""
    what = {"forward": "Attention", "backward": "Gradients of attention", "paged": "Attention to keys in pages"}
    plain = step.backend == "torch"
    language = {"cutile": "cuTile", "triton": "Triton"}.get(step.backend, "Gluon")
    language = "PyTorch" if plain else f"{language}, with its launch"
    mask = [f"a sliding window of {problem.window}"] if problem.window else ["a causal mask"] if problem.causal else []
    mask += [f"a soft cap of {problem.softcap}"] if problem.softcap else []
    widths = f"head_dim {problem.head_dim}" + (f" (of v and o {problem.head_dim_v})" if problem.head_dim_v else "")
    compiled_in = [widths, problem.dtype, " and ".join(mask) or "no mask"]
    compiled_in += [f"keys and values in {problem.kv_dtype}"] if problem.kv_dtype else []
    if problem.group_size > 1:
        compiled_in += [f"{problem.group_size} query heads for each head of keys and values"]
    compiled_in += [f"pages of {problem.page_size}"] if problem.page_size else []
    made = "Made for" if plain else "Compiled in"
    launched = "" if plain else "; the launch is chosen for the problem at the end"
    others_too = "Batch, heads and lengths may be others, as far as the checks say"
    told = [f"{made}: {', '.join(compiled_in)}. {others_too}{launched}."]
    told += [] if problem.page_size or problem.lengths else ["Tensors are [batch, heads, length, head_dim]."]
    told += [TOLD[name] for name in problem.features if name in TOLD]
    if problem.causal and not problem.page_size:
        told += ["Query i sees keys 0 to i, also where the lengths differ."]
    if not (plain or getattr(step, "deterministic", True)):
        told += ["Blocks add to dQ in any order, so its last bits vary."]
    told += ["Shared memory, barriers and layouts are the compiler's."] if step.backend == "cutile" else []
    needs = {"cutile": "PyTorch and cuda-tile", "torch": "PyTorch"}.get(step.backend, "PyTorch and Triton 3.9")
    told += ["There is no autograd."] if launch.values.get("written", True) else []  # SDPA has it
    told += [f"It needs {needs}.", *launch.left_out]
    returned = OUTPUTS[kind(step)] + ("lse",) * lse
    options = [f"--head-dim {problem.head_dim}"] + [f"--seq-len {problem.seq_len_q}"] * (not problem.lengths)
    options += [f"--seq-len-kv {problem.seq_len_kv}"] if problem.seq_len_kv != problem.seq_len_q else []
    options += [f"--dtype {problem.dtype}", "--causal" if problem.causal else "--no-causal"]
    options += [f"--window {problem.window}"] if problem.window else []
    options += [f"--arch {arch}"] if arch != step.made_for else []
    options += ["--lse"] if lse else []
    return "\n\n".join(
        [
            textwrap.fill(f"{what[kind(step)]} in {language}, for {gpu(arch)}.", LINE_LENGTH - 3),
            f"    {FUNCTIONS[kind(step)]}({inputs(step, problem)}, scale=None) -> {', '.join(returned)}",
            textwrap.fill(" ".join(told), LINE_LENGTH),
            *launch.tables(),
            f"Made from step {step.label} ({step.title}) of the FMHA tutorial by\n"
            f"python -m steps.export {step.name} {' '.join(options)}\n{others}".rstrip()
            + "\n",
        ]
    )


def kind(step: Step) -> str:
    """The pass that a program computes, as templates know it: fp8 is a forward pass whose inputs are others."""
    return "forward" if step.direction == "fp8" else step.direction


def inputs(step: Step, problem: Problem) -> str:
    """The parameters of a program's function, but for the scale of the softmax."""
    more = [name for asked in problem.features if asked in BESIDE for name in BESIDE[asked][0]]
    return ", ".join([INPUTS[kind(step)], *more])


def gpu(arch: str) -> str:
    """What runs code for ``arch``, in words."""
    names = f" ({GPUS[arch]})" if arch in GPUS else ""
    if arch.startswith("gfx"):
        return f"an AMD GPU {arch}{names}"
    return f"an NVIDIA GPU of compute capability {arch[3:-1]}.{arch[-1]}{names}"


def common(step: Step, problem: Problem, arch: str, lse: bool) -> dict:
    """What all programs are told."""
    queries = (problem.batch, problem.heads, problem.seq_len_q, problem.head_dim)
    keys = (problem.batch, problem.kv_heads, problem.seq_len_kv, problem.head_dim)
    if problem.lengths:
        queries, keys = ((length, heads, width) for _, heads, length, width in (queries, keys))
    if problem.page_size:
        width = -(-problem.seq_len_kv // problem.page_size)
        keys = (problem.batch * width, problem.page_size, problem.kv_heads, problem.head_dim)
    plain = not (problem.window or problem.softcap or problem.page_size or problem.sinks)
    asked = next((name for name in problem.features if name in BESIDE), None)
    other_gpu = f"{arch!r} not in torch.cuda.get_device_properties().gcnArchName"
    if arch.startswith("sm_"):
        other_gpu = f"torch.cuda.get_device_capability() != {(int(arch[3:-1]), int(arch[-1]))}"
    return {
        "head_dim": problem.head_dim,
        "head_dim_v": problem.head_dim_v,
        "dtype": Raw(f"torch.{problem.dtype}"),
        "causal": problem.causal,
        "group_size": problem.group_size,
        "grouped": problem.group_size > 1,
        "window": problem.window,
        "softcap": problem.softcap,
        "page_size": problem.page_size,
        "lengths": list(problem.lengths_in_pages) if problem.page_size else None,
        **{name: kind(step) == name for name in OUTPUTS},
        "compared": Raw("compared" if lse else COMPARED[asked or kind(step)]),
        "shape_q": queries,
        "shape_k": keys,
        "shape_v": (*keys[:-1], problem.value_dim),
        "needs": Raw(gpu(arch)),
        "other_gpu": Raw(other_gpu),
        "inputs": Raw(inputs(step, problem)),
        "tensors": Raw(HALVES[kind(step)]),
        "sm_90": arch == "sm_90",
        "plain": plain,
        "sdpa": plain and not asked,
        "masked": problem.window and not (problem.softcap or problem.sinks),
        **of_features(problem, asked),
        "offset": (offset := getattr(step, "offset_of_weights", 0)),
        "most": 2**offset,
        "tag": Raw(step.name),
        "theirs": Raw("PyTorch" if problem.softcap or problem.page_size or asked else "SDPA"),
        "operations": Raw(f"{int(pass_of(step).operations(problem)):_}"),
        **dict.fromkeys(("written", "ragged", "section", "queries", "whole_queries", "all_seen", "lists"), None),
        **dict.fromkeys(("together", "tma", "pairs", "transposed", "lossy"), None),
    }


def of_features(problem: Problem, asked: str | None) -> dict:
    """What programs are told whose function takes more than q, k and v. asked: for what; a key of ``BESIDE``."""
    names, dtype, shape = BESIDE.get(asked, ((), "", ""))
    own = f"torch.{problem.dtype}"
    wide = "torch.bfloat16" if problem.fp8 else own  # of the output, and of inputs before they are quantized
    of_kv = f"torch.{problem.kv_dtype or problem.dtype}"
    more = {"sinks": ", sinks", "fp8": ", rounded=False", "kv_dtype": ", rounded=False"}.get(asked, "")
    return {
        "beside": Raw(f"{{{', '.join(f'{name!r}: {name}' for name in names)}}}") if names else None,
        "beside_dtype": Raw(dtype),
        "beside_shape": Raw(shape),
        "exactly": Raw(f"q, k, v{more}"),
        "dtypes": Raw("{dtype}" if problem.kv_dtype else own),
        "drawn": Raw(wide),
        "even": 8 if own == of_kv and not problem.fp8 else 16,  # elements: what a stride is a multiple of
        "dtype_of_o": Raw(wide if problem.fp8 else "q.dtype"),
        "packed": problem.lengths is not None,
        "most_begins": len(problem.lengths or ()) + 1,
        "of_queries": problem.lengths and [*problem.lengths],
        "of_keys": problem.lengths and [*(problem.lengths_kv or problem.lengths)],
        "sinks": problem.sinks,
        "mean_sink": problem.sinks and round(math.log(problem.visible_pairs / problem.seq_len_q), 2),
        "fp8": problem.fp8,
        "kv_dtype": problem.kv_dtype,
        "quantized": problem.fp8 or problem.kv_dtype is not None,
        "kv_heads": problem.kv_heads,
        "dtype_of_kv": Raw(of_kv),
        "weights": Raw(f"torch.{FP8}" if problem.fp8 else own),
    }


# --- text ---


def host_code(templates: tuple[str, ...], values: dict[str, object], kernel: str) -> tuple[str, str]:
    """(constants, the templates filled in). What stands in them often has the kernel's name, or one of the host's."""
    known = vars(module_in(kernel))
    named = values | {
        field: Raw(theirs if isinstance(known.get(theirs), int) and known[theirs] == values.get(field) else own)
        for field, (own, theirs, _) in NAMES.items()
    }
    for field, theirs in OF_KERNEL.items():
        value = values.get(field)
        if type(value) is int and getattr(known.get(theirs), "value", known.get(theirs)) == value:
            named[field] = Raw(theirs if isinstance(known[theirs], int) else f"{theirs}.value")
    text = "\n\n".join(
        filled_in((HOSTS / f"{name}.txt").read_text(encoding="utf-8"), values, named) for name in templates
    )
    body = CHECK.search(text)  # stands in the function that calls it, whose names it has
    text = text.replace(body[0], "").replace(f"    check({body['inputs']})\n", body["statements"])
    lines, taken = [], []
    for field, (own, theirs, said) in NAMES.items():
        if re.search(rf"\b{own}\b", text):
            if getattr(known.get(theirs), "value", None) == values[field]:
                taken.append((own, f"{theirs}.value"))
            else:
                lines.append(f"{own} = {values[field]!r}  # {said}\n")
    lines += [" = ".join(map(", ".join, zip(*taken, strict=True))) + "\n"] * bool(taken)
    return "".join(lines), text


def filled_in(template: str, values: dict[str, object], written: dict[str, object]) -> str:
    """A template's code behind its docstring, without what is not asked for. written: what stands for values in it."""
    lines, hidden = [], None  # hidden: how far the line is indented below which nothing is kept
    for line in without_docstring(template).splitlines():
        indent = len(line) - len(line.lstrip())
        if not line.strip():
            lines.append("")
            continue
        if hidden is not None and indent > hidden:
            continue
        hidden = None
        line, _, condition = line.partition("  #? ")
        if condition and not eval(condition, {}, values):
            hidden = indent
            continue
        lines.append(VALUE.sub(lambda found: repr(written[found[1]]), line).replace(", )", ")"))
    return "\n".join(lines) + "\n"


def source_of(function: Callable) -> str:
    """The text of a function of PyTorch's calls, and of those in its module's names that it calls."""
    called = [vars(sys.modules[function.__module__]).get(name) for name in function.__code__.co_names]
    texts = [inspect.getsource(its) for its in (*filter(inspect.isfunction, called), function)]
    text = "\n\n".join(text.replace("    import torch\n\n", "") for text in texts)
    return re.sub(r"; shapes as in ``[\w.]+``", "", text)


def without_docstring(text: str) -> str:
    """A module's text behind its docstring."""
    return text.split('"""', 2)[2].lstrip()


def joined(*texts: str) -> str:
    """One module of several, with all that they import in front, as far as it is used."""
    imports, bodies = {}, []
    for text in texts:
        lines = text.splitlines()
        for node in ast.parse(text).body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                origin = f"from {node.module} " if isinstance(node, ast.ImportFrom) else ""
                for alias in node.names:
                    as_other = f" as {alias.asname}" if alias.asname else ""
                    imports[alias.asname or alias.name.split(".")[0]] = f"{origin}import {alias.name}{as_other}"
                lines[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)
        bodies.append("\n".join(lines).strip())
    body = "\n\n\n".join(bodies)
    used = {name: line for name, line in imports.items() if re.search(rf"(?<![.\w]){name}\b", body)}
    return f"{import_lines(used)}\n\n{body}\n"  # ruff adds an empty line where a function comes first


def _constant(text: str, layout: object) -> Raw:
    """How the host code writes a layout: by the name of the kernel's constant, or as it is made."""
    for name, value in vars(module_in(text)).items():
        if getattr(value, "value", None) == layout:
            return Raw(f"{name}.value")
    return Raw(f"gl.{layout!r}")


def chosen() -> list[FusedStep]:
    """The steps of which ``steps/kernels/`` holds a program (``steps.export --all``), as the ladder has them.

    The path of cuTile, Gluon and Hopper as far as its steps can be exported, and of every other part the last or best.
    """
    return [get_step(name) for name in CHOSEN.split()]
