"""Gradients where keys hold minus infinity: NaN where the formulas have it, and nowhere else.

A score of such a key is minus infinity, and its weight zero; dQ alone multiplies the key itself by zero. In the last
tile of queries rows past the end are zeros, and zero times infinity is NaN: these must have no weight.
"""

import math
import secrets

import pytest
import torch

from steps.core.ladder import kernels_of
from tests.distinct import core, distinct, named
from tests.everyday.test_masks import packed
from tests.selection import sampled
from tests.shapes import problem
from tutorial_lib.passes import BACKWARD, FORWARD
from tutorial_lib.reference import sdpa_gradients

FEW = {"batch": 1, "heads": 1, "dtype": "bfloat16"}
PLAIN = [
    problem(**FEW, seq_len_q=130, seq_len_kv=256, causal=False),
    problem(**FEW, seq_len_q=1, seq_len_kv=256, causal=False),
    problem(**FEW, seq_len_q=150, seq_len_kv=200),
    problem(**FEW, seq_len_q=130, seq_len_kv=128, causal=False, head_dim=128),
    problem(**FEW, seq_len_q=130, seq_len_kv=200, head_dim=256),
]
MORE = [
    problem(**FEW, seq_len_q=200, seq_len_kv=200, window=70),
    problem(**FEW, seq_len_q=130, seq_len_kv=256, causal=False, softcap=2.0),
    packed((70, 4, 128), (100, 130, 64), heads=1, kv_heads=1, causal=False, dtype="bfloat16"),
    packed((70, 4, 200), heads=1, kv_heads=1, dtype="bfloat16", softcap=2.0),
]
CASES = distinct(kernels_of("backward"), [*PLAIN, *MORE])


@pytest.fixture
def infinite_keys(monkeypatch):
    """Inputs whose odd keys hold minus infinity, as do their scores. Every query sees a key of numbers."""
    given = FORWARD.inputs

    def changed(shape, *how):
        q, k, *others = given(shape, *how)
        tokens = k.transpose(0, 1) if shape.lengths else k
        tokens[..., 1::2, 0] = -math.inf
        return q.abs(), k, *others

    monkeypatch.setattr(FORWARD, "inputs", changed)
    return lambda shape: BACKWARD.inputs(shape, secrets.randbits(32))


@sampled(core=core(CASES, always=[PLAIN[0], PLAIN[2]]))
@pytest.mark.parametrize(("step", "shape"), CASES, ids=named)
def test_keys_of_minus_infinity_have_gradients(step, shape, infinite_keys):
    inputs = infinite_keys(shape)
    exact, made = BACKWARD.reference(shape, inputs), BACKWARD.poisoned(inputs)
    BACKWARD.call(step, shape, inputs, made)
    for mine, true in zip(made, exact, strict=True):
        assert torch.equal(mine.isnan(), true.isnan())
        assert (mine.double() - true).nan_to_num(0.0).abs().max() <= 0.02 * true.nan_to_num(0.0).abs().max()


@pytest.mark.parametrize("shape", PLAIN, ids=named)
def test_so_has_pytorch(shape, infinite_keys):
    q, k, v, _, _, do = inputs = infinite_keys(shape)
    its = sdpa_gradients(q, k, v, do, shape.causal, shape.scale)
    assert [x.isnan().sum() for x in its] == [x.isnan().sum() for x in BACKWARD.reference(shape, inputs)]
    assert not any(x.isnan().any() for x in its[1:])
