"""The comparison with float64: everything is looked at, in few pieces."""

import math

import pytest
import torch

from tutorial_lib import accuracy

SHAPES = [(2, 3, 50, 8), (1, 2, 500, 16), (700, 3, 8), (1, 1, 1, 8)]  # of batches, and of packed sequences


@pytest.mark.parametrize("piece", [40, 1000, 10**6])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_everything_is_compared_once(monkeypatch, shape, piece):
    monkeypatch.setattr(accuracy, "PIECE", piece)
    exact = torch.randn(shape, dtype=torch.float64)
    output = exact.half()
    pieces = list(accuracy._pieces(output, exact))
    assert torch.equal(torch.cat([e.flatten() for _, e in pieces]), exact.flatten())
    assert all(o.shape == e.shape and o.numel() <= piece for o, e in pieces)
    assert accuracy.max_error(output, exact) == (output.double() - exact).abs().max().item()
    flat = output.double().flatten(), exact.flatten()
    assert accuracy.cosine(output, exact) == pytest.approx(torch.nn.functional.cosine_similarity(*flat, dim=0).item())


def test_nan_never_passes():
    exact = torch.randn(4, 6, 8, dtype=torch.float64)
    output = exact.half()
    output[3, 5, 7] = math.nan
    assert not accuracy.compare(output, exact, 1.0).correct


def test_packed_sequences_are_compared_in_few_pieces():
    """A piece for each token would be a kernel for each, which takes minutes on a GPU."""
    tokens = torch.zeros(40_000, 8, 64, dtype=torch.float64)
    assert len(list(accuracy._pieces(tokens, tokens))) == 2
