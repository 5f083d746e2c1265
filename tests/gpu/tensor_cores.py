"""How this GPU's tensor cores add products of fp8: ``python -m tests.gpu.tensor_cores``, on a Hopper GPU.

A small kernel lets wgmma multiply, and its results are compared bit for bit with ``tutorial_lib.tensor_cores`` and with
other rules. All rules that give every bit are printed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product as every

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma

from steps.core.launch import gluon_launcher
from tutorial_lib import tensor_cores

SIDE = gl.constexpr(64)  # rows of the first factor, and columns of the second
K = tensor_cores.K
SUMS = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 32]))
LOADED = gl.constexpr(gl.BlockedLayout([1, 16], [16, 2], [4, 1], [1, 0]))


@gluon.jit
def multiply(A, B, C, D, depth: gl.constexpr):
    """D = A B^T + C by wgmma: each block has a matrix [64, depth] of A and of B, and one [64, 64] of C and D."""
    SHARED: gl.constexpr = gl.NVMMASharedLayout(depth, 8, rank=2)
    block = gl.program_id(0)
    row = gl.arange(0, SIDE, gl.SliceLayout(1, LOADED))
    column = gl.arange(0, depth, gl.SliceLayout(0, LOADED))
    place = block * SIDE * depth + row[:, None] * depth + column[None, :]
    a = gl.allocate_shared_memory(A.dtype.element_ty, [SIDE, depth], SHARED, gl.load(A + place))
    b = gl.allocate_shared_memory(B.dtype.element_ty, [SIDE, depth], SHARED, gl.load(B + place))
    fence_async_shared()
    row = gl.arange(0, SIDE, gl.SliceLayout(1, SUMS))
    column = gl.arange(0, SIDE, gl.SliceLayout(0, SUMS))
    place = block * SIDE * SIDE + row[:, None] * SIDE + column[None, :]
    gl.store(D + place, warpgroup_mma(a, b.permute((1, 0)), gl.load(C + place)))


def measured(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """a b^T + c by the tensor cores, or on the CPU by the simulator.

    a and b ``[cases, 64, depth]`` in fp8, depth 32, 64 or 128; c ``[cases, 64, 64]`` in float32.
    """
    d = torch.full_like(c, float("nan"))
    arguments = a, b, c, d, a.shape[2]
    gluon_launcher(multiply, (len(a), 1, 1), arguments, 4, a.device)(a, b, c, d)
    return d


def cases(number: int, device: str = "cpu", seed: int = 0) -> Iterator[tuple[str, tuple[torch.Tensor, ...]]]:
    """(what is tested, factors and sums for ``measured``), of each kind as many as ``number``."""
    chance = torch.Generator(device).manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=chance, device=device)

    def uniform(low, high, *shape):
        return torch.rand(*shape, generator=chance, device=device) * (high - low) + low

    def any_bits(most: int, *shape):
        """Of a finite e4m3: its last bits are at most ``most``, and the sign is any."""
        bits = torch.randint(0, most + 1, shape, generator=chance, device=device)
        signs = torch.randint(0, 2, shape, generator=chance, device=device)
        return (bits + 128 * signs).to(torch.uint8).view(torch.float8_e4m3fn)

    def power(low, high, *shape):
        """Of either sign, with all 24 bits."""
        return torch.exp2(uniform(low, high, *shape)) * normal(*shape).sign()

    def e4m3(x):
        return x.clamp(-448, 448).to(torch.float8_e4m3fn)

    def e5m2(x):
        return x.to(torch.float8_e5m2)

    side = SIDE.value
    factor, sums = (number, side, K), (number, side, side)
    a, b = e4m3(normal(*factor) * 30), e4m3(normal(*factor) * 30)
    yield "normal factors, no sum", (a, b, torch.zeros(sums, device=device))
    yield "normal factors and sums", (a, b, normal(*sums) * 5000)
    yield "a sum far above the products", (a, b, power(12, 24, *sums))
    yield "a sum far below the products", (a, b, power(-20, 4, *sums))
    yield "a sum that they cancel", (a, b, -(a.float() @ b.float().mT) * uniform(0.99, 1.01, *sums))
    yield "a sum alone", (torch.zeros_like(a), torch.zeros_like(b), power(-20, 20, *sums))
    a, b = any_bits(60, *factor), any_bits(60, *factor)
    a[..., 7], b[..., 7] = any_bits(126, number, side), any_bits(126, number, side)
    yield "one large product", (a, b, normal(*sums))
    yield "any bits", (any_bits(126, *factor), any_bits(126, *factor), power(-10, 20, *sums))
    yield "factors below the normal ones", (any_bits(12, *factor), any_bits(12, *factor), power(-20, -8, *sums))
    weights, values = torch.exp2(uniform(-8, 8, *factor)), normal(*factor) * 90 + 45
    yield "weights and values", (e4m3(weights), e4m3(values), power(8, 22, *sums).abs())
    yield "weights, and values in e5m2", (e4m3(weights), e5m2(values * 128), power(15, 29, *sums).abs())
    yield "factors in e5m2", (e5m2(normal(*factor) * 4000), e5m2(normal(*factor) * 4000), power(16, 38, *sums))
    tiny = e5m2(torch.exp2(uniform(-17, -12, *factor)))
    yield "factors in e5m2 below the normal ones", (tiny, tiny.flip(1), power(-34, -20, *sums))
    deep = (number, side, 4 * K)
    yield "four instructions", (e4m3(normal(*deep) * 30), e4m3(normal(*deep) * 30), normal(*sums) * 5000)


@dataclass(frozen=True)
class Rule:
    """One way to add the products of an instruction to a sum, written out in float64."""

    fraction_bits: int  # below the largest exponent, of what is added
    rounded: str  # what is added, and the sum: "zero", "down" or "nearest"
    with_sum: bool  # the sum is aligned with the products; else it is added to what they give
    group: int  # products that are added at once
    normalized: bool  # a product's exponent is that of its value; else the sum of its factors' exponents
    kept: int  # fraction bits of the result

    def add(self, a, b, c):
        """As ``measured``."""
        total = c.double()
        for begin in range(0, a.shape[2], self.group):
            x, y = (part[..., begin : begin + self.group].double() for part in (a, b))
            products = x[:, :, None] * y[:, None]
            if self.normalized:
                powers = _power_below(products)
            else:
                least = (torch.finfo(part.dtype).smallest_normal for part in (a, b))
                x, y = (_power_below(part).clamp(min=low) for part, low in zip((x, y), least))
                powers = (x[:, :, None] * y[:, None]).masked_fill(products == 0, 0.0)
            largest = powers.amax(-1)
            if self.with_sum:
                largest = torch.maximum(largest, _power_below(total))
            unit = largest.clamp(min=2.0**-200) / 2**self.fraction_bits
            added = self._round(products / unit[..., None]).sum(-1) * unit
            total = added + (self._round(total / unit) * unit if self.with_sum else total)
            unit = _power_below(total).clamp(min=2.0**-200) / 2**self.kept
            total = self._round(total / unit) * unit
        return total.float()

    def _round(self, x):
        return {"zero": torch.trunc, "down": torch.floor, "nearest": torch.round}[self.rounded](x)


def _power_below(x):
    mantissa, exponent = torch.frexp(x)
    return torch.exp2(exponent.double() - 1).masked_fill(mantissa == 0, 0.0)


RULES = [Rule(*each) for each in every(range(10, 16), ("zero", "down", "nearest"), (1, 0), (32, 16), (0, 1), (13, 23))]


def by_library(a, b, c):
    """As ``measured``, by ``tutorial_lib.tensor_cores``."""
    return torch.stack([tensor_cores.product(x, y.T, z) for x, y, z in zip(a, b, c)])


def same(found: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Where all bits are equal, but for the sign of a zero."""
    return (found.view(torch.int32) == expected.view(torch.int32)) | ((found == 0) & (expected == 0))


def main() -> None:
    given = dict(cases(32, "cuda"))
    found = {what: measured(*its) for what, its in given.items()}
    share = {rule: {what: same(rule.add(*its), found[what]).float().mean().item() for what, its in given.items()}
             for rule in RULES}  # fmt: skip
    print(torch.cuda.get_device_name(), torch.__version__)
    print("Shares of the results that tutorial_lib.tensor_cores gives bit for bit:")
    for what, its in given.items():
        print(f"  {same(by_library(*its), found[what]).float().mean().item():.6f}  {what}")
    fits = [rule for rule, shares in share.items() if min(shares.values()) == 1]
    print(f"Of {len(RULES)} rules {len(fits)} give all bits of all results:", *fits, sep="\n  ")
    print("Those that come nearest, by their worst share:")
    for rule in sorted(RULES, key=lambda rule: -min(share[rule].values()))[:6]:
        print(f"  {rule}", *(f"    {value:.6f}  {what}" for what, value in share[rule].items()), sep="\n")


if __name__ == "__main__":
    sys.exit(main())
