"""Where errors of fp8 come from: PyTorch computes attention by formulas, and no kernel runs.

All errors are root mean squares, relative to the exact output.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from tutorial_lib import quantize, reference, tensor_cores
from tutorial_lib.passes import QUANTIZED
from tutorial_lib.problem import FP8, Problem

OFFSET = 8  # of the weights, in base 2, as step 304's
TILE = 128  # keys that the tensor cores add up in step 305
QUERIES = 8
RARE = 0.001  # of all numbers are outliers


def in_two_levels(weights: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """weights @ values in float32, as step 305 adds: a tile of keys in the tensor cores, and tiles in float32."""
    return sum(tensor_cores.product(*tile) for tile in zip(weights.split(TILE, -1), values.split(TILE, -2)))


ADDS = reference.in_float32, in_two_levels, tensor_cores.product


@dataclass(frozen=True)
class OfLength:
    """Errors of a row of keys. format: what quantizing the inputs costs.

    Each for PV products added up in float32, in two levels, and by the tensor cores alone: kernel: what rounding the
    weights and the sums cost beyond the format. needle: the share that is left of an output which one key should
    decide, the first, with a large value.
    """

    format: float
    kernel: tuple[float, ...]
    needle: tuple[float, ...]


def of_length(problem: Problem, keys: int, seed: int = 0) -> OfLength:
    """``OfLength`` of random inputs in fp8, of one head and ``QUERIES`` queries without a mask.

    The values' mean is 1/2, so that what sums lose adds up. The needle has a value of 448 and a weight of 1; all others
    have a value of 1/2, and a weight of 2^-6. Both weights are numbers of e4m3: only the sums lose.
    """
    row = replace(problem, batch=1, heads=1, kv_heads=1, seq_len_q=QUERIES, seq_len_kv=keys, causal=False)
    inputs = QUANTIZED.inputs(row, seed)
    exact = QUANTIZED.reference(row, inputs)[0]
    whole = reference.attention_float64(*QUANTIZED.whole_inputs(row, seed))

    q, k, v = (torch.zeros(1, 1, n, 64) for n in (1, keys, keys))
    q[..., 0], k[..., 0, 0], v[..., 0, :], v[..., 1:, :] = 1.0, 6.0, 448.0, 0.5
    needle = [x.to(torch.float8_e4m3fn) for x in (q, k, v)]
    right = reference.attention_float64(q, k, v, False, math.log(2))  # scores are in base 2

    kernel, found, one = [], [], torch.ones(1, 1)
    for adds in ADDS:
        how = OFFSET, (reference.in_float32, adds)
        made = reference.fp8_attention(*inputs[:3], inputs[3:], False, None, *how)
        kernel.append(size(made - exact) / size(exact))
        made = reference.fp8_attention(*needle, (one, one, one), False, math.log(2), *how)
        found.append((made / right).mean().item())
    return OfLength(size(exact - whole) / size(whole), tuple(kernel), tuple(found))


def of_outliers(times: float, scale_of: Callable, rotated: bool = False, dtype: str = FP8, seed: int = 0) -> float:
    """What quantizing costs where a number in a thousand of Q, K and V is so many times as large as the normal ones.

    scale_of: one of the functions ``scale_of_...`` of ``tutorial_lib.quantize``. rotated: Q and K are, before.
    """
    generator, heads = torch.Generator().manual_seed(seed), 4
    shape, inputs = (1, heads, 512, 128), []
    for _ in "qkv":
        x = torch.randn(shape, dtype=torch.float64, generator=generator)
        inputs.append(torch.where(torch.rand(shape, generator=generator) < RARE, x * times, x))
    exact = reference.attention_float64(*inputs)
    if rotated:
        inputs[:2] = map(quantize.rotate, inputs[:2])
    scales = [scale_of(x, heads, dtype) for x in inputs]
    kept = [quantize.quantize(x, s, dtype) for x, s in zip(inputs, scales)]
    return size(reference.attention_float64(*quantize.dequantized(kept, scales, torch.float64)) - exact) / size(exact)


def size(x: torch.Tensor) -> float:
    """The root of the mean square."""
    return x.double().square().mean().sqrt().item()
