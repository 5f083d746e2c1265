"""``python -m steps.export``: programs of their own. They launch what the step launches, and compute what it does."""

import contextlib
import inspect
import io
import math
import os
import re
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from difflib import unified_diff
from importlib import import_module
from types import SimpleNamespace

import cuda.tile as ct
import pytest
import torch
from triton import knobs

from steps import Unsupported, get_step
from steps.backward_hopper.lib import NOBODY
from steps.backward_hopper.spare import SPARE
from steps.core import rules
from steps.core.fused import FusedStep
from steps.core.ladder import KERNELS, part_of, program_file, whole_ladder
from steps.core.launch import untold
from steps.cutile.launching import compiled_when_launched
from steps.export import main
from steps.exporting import tables
from steps.exporting.standalone import MOST_LINES, chosen, standalone
from steps.writing.written import module_in
from tests.selection import sampled
from tests.shapes import few_at_once, problem
from tutorial_lib import accuracy, interpreter, multicast, rewriting
from tutorial_lib.passes import pass_of
from tutorial_lib.problem import FP8, Problem
from tutorial_lib.simulator.machine import MACHINES
from tutorial_lib.simulator.run import simulate


def call(*arguments) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(list(arguments))
    return status, out.getvalue(), err.getvalue()


def signature(x):
    """What a launch tells of an argument."""
    if isinstance(x, torch.Tensor):
        return tuple(x.shape), used(x.stride(), x.shape), x.dtype
    if hasattr(x, "block_shape"):
        return signature(x.base), list(x.shape), used(x.strides, x.shape), list(x.block_shape), x.layout
    if isinstance(x, tuple):
        return tuple(map(signature, x))
    return round(x, 5) if isinstance(x, float) else x


def used(strides, shape):
    """Strides but for those along axes of length 1, which nothing reads."""
    return [stride for stride, length in zip(strides, shape, strict=True) if length > 1]


class Launches(list):
    """(grid, warps, blocks of a cluster, arguments as ``signature`` tells them, what lists hold) of every launch."""

    def note(self, grid, warps, ctas, arguments):
        constant = [x is None or isinstance(x, bool) or hasattr(x, "tile") or hasattr(x, "order") for x in arguments]
        told = [x for x, its in zip(arguments, constant, strict=True) if not its]
        lists = [x.tolist() for x in told if getattr(x, "dtype", None) == torch.int32 and x.numel() > 1]
        self.append(((*grid, 1, 1)[:3], warps, ctas, [signature(x) for x in told], lists))


@pytest.fixture
def launches(monkeypatch):
    """All launches on the CPU, of steps and of programs."""
    found = Launches()
    parts = ("fp8", "backward_hopper", "backward_blackwell")
    for name in ("gluon.launching", "hopper.launching", *(f"{part}.skeleton" for part in parts)):
        module = import_module(f"steps.{name}")

        def launcher(kernel, blocks, arguments, warps, *more, real=module.gluon_launcher, ctas=1, **asked):
            run = real(kernel, blocks, arguments, warps, *more, ctas=ctas, **asked)
            return lambda *tensors: found.note(blocks, warps, ctas, arguments) or run(*tensors)

        monkeypatch.setattr(module, "gluon_launcher", launcher)
    real_launch = interpreter.launch

    def launch(grid, function, arguments):
        found.note(grid, None, 1, arguments)
        real_launch(grid, function, arguments)

    monkeypatch.setattr(interpreter, "launch", launch)
    monkeypatch.setattr(ct, "launch", lambda stream, grid, kernel, arguments: launch(grid, kernel._pyfunc, arguments))
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    device = SimpleNamespace(multi_processor_count=3, gcnArchName="gfx950 cpu")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: device)
    with knobs.nvidia.scope():  # in which programs choose their ptxas
        yield found


class OnTheSimulator:
    """A kernel that is launched as Triton launches one."""

    def __init__(self, kernel, machine, launches, neighbours=1):
        # Another test may have put one of these in the kernel's place.
        self.kernel = kernel.kernel if isinstance(kernel, OnTheSimulator) else kernel
        self.machine, self.launches, self.neighbours = machine, launches, neighbours

    def __getitem__(self, grid):
        def run(*arguments, num_warps, num_ctas=1, **_):
            self.launches.note(grid, num_warps, num_ctas, arguments)
            how = {"machine": self.machine, "ctas": num_ctas, "neighbours": self.neighbours}
            simulate(self.kernel, grid, num_warps, *arguments, **how)

        return run


def program_of(step, asked, launches, lse=False):
    """A program's module, which launches on the CPU. cuTile's tiles are others there."""
    arch = "cpu" if step.backend == "cutile" else step.made_for
    module = module_in(standalone(step, asked, arch, lse).replace('"cuda"', '"cpu"'))
    text = inspect.getsource(module).replace(module.__doc__, "")  # which may quote launches of other problems
    for name in set(re.findall(r"^ +(\w+)\[.+\]\(", text, re.MULTILINE)):  # the kernels that it launches
        neighbours = 2 if hasattr(module, "for_pairs") else 1
        setattr(module, name, OnTheSimulator(getattr(module, name), MACHINES[step.made_for], launches, neighbours))
    return module


