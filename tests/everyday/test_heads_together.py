"""Under a narrow window the warpgroups of a block take the same queries of several heads of a group."""

import secrets
from dataclasses import replace

import pytest

from steps import get_step
from steps.everyday.step908_attention_sinks import GPT_OSS
from steps.hopper.lib import BLOCKS_END
from steps.hopper.variant import PRODUCER_REGISTERS, SM_REGISTERS
from tests.distinct import named
from tests.everyday.test_masks import packed
from tests.everyday.test_sinks import assert_right_and_in_order
from tests.shapes import problem
from tutorial_lib.architectures import blocks_per_multiprocessor
from tutorial_lib.passes import FORWARD

BEFORE, STEP = get_step("hopper_soft_cap"), get_step("warpgroup_per_query_head")
NARROW = problem(batch=1, heads=8, kv_heads=2, seq_len_q=300, seq_len_kv=300, window=70)
SHAPES = [
    NARROW,
    replace(NARROW, batch=2, heads=4, window=128, seq_len_q=200, seq_len_kv=140, dtype="bfloat16", scale=-0.4),
    replace(NARROW, heads=2, kv_heads=1, seq_len_q=1, seq_len_kv=1, window=1),
    replace(NARROW, heads=6, kv_heads=1, window=64, softcap=5.0, head_dim=48),
    packed((100, 3, 277, 1), heads=4, kv_heads=2, window=90),
]


@pytest.mark.parametrize("shape", SHAPES, ids=named)
def test_it_is_right_and_in_order(shape):
    """The log-sum-exp, too, of every head."""
    assert STEP.variant(shape).together == 2
    assert_right_and_in_order(STEP, shape, FORWARD.inputs(shape, secrets.randbits(32)))


def test_both_warpgroups_need_the_same_tiles():
    """A quarter of the tiles of keys is fetched for one of them alone where they have queries of one head."""
    shape = replace(GPT_OSS, sinks=False)
    before, now = BEFORE.compile(shape), STEP.compile(shape)
    assert now.kv_tiles < 0.76 * before.kv_tiles and now.scores_per_tile == before.scores_per_tile
    assert STEP.variant(shape).ends == BLOCKS_END != BEFORE.variant(shape).ends


@pytest.mark.parametrize("changes", [{"window": 257}, {"heads": 3, "kv_heads": 1}, {"head_dim": 128}, {"window": None}])
def test_elsewhere_it_is_the_step_before(changes):
    shape = replace(NARROW, **changes)
    assert STEP.variant(shape) == BEFORE.variant(shape) and STEP.variant(shape).together == 1
    assert STEP.launched(shape) == shape


@pytest.mark.parametrize("step", [BEFORE, STEP], ids=named)
def test_two_blocks_share_an_sm(step):
    """Its registers, too, which the producer gives to the groups that compute."""
    shape = replace(GPT_OSS, sinks=False)
    made, variant = step.compile(shape), step.variant(shape)
    assert blocks_per_multiprocessor("sm_90", made.threads, made.registers, made.shared_bytes)[0] == 2
    assert made.blocks == 2 * step.compile(replace(shape, window=1024)).blocks
    assert 2 * 128 * (2 * variant.registers + PRODUCER_REGISTERS) <= SM_REGISTERS
