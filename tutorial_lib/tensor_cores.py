"""How Hopper's tensor cores add: products of fp8 are added in fixed point, and the sum keeps 13 fraction bits.

One instruction multiplies rows and columns of 32 numbers and adds these products to a sum. NVIDIA has not published
how. What is known was measured:

* The products are aligned to the largest exponent, and bits below the highest 14 are cut off (DeepSeek-AI 2024,
  https://arxiv.org/abs/2412.19437, section 3.3.2).
* The sum keeps 1 sign, 8 exponent and 13 mantissa bits, and the other 10 bits of a float32 are zero (Zhang et al. 2024,
  SageAttention2, https://arxiv.org/abs/2411.10958).
* All 32 products and the sum are aligned together, and everything is cut toward zero (Xie et al. 2025, MMA-Sim,
  https://arxiv.org/abs/2511.10909). The exponent of a product is the sum of its factors' exponents, also where the
  product of the mantissas is 2 or more. Fasi et al. 2021 (https://doi.org/10.7717/peerj-cs.330) found the same way of
  adding for 16-bit factors on earlier GPUs.

``python -m tests.gpu.tensor_cores`` compares wgmma with this and with other rules, bit for bit. On an H200 this rule
alone, of all that it tries, gave every bit. It also found that the instructions of a deeper product follow one another
as k ascends. Not tested were e5m2, infinities, and numbers beyond ``BOUNDS``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

K = 32  # numbers of a row that one instruction multiplies, in 8 bits
FRACTION_BITS = 13
BOUNDS = (
    2.0**-100,
    2.0**100,
)  # of what is aligned to, so that its scale is finite in float32: fp8's products are far inside
PIECE = {"cpu": 1 << 18, "cuda": 1 << 25}  # products at once: what a core's cache holds, and a small part of memory


def product(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None = None) -> torch.Tensor:
    """a @ b + c in float32 ``[M, N]``, as wgmma gives it for a ``[M, K]`` and b ``[K, N]`` in fp8; None: c is zero.

    All may have one more dimension in front, of as many products. A dimension K that is no multiple of 32 is as if
    zeros stood behind it. See above for the sources.
    """
    import torch

    total = torch.zeros(*a.shape[:-1], b.shape[-1], device=a.device) if c is None else c
    if K * total.numel() > PIECE[a.device.type]:
        if len(a) > 1 and total.ndim > 2:
            return torch.cat([product(*each) for each in zip(*(x.tensor_split(2) for x in (a, b, total)))])
        if a.shape[-2] >= b.shape[-1]:
            halves = zip(a.tensor_split(2, -2), total.tensor_split(2, -2))
            return torch.cat([product(x, b, z) for x, z in halves], -2)
        halves = zip(b.tensor_split(2, -1), total.tensor_split(2, -1))
        return torch.cat([product(a, y, z) for y, z in halves], -1)
    (a, power_a), (b, power_b) = map(_with_powers, (a, b))
    for begin in range(0, a.shape[-1], K):
        its = slice(begin, begin + K)
        largest = (power_a[..., its, None] * power_b[..., None, its, :]).amax(-2)
        largest = torch.maximum(largest, _power_below(total)).clamp_(*BOUNDS)
        scale = 2.0**FRACTION_BITS / largest
        products = a[..., its, None] * b[..., None, its, :]
        products = products.mul_(scale[..., None, :]).trunc_().sum(-2)  # integers, which float32 has
        total = _cut((products + (total * scale).trunc_()) / scale)
    return total


def lossy_on(device: torch.device) -> bool:
    """Whether sums of fp8 products lose what ``product`` does on a device: on the CPU, which simulates Hopper, they do.

    Those of a B200 keep 25 fraction bits, as was measured (https://github.com/deepseek-ai/DeepGEMM/issues/176). Other
    GPUs are taken for lossy: nothing is known of them here.
    """
    import torch

    return device.type != "cuda" or torch.cuda.get_device_capability(device)[0] != 10


def _with_powers(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """fp8 in float32, and the power of two of each exponent; 0 for zeros. What is subnormal has the least exponent."""
    import torch

    wide, least = x.float(), torch.finfo(x.dtype).smallest_normal
    return wide, _power_below(wide).clamp_(min=least).masked_fill_(wide == 0, 0.0)


def _power_below(x: torch.Tensor) -> torch.Tensor:
    """The largest power of two that is at most abs(x), which is float32: its exponent's bits alone."""
    import torch

    return (x.view(torch.int32) & 0x7F800000).view(torch.float32)


def _cut(x: torch.Tensor) -> torch.Tensor:
    """x, which is float32, without the mantissa's bits behind the 13th."""
    import torch

    return (x.view(torch.int32) & -(1 << 23 - FRACTION_BITS)).view(torch.float32)
