"""Values narrower than keys: right, in tiles of their own width, and nothing else changes."""

import secrets
from dataclasses import replace

import pytest
import torch

from steps import get_step
from steps.core.grids import GRIDS
from tests.checking import assert_right
from tests.shapes import problem
from tutorial_lib.passes import FORWARD
from tutorial_lib.problem import BYTES_PER_ELEMENT

STEP = get_step("narrow_values")
BEFORE = get_step("balanced_tail")
SHAPES = [
    problem(head_dim=192, head_dim_v=128, batch=1, heads=4, kv_heads=2, seq_len_q=300, seq_len_kv=130),
    problem(head_dim=192, head_dim_v=128, causal=False, seq_len_q=65, seq_len_kv=200, dtype="bfloat16"),
    problem(head_dim=192, head_dim_v=128, seq_len_q=1, seq_len_kv=1),
    problem(head_dim=192, head_dim_v=160, batch=1, heads=2, seq_len_q=129, seq_len_kv=129),
    problem(head_dim=192, head_dim_v=64, batch=1, heads=2, seq_len_q=129, seq_len_kv=257, dtype="bfloat16"),
    problem(head_dim=256, head_dim_v=72, causal=False, batch=1, heads=2, seq_len_q=200, seq_len_kv=200, scale=-0.1),
    problem(head_dim=128, head_dim_v=64, seq_len_q=257, seq_len_kv=600, batch=1),
    problem(head_dim=96, head_dim_v=64, causal=False, seq_len_q=70, seq_len_kv=300, dtype="bfloat16"),
    problem(head_dim=80, head_dim_v=48, seq_len_q=100, seq_len_kv=100),
    problem(head_dim=64, head_dim_v=32, seq_len_q=400, seq_len_kv=400, batch=1),
]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda p: p.slug)
def test_it_is_right(shape):
    assert_right(STEP, shape)


def test_out_and_the_log_sum_exp():
    shape = SHAPES[0]
    q, k, v = FORWARD.inputs(shape, secrets.randbits(32))
    out = torch.full((*q.shape[:3], shape.value_dim), float("nan"), dtype=q.dtype)
    o, lse = STEP.attention(q, k, v, causal=True, out=out, return_lse=True)
    scores = (q.double() @ k.double().repeat_interleave(2, 1).mT / shape.head_dim**0.5).masked_fill(
        torch.ones(300, 130, dtype=torch.bool).triu(1), float("-inf")
    )
    assert o is out and not out.isnan().any()
    assert (lse - scores.logsumexp(-1)).abs().max() < 1e-4


def test_values_have_tiles_of_their_own_width():
    latent = STEP.default_problem
    its, theirs = (STEP.variant(shape) for shape in (latent, replace(latent, head_dim_v=None)))
    assert (its.head_dim, its.value_dim, its.pieces, its.value_pieces) == (256, 128, (128, 64), None)
    assert (theirs.head_dim, theirs.value_dim, theirs.pieces, theirs.value_pieces) == (256, 256, (128, 64), (128, 64))
    made, before = STEP.compile(latent), BEFORE.compile(replace(latent, head_dim_v=None))
    assert made.spilled_bytes == 0
    saved = 2 * its.tile.key * (256 - 128) * BYTES_PER_ELEMENT  # two slots of V
    assert made.shared_bytes <= before.shared_bytes - saved
    assert STEP.shared_clocks(latent) < STEP.shared_clocks(replace(latent, head_dim_v=None))


def test_values_as_wide_as_keys_have_the_kernel_of_the_step_before():
    for shape in (replace(STEP.default_problem, head_dim_v=None), problem(head_dim=128)):
        assert STEP.variant(shape) == BEFORE.variant(shape)


def test_who_takes_what():
    latent = STEP.default_problem
    assert STEP.unsupported(latent, "sm_90") is None
    assert STEP.unsupported(replace(latent, head_dim=64), "sm_90") == "takes no values wider than keys"
    assert BEFORE.unsupported(latent, "sm_90") == "takes no values of another width than keys"
    assert all(STEP.unsupported(shape, "sm_90") is None for shape in GRIDS["latent"].problems)
