"""Step no_redundant_barriers: from which kernels meetings of a group's warps are taken out, and which stay."""

import dataclasses
from itertools import pairwise

import pytest
import torch

from steps import get_step
from steps.core.order import TAKEN
from steps.core.problems import standard
from steps.hopper import launching
from steps.hopper.lib import WITHOUT_MEETINGS
from steps.hopper.softmax import DOWNWARDS, UPWARDS
from steps.writing.written import written_out
from tests.shapes import problem
from tutorial_lib import meetings
from tutorial_lib.meetings import ARRIVAL, COMPLETE, EVENT, MEETING, WAIT
from tutorial_lib.passes import FORWARD

STEP = get_step("no_redundant_barriers")
EVEN = standard(causal=True)
KERNELS = {
    "causal": EVEN,
    "full, in pairs": standard(causal=False),
    "causal, in pairs": standard(8192, causal=True),
    "a last tile that is not full": dataclasses.replace(EVEN, seq_len_kv=4001, causal=False),
    "grouped heads": dataclasses.replace(EVEN, kv_heads=4, dtype="bfloat16"),
}


def always_in_pairs(step):
    """The step with blocks that always come in pairs: those of short sequences do not."""
    return dataclasses.replace(step, walk=UPWARDS, pairs=True)


def events(step, shape) -> list[str]:
    lines = step.compile(shape).ptx.splitlines()
    return [found["event"] for line in lines if (found := EVENT.match(line))]


def in_front_of(what: str, found: list[str]) -> int:
    return sum(a.startswith(MEETING) and b.startswith(what) for a, b in pairwise(found))


@pytest.mark.parametrize("kind", KERNELS)
def test_no_wait_has_a_meeting_any_more_and_few_arrivals_have(kind):
    before, after = (
        events(get_step(name), KERNELS[kind]) for name in ("row_max_ilp_multicast", "no_redundant_barriers")
    )
    assert in_front_of(WAIT, before) == in_front_of(WAIT, after) == 0  # before Triton 3.9, the former had some
    behind_products = sum(
        a.startswith(COMPLETE) and b.startswith(MEETING) and c.startswith(ARRIVAL)
        for a, b, c in zip(before, before[1:], before[2:])
    )
    assert behind_products == 8 and in_front_of(ARRIVAL, after) == in_front_of(ARRIVAL, before) - behind_products
    assert "mbarrier.wait(barriers.nobody.index(0), 1)" in written_out(STEP, KERNELS[kind])  # nobody overtakes that
    for what in ("stmatrix", "cp.async.bulk.tensor"):
        assert in_front_of(what, before) == in_front_of(what, after) == 2


def test_where_a_group_passes_over_a_tile_it_meets_before_it_gives_the_place_back():
    """Of each of both groups: a slot of keys, and one of values."""
    found = events(STEP, KERNELS["causal, in pairs"])
    behind_waits = [
        (a, b)
        for at, a, b in zip(found, found[1:], found[2:])
        if at.startswith((WAIT, "bra")) and a.startswith(MEETING) and b.startswith(ARRIVAL)
    ]
    assert len(behind_waits) == 4


def test_where_tiles_are_taken_or_the_rule_says_no_the_meetings_stay():
    assert STEP.variant(EVEN).hold is WITHOUT_MEETINGS is not STEP.taking_tiles().variant(EVEN).hold
    assert not any(STEP.variant(standard(head_dim=n)).hold is WITHOUT_MEETINGS for n in (32, 64, 256))


def test_pairs_take_no_tiles_and_no_diagonal():
    for wrong in ({"order": TAKEN}, {"walk": DOWNWARDS}):
        with pytest.raises(ValueError, match="pairs"):
            dataclasses.replace(get_step("kv_multicast"), **wrong)


def test_where_a_warp_may_still_load_the_arrival_keeps_its_meeting():
    """Step quarter_q_registers loads queries in front of the wait for the first product, which began before."""
    found = events(get_step("quarter_q_registers"), EVEN)
    loads = [n for n, event in enumerate(found) if event.startswith("ldmatrix")]
    assert len(loads) == 4 and (loads[1], loads[3]) == (loads[0] + 1, loads[2] + 1)
    for n in (loads[1], loads[3]):
        wait = next(m for m in range(n, len(found)) if found[m].startswith(COMPLETE))
        assert found[wait + 1].startswith(MEETING) and found[wait + 2].startswith(ARRIVAL)
    assert in_front_of(WAIT, found) == 0
    assert in_front_of(ARRIVAL, found) == in_front_of(ARRIVAL, events(STEP, EVEN)) + 2


def test_where_tma_stores_later_the_meetings_go_all_the_same():
    """Step next_softmax_first has TMA store in the next tile of queries, behind a meeting of another purpose."""
    found = events(get_step("next_softmax_first"), EVEN)
    stores = [event for event in found if meetings.STORE.match(event)]
    assert in_front_of("cp.async.bulk.tensor", found) == 2 < len(stores) == 4
    assert not any(a.startswith(COMPLETE) and b.startswith(MEETING) for a, b in pairwise(found))


@pytest.mark.parametrize("name", ["row_max_ilp", "kv_multicast", "no_redundant_barriers"])
def test_a_launch_asks_for_its_ptx_to_be_rewritten(name, monkeypatch):
    asked = []
    launcher = launching.gluon_launcher
    monkeypatch.setattr(launching, "gluon_launcher", lambda *a, **more: asked.append(more) or launcher(*a, **more))
    shape = problem(batch=1, heads=1, head_dim=128)
    dataclasses.replace(get_step(name)).attention(*FORWARD.inputs(shape, 0), shape.causal)
    assert [more["rewrite"] for more in asked] == [True]


@pytest.mark.parametrize("keys", [640, 700])
def test_a_pair_that_passes_over_tiles_is_right(keys):
    shape = problem(batch=1, heads=2, seq_len_q=640, seq_len_kv=keys, head_dim=128)
    step = always_in_pairs(STEP)
    assert step.variant(shape).hold is WITHOUT_MEETINGS and step.variant(shape).most_over == 1
    q, k, v = FORWARD.inputs(shape, 1)
    expected = get_step("row_max_ilp").attention(q, k, v, True)
    assert torch.equal(step.attention(q, k, v, True), expected)
