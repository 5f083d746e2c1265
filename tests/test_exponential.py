"""The polynomial that stands for some exponentials: as exact as 16-bit weights need, and PTX that says the same."""

import re
import struct

import pytest
import torch

from steps import exponential


def by_polynomial(x: torch.Tensor) -> torch.Tensor:
    """What the PTX computes, operation for operation, in float32."""
    x = torch.maximum(x, torch.tensor(exponential.LEAST))
    whole = torch.round(x)
    *lower, highest = exponential.coefficients()
    p = torch.full_like(x, float(highest))
    for c in reversed(lower):
        p = p * (x - whole) + float(c)
    return torch.ldexp(p, whole.int())


def test_it_errs_less_than_rounding_to_16_bits():
    x = torch.linspace(-100, 8, 1_000_001)
    relative = (by_polynomial(x).double() / torch.exp2(x.double()) - 1).abs().max()
    assert relative < 2.0**-12  # float16 rounds by up to 2^-11 of a number, bfloat16 by up to 2^-8


def test_what_a_mask_hides_weighs_next_to_nothing():
    assert 0 <= by_polynomial(torch.tensor(float("-inf"))) < 1e-37


@pytest.mark.parametrize("share", [0, 1, 3, exponential.PACK])
def test_the_ptx_holds_the_coefficients_and_the_share(share):
    text = exponential.ptx(share)
    assert text.count("ex2.approx") == exponential.PACK - share
    constants = [struct.unpack(">f", bytes.fromhex(h))[0] for h in re.findall(r"0f([0-9A-F]{8})", text)]
    for c in exponential.coefficients():
        assert constants.count(torch.tensor(float(c)).item()) == share
    assert exponential.CONSTRAINTS.count("=&f") == exponential.PACK
