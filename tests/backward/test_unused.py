"""Every mbarrier that a backward kernel for Hopper makes is used.

The compiler gives the place of one that nobody uses to something else, too. At head_dim 256 these were weights, and
some were NaN when processes shared a GPU.
"""

import pytest

from steps import get_step
from tests.shapes import few_at_once, problem
from tutorial_lib.passes import BACKWARD
from tutorial_lib.simulator import hopper

KERNELS = [
    ("on_its_side", 64),
    ("under_way", 128),
    ("groups_apart", 64),
    ("groups_apart", 256),
    ("in_turn", 64),
    ("alternate", 128),
    ("adder", 64),
    ("adder", 256),
    ("spare_warps", 64),
    ("spare_warps", 128),
    ("spare_warps", 256),
]


@pytest.mark.parametrize(("name", "head_dim"), KERNELS)
def test_every_barrier_is_used(name, head_dim, monkeypatch):
    few_at_once(monkeypatch)
    made, used, real = set(), set(), hopper.barrier_at

    def noted(mbarrier, *rest, **how):
        found = real(mbarrier, *rest, **how)
        (used if how.get("made", True) else made).add(found)
        return found

    monkeypatch.setattr(hopper, "barrier_at", noted)
    shape = problem(batch=1, heads=3, seq_len_q=300, seq_len_kv=200, head_dim=head_dim)  # more turns than places
    inputs = BACKWARD.inputs(shape, 0)
    BACKWARD.call(get_step(name), shape, inputs, BACKWARD.poisoned(inputs))
    assert made and made == used
