"""Every mbarrier that a kernel for Hopper makes is used.

The compiler gives the place of one that nobody uses to something else, too. At head_dim 256 of the backward pass these
were weights, and some were NaN when processes shared a GPU.
"""

from collections import Counter

import pytest

from steps import get_step
from tests.shapes import few_at_once, problem, zeros_alone
from tutorial_lib.passes import BACKWARD, FORWARD
from tutorial_lib.problem import Problem
from tutorial_lib.simulator import hopper, state

FORWARD_KERNELS = [
    ("wgmma", 64),
    ("producer", 64),
    ("register_reallocation", 128),
    ("intra_warpgroup_overlap", 64),
    ("lpt_scheduler", 128),
    ("epilogue_overlap", 64),
    ("three_warpgroups", 64),
    ("warpgroup_causal_bound", 64),
    ("split_epilogue", 256),
    ("pv_wait_after_max", 64),
    ("pv_wait_after_max", 128),
    ("pv_wait_after_max", 256),
    ("kv_multicast", 64),
    ("kv_multicast", 128),
    ("row_max_ilp", 64),
    ("row_max_ilp", 256),
    ("row_max_ilp_multicast", 256),
    ("no_redundant_barriers", 128),
    ("quarter_q_registers", 128),
    ("next_softmax_first", 128),
    ("split_head_dim", 160),
    ("hopper_static_scheduler", 128),
    ("ping_pong", 128),
    ("reverse_kv_order", 256),
]
LONG = ("quarter_q_registers", "next_softmax_first")
BACKWARD_KERNELS = [
    ("transposed_scores", 64),
    ("async_products", 128),
    ("decoupled_warpgroups", 64),
    ("decoupled_warpgroups", 256),
    ("deterministic", 64),
    ("backward_ping_pong", 128),
    ("dq_writer_warp", 64),
    ("dq_writer_warp", 256),
    ("two_dq_writers", 64),
    ("two_dq_writers", 128),
    ("two_dq_writers", 256),
    ("fused_pre_post", 64),
    ("fused_pre_post", 128),
    ("fused_pre_post", 256),
    ("cta_per_query_head", 64),
    ("cta_per_query_head", 128),
    ("cta_per_query_head", 256),
    ("joint_release", 64),
    ("k_registers", 128),
    ("tma_zero_fill", 64),
    ("coalesced_atomics", 256),
    ("unordered_softmax", 128),
    ("fast_deterministic", 128),
]


@pytest.fixture
def barriers(monkeypatch):
    """(mbarriers that were made, mbarriers that were used by any block), by the order in which a block makes them."""
    place, of_block, used, real = {}, Counter(), set(), hopper.barrier_at

    def noted(mbarrier, *rest, **how):
        found = real(mbarrier, *rest, **how)
        if not how.get("made", True):
            block = state.role().block
            place[found] = of_block[block]
            of_block[block] += 1
        else:
            used.add(place[found])
        return found

    monkeypatch.setattr(hopper, "barrier_at", noted)
    return lambda: (set(place.values()), used)


@pytest.mark.parametrize(("name", "head_dim"), FORWARD_KERNELS)
def test_the_forward_pass_uses_every_barrier(name, head_dim, barriers):
    # More iterations than slots; and as many queries as the rules ask for, for a third group, or for the softmax ahead.
    long = {64: 1300, 128: 2100}.get(head_dim) if name in LONG or head_dim == 64 else None
    size = {"heads": 2, "seq_len_q": long} if long else {"heads": 4, "seq_len_q": 500}
    shape = problem(batch=1, **size, seq_len_kv=500, head_dim=head_dim)
    FORWARD.call(get_step(name), shape, FORWARD.inputs(shape, 0), None)
    made, used = barriers()
    assert made and made == used


def test_packed_sequences_use_every_barrier(barriers):
    shape = Problem.packed((300, 500, 128, 400), heads=2, kv_heads=2, head_dim=128, causal=True, dtype="bfloat16")
    FORWARD.call(get_step("hopper_varlen"), shape, FORWARD.inputs(shape, 0), None)
    made, used = barriers()
    assert made and made == used


@pytest.mark.parametrize(("name", "head_dim"), BACKWARD_KERNELS)
def test_the_backward_pass_uses_every_barrier(name, head_dim, barriers, monkeypatch):
    (zeros_alone if name == "tma_zero_fill" else few_at_once)(monkeypatch)
    kv_heads = 1 if name == "cta_per_query_head" else 3
    shape = problem(  # more iterations than slots
        batch=1, heads=3, kv_heads=kv_heads, seq_len_q=300, seq_len_kv=200, head_dim=head_dim
    )
    assert name != "cta_per_query_head" or get_step(name).variant(shape).sharing == 3
    inputs = BACKWARD.inputs(shape, 0)
    BACKWARD.call(get_step(name), shape, inputs, BACKWARD.poisoned(inputs))
    made, used = barriers()
    assert made and made == used
