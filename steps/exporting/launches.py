"""What a step's launch tells a standalone program: which templates of host code it takes, and their values.

Each class of steps has a function here, which asks the step for what its own launch asks for: shapes of tiles, boxes
and layouts for TMA, warps, hints to the compiler, and which block computes which tiles.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial, singledispatch

from steps.backward_blackwell import keys, lib
from steps.backward_blackwell import variant as blackwell
from steps.backward_blackwell.skeleton import BlackwellGradients
from steps.backward_cutile import kernel as backward_kernels
from steps.backward_cutile.skeleton import ROWS, CuTileGradients
from steps.backward_hopper import rows
from steps.backward_hopper.lib import NOBODY
from steps.backward_hopper.skeleton import ROW_WARPS, HopperGradients
from steps.core.gradients import TorchGradients
from steps.core.order import Order
from steps.core.paged import TorchPaged
from steps.core.quantized import TorchQuantized
from steps.core.step import Step, TorchStep, Unsupported
from steps.core.tiles import Tile
from steps.cutile.skeleton import CuTileStep
from steps.everyday import decoding
from steps.everyday.step901_gathered import sdpa_of_gathered
from steps.exporting.tables import backward_notes, forward_notes, fp8_notes, query_notes, tables
from steps.fp8 import transpose
from steps.fp8.skeleton import Fp8Step
from steps.fp8.step300_fp8_dequantized import sdpa_of_dequantized
from steps.gluon.launching import PointerStep
from steps.hopper.launching import TmaStep
from steps.reference.autograd import AutogradGradients
from tutorial_lib.architectures import REFERENCE_GPUS
from tutorial_lib.problem import FEATURES, Problem
from tutorial_lib.reference import sdpa


class Raw(str):
    """Text of a program, written as it is."""

    __repr__ = str.__str__


@dataclass
class Launch:
    """What a program is made of. hosts: templates; kernels: the main one first, name in them -> (entry, constants).

    values: what stands for ``HOST.name``, and what conditions ask for; layouts: likewise, written by the names that the
    kernel has for them. left_out: what the tutorial's step does besides. tables: makes what tells of the kernel.
    """

    hosts: tuple[str, ...]
    kernels: dict[str, tuple[Callable, dict]]
    values: dict[str, object]
    layouts: dict[str, object] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    tables: Callable[[], list[str]] = list


REWRITTEN = "Not included: the tutorial's hook in Triton that rewrites PTX (descriptors of wgmma, barriers)."
REWRITTEN_BUT_PAIRS = (
    "Not included: what else the tutorial's hook in Triton rewrites in PTX (descriptors of wgmma, barriers of warps)."
)
SPARE = (
    "Not included: warps beside the producer that in the tutorial's step do the small kernels' work, for heads whose "
    "blocks begin later or have ended."
)
PAIRED = (
    "Not included: on this problem the tutorial's step also has two neighboring blocks share what TMA brings of keys "
    "and values. The program of step kv_multicast does so."
)
WITH_FORWARD = (
    "PyTorch's backward pass reads what its own forward pass keeps. So the function runs that, too, and reads neither "
    "o nor lse; SDPA's time beside it is that of the backward pass alone, as the tutorial measures it."
)
AROUND_SDPA = {
    sdpa: (),
    sdpa_of_dequantized: ("fp8", "kv_dtype"),
    sdpa_of_gathered: ("page_size",),
}  # and what it takes


@singledispatch
def launch_of(step: Step, problem: Problem, arch: str) -> Launch:
    """What a program of this step is made of."""
    raise Unsupported(f"step {step.label} is launched in a way that is not exported")


def with_lse(step: Step, launch: Launch) -> Launch:
    """A launch whose kernel writes the log-sum-exp, too. Raises Unsupported for a step whose launch hands none back."""
    entry, bound = launch.kernels["kernel"]
    if step.direction != "forward" or "LSE" not in bound:
        why = "only forward kernels in 16 bits for Hopper and Blackwell are"
        raise Unsupported(f"step {step.label} cannot be exported with the log-sum-exp: {why}")
    bound = {name: value for name, value in bound.items() if name != "LSE"}
    bound["variant"] = replace(bound["variant"], lse=True)
    values = launch.values | {"last": Raw(", ".join(filter(None, ["lse", launch.values["last"]])))}
    return replace(launch, values=values, kernels={**launch.kernels, "kernel": (entry, bound)})


def of_order(order: Order, problem: Problem, tile: Tile) -> dict:
    """What a program is told of which block computes which tiles. problem: as the order counts it."""
    listed = bool(order.persistent and not (order.computes(problem, tile) or order.counts(problem)))
    return {
        "rows": tile.query,
        "tile_key": tile.key,
        "stays": order.persistent and order.places(problem, tile, 1) == 1,  # more: all tiles have blocks
        "lists": listed,
        "uneven": order.computes(problem, tile) and problem.causal,
        "balanced_tail": order.balanced_tail,
        "section_bytes": Raw(f"{order.section_bytes // 2**20} * 2**20") if order.section_bytes else None,
        "sharing": problem.group_size,
    }


@launch_of.register(TorchStep)
@launch_of.register(TorchGradients)
@launch_of.register(AutogradGradients)
@launch_of.register(TorchQuantized)
@launch_of.register(TorchPaged)
def _of_pytorch(step: Step, problem: Problem, arch: str) -> Launch:
    """Of a step that calls PyTorch: of its function, or, where that is SDPA, of what is done around SDPA."""
    written = isinstance(step, TorchStep | TorchGradients) and step.function.__module__.startswith("steps.")
    if not (written or step.function in AROUND_SDPA):
        raise Unsupported(f"step {step.label} has no kernel of its own to export: it calls other people's code")
    taken = () if written else AROUND_SDPA[step.function]
    if others := [name for name in problem.features if name not in taken]:
        raise Unsupported(f"step {step.label} cannot be exported with {FEATURES[others[0]]}")
    values = {
        "ragged": True,
        "written": written,
        "queries": Raw("*q.shape[2:3]") if problem.page_size else None,  # any number
        "weights": Raw("torch.bfloat16" if problem.fp8 else f"torch.{problem.dtype}"),
    }
    left_out = [WITH_FORWARD] if isinstance(step, AutogradGradients) else []
    return Launch(("checks", "pytorch"), {"kernel": (step.function, {})}, values, left_out=left_out)


@launch_of.register
def _of_cutile(step: CuTileStep, problem: Problem, arch: str) -> Launch:
    variant = step.variant(problem, arch)
    order, (launched, tile) = step.order_for(problem), step.launched(problem, variant)
    values = of_order(order, launched, tile) | {
        "flat": bool(variant.section),
        "section": variant.section,
        "ragged": variant.ragged,
        "together": variant.together,
        "heads": Raw("k.shape[1]" if variant.together else "q.shape[1]"),
        "occupancy": step.occupancy or 1,
        "hints": hints(step.warps, step.occupancy, step.cluster),
        "into": Raw("into" if problem.lengths else "o"),
    }
    values["last"] = Raw("cu_seqlens_q, cu_seqlens_k" if problem.lengths else "order, starts" * values["lists"])
    return Launch(hosts("cutile", values), {"kernel": step.entry(problem, arch)}, values)


@launch_of.register
def _of_pointers(step: PointerStep, problem: Problem, arch: str) -> Launch:
    variant = step.variant(problem, arch)
    values = {
        "rows": variant.tile.query,
        "tile_key": variant.tile.key,
        "ragged": variant.ragged,
        "warps": step.number_of_warps(variant),
        "heads_first": getattr(getattr(variant, "numbering", None), "heads_first", False),
    }
    return Launch(("checks", "pointers"), {"kernel": step.entry(problem, arch)}, values)


@launch_of.register
def _of_tma(step: TmaStep, problem: Problem, arch: str) -> Launch:
    left_out = []
    if getattr(step, "pairs", False) is not False and step.pairs is not True:  # for some problems
        left_out += [PAIRED] if step.for_problem(problem).pairs else []
        step = replace(step, pairs=False)
    variant = step.variant(problem)
    if variant.rewrite:
        left_out += [REWRITTEN_BUT_PAIRS if variant.neighbours > 1 else REWRITTEN]
    if problem.lengths:
        raise Unsupported(f"step {step.label} cannot be exported with packed sequences")
    boxes = {"columns": variant.panel_columns, "value_columns": variant.value_dim}
    boxes |= {"output_columns": variant.output_columns}
    launched = step.launched(problem)
    values = of_order(step.order_for(problem), launched, variant.tile) | {
        "ragged": variant.ragged,
        "together": problem.heads // launched.heads,
        "an_sm": step.blocks_an_sm(problem),
        "registers": step.most_registers(problem),
        "own_rows": variant.rows,
        "tma": True,
        **{name: Raw("D") if width == problem.head_dim else width for name, width in boxes.items()},
        "like_queries": variant.panel_columns == variant.output_columns,
        "last": Raw("sinks" * problem.sinks),
        "one_box": variant.panel_columns == variant.value_dim and variant.shared_key == variant.shared_value,
        "pairs": variant.neighbours > 1,
        "warps": variant.warps,
        "ctas": variant.ctas,
    }
    layouts = {name: getattr(variant, name) for name in ("shared", "shared_key", "shared_value")}
    layouts["shared_output"] = variant.shared
    kernels = {"kernel": step.entry(problem, arch)}
    templates, notes = hosts("tma", values), partial(forward_notes, step, problem)
    return Launch(templates, kernels, values, layouts, left_out, lambda: tables(notes()))


@launch_of.register
def _of_fp8(step: Fp8Step, problem: Problem, arch: str) -> Launch:
    variant = step.variant(problem)
    kernels = {"kernel": step.entry(problem, arch)}
    if variant.values.transposed:
        constants = transpose.Constants(variant.head_dim, variant.values.order)
        kernels["transpose"] = (transpose.transpose, {"constants": constants})
    width = Raw("D") if variant.head_dim == problem.head_dim else variant.head_dim
    values = of_order(step.order, problem, variant.tile) | {
        "ragged": variant.ragged,
        "own_rows": variant.rows,
        "tma": True,
        **dict.fromkeys(("columns", "value_columns", "output_columns"), width),
        "like_queries": False,
        "one_box": False,
        "together": 1,
        "an_sm": 1,
        "registers": None,
        "transposed": variant.values.transposed,
        "turned_keys": transpose.KEYS.value,
        "small_warps": transpose.WARPS.value,
        "last": Raw(""),
        "lossy": step.sums_in_tensor_cores(problem),
        "warps": variant.warps,
        "ctas": variant.ctas,
    }
    layouts = {name: getattr(variant, name) for name in ("shared", "shared_value", "shared_output")}
    layouts["shared_key"] = variant.shared
    templates, notes = hosts("tma", values), partial(fp8_notes, step, problem)
    return Launch(templates, kernels, values, layouts, [REWRITTEN], lambda: tables(notes()))


@launch_of.register
def _of_decoding(step: decoding.DecodeStep, problem: Problem, arch: str) -> Launch:
    variant = step.variant(problem, arch)
    function, shape = step.kernel(variant)
    kernels, gpu = {"kernel": (function, {})}, REFERENCE_GPUS.get(arch)
    merge, columns = decoding.merging(variant, step.splits(problem, gpu.multiprocessors if gpu else 1))
    if step.merges_apart:
        kernels["merge"] = (merge, {})
    values = {
        "tile_key": variant.tile.key,
        "rows": variant.tile.query,
        "members": variant.members,
        "queries": problem.seq_len_q,
        "ragged": variant.ragged,
        "split": step.split,
        "merges_apart": step.merges_apart,
        "start": decoding.START // step.tile_size(problem),
        "merging": decoding.MERGE // step.tile_size(problem),
        "occupancy": shape.occupancy or 1,
        "hints": hints(shape.warps, shape.occupancy, shape.cluster),
        "scales": Raw("k_scale, v_scale" if problem.kv_dtype else ""),
        "merged_columns": columns,
        "merge_hints": hints(None, decoding.MERGING.occupancy, None),
    }
    return Launch(("checks", "decoding"), kernels, values)


@launch_of.register
def _of_gradients(step: CuTileGradients, problem: Problem, arch: str) -> Launch:
    small = step.variant(problem, ROWS)
    kernels: dict = {"kernel": step.entry(problem, arch), "of_rows": (step.of_rows.kernel(small), {})}
    shapes = {"": step.keys}
    if step.adds:
        kernels["scaled"] = (backward_kernels.make_scaled(small), {})
    else:
        kernels["queries_kernel"] = (step.kernel("queries", problem)[1], {})
        shapes["queries_"] = step.queries
    values = {
        "small_rows": ROWS.query,
        "tile_key": step.keys.tile.key,
        "rows": step.keys.tile.query,
        "whole_queries": problem.seq_len_q % step.keys.tile.query == 0,
        "queries_rows": step.queries.tile.query,
        "ragged": problem.seq_len_kv % step.keys.tile.key != 0 or problem.seq_len_kv % step.queries.tile.key != 0,
        "adds": step.adds,
        "prepared": step.prepared,
        **{f"{which}hints": hints(s.warps, s.occupancy, s.cluster) for which, s in shapes.items()},
    }
    return Launch(("checks", "backward_cutile"), kernels, values)


@launch_of.register
def _of_hopper_gradients(step: HopperGradients, problem: Problem, arch: str) -> Launch:
    left_out = [REWRITTEN]
    if step.variant(problem).roles_apart and step.variant(problem).spare:
        step, left_out = replace(step, wide_helpers=NOBODY), [REWRITTEN, SPARE]
    variant = step.variant(problem)
    absent = {} if variant.counts else {"Counts": None, "counts": None}
    absent |= {} if variant.adds_keys else {"pieces": None}
    absent |= {"begins_q": None, "sequences": None}  # packed sequences are refused
    kernels = {"kernel": step.entry(problem, arch), "prepare": (rows.prepare, {"variant": variant} | absent)}
    of_keys = ("KeySums", "ValueSums", "DK", "DV", "dk_strides", "dv_strides", "key_numbers")
    absent = dict.fromkeys(("begins_q", "sequences", "begins_k", *(() if variant.adds_keys else of_keys)))
    kernels["scaled"] = (rows.scaled, {"variant": variant} | absent)
    cleared = "counts.numel(), key_pieces, cleared, counts" if variant.counts else "key_pieces, cleared"
    values = {
        "rows": variant.tile.query,
        "tile_key": variant.tile.key,
        "whole_queries": not variant.ragged_queries,
        "ragged": variant.ragged,
        "all_seen": problem.causal and not variant.unseen,
        "warpgroups": variant.warpgroups,
        "width": Raw("D") if variant.head_dim == problem.head_dim else variant.head_dim,
        "small_rows": variant.small_rows,
        "sum_columns": variant.sum_columns,
        "clipped": variant.sum_columns < variant.head_dim,
        "adds_keys": variant.adds_keys,
        "complete": variant.adding.complete,
        "parts": variant.parts,
        "key_tiles": variant.key_tiles,
        "spare": variant.spare,
        "ahead": variant.ahead,
        "counts": variant.counts,
        "cleared": Raw(cleared if variant.adds_keys else cleared.replace("key_pieces, ", "")),
        "first": Raw("lines - cleared" if variant.spare else "0"),
        "early": variant.begin.early,
        "by_tma": variant.adding.by_tma,
        "tma": True,
        "query_rows": variant.query_rows,
        "query_columns": variant.query_columns,
        "rows_prepared": variant.rows_prepared,
        "rows_scaled": variant.rows_scaled,
        "warps": variant.warps,
        "small_warps": ROW_WARPS,
        "small": Raw("how" if variant.warps == ROW_WARPS else "small"),
    }
    layouts = {name: getattr(variant, name) for name in ("shared", "shared_numbers", "shared_sums")}
    templates, notes = ("checks", "backward_hopper"), partial(backward_notes, step, problem)
    return Launch(templates, kernels, values, layouts, left_out, lambda: tables(notes()))


@launch_of.register
def _of_blackwell_gradients(step: BlackwellGradients, problem: Problem, arch: str) -> Launch:
    variant, key_variant, rows = step.variant(problem), step.key_variant(problem), blackwell.Rows(problem.head_dim)
    kernels = {
        "kernel": step.entry(problem, arch),
        "of_keys": (keys.fmha_backward_dkdv, {"variant": key_variant}),
        "prepare": (lib.prepare, {"variant": rows}),
    }
    values = {
        "rows": variant.tile.query,
        "tile_key": variant.tile.key,
        "ragged": variant.ragged,
        "keys_query": key_variant.tile.query,
        "keys_key": key_variant.tile.key,
        "tma": True,
        "at_once": variant.at_once,
        "warps": blackwell.WARPS,
        "ctas": blackwell.CTAS,
        "small_rows": rows.tile.query,
        "small_warps": blackwell.ROW_WARPS,
    }
    layouts = {name: getattr(variant, name) for name in ("shared", "shared_columns")}
    templates, notes = ("checks", "backward_blackwell"), partial(query_notes, step, problem)
    return Launch(templates, kernels, values, layouts, tables=lambda: tables(notes()))


def hosts(name: str, values: dict) -> tuple[str, ...]:
    """The templates of a forward program."""
    return ("checks", *["dealing"] * values["lists"], *["pairs"] * bool(values.get("pairs")), name)


def hints(warps: int | None, occupancy: int | None, cluster: int | None) -> Raw:
    """What cuTile's compiler is told of a kernel; what is None is left to it."""
    given = {"occupancy": occupancy, "num_worker_warps": warps, "num_ctas": cluster}
    return Raw(", ".join(f"{name}={value}" for name, value in given.items() if value is not None))