FUNCTION = {"forward": "attention", "backward": "gradients", "paged": "paged", "fp8": "attention"}
EXAMPLES = (
    *("mask_loop", "pack_gqa", "window", "split_kv", "paged", "two_blocks", "explicit", "gluon_larger_tile"),
    *(
        "pv_wait_after_max",
        "kv_multicast",
        "next_softmax_first",
        "deferred_reduce_add",
        "blackwell_persistent",
        "two_cta_mma",
    ),
    *("plain_triton", "xcd_swizzle", "varlen", "attention_sinks", "cutile_sinks"),
    *("qk_fp8", "p_offset", "two_level_accumulation", "cutile_fp8", "fp8_kv"),
)
CHOSEN = [get_step(name) for name in EXAMPLES]  # a kind of launch each
PYTORCHS = ("naive", "formulas", "sdpa", "sdpa_gradients", "fp8_dequantized", "gathered")
QUICK = ("mask_loop", "paged", "explicit", "xcd_swizzle", "varlen", "cutile_sinks", "two_level_accumulation", "fp8_kv")
KEPT = chosen()
LAST_OF_PARTS = list({part_of(step.number): step for step in KEPT}.values())
STEPS = [step for step in whole_ladder() if isinstance(step, FusedStep)]


def case(step, **changes):
    """A small problem that a step is for, with lengths that differ and fill no tile."""
    usual = step.default_problem
    shape = {"batch": 1, "heads": 4, "seq_len_q": 200, "seq_len_kv": 150, "causal": usual.causal}
    shape |= {"head_dim": 64 if step.takes_head_dim(64) else usual.head_dim}
    shape |= {"window": usual.window and 70, "softcap": usual.softcap, "page_size": usual.page_size}
    shape |= {"sinks": usual.sinks, "kv_dtype": usual.kv_dtype} | ({"dtype": FP8} if usual.fp8 else {})
    shape |= {"lengths": (90, 1, 109), "lengths_kv": (60, 30, 60)} if usual.lengths else {}
    shape |= {"kv_heads": 2} if usual.group_size > 1 else {}
    shape |= {"seq_len_q": 1} if usual.seq_len_q == 1 else {}
    return problem(**shape | changes)


def without_pairs(step):
    """The step as its program is: only those that are made of pairs of blocks for every problem have these there."""
    return replace(step, pairs=False) if getattr(step, "pairs", False) not in (False, True) else step


def assert_alike(step, asked, launches):
    """A step's program launches what the step does, and is right."""
    module, way, launches[:] = program_of(step, asked, launches), pass_of(step), []
    inputs = way.inputs(asked, 0)
    alone = without_pairs(step)
    if asked.head_dim == 256 and getattr(step, "wide_helpers", None) == SPARE:
        alone = replace(step, wide_helpers=NOBODY)
    with untold(None):
        expected = way.call(alone, asked, inputs)
    theirs, launches[:] = list(launches), []
    made = getattr(module, FUNCTION[step.direction])(*inputs)
    for (*ours, lists), (*its, its_lists) in zip(launches, theirs, strict=True):
        assert ours == its
        assert lists == its_lists or step.direction == "backward"  # whose counts nobody has written so far
    exact = way.reference(asked, inputs)
    made = made if isinstance(made, tuple) else (made,)
    for mine, other, right, limit in zip(made, expected, exact, way.yardstick(asked, inputs, exact), strict=True):
        assert accuracy.compare(mine, right, getattr(limit, "in_tensor_cores", limit)).correct
        assert step.direction == "backward" or torch.equal(mine, other)


@sampled(core=lambda step: step in CHOSEN and step.name not in ("pv_wait_after_max", "blackwell_persistent"))
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_a_program_launches_what_its_step_does_and_is_right(step, launches):
    try:
        assert_alike(step, case(step), launches)
    except Unsupported as error:
        assert step.number is None and "cannot be exported" in str(error)


@pytest.mark.parametrize("changes", [{}, {"causal": False, "kv_heads": 2}], ids=str)
@pytest.mark.parametrize("name", PYTORCHS)
def test_steps_of_pytorchs_calls_make_programs_too(name, changes, launches, capsys):
    step = get_step(name)
    text = standalone(step, case(step, **changes))
    assert_short(step, text)
    assert module_in(text).main() == 2
    assert re.fullmatch(r"this program needs an? .* GPU .*\n", capsys.readouterr().err)
    assert not ABOUT_HERE.search(text) and "triton.experimental" not in text
    assert_alike(step, case(step, **changes), launches)


