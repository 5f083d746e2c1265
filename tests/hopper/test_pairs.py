"""Blocks in pairs: what is written into the PTX, what the machine code then does, and who must wait for whom."""

import dataclasses
import re
import secrets

import pytest

from steps import get_step
from steps.core.problems import standard
from steps.hopper.lib import BLOCKS_END
from steps.hopper.softmax import DOWNWARDS, SUM_AT_END
from steps.writing.written import edited, write_step
from tests.checking import faults
from tests.shapes import problem
from tutorial_lib import multicast
from tutorial_lib.multicast import BEGIN, END, MEET
from tutorial_lib.passes import FORWARD
from tutorial_lib.simulator.block import KernelError
from tutorial_lib.simulator.run import watched

STEP = get_step("kv_multicast")
FULL = problem(batch=1, heads=2, seq_len_q=600, seq_len_kv=600, head_dim=128, causal=False)
COPY = "@%p1 cp.async.bulk.tensor.4d.shared::cta.global.mbarrier::complete_tx::bytes [%r1], [%rd1, {%r2, %r3}], [%r4];"
ARRIVAL = "@%p2 mbarrier.arrive.shared::cta.b64 _, [%r5];"


def test_between_the_comments_copies_go_to_both_and_arrivals_to_the_other():
    ptx = f"{COPY}\n{BEGIN}\n{COPY}\n{COPY}\n{END}\n{ARRIVAL}\n{BEGIN}\n{ARRIVAL}\n{END}\n{COPY}\n"
    made = multicast.rewritten(ptx, 4).splitlines()
    copies = [line for line in made if "cp.async" in line]
    assert [".multicast::cluster" in line for line in copies] == [False, True, True, False]
    assert copies[1].endswith("[%r4], 3;") and "shared::cluster.global" in copies[1]
    arrivals = [line for line in made if "mbarrier.arrive" in line]
    assert arrivals[0] == ARRIVAL and "mapa.shared::cluster.u32 there, %r5, other" in arrivals[1]
    assert "@%p2 mbarrier.arrive.shared::cluster.b64 _, [there]" in arrivals[1]
    assert multicast.rewritten("a kernel\n", 4) == "a kernel\n"


def test_where_ctas_meet_the_warps_that_wait_for_a_role_arrive_at_once():
    made = multicast.rewritten(f"{{\n// %bb.0:\n\tld.param;\n{MEET}\n}}\n", 4)
    assert made.splitlines()[2].strip().startswith("{ .reg .pred others;") and "thread, 128;" in made


@pytest.mark.parametrize(
    "ptx",
    [
        f"{BEGIN}\nmbarrier.try_wait.shared::cta [%r1];\n{END}",
        f"{BEGIN}\n{COPY}\n",
        f"{BEGIN}\n{END}",
        f"{MEET}\n// %bb.0:\n// %bb.0:\n",
    ],
)
def test_ptx_that_is_not_as_known_is_refused(ptx):
    with pytest.raises(ValueError, match="the PTX"):
        multicast.rewritten(ptx, 4)


def test_the_machine_code_holds_copies_to_both_and_no_other_step_does():
    compiled = STEP.compile(FULL)
    assert compiled.sass.count("UTMALDG.4D.MULTICAST") == 4  # of keys and of values, 64 columns each
    assert "UCGABAR_WAIT" in compiled.sass and "MULTICAST" not in get_step("pv_wait_after_max").compile(FULL).sass


@pytest.mark.parametrize(
    ("left_out", "instead", "told"),
    [
        ("        mbarrier.wait(there.index(stage), iteration // STAGES & 1)\n", "", "race"),
        ("        mbarrier.arrive(empty_2, count=1)\n", "        nobody = empty_2\n", "nobody can go on"),
        (multicast.MEET, "// nobody meets:", "has not come so far|not initialised|no fence"),
    ],
    ids=["wait", "arrival", "meeting"],
)
def test_what_holds_the_ctas_together_is_missed(left_out, instead, told):
    step = edited(write_step(STEP, FULL), (left_out, instead))
    q, k, v = FORWARD.inputs(FULL, secrets.randbits(32))
    found = set()
    for seed in range(6):
        with watched(seed) as watch:
            try:
                step.attention(q, k, v, FULL.causal)
            except KernelError as error:
                found.add(str(error))
        found |= {text for run in watch.runs for text in run.found.values()}
    assert re.search(told, "\n".join(found)), found


@pytest.mark.parametrize(
    "shape",
    [
        problem(batch=1, heads=2, seq_len_q=700, seq_len_kv=2000, head_dim=256),
        problem(batch=1, heads=2, seq_len_q=1000, seq_len_kv=1000, head_dim=64),
        problem(batch=1, heads=4, kv_heads=2, seq_len_q=257, seq_len_kv=900, head_dim=128, dtype="bfloat16"),
        FULL,
    ],
    ids=lambda p: p.slug,
)
def test_it_is_in_order_under_every_latency(shape):
    for seed in range(4):
        assert not faults(STEP, shape, seed)


def test_parts_of_a_pair_may_be_several_tiles_of_keys_apart():
    """What the kernel reckons with is what happens at most, over the places of a tile of queries."""
    for head_dim in (64, 128, 256):
        variant = STEP.variant(problem(head_dim=head_dim))
        rows, key, tile = variant.rows, variant.tile.key, variant.tile.query
        ends = [(-(-(first + rows) // key), -(-(first + tile) // key)) for first in range(0, 8 * tile, tile)]
        assert variant.most_over == max(last - own for own, last in ends)


def test_pairs_are_where_they_pay():
    paired = {
        (head_dim, seq_len, causal)
        for head_dim in (64, 128, 256)
        for seq_len in (1024, 2048, 4096, 8192)
        for causal in (True, False)
        if get_step("row_max_ilp_multicast").variant(standard(seq_len, head_dim, causal)).neighbours == 2
    }
    assert paired == {(128, 8192, True), (128, 2048, False), (128, 4096, False), (128, 8192, False)}


def test_lanes_add_after_the_loop_at_256_only_where_the_diagonal_comes_first():
    lean = {
        (step, causal)
        for step in (
            "hopper_deferred_sum",
            "pv_wait_after_max",
            "reverse_kv_order",
            "row_max_ilp",
            "row_max_ilp_multicast",
            "no_redundant_barriers",
        )
        for causal in (True, False)
        if get_step(step).variant(standard(4096, 256, causal)).sums is SUM_AT_END
    }
    assert lean == {("row_max_ilp_multicast", True), ("no_redundant_barriers", True)}


def test_pairs_visit_the_keys_from_the_first():
    with pytest.raises(ValueError, match="from the first"):
        dataclasses.replace(STEP.variant(problem(head_dim=256)), walk=DOWNWARDS)


def test_pairs_take_ends_of_their_own():
    with pytest.raises(ValueError, match="pairs of blocks take"):
        dataclasses.replace(STEP, ends=BLOCKS_END)
