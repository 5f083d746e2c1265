"""Clusters of two blocks, which are called CTAs here: their layouts, and the barrier at which all of both meet.

Gluon's kernel is the cluster's. A tile has a shape for both CTAs, and its layout says whether each CTA has half of it,
along which axis, or all of it. Both CTAs run the same text, each with its own part: what is simulated holds the part.

Sources: PTX ISA, "barrier.cluster" and "Cluster of Cooperative Thread Arrays"; for what a Gluon operation becomes in
which CTA, the PTX that Triton 3.9 makes (``tests/blackwell`` looks at it).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from triton.experimental.gluon import language as gl

from tutorial_lib.simulator import state
from tutorial_lib.simulator.block import Block, KernelError, Role, Unknown, at
from tutorial_lib.simulator.order import Clock, join
from tutorial_lib.simulator.translate import operation

if TYPE_CHECKING:
    from collections.abc import Sequence

CTAS = 2  # of a cluster; there may be more on a GPU

# --- who has which part of a tile ---


def halved(layout) -> int | None:
    """The axis along which the CTAs halve a tile, counted from the last, which is -1; None: each CTA has all of it."""
    return None if state.run.ctas == 1 or layout is None else _halved(layout)


@cache
def _halved(layout) -> int | None:
    bases = _bases(layout)
    if len(bases) != 1:
        raise KernelError(at(f"a layout for {1 << len(bases)} CTAs in a cluster of {CTAS}: {layout}"))
    axes = [axis - len(bases[0]) for axis, step in enumerate(bases[0]) if step]
    return axes[0] if axes else None


def _bases(layout) -> list[Sequence[int]]:
    """For every doubling of CTAs, where a tile's part goes on in the next CTA; zeros where that has the same."""
    if isinstance(layout, gl.SliceLayout):
        return [[*basis[: layout.dim], *basis[layout.dim + 1 :]] for basis in _bases(layout.parent)]
    if isinstance(layout, gl.DistributedLinearLayout):
        return layout.block_bases
    return layout.cga_layout


def own_part(shape: Sequence[int], layout) -> list[int]:
    """The shape of what a CTA has of a tile."""
    shape, axis = list(shape), halved(layout)
    if axis is not None:
        shape[axis] //= CTAS
    return shape


def whole(shape: Sequence[int], axis: int | None) -> list[int]:
    """The shape of a tile, from that of a CTA's part; an axis of length 1 is there to be broadcast."""
    shape = list(shape)
    if axis is not None and shape[axis] > 1:
        shape[axis] *= CTAS
    return shape


def must_stay(layout, axis: int | None) -> None:
    """Raises Unknown where a CTA would have to get from the other what a tile halved along ``axis`` has there."""
    if halved(layout) != axis:
        raise Unknown(at("the simulator has no exchange of tiles between CTAs"))


def alone(what: str) -> None:
    """Raises Unknown in a cluster: for what is simulated for blocks alone."""
    if state.run.ctas > 1:
        raise Unknown(at(f"the simulator has no {what} in a cluster"))


# --- the CTAs ---


class Cluster:
    """Two CTAs that run at the same time on an SM each. They end a phase of the barrier when both have arrived."""

    def __init__(self):
        self.blocks: list[Block] = []
        self.phase = 0
        self.arrived: set[Block] = set()  # in this phase
        self.to_wait: dict[Block, int] = {}  # who has arrived and not waited yet: for the end of which phase
        self.gathering, self.released = ({}, {}), ({}, {})

    def arrive(self, me: Role, known: tuple[Clock, Clock]) -> None:
        if me.block in self.to_wait:
            raise KernelError(at("a second arrival at the cluster's barrier without a wait in between"))
        for mine, new in zip(self.gathering, known, strict=True):
            join(mine, new)
        self.arrived.add(me.block)
        self.to_wait[me.block] = self.phase
        self.check(me.time)

    def check(self, time: float) -> None:
        """End the phase when all that have not ended are there."""
        if self.arrived and all(block in self.arrived for block in self.blocks if not block.over):
            self.phase += 1
            self.released, self.gathering = self.gathering, ({}, {})
            self.arrived = set()
            for block in self.blocks:
                for role in block.roles:
                    if role.why[0] == WAITED_FOR:
                        role.wake(time)

    def wait(self, me: Role) -> None:
        if me.block not in self.to_wait:
            raise KernelError(at("a wait for the cluster's barrier without an arrival"))
        phase = self.to_wait.pop(me.block)
        me.wait(lambda: self.phase > phase, WAITED_FOR, lambda: "the other CTA at the cluster's barrier")
        me.acquire(self.released)
        me.meet()
        me.time += me.block.machine.wait


WAITED_FOR = "the other CTA"


@operation(("cluster", "barrier"))
def barrier(relaxed=False):
    """relaxed: the other CTA learns nothing but what a fence has told of barriers that were initialised."""
    me = state.role()
    if me.block.cluster is None:
        raise KernelError(at("cluster.barrier in a block that is alone"))
    me.point()
    me.meet()
    known = ({}, dict(me.initialised)) if relaxed else me.release()
    me.block.cluster.arrive(me, known)
    me.time += me.block.machine.issue
    me.block.cluster.wait(me)


@operation("num_ctas")
def num_ctas():
    return state.run.ctas