@pytest.mark.parametrize(
    "name, changes", [("fp8_dequantized", {"dtype": "float16", "kv_dtype": FP8}), ("gathered", {})]
)
def test_so_they_do_for_what_else_they_take(name, changes, launches):
    """Keys and values alone in fp8; places of a table, and pages behind a sequence's end, that hold anything."""
    step = get_step(name)
    if changes:
        assert_alike(step, case(step, **changes), launches)
        return
    asked = case(step)
    q, k, v, table, lengths = pass_of(step).inputs(asked, 0)
    lengths[0] = 1
    k[table[0, 0].long(), 1:] = v[table[0, 0].long(), 1:] = math.nan
    table[0, 1:] = 2**30
    with untold(None):
        expected = pass_of(step).call(step, asked, (q, k, v, table, lengths))
    made = program_of(step, asked, launches).paged(q, k, v, table, lengths)
    assert made.isfinite().all() and torch.equal(made, *expected)


@pytest.mark.parametrize("causal", [True, False])
def test_a_program_says_that_it_leaves_spare_warps_out_where_warpgroups_have_roles(causal, launches, monkeypatch):
    few_at_once(monkeypatch)
    step, asked = get_step("coalesced_atomics"), case(get_step("coalesced_atomics"), head_dim=256, causal=causal)
    assert step.variant(asked).spare
    assert "Not included: warps beside the producer" in " ".join(standalone(step, asked).split())
    assert_alike(step, asked, launches)


@pytest.mark.parametrize("changes", [{"window": 70}, {"softcap": 3.0}], ids=str)
@pytest.mark.parametrize("name", ["deferred_reduce_add", "fast_deterministic"])
def test_so_it_does_for_gradients_under_a_window_or_a_soft_cap(name, changes, launches):
    assert_alike(get_step(name), case(get_step(name), causal=True, kv_heads=2, **changes), launches)


@pytest.mark.parametrize("name", ["deferred_reduce_add", "two_blocks"])
def test_gradients_of_packed_sequences_are_refused(name):
    asked = Problem.packed((100, 30), heads=2, head_dim=64, causal=True)
    with pytest.raises(Unsupported, match=f"{name} cannot be exported with packed sequences"):
        standalone(get_step(name), asked)


def test_the_hosts_constants_are_not_left_out(monkeypatch):
    """Where there are none of the kernel that they could stand with."""
    monkeypatch.setattr("steps.exporting.standalone.CONSTANTS", re.compile("there are none"))
    step = get_step("explicit")
    with pytest.raises(Unsupported, match="its kernel has no constants"):
        standalone(step, step.default_problem)


@sampled(core=lambda step: step.name == "wgmma")
@pytest.mark.parametrize("step", [s for s in KEPT if s.backend in ("hopper", "blackwell")], ids=lambda step: step.name)
def test_a_program_returns_the_log_sum_exp_where_it_is_asked_for(step, launches):
    asked = case(step)
    if step.direction != "forward":
        with pytest.raises(Unsupported, match="cannot be exported with the log-sum-exp"):
            standalone(step, asked, lse=True)
        return
    module, inputs = program_of(step, asked, launches, lse=True), pass_of(step).inputs(asked, 0)
    q, k, v, *more = inputs
    with untold(None):
        o, lse = without_pairs(step).make_ready(asked, q, k, v, None, return_lse=True)(q, k, v, None, *more)
    mine = module.attention(*inputs)
    assert torch.equal(mine[0], o) and torch.equal(mine[1], lse)


OTHERS = [
    {"kv_heads": 2, "head_dim": 128, "causal": False},
    {"dtype": "bfloat16", "head_dim": 32, "causal": True},
    {"seq_len_q": 256, "seq_len_kv": 256, "head_dim": 128, "batch": 2},
    {"seq_len_q": 1024, "seq_len_kv": 256, "heads": 2, "head_dim": 128},
]


@sampled(core=lambda step, other: other == 0 and step.name in QUICK)
@pytest.mark.parametrize("other", range(len(OTHERS)))
@pytest.mark.parametrize("step", CHOSEN, ids=lambda step: step.name)
def test_so_it_does_for_other_problems(step, other, launches):
    changes = OTHERS[other]
    if step.default_problem.features:  # which not all masks and lengths go with
        kept = ("head_dim", "heads", "kv_heads", *(("dtype",) if not step.default_problem.fp8 else ()))
        kept += () if step.default_problem.lengths else ("batch",)
        changes = {name: value for name, value in changes.items() if name in kept}
    asked = case(step, **changes)
    if (reason := step.unsupported(asked, "cpu")) is None:
        assert_alike(step, asked, launches)
    else:
        with pytest.raises(Unsupported, match=re.escape(reason)):
            standalone(step, asked, "cpu")


ALL_KEYS = {
    "shared queries": ({"seq_len_q": 600, "seq_len_kv": 77}, "q's length: expected above 256, got 200"),
    "two tiles": ({"seq_len_q": 130, "seq_len_kv": 200}, "k's length: expected 129 to 256, got 77"),
    "columns": ({"seq_len_kv": 200, "head_dim": 80}, None),
}


