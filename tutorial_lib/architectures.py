"""What each architecture can hold and do: one table, each number with its source.

An SM's limits decide how many blocks run on it at once; its rates decide how long a loop takes at least. An entry that
no source states is None, and whoever needs it says that it is not known. Where a source gives a peak instead of a rate,
the rate is the peak over SMs and boost clock, to the next power of two.

Sources
  [guide]  CUDA C++ Programming Guide 13, "Compute Capabilities": technical specifications, and "Arithmetic
           Instructions": throughput of native arithmetic instructions, results a clock and SM.
  [A100]   NVIDIA A100 Tensor Core GPU Architecture, 2020: 1024 FP16 FMA a clock and SM; 108 SMs, 1410 MHz, 2039 GB/s.
  [GA102]  NVIDIA Ampere GA102 GPU Architecture, 2021: 512 FP16 FMA a clock and SM; A40: 84 SMs, 1740 MHz, 149.7
           TFLOPS FP16, 696 GB/s.
  [Ada]    NVIDIA Ada GPU Architecture, 2022: RTX 4090, 165.2 TFLOPS FP16 with FP32 accumulation, 128 SMs, 2520 MHz,
           1008 GB/s.
  [H100]   NVIDIA H100 Tensor Core GPU Architecture, 2022: twice the A100's FMA a clock and SM; SXM5: 132 SMs, 1980 MHz
           at most, 3.35 TB/s (data sheet).
  [B200]   NVIDIA Blackwell data sheet, 2025: 2.25 PFLOPS dense FP16 a GPU of 148 SMs, 8 TB/s: 8192 operations a clock.
  [rates]  Measured by `python -m steps.physics` on an H200: mma.sync reaches 98 % of two thirds of wgmma's rate; and
           how long a block takes that does next to nothing.
  [5090]   NVIDIA RTX Blackwell GPU Architecture, 2025: RTX 5090, 209.5 TFLOPS FP16 with FP32 accumulation, 170 SMs,
           2407 MHz, 1792 GB/s.
  [ROCm]   AMD GPU specifications, https://rocm.docs.amd.com/en/latest/reference/gpu-specs.html: a compute unit has 160
           KiB of LDS (gfx950) or 64 KiB (gfx942), and 512 KiB of vector registers; waves have 64 lanes.
  [LLVM]   User Guide for AMDGPU Backend, and the occupancy that LLVM writes into its assembly: vector registers are
           given out in units of 8, and a SIMD, of which a compute unit has four, holds at most 8 waves (gfx90a on).
  [MI355X] AMD Instinct MI355X data sheet, 2025: 2.5166 PFLOPS dense FP16 on 256 compute units at 2400 MHz, 157.3 TFLOPS
           FP32 (vector), 8 TB/s: 4096 and 256 operations a clock and compute unit.
  [MI300X] AMD Instinct MI300X data sheet, 2023: 1307.4 TFLOPS dense FP16 on 304 compute units at 2100 MHz, 163.4 TFLOPS
           FP32 (vector), 5.3 TB/s: 2048 and 256 operations a clock and compute unit.

AMD has other words: a compute unit is an SM, a wave is a warp, LDS is shared memory. How many exponentials a compute
unit does in a clock none of these sources says.
"""

from __future__ import annotations

from dataclasses import dataclass

ISSUE = 4  # warp instructions a clock and SM: four schedulers, one each [guide]
REGISTERS = 65536  # a SM, for every one of NVIDIA's architectures here [guide]
REGISTER_UNIT = 8  # of a lane: registers are given out so many at a time [guide], [LLVM]
TENSOR_COLUMNS = 512  # of tensor memory, a SM of sm_100 and sm_103 [PTX ISA, "Tensor Memory"]


@dataclass(frozen=True)
class Architecture:
    """Limits of one SM, and its rates a clock.

    tensor_flops: FP16 or BF16 operations, FP32 accumulation, dense; mma_sync_flops: those of ``mma.sync``, where other
    instructions are faster. lanes: of a warp; registers: of 32 bits, of all its lanes; reserved_bytes: shared memory of
    every block that is the system's.
    """

    name: str
    max_warps: int | None  # [guide]
    max_blocks: int | None  # [guide]
    shared_bytes: int | None  # [guide]
    mufu: int | None = 16  # results: exponentials, reciprocals [guide]
    fp32: int | None = 128  # results: add, multiply, fused multiply-add [guide]
    tensor_flops: int | None = None
    mma_sync_flops: int | None = None
    block_clocks: int | None = None  # for a block that begins, fetches a tile by TMA, stores it and ends
    source: str = "[guide]"
    lanes: int = 32
    registers: int = REGISTERS
    reserved_bytes: int = 1024


