"""Tables of a kernel's barriers, shared memory and tensor memory, of what one of its blocks does on the simulator.

A block of the kernel, with the constants of its problem, computes a few tiles of queries; of a kernel whose blocks wait
for each other there are a few. What they allocate, who arrives at a barrier, counts in global memory or lets the next
kernel begin, and who waits there, is noted meanwhile.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from steps.backward_blackwell.skeleton import BlackwellGradients, query_arguments
from steps.backward_blackwell.variant import CTAS, WARPS
from steps.backward_hopper.skeleton import HopperGradients, rates
from steps.backward_hopper.skeleton import arguments as of_backward
from steps.fp8 import kernel as fp8_kernel
from steps.fp8.skeleton import Fp8Step
from steps.fp8.skeleton import arguments as of_fp8
from steps.gluon.tensors import shapes
from steps.hopper.launching import TmaStep, arguments
from steps.writing.trees import LINE_LENGTH
from tutorial_lib.problem import Problem

TILES = 4  # of queries
TOLD = "Roles are called by their functions, with a number. TMA arrives when its bytes are there."
COUNTED = (
    " Counts lie in global memory, polled until all have added to them. That ends if blocks begin in the order of "
    "their numbers: CUDA does not promise it."
)
EARLY = " gdc_wait awaits the kernel before, and gdc_launch_dependents lets the next one begin."
SHARED_BY_TWO = (
    " Both CTAs of a cluster share {}: there Triton doubles the arrivals that the kernel asks for, as each CTA "
    "arrives, and only CTA 0 waits. At the cluster barrier all warps of both wait for each other; the first time is "
    "behind the initialization of barriers, where the compiler puts it."
)
PAIRED = (
    " Both CTAs of a pair have all barriers: one of them asks TMA for the keys of both, the other one for the values. "
    "At {} the other CTA's producer arrives. At the cluster barrier all warps of both wait for each other, once."
)
OTHERS_SLOT = "the other CTA's key or value: read"
EACH_CTA, BOTH_CTAS = "all warps of CTA 0, all warps of CTA 1", "all warps of both CTAs"
PARITIES = re.compile(r"all warps of CTA 0: (\d), all warps of CTA 1: \1")
BEFORE, NEXT, CLUSTER = "kernel before", "next kernel", "cluster barrier"


@dataclass
class Row:
    """A ring of barriers. arrive: who does; wait: who does, and for which parity first; joint: both CTAs share it.

    Of numbers in global memory, which blocks count with, of other kernels, and of a cluster there is neither a
    parity nor a size.
    """

    slots: int = 0
    count: int = 0
    arrive: dict[str, None] = field(default_factory=dict)
    wait: dict[str, int | None] = field(default_factory=dict)
    joint: bool = False


class Notes:
    """What is seen of one block. names, sizes: of what it allocates, by buffer."""

    def __init__(self):
        self.rows: dict[object, Row] = {}
        self.names: dict[object, str] = {}
        self.told: dict[str, str] = {}  # of a field of a kernel's record, what the record's class says
        self.counts: dict[tuple[str, int], Row] = {}  # by the kernel's name for them, and the offset
        self.paired = False  # clusters of two blocks, of which Triton does not know
        self.others = {BEFORE: Row(), NEXT: Row(), CLUSTER: Row()}

    def count(self, pointer) -> Row:
        """The row of a number in global memory that blocks count with, by the name that a record has for it."""
        from tutorial_lib.simulator.block import frames

        records = [value for frame in frames() for value in frame.f_locals.values() if hasattr(value, "_fields")]
        names = [field for record in records for field in record._fields if _flat(record, field) is pointer.flat]
        return self.counts.setdefault((names[0], int(pointer.offset)), Row())

    def row(self, barrier) -> Row:
        """The row of a barrier, whose block's buffers are called what the current role calls them now."""
        from tutorial_lib.simulator import state
        from tutorial_lib.simulator.block import frames

        block, role = barrier.block, state.role()
        role.variables = [dict(frame.f_locals) for frame in frames()]
        records = [value for known in role.variables for value in known.values() if hasattr(value, "_fields")]
        self.told |= {name: type(record).__doc__ or "" for record in records for name in record._fields}
        for buffer in block.buffers:
            if (name := block.name_of(buffer)) != buffer.name:
                self.names.setdefault(buffer, name)
        row = self.rows.setdefault(barrier.buffer, Row())
        row.slots, row.count = len(barrier.buffer.bytes) // 8, barrier.count
        return row