@pytest.mark.parametrize("name", ALL_KEYS)
def test_so_it_does_where_a_block_has_all_keys_of_a_head(name, launches, monkeypatch):
    monkeypatch.setitem(rules.WHERE, "two_tiles_of_keys", lambda problem: 128 < problem.seq_len_kv <= 256)
    step, (changes, refused) = replace(get_step("deferred_reduce_add")), ALL_KEYS[name]
    asked = case(step, causal=False, **{"heads": 2} | changes)
    assert_alike(step, asked, launches)
    if refused:
        other = pass_of(step).inputs(replace(asked, seq_len_q=200, seq_len_kv=77), 0)
        with pytest.raises(ValueError, match=re.escape(refused)):
            program_of(step, asked, launches).gradients(*other)


@sampled(core=lambda step, changes: False)
@pytest.mark.parametrize("changes", [{}, {"causal": True}, {"kv_heads": 1}, {"kv_heads": 1, "causal": True}], ids=str)
@pytest.mark.parametrize(
    "step", [s for s in STEPS if getattr(s, "helpers", None) and s.cta_per_query_head][-3:], ids=lambda s: s.name
)
def test_a_program_has_what_spare_warps_and_query_heads_apart_need(step, changes, launches, monkeypatch):
    few_at_once(monkeypatch)
    assert_alike(step, case(step, heads=8, seq_len_kv=200, **{"kv_heads": 8, "causal": False} | changes), launches)


@sampled(core=lambda changes: changes.get("head_dim_v") != 160)
@pytest.mark.parametrize(
    "changes",
    [
        {"head_dim_v": 128, "kv_heads": 2, "dtype": "bfloat16"},
        {"head_dim_v": 128, "causal": False},
        {"head_dim_v": 160, "causal": False},
        {"head_dim_v": 64, "head_dim": 128},
    ],
    ids=str,
)
def test_a_program_takes_values_narrower_than_keys(changes, launches):
    asked = problem(**{"batch": 1, "heads": 4, "seq_len_q": 200, "seq_len_kv": 290, "head_dim": 192} | changes)
    assert_alike(get_step("narrow_values"), asked, launches)
    module = program_of(get_step("narrow_values"), asked, launches)
    q = torch.zeros(1, 4, 200, asked.head_dim, dtype=getattr(torch, asked.dtype))
    with pytest.raises(ValueError, match=rf"v: expected .*{asked.head_dim_v}\] on cpu"):
        module.attention(q, *[q[:, : asked.kv_heads]] * 2)


def test_kernels_of_one_program_may_have_other_tiles(launches):
    step = get_step("two_blocks")  # whose kernels take 64 and 128 queries at head_dim 128
    assert_alike(step, case(step, head_dim=128), launches)


@sampled(core=lambda step: step.name in (*QUICK, *PYTORCHS, "two_blocks"))
@pytest.mark.parametrize("step", [*CHOSEN, *map(get_step, PYTORCHS)], ids=lambda step: step.name)
def test_a_program_that_is_started_tells_what_is_right_and_what_is_wrong(step, launches, monkeypatch, capsys):
    module = program_of(step, case(step), launches)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (int(step.made_for[3:-1]), int(step.made_for[-1])))
    times = iter((1.0, 1.25))
    monkeypatch.setattr(module, "do_bench", lambda function, return_mode: next(times))
    assert module.main() == 0
    outputs = ("dq", "dk", "dv") if step.direction == "backward" else ("o",)
    lines = [rf"{step.name}: {name} right, error \S+, at most \S+ is allowed\n" for name in outputs]
    if step.direction == "fp8":
        lines.append(rf"{step.name}: quantizing changes o by 0\.\d+\n")
    speed = pass_of(step).operations(case(step)) / 1e9
    theirs = rf"(SDPA|PyTorch): 1.2500 ms, {speed / 1.25:.1f} TFLOPS; 1.25 times as fast\n"
    lines += f"{step.name}: 1.0000 ms, {speed:.1f} TFLOPS; {theirs}"
    assert re.fullmatch("".join(lines), capsys.readouterr().out)
    name = FUNCTION[step.direction]
    real = getattr(module, name)
    monkeypatch.setattr(module, name, lambda *given: wrong(real(*given)))
    assert module.main() == 1
    assert f"{step.name}: {outputs[-1]} WRONG" in capsys.readouterr().out


def wrong(made):
    """With a number that is off, in the last output."""
    last = made[-1] if isinstance(made, tuple) else made
    last[(0,) * last.ndim] += 0.5
    return made


@sampled(core=lambda step: step.name == "pv_wait_after_max")
@pytest.mark.parametrize("step", [step for step in CHOSEN if step.pads_head_dim], ids=lambda step: step.name)
def test_a_head_dim_between_those_of_tiles_is_filled_up(step, launches):
    assert_alike(step, case(step, head_dim=80), launches)


