"""Values narrower than keys: right, in tiles of their own width, and nothing else changes."""

import secrets
from dataclasses import replace

import pytest
import torch

from steps import get_step
from steps.core.grids import GRIDS
from steps.hopper import one_by_one
from tests.checking import assert_right, faults
from tests.shapes import problem
from tutorial_lib.passes import FORWARD
from tutorial_lib.problem import BYTES_PER_ELEMENT

STEP = get_step("narrow_values")
BEFORE = get_step("balanced_tail")
SHAPES = [
    problem(head_dim=192, head_dim_v=128, batch=1, heads=4, kv_heads=2, seq_len_q=300, seq_len_kv=130),
    problem(head_dim=192, head_dim_v=128, causal=False, seq_len_q=65, seq_len_kv=200, dtype="bfloat16"),
    problem(head_dim=192, head_dim_v=128, seq_len_q=1, seq_len_kv=1),
    problem(head_dim=160, head_dim_v=96, batch=1, heads=2, seq_len_q=140, seq_len_kv=270, dtype="bfloat16"),
    problem(head_dim=192, head_dim_v=160, batch=1, heads=2, seq_len_q=129, seq_len_kv=129),
    problem(head_dim=192, head_dim_v=64, batch=1, heads=2, seq_len_q=129, seq_len_kv=257, dtype="bfloat16"),
    problem(head_dim=256, head_dim_v=72, causal=False, batch=1, heads=2, seq_len_q=200, seq_len_kv=200, scale=-0.1),
    problem(head_dim=128, head_dim_v=64, seq_len_q=257, seq_len_kv=600, batch=1),
    problem(head_dim=96, head_dim_v=64, causal=False, seq_len_q=70, seq_len_kv=300, dtype="bfloat16"),
    problem(head_dim=80, head_dim_v=48, seq_len_q=100, seq_len_kv=100),
    problem(head_dim=64, head_dim_v=32, seq_len_q=400, seq_len_kv=400, batch=1),
]
IN_PANELS = [
    problem(head_dim=192, head_dim_v=128, batch=1, heads=4, kv_heads=2, seq_len_q=400, seq_len_kv=700),
    problem(head_dim=192, head_dim_v=128, batch=1, heads=2, causal=False, seq_len_q=130, seq_len_kv=600, scale=-0.2),
    problem(head_dim=136, head_dim_v=64, batch=1, heads=2, seq_len_q=513, seq_len_kv=513, dtype="bfloat16"),
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


@pytest.mark.parametrize("shape", IN_PANELS, ids=lambda p: p.slug)
def test_in_panels_it_is_right_and_in_order(shape):
    assert STEP.variant(shape).panels == 3
    assert not faults(STEP, shape, secrets.randbits(16))


def test_tiles_are_as_wide_as_keys_and_values():
    latent = STEP.default_problem
    its, theirs = (STEP.variant(shape) for shape in (latent, replace(latent, head_dim_v=None)))
    assert (its.head_dim, its.panel_columns, its.value_dim, its.pieces) == (192, 64, 128, None)
    assert (theirs.head_dim, theirs.panels, theirs.value_dim, theirs.pieces) == (256, 1, 256, (128, 64))
    assert STEP.variant(problem(head_dim=256, head_dim_v=128)).panels == 1
    assert STEP.variant(problem(head_dim=128, head_dim_v=64)).panels == 1


@pytest.mark.parametrize("causal", [True, False])
def test_shared_memory_holds_two_tiles_of_128_keys_and_values(causal):
    latent = replace(STEP.default_problem, causal=causal)
    its, made = STEP.variant(latent), STEP.compile(latent)
    assert (its.tile.key, its.stages) == (128, 2)
    tiles = 2 * 128 * (192 + 128) + its.tile.query * (192 + its.output_columns)
    barriers = 1024  # bytes at most
    assert 0 < made.shared_bytes - tiles * BYTES_PER_ELEMENT <= barriers
    assert made.spilled_bytes == 0
    wgmmas = [i.text.split("HGMMA.64x")[1].split(".")[0].split("x") for i in made.hot_body if "HGMMA.64x" in i.text]
    assert sum(int(n) * int(k) for n, k in wgmmas) == 128 * (192 + 128)  # columns of zeros are not multiplied


@pytest.mark.parametrize("changes", [{"generation": one_by_one.fmha, "in_pieces": False}, {"pairs": True}])
def test_panels_refuse_what_they_do_not_take(changes):
    with pytest.raises(ValueError, match="panels take a producer, blocks each for itself"):
        replace(STEP, **changes).variant(STEP.default_problem)


def test_values_as_wide_as_keys_have_the_kernel_of_the_step_before():
    for shape in (replace(STEP.default_problem, head_dim_v=None), problem(head_dim=128)):
        assert STEP.variant(shape) == BEFORE.variant(shape)


def test_who_takes_what():
    latent = STEP.default_problem
    assert STEP.unsupported(latent, "sm_90") is None
    assert STEP.unsupported(replace(latent, head_dim=64), "sm_90") == "takes no values wider than keys"
    assert BEFORE.unsupported(latent, "sm_90") == "takes no values of another width than keys"
    assert all(STEP.unsupported(shape, "sm_90") is None for shape in GRIDS["latent"].problems)
