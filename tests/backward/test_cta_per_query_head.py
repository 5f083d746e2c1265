"""Step cta_per_query_head: with grouped heads, blocks of single query heads add to dK and dV of their kv head."""

from dataclasses import replace

import pytest

from steps import get_step
from steps.backward_hopper import skeleton
from steps.backward_hopper.adding import IN_ORDER
from steps.backward_hopper.lib import NOBODY
from tests.backward.schedules import right
from tests.distinct import some_of
from tests.shapes import always_apart, few_at_once, problem
from tutorial_lib.problem import Problem

SHAPES = [
    problem(batch=2, heads=4, kv_heads=2, seq_len_q=200, seq_len_kv=200, head_dim=128),
    problem(batch=1, heads=6, kv_heads=2, seq_len_q=130, seq_len_kv=300, head_dim=128, causal=False),
    problem(batch=1, heads=6, kv_heads=1, seq_len_q=300, seq_len_kv=200, head_dim=64, dtype="bfloat16"),
    problem(batch=1, heads=6, kv_heads=3, seq_len_q=100, seq_len_kv=600, head_dim=64),  # keys that no query sees
    problem(batch=1, heads=6, kv_heads=3, seq_len_q=1, seq_len_kv=70, head_dim=32, causal=False),
]


@pytest.mark.parametrize("spare", [True, False], ids=["spare", "alone"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda p: p.slug)
def test_gradients_are_right_under_any_schedule(shape, spare, nothing_is_zero, monkeypatch, pytestconfig):
    (few_at_once if spare else always_apart)(monkeypatch)
    variant = get_step("cta_per_query_head").variant(shape)
    assert variant.sharing == shape.group_size and variant.group_size == 1 and variant.spare == spare
    assert all(right("cta_per_query_head", shape, seed) for seed in some_of((None, 1, 2), 1, pytestconfig))


def test_sums_that_nobody_clears_are_found_out(nothing_is_zero, monkeypatch):
    always_apart(monkeypatch)
    real = skeleton._launcher

    def clears_nothing(kernel, blocks, passed, *rest, **how):
        if kernel is skeleton.prepare:
            *before, _, variant = passed
            passed = (*before, 0, variant)
        return real(kernel, blocks, passed, *rest, **how)

    monkeypatch.setattr(skeleton, "_launcher", clears_nothing)
    assert not right("cta_per_query_head", SHAPES[0])


def grouped(seq_len: int, causal: bool, head_dim: int = 128, kv_heads: int = 8) -> Problem:
    lengths = {"seq_len_q": seq_len, "seq_len_kv": seq_len}
    return Problem(batch=4, heads=64, kv_heads=kv_heads, head_dim=head_dim, causal=causal, **lengths)


def test_heads_are_apart_where_trials_found_that_faster():
    step = get_step("cta_per_query_head")
    apart = {
        (seq_len, causal, head_dim, kv_heads): step.variant(grouped(seq_len, causal, head_dim, kv_heads)).sharing > 1
        for seq_len in (1024, 4096)
        for causal in (True, False)
        for head_dim in (64, 128)
        for kv_heads in (1, 8)
    }
    assert [p for p, is_so in apart.items() if not is_so] == [
        (1024, True, 64, 8),
        (1024, False, 64, 8),
        (1024, False, 128, 8),
        (4096, False, 64, 1),
        (4096, False, 64, 8),
    ]


def test_few_turns_keep_a_group_together_even_where_blocks_are_few():
    """A block adds as much for one iteration as for many."""
    few_queries = Problem(batch=1, heads=64, kv_heads=1, seq_len_q=64, seq_len_kv=4000, head_dim=128)
    assert get_step("cta_per_query_head").variant(few_queries).sharing == 1
    few_blocks = replace(few_queries, seq_len_q=1024, seq_len_kv=1024)
    assert get_step("cta_per_query_head").variant(few_blocks).sharing == 64


@pytest.mark.parametrize(
    "shape",
    [
        problem(batch=4, heads=32, seq_len_q=4096, seq_len_kv=4096, head_dim=128),
        grouped(4096, True, head_dim=256),
        grouped(1024, False),
    ],
    ids=lambda p: p.slug,
)
def test_elsewhere_the_kernel_is_that_of_the_step_before(shape):
    now, before = get_step("cta_per_query_head"), get_step("fused_pre_post")
    assert now.variant(shape) == before.variant(shape) and now.scratch_bytes(shape) == before.scratch_bytes(shape)


def test_the_sums_are_counted_as_scratch_memory():
    shape, now, before = grouped(4096, True), get_step("cta_per_query_head"), get_step("fused_pre_post")
    more = 4 * 2 * shape.batch * shape.kv_heads * shape.seq_len_kv * shape.head_dim
    assert now.scratch_bytes(shape) - before.scratch_bytes(shape) == more + 4 * 2 * shape.batch * shape.heads


def test_a_lane_adds_four_sums_at_once():
    """One instruction for four numbers of 4 bytes each: 64 KB for each of dK and dV of a block's 128 keys."""
    ptx = get_step("cta_per_query_head").compile(grouped(4096, True)).ptx
    assert ptx.count("red.global.gpu.relaxed.add.v4.f32") == 2 * 2 * 16


def test_what_heads_apart_cannot_do_is_refused():
    with pytest.raises(ValueError, match="cta_per_query_head take adding by fours, in any order"):
        replace(get_step("cta_per_query_head"), helpers=NOBODY, sequence=IN_ORDER)