@pytest.mark.parametrize("step", KEPT, ids=lambda step: step.name)
def test_the_kernel_of_a_program_is_the_code_of_its_step(step):
    """For the problem and the architecture that the step is for; with cuTile's hints as the program gives them."""
    asked, module = step.default_problem, module_in(program_file(step).read_text(encoding="utf-8"))
    step = without_pairs(step)
    names = {name for name, value in vars(module).items() if isinstance(value, ct.kernel)}
    kernel = module.OF_KEYS if "OF_KEYS" in names else module.KERNEL if names else None
    if kernel is None:
        entry = step.entry(asked, step.made_for)[0].fn.__name__
        its, own = step.compile_kernel(getattr(module, entry), asked, step.made_for), step.compile(asked)
        assert its.code == own.code, its.differs_from(own)
    else:
        configured = step.configured(asked, step.made_for)
        own = configured.compile_kernel(configured.entry(asked, step.made_for)[0], asked, step.made_for)
        its = configured.compile_kernel(kernel._pyfunc, asked, step.made_for)
        assert its.code == own.code, its.differs_from(own)
        assert kernel._compiler_options == hinted(configured, asked)._compiler_options


PAIRS = [step for step in STEPS if getattr(step, "pairs", False) is True]


@sampled(core=lambda step: step.name == "kv_multicast")
@pytest.mark.parametrize("step", PAIRS, ids=lambda step: step.name)
def test_a_program_makes_pairs_of_blocks_by_itself(step, monkeypatch):
    """Its own hook makes of its kernel what the tutorial's makes of the step's, as far as that is about pairs."""
    asked = step.default_problem
    text = standalone(step, asked)
    assert step.number is None or assert_short(step, text) is None
    assert not ABOUT_HERE.search(text)
    module, cluster = module_in(text), "\n.reqnctapercluster 2\n"
    kernel = getattr(module, step.entry(asked, step.made_for)[0].fn.__name__)
    monkeypatch.setattr(rewriting, "VERSION", f"pairs alone: {multicast.VERSION}")
    monkeypatch.setattr(rewriting, "rewritten", multicast.rewritten)
    own = step.compile(asked)

    @contextlib.contextmanager
    def by_the_program():
        with knobs.runtime.scope():
            knobs.runtime.add_stages_inspection_hook = module.hook
            yield

    monkeypatch.setattr(rewriting, "VERSION", module.KNOWN_AS)
    monkeypatch.setattr(rewriting, "written_into_ptx", by_the_program)
    its = step.compile_kernel(kernel, asked, step.made_for)
    assert its.code == own.code, its.differs_from(own)
    assert cluster in its.texts.ptx and cluster not in own.texts.ptx


@pytest.mark.parametrize("change", [("%bb.0", "%bb.7"), (".reqntid", ".maxntid"), ("arrive", "other"), ("// to", "")])
def test_it_refuses_ptx_that_it_does_not_know_in_one_line(change, monkeypatch):
    step = get_step("kv_multicast")
    module = module_in(standalone(step, step.default_problem))
    ptx = (
        ".reqntid 384\n{\n// %bb.0:\n// to both CTAs, or to the other:\n"
        "@%p1 mbarrier.arrive.shared::cta.b64 _, [%r1], 1;\n// to this CTA:\n"
    )
    made = module.for_pairs(ptx)
    assert "mapa.shared::cluster.u32 there, %r1, other; @%p1 mbarrier.arrive.shared::cluster.b64 _, [there]; }" in made
    assert made.index("barrier.cluster.arrive.release; }") < made.index("// to both")
    with pytest.raises(RuntimeError, match=r"^blocks in pairs were written for the PTX of Triton 3\.9, not .*: .*$"):
        module.for_pairs(ptx.replace(*change))


def hinted(step, asked):
    """The kernel of a step in cuTile as it is launched."""
    function = step.entry(asked, step.made_for)[0]
    if hasattr(step, "compiled_when_launched"):
        return step.compiled_when_launched(function)
    shape = step.keys if hasattr(step, "keys") else step.kernel(step.variant(asked, step.made_for))[1]
    return compiled_when_launched(function, shape)


# Lines of host code; of whole programs ``MOST_LINES``.
MOST_HOST = 125
ABOUT_HERE = re.compile(r"tutorial_lib|steps\.(?!export)|(?:from|import) steps|\w\.py\b|skeleton|notebook")


def assert_short(step, text):
    """A program has no more lines than it may have."""
    assert text.count("\n") <= MOST_LINES[step.backend]


NUMBERED = [step for step in STEPS if step.number is not None and step not in KEPT]


@sampled(core=lambda step: step.name in ("cluster", "transposed_scores"))
@pytest.mark.parametrize("step", NUMBERED, ids=lambda step: step.name)
def test_a_program_that_is_not_kept_is_short_too(step):
    assert_short(step, standalone(step, step.default_problem))