def _known(*entries: Architecture) -> dict[str, Architecture]:
    return {entry.name: entry for entry in entries}


KIB = 1024


def _cdna(name: str, lds: int, flops: int, source: str) -> Architecture:
    """A compute unit: 32 waves of 64 lanes, 512 KiB of registers; 128 FP32 results, two a lane, if packed."""
    limits = {"lanes": 64, "registers": 512 * KIB // 4, "reserved_bytes": 0, "source": f"[ROCm], [LLVM], {source}"}
    return Architecture(name, 32, None, lds, mufu=None, tensor_flops=flops, **limits)


ARCHITECTURES = _known(
    Architecture("sm_80", 64, 32, 164 * KIB, fp32=64, tensor_flops=2048, source="[guide], [A100]"),
    Architecture("sm_86", 48, 16, 100 * KIB, tensor_flops=1024, source="[guide], [GA102]"),
    Architecture("sm_87", 48, 16, 164 * KIB),
    Architecture("sm_88", None, None, None, mufu=None, fp32=None, source="not stated in [guide]"),
    Architecture("sm_89", 48, 24, 100 * KIB, tensor_flops=512, source="[guide], [Ada]"),
    Architecture(
        *("sm_90", 64, 32, 228 * KIB),
        tensor_flops=4096,
        mma_sync_flops=2731,
        block_clocks=2453,
        source="[guide], [H100], [rates]",
    ),
    Architecture("sm_100", 64, 32, 228 * KIB, tensor_flops=8192, source="[guide], [B200]"),
    Architecture("sm_103", None, None, None, mufu=None, fp32=None, source="not checked in [guide]"),
    Architecture("sm_107", None, None, None, mufu=None, fp32=None, source="not stated in [guide]"),
    Architecture("sm_110", None, None, None, mufu=None, fp32=None, source="not checked in [guide]"),
    Architecture("sm_120", 48, 24, 100 * KIB, tensor_flops=512, source="[guide], [5090]"),
    Architecture("sm_121", 48, 24, 100 * KIB),
    _cdna("gfx942", 64 * KIB, 2048, "[MI300X]"),
    _cdna("gfx950", 160 * KIB, 4096, "[MI355X]"),
)


@dataclass(frozen=True)
class Gpu:
    """A whole GPU: SMs, the clock in Hz that they run at, and memory bandwidth in bytes a second."""

    name: str
    arch: str
    multiprocessors: int
    clock: float
    bandwidth: float


# One GPU for each architecture whose rates are known, for questions that name no machine. Sources as above.
REFERENCE_GPUS = {
    "sm_80": Gpu("A100 SXM", "sm_80", 108, 1.41e9, 2.039e12),
    "sm_86": Gpu("A40", "sm_86", 84, 1.74e9, 696e9),
    "sm_89": Gpu("RTX 4090", "sm_89", 128, 2.52e9, 1.008e12),
    "sm_90": Gpu("H100 SXM", "sm_90", 132, 1.98e9, 3.35e12),
    "sm_100": Gpu("B200", "sm_100", 148, 1.85e9, 8.0e12),
    "sm_120": Gpu("RTX 5090", "sm_120", 170, 2.407e9, 1.792e12),
}

# AMD's, apart from those above, which the figures of the course draw.
AMD_GPUS = {
    "gfx942": Gpu("MI300X", "gfx942", 304, 2.1e9, 5.3e12),
    "gfx950": Gpu("MI355X", "gfx950", 256, 2.4e9, 8.0e12),
}


def blocks_per_multiprocessor(
    arch: str, threads: int, registers: int, shared_bytes: int, tensor_columns: int | None = None
) -> tuple[int, str] | None:
    """(blocks that fit on an SM, what limits their number), or None where the architecture's limits are not known.

    Registers are given out to warps in units of 8 a lane, and on NVIDIA's every block takes 1 KiB of shared memory for
    the system (CUDA C++ Programming Guide, and the occupancy calculator of Nsight Compute). tensor_columns: of tensor
    memory, that a block takes; None: none.
    """
    limits = ARCHITECTURES.get(arch)
    if limits is None or limits.max_warps is None:
        return None
    warps = -(-threads // limits.lanes)
    per_warp = -(-registers // REGISTER_UNIT) * REGISTER_UNIT * limits.lanes
    fits = {
        "registers": limits.registers // (per_warp * warps),
        "shared memory": limits.shared_bytes // max(1, shared_bytes + limits.reserved_bytes),
        "warps": limits.max_warps // warps,
        "blocks": limits.max_blocks or limits.max_warps,
    }
    if tensor_columns:
        fits["tensor memory"] = TENSOR_COLUMNS // tensor_columns
    fewest = min(fits.values())
    return fewest, " and ".join(what for what, blocks in fits.items() if blocks == fewest)
