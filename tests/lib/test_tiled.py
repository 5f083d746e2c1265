"""Attention in tiles: right without a mistake, wrong with each, and never more than a tile of scores at a time."""

import math

import pytest
import torch

from tutorial_lib.tiled import UPDATE, WHOLE, Suspects, TooLarge, Watch, attention_in_tiles, largest, weighted_mean


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


@pytest.mark.parametrize("mistake", WHOLE)
def test_a_mistake_gives_something_else_and_is_recognised(mistake):
    suspects = Suspects(WHOLE, attention_in_tiles)
    for causal, size in ((False, 1.0), (True, 1.0), (False, 12.0)):
        inputs = (*head(60, 70, size), causal, 16)
        output = attention_in_tiles(*inputs, mistake)
        suspects.see(output, *inputs, wrong=not torch.allclose(output, attention_in_tiles(*inputs), 1e-3, 1e-3))
    assert WHOLE[mistake] in suspects.told
    suspects.see(attention_in_tiles(*inputs), *inputs, wrong=False)
    suspects.see(torch.zeros(60, 8), *inputs, wrong=True)
    assert suspects.told == ""


@pytest.mark.parametrize("mistake", UPDATE)
def test_the_mistakes_of_a_row_are_those_of_the_update(mistake):
    scores, values = torch.arange(40.0) / 10 + 200, torch.randn(40, 3)
    right = torch.softmax(scores.double(), 0) @ values.double()
    assert (weighted_mean(scores, values, 16) - right).abs().max() < 1e-5
    scores = scores.flip(0) * 250 if mistake == "own maximum" else scores
    right = torch.softmax(scores.double(), 0) @ values.double()
    assert not (weighted_mean(scores, values, 16, mistake) - right).abs().max() < 1e-3


def test_what_is_too_large_is_told_with_its_shape_and_line():
    q, k, v = head(60, 70)
    assert largest(lambda: torch.softmax(q @ k.T, 1) @ v) == (60, 70)
    assert math.prod(largest(attention_in_tiles, q, k, v, False, 16)) == 60 * 8  # the output
    watch = Watch(lambda shape: "too large." if shape == (60, 70) else None, __file__)
    with pytest.raises(TooLarge, match=r"shape \[60, 70\] is made in `q @ k.T  # here`: too large"), watch:
        q @ k.T  # here