@pytest.mark.parametrize("step", KEPT, ids=lambda step: step.name)
def test_a_program_is_short_names_nothing_of_the_project_and_tells_which_gpu_it_needs(step, capsys):
    text = program_file(step).read_text(encoding="utf-8")
    assert_short(step, text)
    assert text[text.index("\ndef expect(") :].count("\n") <= MOST_HOST
    assert not ABOUT_HERE.search(text)
    assert {*re.findall(r"``(\w+)``", text)} <= {*re.findall(r"\w+", re.sub(r"``\w+``", "", text))}
    assert f"python -m steps.export {step.name} " in text
    assert module_in(text).main() == 2
    assert re.fullmatch(r"this program needs an? .* GPU .*\n", capsys.readouterr().err)


def test_a_program_runs_where_the_project_is_not(tmp_path):
    path = tmp_path / "fmha.py"
    path.write_text(standalone(get_step("exp2"), get_step("exp2").default_problem), encoding="utf-8")
    where = {**os.environ, "PYTHONPATH": "", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, path], cwd=tmp_path, env=where, capture_output=True, encoding="utf-8")
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"this program needs an? .* GPU .*\n", done.stderr)


def test_a_program_tells_in_one_line_what_it_was_not_made_for(launches):
    step = CHOSEN[0]
    asked = case(step, seq_len_q=256, seq_len_kv=256, kv_heads=2)
    module = program_of(step, asked, launches)
    q, k, v = pass_of(step).inputs(asked, 0)
    for given, told in {
        (q[..., :32], k, v): r"q: expected torch\.float16 \[1, 4, 256, 64\] on cpu, got .*16 \[1, 4, 256, 32\]",
        (q[0], k, v): r"q: expected torch\.float16 \[4, 256, 64, 64\] on cpu, got torch\.float16 \[4, 256, 64\]",
        (q, k[0], v): r"k: expected torch\.float16 \[1, 256, 64, 64\] on cpu, got torch\.float16 \[2, 256, 64\]",
        (q, k.bfloat16(), v): r"k: expected torch\.float16 .*, got torch\.bfloat16 ",
        (q, k.to("meta"), v): r"k: expected torch\.float16 .* on cpu, got torch\.float16 .* on meta",
        (q, k, v[:, :, :5]): r"v: expected torch\.float16 \[1, 2, 256, 64\] on cpu, got torch\.float16 \[1, 2, 5, 64\]",
        (q[:, :2], k, v): r"q: expected 2 heads for each of k's 2, got 2",
        (q, k[:, :, :0], v[:, :, :0]): r"q and k: expected no length of 0, got \[1, 4, 256, 64\] and \[1, 2, 0, 64\]",
        (q, k[:, :, :99], v[:, :, :99]): r"k: expected a multiple of \d+ keys, got 99",
    }.items():
        with pytest.raises(ValueError, match=told):
            module.attention(*given)


@sampled(core=lambda name: name != "attention_sinks")
@pytest.mark.parametrize("name", ["varlen", "attention_sinks", "two_level_accumulation"])
def test_a_program_tells_in_one_line_which_input_beside_the_tensors_it_does_not_take(name, launches):
    step = get_step(name)
    module, (q, k, v, first, *more) = program_of(step, case(step), launches), pass_of(step).inputs(case(step), 0)
    argument = {"varlen": "cu_seqlens_q", "attention_sinks": "sinks", "two_level_accumulation": "q_scale"}[name]
    twice = torch.stack((first, first), -1)
    for given, told in {
        (first.double(), *more): rf"{argument}: expected contiguous {first.dtype} .*, got contiguous torch.float64 .*",
        (first.to("meta"), *more): rf"{argument}: expected .* on cpu, got .* on meta",
        (twice, *more): rf"{argument}: expected .*, got .* \[.*2\] on cpu",
        (twice[..., 0], *more): rf"{argument}: expected contiguous .*, got {first.dtype}",
        **({(first[:1], more[0][:1]): "cu_seqlens_q: expected 2 to 4 numbers, got 1"} if name == "varlen" else {}),
        **({(first, more[0][:2]): r"cu_seqlens_k: expected .* \[4\] on cpu, got"} if name == "varlen" else {}),
    }.items():
        with pytest.raises(ValueError, match=told):
            module.attention(q, k, v, *given)


def test_a_program_takes_no_tensor_that_tma_cannot_read(launches):
    step = get_step("wgmma")
    module = program_of(step, case(step), launches)
    q, k, v = pass_of(step).inputs(case(step), 0)
    room = q.new_zeros(q.numel() + 4 * q.shape[2] * q.shape[1])
    misplaced = room[1 : q.numel() + 1].view(q.shape)
    wide = room.view(*q.shape[:3], -1)[..., : q.shape[3]]
    for given in (wide, q[:, :, :1].expand(q.shape), q.mT.contiguous().mT):
        with pytest.raises(ValueError, match="q: expected strides in steps of 16 bytes, and a last one of 1"):
            module.attention(given, k, v)
    with pytest.raises(ValueError, match=r"q: expected data that begin at a multiple of 16 bytes, got 0x.*2$"):
        module.attention(misplaced, k, v)
    module.attention(q.transpose(1, 2).contiguous().transpose(1, 2), k, v)


