"""Every synchronisation of the CDNA kernels is taken out or loosened, and the simulator finds what it was for."""

from collections import Counter

import pytest

from steps import get_step
from steps.writing.written import write_step
from tests.cdna.test_steps import CDNA
from tests.checking import faults
from tests.distinct import distinct, named, some_of
from tests.shapes import problem
from tests.simulator.places import check_that_all_is_missed
from tutorial_lib.simulator.breaking import broken

SHAPES = [  # more tiles of keys than LDS holds, and a single one
    problem(batch=1, heads=1, seq_len_q=200, seq_len_kv=330),
    problem(batch=1, heads=1, seq_len_q=200, seq_len_kv=50),
]
SCHEDULED = [SHAPES[0], problem(batch=1, heads=1, seq_len_q=130, seq_len_kv=270, head_dim=128, causal=False)]

# Since Triton 3.9 the compiler sets this barrier by itself, if the kernel does not: test_steps.py compares the code.
COMPILERS_OWN = Counter({("without", "gl.barrier()"): 1})

CASES = distinct(CDNA, SCHEDULED)


@pytest.mark.parametrize(("step", "shape"), CASES, ids=named)
def test_no_schedule_has_a_race(step, shape, pytestconfig):
    for seed in some_of(range(100), 4, pytestconfig):
        assert not faults(step, shape, seed)


@pytest.mark.parametrize("name", ["direct_to_lds", "vote", "wave_priorities"])  # the others' text is one of these there
def test_every_synchronisation_is_missed(name, pytestconfig):
    whole = write_step(get_step(name), SHAPES[0])
    assert len(list(broken(whole.text))) >= 7
    check_that_all_is_missed(whole, SHAPES, lambda there: there & COMPILERS_OWN, pytestconfig)


@pytest.mark.parametrize("name", ["plain_triton", "mfma"])
def test_what_is_brought_through_registers_has_no_synchronisation_of_its_own(name):
    """The compiler sets the barriers between ordinary stores and reads of LDS by itself."""
    step = get_step(name)
    assert not list(broken(write_step(step, SHAPES[0]).text))
    assert step.compile(step.default_problem).hot_loop["barrier"] >= 1
