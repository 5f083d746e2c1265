"""Quantisers to e4m3, and attention in float32 of what they give."""

import math

import pytest
import torch

from tutorial_lib import reference
from tutorial_lib.passes import QUANTIZED
from tutorial_lib.problem import E5M2, Problem
from tutorial_lib.quantize import (
    BLOCK,
    LARGEST,
    dequantize,
    largest_of,
    quantize,
    rotate,
    scale_of_blocks,
    scale_of_heads,
    scale_of_tensor,
)

ALL = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)  # of which two are NaN
NUMBERS = ALL[~ALL.float().isnan()].view(1, 1, -1, 1)
PROBLEM = Problem(batch=2, heads=4, kv_heads=2, seq_len_q=70, seq_len_kv=90, head_dim=32, dtype="float8_e4m3fn")


def test_what_e4m3_holds_comes_back_as_it_was():
    assert NUMBERS.numel() == 254 and NUMBERS.float().max() == LARGEST
    scale = torch.tensor([[0.25]])
    exact = NUMBERS.double() * 0.25
    assert torch.equal(quantize(exact, scale).view(torch.uint8), NUMBERS.view(torch.uint8))
    assert torch.equal(dequantize(NUMBERS, scale, torch.float64), exact)
    assert dequantize(NUMBERS, scale).dtype == torch.float32


def test_a_number_is_rounded_to_one_of_its_two_neighbours_and_what_is_too_large_to_the_largest():
    one = torch.ones(1, 1)
    x = torch.empty(1, 1, 10000, 1).uniform_(-LARGEST, LARGEST) * torch.rand(1, 1, 10000, 1) ** 8
    error = (dequantize(quantize(x, one), one) - x).abs()
    assert (error <= (x.abs() / 16).clamp(min=2.0**-10)).all() and (error > x.abs() / 40).any()
    far = torch.tensor([449.0, 1e6, -1e30]).view(1, 1, 3, 1)
    assert dequantize(quantize(far, one), one).flatten().tolist() == [448.0, 448.0, -448.0]


def test_a_scale_brings_the_largest_number_of_a_head_or_of_all_to_that_of_e4m3():
    x = torch.randn(2, 4, 50, 16) * torch.tensor([1.0, 100.0, 0.01, 3.0])[None, :, None, None]
    by_heads, by_tensor = scale_of_heads(x, 2), scale_of_tensor(x, 2)
    assert by_heads.shape == by_tensor.shape == (2, 2) and by_tensor.is_contiguous()
    torch.testing.assert_close(by_heads * LARGEST, x.abs().amax((2, 3)).view(2, 2, 2).amax(2))
    torch.testing.assert_close(by_tensor * LARGEST, x.abs().max().expand(2, 2))
    for scale in (by_heads, by_tensor):
        assert quantize(x, scale).float().abs().max() == LARGEST


def test_e5m2_goes_farther_and_has_fewer_digits():
    x = torch.randn(1, 2, 100, 16)
    for scale_of in (scale_of_tensor, scale_of_heads, scale_of_blocks):
        scale = scale_of(x, 2, E5M2)
        kept = quantize(x, scale, E5M2)
        assert kept.dtype == torch.float8_e5m2 and kept.float().abs().max() == 57344 == largest_of(E5M2)
        error = (dequantize(kept, scale) - x).abs()
        assert (error <= x.abs() / 8 + 1e-6).all() and (error > x.abs() / 16).any()
    far = torch.tensor([1e6, -1e30, 57345.0]).view(1, 1, 3, 1)
    assert quantize(far, torch.ones(1, 1), E5M2).flatten().tolist() == [57344.0, -57344.0, 57344.0]


def test_a_scale_for_each_head_loses_less_where_heads_differ():
    x = torch.randn(1, 2, 200, 16) * torch.tensor([1.0, 1e5])[None, :, None, None]
    errors = [
        (dequantize(quantize(x, scale), scale) - x)[0, 0].square().mean().sqrt().item()
        for scale in (scale_of_heads(x, 2), scale_of_tensor(x, 2))
    ]
    assert errors[0] < 0.05 < errors[1]


def test_zeros_have_a_scale_of_one():
    zeros = torch.zeros(1, 2, 3, 4)
    for scale in (scale_of_heads(zeros, 2), scale_of_tensor(zeros, 2)):
        assert torch.equal(scale, torch.ones(1, 2)) and not quantize(zeros, scale).float().any()
    assert torch.equal(scale_of_blocks(zeros, 2), torch.ones(1, 2, 1))


def test_a_scale_of_a_block_is_that_of_its_tokens_alone():
    """The last block is not full; of grouped heads a block has the tokens of all."""
    x = torch.randn(2, 4, 150, 16)
    scale = scale_of_blocks(x, 2)
    assert scale.shape == (2, 2, 3)
    for n in range(3):
        tokens = x[:, :, n * BLOCK : (n + 1) * BLOCK]
        assert torch.equal(scale[..., n], scale_of_heads(tokens, 2))
        kept = quantize(x, scale)[:, :, n * BLOCK : (n + 1) * BLOCK]
        assert torch.equal(kept.float(), quantize(tokens, scale[..., n].contiguous()).float())
    torch.testing.assert_close(dequantize(quantize(x, scale), scale), x, rtol=1 / 16, atol=1e-3)