@sampled(core=lambda step: step.name == "wgmma")
@pytest.mark.parametrize("step", [s for s in KEPT if s.backend in ("hopper", "blackwell")], ids=lambda step: step.name)
def test_the_table_of_shared_memory_is_what_triton_allocates(step):
    """But for what it adds for roles: which function a warp runs, and registers that it hands over."""
    text = program_file(step).read_text(encoding="utf-8")
    told = int(re.search(r"\btogether ([\d,]+)\.$", text, re.MULTILINE)[1].replace(",", ""))
    assert 0 <= step.compile(step.default_problem).shared_bytes - told < 1024


def test_the_table_of_barriers_tells_of_counts_in_global_memory_and_of_other_kernels():
    text = program_file(get_step("deferred_reduce_add")).read_text(encoding="utf-8")
    for row in (
        r"counts +consume 0, consume 1 +spare 4",
        r"counts +spare 3 +produce 2",
        r"kernel before +produce 2, spare 3, spare 4",
        r"next kernel +produce 2",
    ):
        assert re.search(f"^{row}$", text, re.MULTILINE), row


@pytest.mark.parametrize("head_dim", [96, 192])
def test_the_table_of_barriers_is_made_between_the_head_dims_of_tiles(head_dim):
    step = get_step("deferred_reduce_add")
    notes = tables.backward_notes(step, replace(step.default_problem, head_dim=head_dim))
    assert {"tiles.query", "tiles.d_scores"} <= set(notes.names.values())
    assert any(row.wait and "TMA" in row.arrive for row in notes.rows.values())


def test_the_table_of_a_cluster_has_its_barrier_tensor_memory_and_who_doubles_arrivals():
    text = program_file(get_step("two_cta_mma")).read_text(encoding="utf-8")
    both = "all warps of both CTAs"
    assert re.search(rf"^cluster barrier +{both} +{both}$", text, re.MULTILINE)
    assert "share key_full, query_full, value_full: there Triton doubles the arrivals" in " ".join(text.split())
    columns = re.search(r"^Columns of tensor memory of each CTA: (.*); together (\d+)\.$", text, re.MULTILINE)
    assert sum(map(int, re.findall(r"\d+", columns[1]))) == int(columns[2]) <= 512
    alone = program_file(get_step("wgmma")).read_text(encoding="utf-8")
    assert "cluster" not in alone and "tensor memory" not in alone


def test_a_program_says_where_it_leaves_pairs_of_blocks_out():
    step = get_step("next_softmax_first")
    text = standalone(step, replace(step.default_problem, causal=False))
    assert "two neighboring blocks share" in " ".join(text.split()) and "for_pairs" not in text
    assert_short(step, text)


def test_a_program_that_would_be_too_long_does_not_tell_of_others():
    step = get_step("next_softmax_first")
    told, long = (standalone(step, step.default_problem, lse=lse) for lse in (False, True))
    assert_short(step, long)
    assert "With --head-dim 64 it writes" in told and "it writes" not in long


@pytest.mark.parametrize("name", ["mma", "wgmma"])
def test_what_a_program_would_have_otherwise_is_what_the_other_program_has(name):
    step = get_step(name)
    text = program_file(step).read_text(encoding="utf-8")
    told = re.search(r"^With --head-dim 64 it writes: (.*(?:\n.+)*)\.$", text, re.MULTILINE)[1]
    other = module_in(standalone(step, replace(step.default_problem, head_dim=64)))
    numbers = re.findall(r"([A-Z_]+) (\d+)(?:;|$)", " ".join(told.split()))
    assert ("HEAD_DIM", "64") in numbers
    for constant, number in numbers:
        assert getattr(getattr(other, constant), "value", getattr(other, constant)) == int(number)
    own = module_in(text)
    same = {n for n, v in vars(own).items() if n.isupper() and repr(v) == repr(getattr(other, n, None))}
    assert not same & {constant for constant, _ in numbers}
    told = " ".join(told.split())
    less = re.search(r"not as functions of their own: ([\w, ]+)", told)
    functions, its_functions = (
        {n for n, v in vars(made).items() if v.__class__.__name__ in ("function", "JITFunction")}
        for made in (own, other)
    )
    assert functions - its_functions == (set(less[1].split(", ")) if less else set())
    assert its_functions - functions == set(re.findall(r"; also (\w+)", told))


def test_constants_that_this_program_lacks_are_left_out_and_functions_are_told_with_what_they_do():
    text = program_file(get_step("deferred_reduce_add")).read_text(encoding="utf-8")
    told = " ".join(re.search(r"^With --head-dim 128 it writes: (.*(?:\n.+)*)\.$", text, re.MULTILINE)[1].split())
    assert "ADDED_UP" not in told and "also number_of (A number for each query, " in told


