"""On a GPU: warps that no longer meet may be far apart, and the output is the same (step no_redundant_barriers)."""

import dataclasses

import pytest
import torch

from steps import get_step
from steps.hopper.kernel import fmha
from tests.hopper.test_meetings import always_in_pairs
from tests.shapes import problem
from tutorial_lib import meetings
from tutorial_lib.passes import FORWARD

pytestmark = pytest.mark.gpu
STEPS = ("no_redundant_barriers", "quarter_q_registers", "next_softmax_first")
SHAPES = [
    problem(batch=1, seq_len_q=2100, seq_len_kv=2100, head_dim=128),
    problem(seq_len_q=1000, seq_len_kv=1000, head_dim=128),
    problem(batch=1, heads=2, seq_len_q=2100, seq_len_kv=900, head_dim=128, causal=False),
    problem(batch=1, seq_len_q=500, seq_len_kv=700, kv_heads=2, head_dim=128, dtype="bfloat16"),
]
# Some of the clock's bits, mixed, in nanoseconds: up to 8 microseconds, several times what a tile of keys takes.
NAP = (
    "\t{ .reg .b32 nap; mov.u32 nap, %clock; mul.lo.u32 nap, nap, 2654435761; shr.u32 nap, nap, 19; "
    "nanosleep.u32 nap; }\n"
)


@pytest.fixture
def naps(monkeypatch, tmp_path):
    """Every warp naps where it met others before. Gives how many places that were."""
    from triton import knobs

    places = []

    def napping(ptx):
        made = without(ptx, NAP)
        places.append(made.count(NAP))
        return made

    without = meetings.without
    monkeypatch.setattr(meetings, "without", napping)
    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path))
    fmha.device_caches.clear()
    yield places
    fmha.device_caches.clear()


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("pairs", ["where they pay", "always"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda p: p.slug)
def test_warps_that_nap_at_random_leave_the_output_as_it_is(naps, shape, pairs, name):
    """A causal mask lets a group in a pair pass over a tile, and pairs come in long sequences alone."""
    q, k, v = FORWARD.inputs(shape, 0, "cuda")
    expected = get_step("row_max_ilp_multicast").attention(q, k, v, causal=shape.causal)
    # Without launches that were made ready before:
    step = dataclasses.replace(get_step(name)) if pairs == "where they pay" else always_in_pairs(get_step(name))
    first = step.attention(q, k, v, causal=shape.causal)
    torch.testing.assert_close(first, expected, rtol=0, atol=2 * torch.finfo(q.dtype).eps * expected.abs().max().item())
    for _ in range(20):
        assert torch.equal(step.attention(q, k, v, causal=shape.causal), first)
    assert max(naps) >= 6
