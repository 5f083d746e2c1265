"""What tests of the backward pass share."""

import math

import pytest
import torch


@pytest.fixture
def nothing_is_zero(monkeypatch):
    """Scratch memory holds NaN and odd counts before anybody writes there."""
    real = torch.empty

    def empty(*shape, dtype=None, **how):
        made = real(*shape, dtype=dtype, **how)
        return made.fill_(77 if dtype == torch.int32 else math.nan)

    monkeypatch.setattr(torch, "empty", empty)
