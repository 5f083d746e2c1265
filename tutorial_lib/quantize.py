"""Quantisation to fp8: numbers as e4m3, or e5m2, times a scale.

e4m3 has 4 bits of exponent and 3 of mantissa: between two powers of two it has eight numbers, and its largest is 448.
The least normal one is 2^-6, and below that numbers are 2^-9 apart (Micikevicius et al. 2022,
https://arxiv.org/abs/2209.05433). e5m2 has one bit more of exponent and one less of mantissa: four numbers between two
powers of two, up to 57344. A scale, which is divided by before rounding, brings a tensor's largest number to that of
the type. It is float32 ``[batch, kv_heads]`` here, as attention kernels take it: of queries, a number for all heads of
a group. Scales of blocks of tokens are ``[batch, kv_heads, blocks]``; no kernel here takes them.

``rotate`` spreads outliers over head_dim in front of that. Q K^T does not change where Q and K are rotated alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tutorial_lib.problem import FP8

if TYPE_CHECKING:
    import torch

LARGEST = 448.0  # of e4m3
BLOCK = 64  # tokens that share a scale, where scales are of blocks


def quantize(x: torch.Tensor, scale: torch.Tensor, dtype: str = FP8) -> torch.Tensor:
    """x ``[B, H, S, D]`` divided by its scale ``[B, kv_heads]``, or those of its blocks, in ``dtype``.

    What is larger than the largest number of that becomes this number.
    """
    import torch

    largest = largest_of(dtype)
    return (x.float() / by_head(scale, x)).clamp(-largest, largest).to(getattr(torch, dtype))


def dequantize(x: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """x in fp8 times its scale, ``[B, H, S, D]`` in ``dtype``; None: float32."""
    import torch

    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return (x.to(wide) * by_head(scale, x)).to(dtype or torch.float32)


def dequantized(tensors: tuple, scales: tuple, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Tensors ``[B, H, S, D]`` in ``dtype``, of which the last, as many as there are scales, are in fp8."""
    plain = len(tensors) - len(scales)
    return *(x.to(dtype) for x in tensors[:plain]), *(dequantize(x, s, dtype) for x, s in zip(tensors[plain:], scales))


def by_head(scale: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """A scale ``[B, kv_heads]`` for every head of x ``[B, H, S, D]``: ``[B, H, 1, 1]``; of blocks ``[B, H, S, 1]``."""
    scale = scale.repeat_interleave(x.shape[1] // scale.shape[1], 1)
    if scale.ndim == 3:
        scale = scale.repeat_interleave(BLOCK, 2)[:, :, : x.shape[2]]
    return scale[..., None] if scale.ndim == 3 else scale[..., None, None]


def scale_of_tensor(x: torch.Tensor, kv_heads: int, dtype: str = FP8) -> torch.Tensor:
    """One scale for all of x ``[B, H, S, D]``, ``[B, kv_heads]``; 1 where x is zero. dtype: what x shall be in."""
    return _of_largest(x.abs().amax().float(), dtype).expand(x.shape[0], kv_heads).contiguous()


def scale_of_heads(x: torch.Tensor, kv_heads: int, dtype: str = FP8) -> torch.Tensor:
    """A scale for each sequence and kv head of x ``[B, H, S, D]``, ``[B, kv_heads]``; 1 where x is zero."""
    return _of_largest(x.abs().amax((2, 3)).float().view(x.shape[0], kv_heads, -1).amax(2), dtype)


def scale_of_blocks(x: torch.Tensor, kv_heads: int, dtype: str = FP8) -> torch.Tensor:
    """A scale for every ``BLOCK`` tokens of each kv head of x ``[B, H, S, D]``, ``[B, kv_heads, ceil(S / BLOCK)]``."""
    from torch.nn.functional import pad

    rows = x.abs().amax(3).float().view(x.shape[0], kv_heads, -1, x.shape[2]).amax(2)
    return _of_largest(pad(rows, (0, -x.shape[2] % BLOCK)).unflatten(2, (-1, BLOCK)).amax(3), dtype)


def rotate(x: torch.Tensor) -> torch.Tensor:
    """x ``[..., D]`` times the Hadamard matrix of D rows, over the root of D: float32, of float64 float64.

    Every number becomes a sum of all D, each with a sign, so that an outlier spreads over the row. The matrix is
    orthogonal: products of rows do not change (Ashkboos et al. 2024, https://arxiv.org/abs/2404.00456). Raises
    ValueError where D is no power of two.
    """
    import torch

    width = x.shape[-1]
    if width & (width - 1):
        raise ValueError(f"x must have rows of a power of two, got {width}")
    x = x if x.dtype == torch.float64 else x.float()
    for n in range(width.bit_length() - 1):
        a, b = x.unflatten(-1, (-1, 2, 1 << n)).unbind(-2)
        x = torch.stack((a + b, a - b), -2).flatten(-3)
    return x / width**0.5


def largest_of(dtype: str) -> float:
    """The largest number that an fp8 type holds."""
    import torch

    return torch.finfo(getattr(torch, dtype)).max


def _of_largest(largest: torch.Tensor, dtype: str) -> torch.Tensor:
    return (largest / largest_of(dtype)).masked_fill(largest == 0, 1.0)
