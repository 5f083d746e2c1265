"""A launch on the simulator, and what came of it."""

from __future__ import annotations

import itertools
import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import torch

from tutorial_lib.simulator import (  # noqa: F401  they enter what they do
    ampere,
    blackwell,
    cdna,
    cluster,
    hopper,
    language,
    state,
)
from tutorial_lib.simulator.block import Block, KernelError
from tutorial_lib.simulator.machine import H100, Machine
from tutorial_lib.simulator.overtaken import catch_up, forget, put_off
from tutorial_lib.simulator.processor import UNITS, Group, Processor
from tutorial_lib.simulator.translate import as_python, with_functions
from tutorial_lib.simulator.values import argument

_ONE_AT_A_TIME = threading.RLock()


class Run:
    """found: races and missing fences, told once for each pair of lines. clocks: simulated, of every block.

    trace: (block, lane, kind, label, begin, end) of everything that took time, where that was asked for. asked: then
    also (block, role, what, which): the order in which roles ask for products, waits for them, arrivals, barriers,
    loads and units. columns: then also (block, what, whether it is written, first column, columns, begin, end) of
    tensor memory. counts: how often what the kernel decides by a vote of a wave went which way. A block is its index
    in the grid; of a cluster, its cluster's, and which of its CTAs it is.
    """

    def __init__(self, machine: Machine, trace: bool, seed: int | None, ctas: int = 1, neighbours: int = 1):
        self.machine, self.ctas = machine, ctas
        self.chance = random.Random(seed) if seed is not None else None
        self.found: dict[tuple, str] = {}
        self.trace: list | None = [] if trace else None
        self.asked: list[tuple] = []
        self.columns: list[tuple] = []
        self.clocks: dict[tuple[int, int, int], float] = {}
        self.counts: Counter[str] = Counter()
        self.processor = Processor(self.chance, max(ctas, neighbours))

    @property
    def time(self) -> float:
        """Clocks that the SM took for all blocks."""
        return self.processor.time

    @property
    def busy(self) -> dict[str, float]:
        """Clocks of every kind of unit, all blocks together."""
        return {name: sum(units[name].busy for units in self.processor.units) for name in UNITS}

    @property
    def longest(self) -> tuple[int, int, int]:
        """The block that took most clocks."""
        return max(self.clocks, key=self.clocks.get)


def launch(
    kernel,
    grid: tuple[int, ...],
    arguments: tuple,
    warps: int,
    *,
    machine: Machine = H100,
    trace: bool = False,
    seed: int | None = None,
    until_found: bool = False,
    at_once: int = 1,
    ctas: int = 1,
    neighbours: int = 1,
) -> Run:
    """Run a ``gluon.jit`` kernel once for every block of the grid, all of them on one SM.

    arguments: what a launch on a GPU would pass, with tensors on the CPU. seed: None for the latencies of the model;
    a number for random ones, the same for the same number. until_found: begin no block after one that had a race.
    at_once: blocks that the SM holds; they share its units. ctas: 2 for clusters of two blocks, on two SMs; the grid
    counts clusters. neighbours: 2 for clusters of two blocks of which the kernel knows by ``tutorial_lib.multicast``
    alone; the grid counts blocks, along x.

    Raises KernelError for what a GPU or the compiler would not take, Deadlock where nobody can go on, Unknown for an
    operation that is not simulated, ValueError for clusters of other sizes. Races are in ``Run.found``: they are no
    error of this run, but of some other.
    """
    for name, number in (("ctas", ctas), ("neighbours", neighbours)):
        if number not in (1, cluster.CTAS):
            raise ValueError(f"{name} must be 1 or {cluster.CTAS}, the clusters that are simulated, got {number}")
    grid = (*grid, 1, 1)[:3]
    if grid[0] % neighbours:
        raise ValueError(f"a grid of pairs must have an even number of blocks along x, got {grid[0]}")
    with _ONE_AT_A_TIME, torch.no_grad():
        function = as_python(kernel)
        passed = [argument(with_functions(value)) for value in arguments]
        run, before = Run(machine, trace, seed, ctas, neighbours), state.run
        state.run = run

        def groups() -> Iterator[Group]:
            for z, y, x in itertools.product(range(grid[2]), range(grid[1]), range(0, grid[0], neighbours)):
                if until_found and run.found:
                    return

                def block(rank: int, *of_cluster, at=(x, y, z)) -> Block:
                    index = (at[0] + rank if neighbours > 1 else at[0], *at[1:])
                    return Block(run, run.processor, index, grid, lambda: function(*passed), warps, *of_cluster)

                if max(ctas, neighbours) == 1:
                    yield [block(0)]
                else:
                    together = cluster.Cluster()
                    together.blocks += [block(rank, together, rank) for rank in range(max(ctas, neighbours))]
                    yield together.blocks

        try:
            run.processor.execute(groups(), at_once)
        except KernelError as error:
            error.found = tuple(run.found.values())
            raise
        finally:
            state.run = before
    return run


@dataclass
class Watch:
    """How launches are simulated while somebody watches, and what came of them."""

    seed: int | None = None
    trace: bool = False
    until_found: bool = False
    at_once: int = 1
    runs: list[Run] = field(default_factory=list)


_watch: Watch | None = None


@contextmanager
def watched(seed: int | None = None, trace: bool = False, **how) -> Iterator[Watch]:
    """Inside, races and missing fences raise nothing: they are in the ``Watch``'s runs. For one thread at a time.

    how: of ``Watch``, and as for ``launch``.
    """
    global _watch
    with _ONE_AT_A_TIME:
        before, _watch = _watch, Watch(seed, trace, **how)
        try:
            yield _watch
        finally:
            _watch = before


def simulate(
    kernel,
    grid: tuple[int, ...],
    warps: int,
    *arguments,
    machine: Machine = H100,
    early: bool = False,
    overtaken: bool = False,
    **of_clusters,
) -> None:
    """Run a kernel for what it computes; as ``launch``, and raises KernelError for a race or a missing fence, too.

    early: it begins before those that were put off have ended. overtaken: the next one is such a kernel, so this one is
    put off until that waits for it (``overtaken``).
    """
    if not early:
        catch_up()
    if overtaken:
        put_off(partial(simulate, kernel, grid, warps, *arguments, machine=machine, early=True, **of_clusters))
        return
    try:
        if _watch is None:
            if found := launch(kernel, grid, arguments, warps, machine=machine, **of_clusters).found:
                raise KernelError("\n".join(found.values()))
        else:
            how = {name: value for name, value in vars(_watch).items() if name != "runs"}
            _watch.runs.append(launch(kernel, grid, arguments, warps, machine=machine, **of_clusters, **how))
        catch_up()
    except BaseException:
        forget()
        raise