def test_the_host_code_names_the_kernels_constants():
    text = program_file(get_step("deferred_reduce_add")).read_text(encoding="utf-8")
    host = text[text.index("\ndef expect(") :]
    for name in ("AHEAD", "SMALL_ROWS", "QUERY_ROWS", "QUERY_COLUMNS", "ROWS_PREPARED", "ROWS_SCALED"):
        assert f"{name}.value" in host
    launch = host[host.index("\ndef gradients(") : host.index("\ndef exact(")]
    assert not re.search(r"(?<!<< )\b(?:144|32|16)\b(?! ==| bytes)", launch)  # but for shifts and sizes in bytes


def test_the_command_writes_a_program_and_refuses_what_makes_none(tmp_path):
    path = tmp_path / "fmha.py"
    status, out, err = call("mma", "--head-dim", "64", "--no-causal", "--output", str(path))
    assert (status, out, err) == (0, f"{path}\n", "")
    assert "Compiled in: head_dim 64, float16, no mask." in path.read_text(encoding="utf-8")
    assert call("mma", "--head-dim", "64", "--no-causal")[1] == path.read_text(encoding="utf-8")
    for asked, told in {
        ("sdpa", "--window", "64"): "step 0 sdpa cannot be exported with sliding window",
        ("naive", "--window", "64"): "step 1 naive",
        (
            "ring",
        ): "step 801 ring has no kernel of its own to export: it computes over several GPUs. Export the kernels",
        ("varlen", "--window", "64"): "varlen cannot be exported with sliding window and packed sequences at once",
        ("qk_fp8", "--lse"): "step 301 qk_fp8 cannot be exported with the log-sum-exp",
        ("mma", "--dtype", "float8_e4m3fn"): "step 2 mma: takes no inputs in fp8",
        ("mma", "--lse"): "step 2 mma cannot be exported with the log-sum-exp",
        ("mma", "--head-dim", "512"): "step 2 mma: head_dim must be",
        ("no_such_step",): "no step no_such_step",
        (): "name a step, or ask for --all",
        ("mma", "--arch", "cpu"): "argument --arch: must be one of sm_80, ",
        ("mma", "--arch", "sm_"): "got 'sm_'",
        ("mma", "--all"): "argument --all: takes no step and no other argument",
        ("--all", "--head-dim", "64"): "argument --all: takes no step and no other argument",
        ("mma", "--output", "/dev/null"): "argument --output: must be a file, got /dev/null",
        ("two_streams",): "step two_streams is no more; the nearest is backward_ping_pong",
        ("mma", "--output", str(tmp_path)): "argument --output: must be a file",
    }.items():
        status, out, err = call(*asked)
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert told in err, err


def test_all_writes_the_chosen_programs(tmp_path, monkeypatch):
    """No more than a reader would look through, and no other is kept."""
    assert {path.name for path in KERNELS.glob("*.py")} == {program_file(step).name for step in KEPT}
    assert len(KEPT) <= 30
    monkeypatch.setattr("steps.core.ladder.KERNELS", tmp_path)
    monkeypatch.setattr("steps.exporting.standalone.chosen", lambda: KEPT[:2])
    status, out, err = call("--all")
    assert (status, err) == (0, "") and out.splitlines() == [str(tmp_path / f"{n}.py") for n in ("002_mma", "003_exp2")]
    made, kept = ((folder / "002_mma.py").read_text(encoding="utf-8") for folder in (tmp_path, KERNELS))
    assert made == kept


def test_a_table_is_the_same_when_the_kernel_has_run_before():
    """The simulator keeps what it has made of a kernel, and what notes arrivals must not be a part of that."""
    step = get_step("deferred_reduce_add")
    first, again = (standalone(step, step.default_problem) for _ in range(2))
    assert "\ncounts  " in first and first == again


# A program is written twice, once for another head_dim: seconds each.
@sampled(core=lambda step: step in LAST_OF_PARTS)
@pytest.mark.parametrize("step", KEPT, ids=lambda step: step.name)
def test_a_program_that_is_kept_is_what_is_exported_now(step):
    kept = program_file(step).read_text(encoding="utf-8")
    now = standalone(step, step.default_problem)
    assert kept == now, f"python -m steps.export --all makes this of it:\n{first_differences(kept, now)}"


def first_differences(kept, now):
    """The first lines in which two programs differ, and in which function."""
    lines = [*unified_diff(kept.splitlines(), now.splitlines(), "kept", "now", n=1, lineterm="")]
    at = int(re.match(r"@@ -(\d+)", lines[2])[1])
    above = [line for line in kept.splitlines()[: at + 1] if line.startswith("def ")]
    where = above[-1].partition("(")[0].removeprefix("def ") if above else "the header or the constants"
    return "\n".join([f"first in {where}", *lines[2:14]])


def test_what_differs_is_told_with_the_function():
    kept = program_file(get_step("mma")).read_text(encoding="utf-8")
    said = first_differences(kept, kept.replace("return o\n", "return -o\n", 1))
    assert said.startswith("first in attention\n") and "\n-" in said and "\n+" in said
    assert "first in the header" in first_differences(kept, kept.replace("Attention", "attention", 1))
