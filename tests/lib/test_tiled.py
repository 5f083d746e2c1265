"""Attention in tiles: right, and never more than a tile of scores at a time."""

import math

import pytest
import torch

from tutorial_lib.tiled import TooLarge, Watch, attention_in_tiles, largest


def head(queries, keys, size=1.0):
    generator = torch.manual_seed(0)
    q, k, v = (torch.randn(n, 8, generator=generator) for n in (queries, keys, keys))
    return size * q, size * k, v


def exact(q, k, v, causal):
    scores = q.double() @ k.double().T / math.sqrt(q.shape[1])
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape, dtype=torch.bool).triu(1), -math.inf)
    return torch.softmax(scores, 1) @ v.double()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("queries, keys", [(40, 40), (70, 30), (30, 70), (5, 3)])
def test_tiles_give_what_the_formula_gives(queries, keys, causal):
    q, k, v = head(queries, keys)
    assert (attention_in_tiles(q, k, v, causal, 16) - exact(q, k, v, causal)).abs().max() < 1e-5


def test_what_is_too_large_is_told_with_its_shape_and_line():
    q, k, v = head(60, 70)
    assert largest(lambda: torch.softmax(q @ k.T, 1) @ v) == (60, 70)
    assert math.prod(largest(attention_in_tiles, q, k, v, False, 16)) == 60 * 8  # the output
    watch = Watch(lambda shape: "too large." if shape == (60, 70) else None, __file__)
    with pytest.raises(TooLarge, match=r"shape \[60, 70\] is made in `q @ k.T  # here`: too large"), watch:
        q @ k.T  # here