def test_a_block_with_large_numbers_costs_the_others_nothing():
    x = torch.randn(1, 1, 2 * BLOCK, 16)
    x[:, :, BLOCK:] *= 1e5
    errors = [
        (dequantize(quantize(x, scale), scale) - x)[:, :, :BLOCK].square().mean().sqrt().item()
        for scale in (scale_of_blocks(x, 1), scale_of_heads(x, 1))
    ]
    assert errors[0] < 0.05 < errors[1]


@pytest.mark.parametrize("width", [1, 2, 64, 128])
def test_a_rotation_is_the_hadamard_matrix_and_keeps_products(width):
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while len(matrix) < width:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    q, k = torch.randn(2, 3, 5, width, dtype=torch.float64)
    torch.testing.assert_close(rotate(q), q @ matrix / width**0.5)
    torch.testing.assert_close(rotate(q) @ rotate(k).mT, q @ k.mT)
    assert rotate(q.half()).dtype == torch.float32


def test_a_rotation_spreads_an_outlier():
    x = torch.zeros(1, 128)
    x[0, 77] = 100.0
    assert rotate(x).abs().allclose(torch.tensor(100 / 128**0.5))
    with pytest.raises(ValueError, match="x must have rows of a power of two, got 80"):
        rotate(torch.zeros(2, 80))


@pytest.mark.parametrize("causal", [False, True])
def test_attention_in_fp8_is_attention_but_for_the_rounding_of_weights(causal):
    inputs = QUANTIZED.inputs(PROBLEM, 1)
    exact = [dequantize(x, scale, torch.float64) for x, scale in zip(inputs[:3], inputs[3:])]
    expected = reference.attention_float64(*exact, causal, 0.3)
    for offset in (0, 8):
        found = reference.fp8_attention(*inputs[:3], inputs[3:], causal, 0.3, offset)
        assert 1e-4 < (found - expected).abs().max() < 0.1
    alone = tuple(x[:, :, :1] for x in exact)  # one key has all the weight, and 1 is a number of e4m3
    found = reference.fp8_attention(*(x[:, :, :1] for x in inputs[:3]), inputs[3:], causal, 0.3)
    torch.testing.assert_close(found.double(), reference.attention_float64(*alone, causal, 0.3))


def test_weights_are_rounded_to_e4m3_also_where_inputs_are_in_e5m2():
    """0.8125 is a number of e4m3, and e5m2 has 0.75 and 0.875 about it."""
    q, k, v = torch.ones(1, 1, 1, 16), torch.zeros(1, 1, 2, 16), torch.zeros(1, 1, 2, 16)
    k[..., 1, 0], v[..., 1, :], one = -1.0, 1.0, torch.ones(1, 1)
    tensors = [x.to(torch.float8_e5m2) for x in (q, k, v)]
    found = reference.fp8_attention(*tensors, (one,) * 3, False, -math.log(0.8125))
    torch.testing.assert_close(found, torch.full_like(found, 0.8125 / 1.8125))


def test_an_offset_saves_the_small_weights():
    """Of a row with one large score, and many that together weigh as much, an offset keeps the many."""
    shape = Problem(batch=1, heads=1, seq_len_q=1, seq_len_kv=1001, head_dim=16, dtype="float8_e4m3fn")
    q, k, v = (torch.zeros(1, 1, n, 16) for n in (1, 1001, 1001))
    q[..., 0], k[..., 0, 0], v[..., 1:, :] = 1.0, 7.0, 1.0  # a weight of 1, and a thousand of e^-7
    one = torch.ones(1, 1)
    tensors = [quantize(x, one) for x in (q, k, v)]
    exact = reference.attention_float64(q, k, v, False, 1.0)
    lost, kept = (reference.fp8_attention(*tensors, (one,) * 3, False, 1.0, n) for n in (0, 8))
    assert shape.fp8 and exact[0, 0, 0, 0] > 0.4
    assert not lost.any() and (kept - exact).abs().max() < 0.03


def test_inputs_are_those_of_bfloat16_quantised():
    inputs = QUANTIZED.inputs(PROBLEM, 3)
    assert [x.dtype for x in inputs] == [torch.float8_e4m3fn] * 3 + [torch.float32] * 3
    assert [tuple(x.shape) for x in inputs[3:]] == [(2, 2)] * 3
    assert torch.equal(inputs[1].view(torch.uint8), QUANTIZED.inputs(PROBLEM, 3)[1].view(torch.uint8))
    v = dequantize(inputs[2], inputs[5])
    assert abs(v.mean() - 0.5) < 0.1 and abs(v.std() - 1) < 0.1
    nbytes = sum(x.nbytes for x in inputs) + QUANTIZED.poisoned(inputs)[0].nbytes
    assert QUANTIZED.tensor_bytes(PROBLEM) == nbytes