def _flat(record: tuple, field: str) -> object:
    """The tensor that a field of a record points into, if it is a pointer."""
    return getattr(getattr(record, field), "flat", None)


@contextmanager
def noted() -> Iterator[Notes]:
    """Inside, what kernels do on the simulator is noted."""
    from tutorial_lib.simulator import language, overtaken, state
    from tutorial_lib.simulator.cluster import Cluster
    from tutorial_lib.simulator.hopper import MBarrier

    notes, arrive, fill, passed = Notes(), MBarrier.arrive, MBarrier.fill, MBarrier.passed
    meet = Cluster.wait

    def noting_arrive(self, *how):
        by_role = sys._getframe(1).f_code.co_name in ("arrive", "expect")
        row = notes.row(self)
        row.arrive[state.role().name if by_role else "tcgen05"] = None
        row.joint |= by_role and self.block is not state.role().block
        arrive(self, *how)

    def noting_fill(self, *how):
        notes.rows[self.buffer].arrive["TMA"] = None
        fill(self, *how)

    def noting_passed(self, parity):
        notes.row(self).wait.setdefault(state.role().name, parity)
        return passed(self, parity)

    def noting_add(pointer):
        notes.count(pointer).arrive[state.role().name] = None
        tell(pointer)

    def noting_poll(found, pointer, wanted):
        notes.count(pointer).wait[state.role().name] = None
        return sequences[language.AWAIT](found, pointer, wanted)

    def noting_wait():
        notes.others[BEFORE].wait[state.role().name] = None

    def noting_let():
        notes.others[NEXT].arrive[state.role().name] = None

    def noting_meet(self, me):
        notes.others[CLUSTER].arrive[me.name] = notes.others[CLUSTER].wait[me.name] = None
        meet(self, me)

    tell, sequences = language.tell_who_polls, dict(language.SEQUENCES)
    waits, lets = overtaken.who_waits, overtaken.who_lets
    MBarrier.arrive, MBarrier.fill, MBarrier.passed = noting_arrive, noting_fill, noting_passed
    Cluster.wait = noting_meet
    language.tell_who_polls = noting_add  # and not the operation, which kernels that ran before hold already
    language.SEQUENCES[language.AWAIT] = noting_poll
    overtaken.who_waits, overtaken.who_lets = noting_wait, noting_let
    try:
        yield notes
    finally:
        MBarrier.arrive, MBarrier.fill, MBarrier.passed, Cluster.wait = arrive, fill, passed, meet
        language.tell_who_polls, overtaken.who_waits, overtaken.who_lets = tell, waits, lets
        language.SEQUENCES |= sequences


def forward_notes(step: TmaStep, problem: Problem) -> Notes:
    """What is seen of one block of the kernel that ``step`` runs for ``problem``. Sinks change no barrier."""
    variant = replace(step.variant(problem), **dict.fromkeys(("sinks",) * problem.sinks, False))
    small, tensors = few_tiles(problem, TILES * max(variant.tile.query, variant.tile.key))
    _, lists = step.order_for(problem).blocks(small, variant.tile, tensors[0].device)
    passed = (*arguments(*tensors, small, 1.0, lists, variant), variant)
    how = {"ctas": variant.ctas, "neighbours": variant.neighbours, "blocks": (variant.neighbours, 1, 1)}
    return noted_launch(step.kernel(problem), passed, variant.warps, step.made_for, **how)


def fp8_notes(step: Fp8Step, problem: Problem) -> Notes:
    """Likewise, of the kernel that takes fp8."""
    import torch

    variant = step.variant(problem)
    small, (q, k, _, o) = few_tiles(problem, TILES * max(variant.tile.query, variant.tile.key))
    value = torch.zeros(step.shape_of_value(small), dtype=getattr(torch, step.dtype_of_value(small)))
    scales = [torch.ones(small.batch, small.kv_heads)] * 3
    _, lists = step.order.blocks(small, variant.tile, q.device)
    passed = (*of_fp8(q, k, value, o.bfloat16(), scales, small, lists, variant), variant)
    return noted_launch(fp8_kernel.fmha, passed, variant.warps, step.made_for)


