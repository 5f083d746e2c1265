"""Kernels that the next one overtakes, as on a GPU where it may begin early: here they run when it waits for them.

They run as late as the first role that waits lets them: of the blocks that have begun by then, a role that does not
wait goes on first. What it reads is not there yet, or what it writes is overwritten. On a GPU that might happen, or
not. Blocks that begin later find all of it done, so mistakes in them show with many blocks at once.
[PTX ISA: griddepcontrol]
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from tutorial_lib.simulator import state
from tutorial_lib.simulator.translate import operation

LATE = 1e7  # clocks: longer than blocks take that go on


class _Overtaken(threading.local):
    def __init__(self):
        self.launches: list[Callable[[], None]] = []


_OVERTAKEN = _Overtaken()


def put_off(launch: Callable[[], None]) -> None:
    """Run a kernel when the next one waits for it, or has ended."""
    _OVERTAKEN.launches.append(launch)


def catch_up() -> None:
    """Run what has been put off; the last one may itself overtake those before it."""
    while _OVERTAKEN.launches:
        _OVERTAKEN.launches.pop()()


def forget() -> None:
    """Run none of them."""
    _OVERTAKEN.launches.clear()


@operation("gdc_wait")
def await_kernels_before() -> None:
    who_waits()
    if _OVERTAKEN.launches:
        me = state.role()
        me.time += LATE
        me.point()
        catch_up()
        me.time -= LATE  # nobody's clock but the order of things has changed


@operation("gdc_launch_dependents")
def let_next_begin() -> None:
    """The next one begins when a launch says so."""
    who_lets()


def who_waits() -> None:
    """Something to put another function in place of, which wants to know: kernels that ran hold the operations."""


def who_lets() -> None:
    """Likewise."""
