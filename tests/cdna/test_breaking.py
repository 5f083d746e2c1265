"""Every synchronisation of the CDNA kernels is taken out or loosened, and the simulator finds what it was for."""

import dataclasses

import pytest

from steps import get_step
from steps.writing.written import write_step
from tests.cdna.test_steps import CDNA
from tests.shapes import problem
from tests.simulator.test_breaking import Examination
from tutorial_lib.passes import FORWARD
from tutorial_lib.simulator.breaking import broken
from tutorial_lib.simulator.run import watched

SCHEDULES = 100
SHAPES = [  # more tiles of keys than LDS holds, and a single one
    problem(batch=1, heads=1, seq_len_q=200, seq_len_kv=330),
    problem(batch=1, heads=1, seq_len_q=200, seq_len_kv=50),
]


@pytest.mark.parametrize("step", CDNA, ids=lambda s: s.name)
def test_no_schedule_has_a_race(step):
    for shape in (SHAPES[0], problem(batch=1, heads=1, seq_len_q=130, seq_len_kv=270, head_dim=128, causal=False)):
        inputs = FORWARD.inputs(shape, 0)
        for seed in range(SCHEDULES):
            with watched(seed, until_found=True) as watch:
                step.attention(*inputs, shape.causal)
            assert watch.runs and not any(run.found for run in watch.runs), seed


@pytest.mark.parametrize("name", ["direct", "vote", "priorities"])  # the others' text is one of these there
def test_every_synchronisation_is_missed(name):
    step = get_step(name)
    examination, whole = Examination(SHAPES), write_step(step, SHAPES[0])
    assert examination.of(whole) is None
    ways = list(broken(whole.text))
    assert len(ways) >= 7
    for way in ways:
        seen = examination.of(dataclasses.replace(whole, text=way.text))
        assert seen not in (None, "wrong numbers alone"), way


@pytest.mark.parametrize("name", ["plain_triton", "mfma"])
def test_what_is_brought_through_registers_has_no_synchronisation_of_its_own(name):
    """The compiler sets the barriers between ordinary stores and reads of LDS by itself."""
    step = get_step(name)
    assert not list(broken(write_step(step, SHAPES[0]).text))
    assert step.compile(step.default_problem).hot_loop["barrier"] >= 2