def backward_notes(step: HopperGradients, problem: Problem) -> Notes:
    """Likewise, of the kernel whose blocks own keys.

    Where spare warps work for other heads, there are as many heads as it takes that every kind of them has some: the
    first of them is two ahead. A sliding window changes no barrier, and would leave queries of so few keys none.
    """
    import torch

    variant = step.variant(problem)
    batch = 3 if variant.ahead else 1
    variant, kernel = replace(variant, ahead=min(variant.ahead, 1), window=None), step.kernel(problem)
    whole = replace(problem, window=None)
    queries, keys = variant.parts * TILES * variant.tile.query, variant.key_tiles * variant.tile.key
    small, (q, k, v, do) = few_tiles(whole, queries, keys, batch)
    sums = torch.zeros((*q.shape[:-1], variant.head_dim), dtype=torch.float32)  # in whole tiles
    lines = small.batch * small.heads
    numbers, counts = sums.new_zeros(2 * lines, q.shape[2]), torch.zeros(2 * lines * q.shape[2], dtype=torch.int32)
    into = (sums.new_zeros((*k.shape[:-1], variant.head_dim)),) * 2 if variant.adds_keys else (k, v)
    to_queries = q if variant.adding.complete else sums
    passed = (*of_backward(q, k, v, do, numbers, to_queries, *into, small, q.shape[2], variant), variant)
    passed = (*passed, counts) if variant.counts else passed
    if variant.spare:
        strides = (q.stride()[:3], q.stride()[:3], sums.stride()[:3], q.stride()[:3])
        passed = (*passed, sums, q, numbers, q, do, sums, strides, rates(small, variant))
    return noted_launch(kernel, passed, variant.warps, step.made_for, blocks=(1, variant.parts * small.kv_heads, batch))


def query_notes(step: BlackwellGradients, problem: Problem) -> Notes:
    """Likewise, of the kernel for dQ."""
    import torch

    variant = step.variant(problem)
    small, (q, k, v, do) = few_tiles(problem, variant.tile.query, TILES * variant.tile.key)
    numbers = torch.zeros(2 * small.heads, variant.tile.query)
    passed = (*query_arguments(q, k, v, do, numbers, q, small, variant), variant)
    return noted_launch(step.kernel(problem), passed, WARPS, step.made_for, CTAS)


def few_tiles(problem: Problem, queries: int, keys: int | None = None, batch: int = 1) -> tuple[Problem, list]:
    """A problem like another with so few queries and keys, of the heads that share keys, and q, k, v and o for it."""
    import torch

    heads = {"batch": batch, "heads": problem.group_size, "kv_heads": 1}
    small = replace(problem, **heads, seq_len_q=queries, seq_len_kv=keys or queries)
    return small, [torch.zeros(shape, dtype=getattr(torch, problem.dtype)) for shape in shapes(small)]


def noted_launch(
    kernel, passed: tuple, warps: int, arch: str, ctas: int = 1, blocks: tuple = (1, 1, 1), neighbours: int = 1
) -> Notes:
    """What a launch of so many blocks is seen to do on the simulator."""
    from tutorial_lib.simulator.machine import MACHINES
    from tutorial_lib.simulator.run import launch

    with noted() as notes:
        launch(kernel, blocks, passed, warps, machine=MACHINES[arch], ctas=ctas, neighbours=neighbours)
    notes.paired = neighbours > 1
    return notes


def tables(notes: Notes) -> list[str]:
    """What must be known of the table of barriers, that table, and what shared memory holds, as text."""
    products = " tcgen05 arrives when a product is complete." * any(
        "tcgen05" in row.arrive for row in notes.rows.values()
    )
    joint = ", ".join(sorted({called(notes, buffer) for buffer, row in notes.rows.items() if row.joint}))
    early = EARLY * any(notes.others[name].wait or notes.others[name].arrive for name in (BEFORE, NEXT))
    told = TOLD + products + COUNTED * bool(notes.counts) + early
    told += (PAIRED if notes.paired else SHARED_BY_TWO).format(joint) * bool(joint)
    rows = [tuple(str(cell).replace(EACH_CTA, BOTH_CTAS) for cell in row) for row in barrier_rows(notes)]
    rows = [tuple(PARITIES.sub(rf"{BOTH_CTAS}: \1", cell) for cell in row) for row in rows]
    buffers = {called(notes, buffer) for buffer in notes.names}
    said = ["complete when", *(purpose(row[0], buffers, notes.told) if row[1] else "" for row in rows[1:])]
    if notes.paired:
        said = [OTHERS_SLOT if row[0] == joint else its for row, its in zip(rows, said, strict=True)]
    table = aligned([(*row, its) for row, its in zip(rows, said)])
    return ["\n".join([textwrap.fill(told, LINE_LENGTH), table, memory(notes)])]


