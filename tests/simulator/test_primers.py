"""The small kernels of the primers: right and in order under random latencies, and they compile for the GPU."""

import random

import pytest

from steps.primers import simulated
from steps.writing.written import module_in, replaced
from tests.expected import same_compilers
from tutorial_lib.simulator.breaking import broken

CASES = [(primer, case) for primer in ("barriers", "roles") for case in module_in(simulated.text_of(primer)).CASES]


@pytest.mark.parametrize(("primer", "case"), CASES)
def test_a_small_kernel_is_right_and_in_order(primer, case):
    for seed in (None, 1, 2, 3, 4):
        wrong, _ = simulated.simulated(simulated.text_of(primer), case, random.Random(seed), seed)
        assert wrong is None, wrong


@pytest.mark.parametrize("primer", ["barriers", "roles"])
def test_no_synchronisation_of_a_small_kernel_can_be_left_out(primer):
    for change in broken(simulated.text_of(primer)):
        cases = [case for name, case in CASES if name == primer]
        told = [
            simulated.simulated(change.text, case, random.Random(0), seed)[0] for case in cases for seed in (None, 1)
        ]
        assert any(told), change


@same_compilers
@pytest.mark.parametrize(("primer", "case"), CASES)
def test_a_small_kernel_compiles_for_hopper(primer, case):
    made = simulated.compiled(primer, case)
    assert "cp.async.bulk.tensor" in made.ptx and not made.spilled_bytes
    assert ("wgmma.mma_async" in made.ptx) == (primer == "roles")


def test_what_is_broken_is_told_with_its_line():
    page = simulated.run("barriers", "double", without="tma.store_wait(0)")
    assert page.parts[0].startswith("`double`, without `tma.store_wait(0)`: Not everything is in order")
    page = simulated.run("barriers", "double", ("n & 1)", "0)"))
    assert "race on buffer" in page.parts[0] and "kernel:" in page.parts[0]


def test_a_race_is_told_before_what_it_leads_to():
    text = replaced(simulated.text_of("barriers"), ("    mbarrier.wait(full, n & 1)\n", ""))
    wrong, run = simulated.simulated(text, "double", random.Random(0))
    assert wrong.startswith(simulated.NOT_IN_ORDER) and run is None


def test_a_piece_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="must stand in the kernel once, not 0 times"):
        simulated.run("barriers", "double", ("nothing of the kind", ""))
