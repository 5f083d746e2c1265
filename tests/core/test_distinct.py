"""What is left out of the big matrices as the same test is the same, and what always runs has every kind of case."""

import dataclasses

import pytest
import torch

from steps.core.ladder import kernels_of
from tests.distinct import core, distinct, what_runs
from tests.shapes import SHAPES
from tutorial_lib.passes import pass_of


def launched(step, shape, patch) -> list[tuple]:
    """All that a call hands to the interpreter and to the simulator, with what lists of tiles hold."""
    found = []

    def told(x):
        if isinstance(x, torch.Tensor):
            return x.shape, x.stride(), None if x.is_floating_point() else x.tolist()
        if hasattr(x, "base"):
            return told(x.base), x.shape, x.strides, x.block_shape, x.layout
        return tuple(map(told, x)) if isinstance(x, tuple) else x

    def simulate(kernel, grid, warps, *arguments, **how):
        found.append((kernel, tuple(grid), warps, told(arguments), how))

    patch.setattr("tutorial_lib.simulator.run.simulate", simulate)
    patch.setattr(
        "tutorial_lib.interpreter.launch", lambda grid, *given: found.append((tuple(grid), *map(told, given)))
    )
    patch.setattr(torch, "empty", torch.zeros)  # counts that nobody has set yet
    pass_of(step).call(dataclasses.replace(step), shape, pass_of(step).inputs(shape, 0))
    return found


@pytest.mark.parametrize("steps", [kernels_of("forward")[1:], kernels_of("backward")], ids=["forward", "backward"])
def test_what_is_left_out_launches_what_an_earlier_step_launches(steps, monkeypatch):
    """And what the two steps differ in is not in it: of kernels, constants, grids, lists and descriptions nothing."""
    left_out = 0
    for shape in SHAPES[::2]:
        kept, first = {step.name for step, _ in distinct(steps, [shape])}, {}
        for step in steps:
            if step.unsupported(shape, "cpu") is None:
                before = first.setdefault(what_runs(step, shape), step)
                assert (before is step) == (step.name in kept)
                if before is not step:
                    assert launched(step, shape, monkeypatch) == launched(before, shape, monkeypatch) != []
                    left_out += 1
    assert left_out > 30


@pytest.mark.parametrize("steps", [kernels_of("forward"), kernels_of("backward")], ids=["forward", "backward"])
def test_the_core_has_every_step_and_every_shape_with_every_kind_of_kernel(steps):
    pairs = distinct(steps, SHAPES)
    chosen = core(pairs, SHAPES[:1])
    always = [(step, shape) for step, shape in pairs if chosen(step, shape)]
    assert {step.name for step, _ in always} == {step.name for step, _ in pairs}
    assert {(type(step), shape) for step, shape in always} == {(type(step), shape) for step, shape in pairs}
    assert len(always) < len(pairs) / 2
