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
    ("registers", 128),
    ("overlap", 64),
    ("dealt", 128),
    ("linked", 64),
    ("three_groups", 64),
    ("own_end", 64),
    ("room", 256),
    ("at_maxima", 64),
    ("at_maxima", 128),
    ("at_maxima", 256),
    ("kv_multicast", 64),
    ("kv_multicast", 128),
    ("four_chains", 64),
    ("four_chains", 256),
    ("chains_in_pairs", 256),
    ("no_meetings", 128),
    ("quarter_query", 128),
    ("softmax_ahead", 128),
    ("pieces", 160),
    ("computed_tiles", 128),
    ("ping_pong", 128),
    ("diagonal_first", 256),
]
LONG = ("quarter_query", "softmax_ahead")
BACKWARD_KERNELS = [
    ("on_its_side", 64),
    ("under_way", 128),
    ("groups_apart", 64),
    ("groups_apart", 256),
    ("in_turn", 64),
    ("alternate", 128),
    ("adder", 64),
    ("adder", 256),
    ("two_adders", 64),
    ("two_adders", 128),
    ("two_adders", 256),
    ("spare_warps", 64),
    ("spare_warps", 128),
    ("spare_warps", 256),
    ("heads_apart", 64),
    ("heads_apart", 128),
    ("freed_together", 64),
    ("keys_kept", 128),
    ("zeros_ahead", 64),
    ("whole_lines", 256),
    ("no_turns", 128),
    ("short_turns", 128),
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
    # More turns than places; and as many queries as the rules ask for, for a third group, or for the softmax ahead.
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
    (zeros_alone if name == "zeros_ahead" else few_at_once)(monkeypatch)
    kv_heads = 1 if name == "heads_apart" else 3
    shape = problem(  # more turns than places
        batch=1, heads=3, kv_heads=kv_heads, seq_len_q=300, seq_len_kv=200, head_dim=head_dim
    )
    assert name != "heads_apart" or get_step(name).variant(shape).sharing == 3
    inputs = BACKWARD.inputs(shape, 0)
    BACKWARD.call(get_step(name), shape, inputs, BACKWARD.poisoned(inputs))
    made, used = barriers()
    assert made and made == used
