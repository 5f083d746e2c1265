"""Kernels that the next one overtakes: they run when it waits for them, and not before."""

import pytest
import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_wait

from tutorial_lib.simulator import overtaken
from tutorial_lib.simulator.block import KernelError
from tutorial_lib.simulator.run import simulate


@gluon.jit
def write(place, number, waits: gl.constexpr):
    if waits:
        gdc_wait()
    gl.store(place, number)


@gluon.jit
def copy(place, into, waits: gl.constexpr):
    if waits:
        gdc_wait()
    gl.store(into, gl.load(place))


@gluon.jit
def fail(place):
    gl.static_assert(False, "a mistake")


def numbers() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)


@pytest.mark.parametrize(("waits", "seen"), [(True, 7), (False, 0)])
def test_who_does_not_wait_finds_nothing(waits, seen):
    """And the kernel before has run when the one behind has ended."""
    place, into = numbers()
    simulate(write, (1,), 1, place, 7, False, overtaken=True)
    assert place.item() == 0
    simulate(copy, (1,), 1, place, into, waits, early=True)
    assert (place.item(), into.item()) == (7, seen)


@pytest.mark.parametrize(("waits", "left"), [(True, 2), (False, 1)])
def test_one_that_overtakes_may_be_overtaken(waits, left):
    """The second waits for the first before it writes, or the first writes last."""
    place, into = numbers()
    simulate(write, (1,), 1, place, 1, False, overtaken=True)
    simulate(write, (1,), 1, place, 2, waits, early=True, overtaken=True)
    simulate(copy, (1,), 1, place, into, True, early=True)
    assert place.item() == into.item() == left


def test_a_kernel_that_does_not_begin_early_finds_all_done():
    place, into = numbers()
    simulate(write, (1,), 1, place, 7, False, overtaken=True)
    simulate(copy, (1,), 1, place, into, False)
    assert into.item() == 7


def test_a_kernel_that_fails_takes_those_before_along():
    """They would otherwise run in somebody else's call."""
    place, _ = numbers()
    simulate(write, (1,), 1, place, 7, False, overtaken=True)
    with pytest.raises(KernelError, match="a mistake"):
        simulate(fail, (1,), 1, place, early=True)
    overtaken.catch_up()
    assert place.item() == 0
