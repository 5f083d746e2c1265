"""Kernels that keep one unit of an SM busy and do nothing else: how many operations it does in a clock.

Every warp repeats its operation on registers or on a tile in shared memory whose contents do not matter. There is a
block an SM, of wgmma two, so that what all blocks do, over the SMs and the cycles that the launch took, is the unit's
rate. The last rate is that of blocks: each does nothing but begin, fetch a tile, store it, and end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from tutorial_lib.compiler import compiled_how

BLOCK = "block"
ITERATIONS = 20_000  # enough that a launch takes milliseconds, beside which its start and end are nothing


@dataclass(frozen=True)
class Rate:
    """A unit, what keeps it busy, the warps of a block that do, the operations of an iteration, and how many it has.

    blocks: of an SM, side by side; ``operations`` are those of all of them.
    """

    name: str
    what: str
    warps: int
    operations: int
    constants: tuple
    iterations: int = ITERATIONS
    blocks: int = 1

    @property
    def operations_of_an_sm(self) -> int:
        return self.operations * self.iterations


def _wgmma(columns: int, from_registers: bool) -> Rate:
    place = "registers" if from_registers else "shared memory"
    rows, depth, groups = 64, 128, 2
    return Rate(
        f"wgmma_{'rs' if from_registers else 'ss'}_n{columns}",
        f"wgmma, 64 x {columns} x 16, the first factor from {place}, two warpgroups",
        4,
        2 * (groups * rows) * columns * depth,
        (columns, from_registers),
        blocks=groups,  # each its own: Triton 3.9 has the warpgroups of a block wait for each other every iteration
    )


RATES = (
    Rate("mma_sync", "mma.sync, 16 x 8 x 16, factors in registers", 8, 2 * (8 * 32) * 64 * 32, ()),
    *(_wgmma(columns, from_registers) for from_registers in (False, True) for columns in (64, 128, 256)),
    Rate("ex2", "exponentials, ex2.approx.ftz", 16, 16 * 32 * 16, ()),
    Rate("fma", "fused multiply-adds in float32", 16, 16 * 32 * 16, ()),
    Rate(BLOCK, "blocks, one at a time, that fetch a tile by TMA and store it", 4, 1, (), iterations=1000),
)
HOPPERS = ("wgmma", BLOCK)


def of_arch(arch: str) -> list[Rate]:
    """Those that are measured on an architecture: only sm_90 has wgmma, and TMA as the kernels use it."""
    return [rate for rate in RATES if arch == "sm_90" or not rate.name.startswith(HOPPERS)]


def call_of(rate: Rate) -> Callable[[int], object]:
    """``call(i)`` keeps the unit busy on every SM of the current device, for the rate's iterations."""
    import torch

    processors = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
    if rate.name == BLOCK:
        return _blocks(rate, processors)
    out = torch.empty(1, dtype=torch.float32, device="cuda")
    kernel = kernels()[rate.name.split("_n")[0].removesuffix("_rs").removesuffix("_ss")]
    return lambda i: kernel[(processors * rate.blocks,)](
        out, 0.5, rate.iterations, *rate.constants, num_warps=rate.warps, **compiled_how()
    )


def _blocks(rate: Rate, processors: int) -> Callable[[int], object]:
    import torch
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    source, target = (
        TensorDescriptor.from_tensor(x, [128, 128], layout)
        for x in torch.zeros(2, processors * 128, 128, dtype=torch.float16, device="cuda")
    )
    return lambda i: kernels()[BLOCK][(processors * rate.iterations,)](
        source, target, processors, num_warps=rate.warps, **compiled_how()
    )


@cache
def kernels() -> dict:
    """By unit. Each takes (out, a number that nobody knows when it is compiled, iterations, its own constants)."""
    from tutorial_lib.rates_kernels import block, ex2, fma, mma_sync, wgmma

    return {"mma_sync": mma_sync, "wgmma": wgmma, "ex2": ex2, "fma": fma, BLOCK: block}
