"""Kernels are made of pieces that know of no step, and what compilers know them by is what the pieces say."""

import dataclasses
import pickle
import re
import types
from pathlib import Path

import pytest
import torch
from triton.experimental import gluon

from steps import get_step
from steps.core.ladder import kernels_of
from steps.core.problems import HEADLINE
from steps.gluon.functions import compiled_as
from steps.hopper import ahead, epilogue_overlap, kernel, lib, one_by_one, overlapped, producer, softmax
from steps.hopper.skeleton import HopperStep
from steps.hopper.variant import Variant
from tutorial_lib import identity
from tutorial_lib.simulator.run import launch

GENERATIONS = [producer, overlapped, epilogue_overlap, ahead]
OF_THE_PROBLEM = {"causal", "ragged", "lse", "packed", "sinks"}


def test_the_only_switches_of_a_kernel_are_what_a_problem_asks_for():
    switches = {field.name for field in dataclasses.fields(Variant) if field.type in (bool, "bool")}
    assert switches == OF_THE_PROBLEM


@pytest.mark.parametrize("generation", GENERATIONS, ids=lambda module: module.__name__.rpartition(".")[2])
def test_a_generation_is_read_at_one_go(generation):
    text = Path(generation.__file__).read_text(encoding="utf-8")
    assert re.findall(r"^def (\w+)", text, re.MULTILINE)[-1] == "consume" and len(text.splitlines()) < 150


def test_the_kernel_is_written_once():
    """What starts the roles is the same for all generations, and what the producer does."""
    for step in kernels_of("forward"):
        if isinstance(step, HopperStep):
            assert step.kernel(step.default_problem) in (kernel.fmha, one_by_one.fmha)
    written = [
        path.stem for path in Path(kernel.__file__).parent.glob("*.py") if "def fmha(" in path.read_text("utf-8")
    ]
    assert sorted(written) == ["kernel", "one_by_one"]


@gluon.jit
def once(x):
    return x + 1


@gluon.jit
def twice(x):
    return x + 2


@dataclasses.dataclass(frozen=True)
class Constants:
    """As a kernel's constants are."""

    add: object
    pieces: object = None

    @property
    def cache_key(self) -> str:
        return compiled_as(self)


@gluon.jit
def calls(target, constants: gluon.language.constexpr):
    gluon.language.store(target, constants.add(gluon.language.load(target)))


def test_a_kernel_is_known_by_what_its_pieces_do():
    """Of two functions with one name, of which one was edited, Triton's own text would be the same."""
    renamed = types.SimpleNamespace(constants={(0,): Constants(once)}, signature={}, attrs={}, fn=calls)
    other = types.SimpleNamespace(constants={(0,): Constants(twice)}, signature={}, attrs={}, fn=calls)
    assert identity.triton_source(renamed) != identity.triton_source(other)
    assert Constants(once).cache_key != Constants(twice).cache_key
    assert Constants(once, Constants(once)).cache_key != Constants(once, Constants(twice)).cache_key
    variant = get_step("next_softmax_first").variant(HEADLINE)
    assert variant.cache_key != dataclasses.replace(variant, highest=softmax.in_one_chain).cache_key


def test_the_simulator_runs_functions_that_are_constants():
    target = torch.zeros(1, dtype=torch.int32)
    for constants in (Constants(once), Constants(twice)):
        launch(calls, (1,), (target, constants), 4)
    assert target.item() == 3


def test_a_function_is_the_same_in_another_process():
    for piece in (epilogue_overlap.consume, lib.IN_TURN, softmax.SUM_AT_END):
        assert pickle.loads(pickle.dumps(piece)) == piece