def purpose(name: str, buffers: set[str], told: dict[str, str]) -> str:
    """What a barrier says when it is complete: of the buffer in its name, or as the record of barriers has it."""
    buffer, _, kind = name.rpartition("_")
    of_buffer = {"full": "filled", "empty": "read"}.get(kind)
    if of_buffer and (buffer in buffers or buffer == "keys"):
        return f"{'key, value' if buffer == 'keys' else buffer}: {of_buffer}"
    return _said(name, told).partition(",")[0]  # the kernel's record says the rest


def barrier_rows(notes: Notes) -> list[tuple]:
    """A row for each ring of barriers; of the CTAs of a cluster one for both."""
    rows: dict[str, Row] = {}
    for buffer, row in notes.rows.items():
        known = rows.setdefault(called(notes, buffer), row)
        known.arrive |= row.arrive
        known.wait |= row.wait
    found = [("barrier", "slots", "arrivals", "who arrives", "who waits, and its first parity")]
    counted: dict[tuple, Row] = {}  # those that the same roles add to are one row
    for (name, _), row in notes.counts.items():
        counted.setdefault((name, *sorted(row.arrive)), row).wait |= row.wait
    others = [(name, row) for (name, *_), row in counted.items()]
    others += [(name, row) for name, row in notes.others.items() if row.arrive or row.wait]
    for name, row in (*sorted(rows.items()), *others):
        wait = ", ".join(role + f": {parity}" * (parity is not None) for role, parity in sorted(row.wait.items()))
        sizes = (row.slots or "", row.count or "")
        found.append((name, *sizes, ", ".join(sorted(row.arrive, key=str.lower)), wait))
    return found


def with_purposes(rows: list[tuple], notes: Notes) -> list[tuple]:
    """Those rows with what the kernel's records of barriers say each is for, where they say it of all."""
    said = [_said(str(row[0]), notes.told) for row in rows[1:]]
    return [(*rows[0], "complete when"), *((*r, s) for r, s in zip(rows[1:], said))] if all(said) else rows


def _said(name: str, told: dict[str, str]) -> str:
    """Of "full: TMA has filled it. empty, if any: ..." what belongs to the end of a barrier's name."""
    kind = re.escape(name.rpartition("_")[2])
    found = re.search(rf"\b{kind}(?:, [^:.]*)?: ([^.;]+)", told.get(name, ""))
    return " ".join(found[1].split()) if found else ""


def memory(notes: Notes) -> str:
    """How much each allocation of shared and of tensor memory takes, and all barriers; of a cluster, those of a CTA."""
    from tutorial_lib.simulator.blackwell import COLUMN_BYTES, LANES

    sizes = {called(notes, buffer): len(buffer.bytes) for buffer in notes.names if buffer.space != "tensor"}
    columns = {
        called(notes, buffer): len(buffer.bytes) // (LANES * COLUMN_BYTES)
        for buffer in notes.names
        if buffer.space == "tensor"
    }
    barriers = {called(notes, buffer) for buffer in notes.rows}
    tiles = {name: size for name, size in sizes.items() if name not in barriers}
    tiles["barriers"] = sum(sizes.get(name, 0) for name in barriers)
    each = " of each CTA" * bool(notes.others[CLUSTER].wait)
    listed = {f"Bytes of shared memory{each}": tiles, f"Columns of tensor memory{each}": columns}
    return "\n".join(
        textwrap.fill(
            f"{what}: {', '.join(f'{name} {size:,}' for name, size in found.items())}; "
            f"together {sum(found.values()):,}.",
            LINE_LENGTH,
        )
        for what, found in listed.items()
        if found
    )


def called(notes: Notes, buffer) -> str:
    """What the kernel calls a buffer, without the record of all such that it is in."""
    name = notes.names.get(buffer, buffer.name)
    return name.partition(".")[2] or name


def aligned(rows: list[tuple]) -> str:
    """Rows as a table."""
    widths = [max(len(str(cell)) for cell in column) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(f"{cell!s:<{width}}" for cell, width in zip(row, widths)).rstrip() for row in rows)
