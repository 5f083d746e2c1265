"""Hardware counters: what the GPU's units did while a kernel ran, as Nsight Compute (ncu) reads them."""

from __future__ import annotations

import csv
import io
import shutil
import subprocess
from collections.abc import Sequence

# What results.json calls a counter -> the metric that ncu knows it by (Nsight Compute 2025, Hopper).
METRICS = {
    "time_us": "gpu__time_duration.sum",
    "tensor_pct": "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active",
    "xu_pct": "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active",
    "fma_pct": "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active",
    "shared_pct": "l1tex__data_pipe_lsu_wavefronts_mem_shared.avg.pct_of_peak_sustained_active",
    "shared_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",  # of 128 bytes at most; TMA's are not in it
    "issue_active_pct": "sm__issue_active.avg.pct_of_peak_sustained_active",
    "l2_hit_pct": "lts__t_sector_hit_rate.pct",
    "l2_pct": "lts__t_sectors.avg.pct_of_peak_sustained_elapsed",
    "dram_read_bytes": "dram__bytes_read.sum",
    "dram_written_bytes": "dram__bytes_write.sum",
    "shared_bank_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
    "ldmatrix_bank_conflicts": "sm__sass_l1tex_data_bank_conflicts_pipe_lsu_mem_shared_op_ldsm.sum",
    "achieved_occupancy_pct": "sm__warps_active.avg.pct_of_peak_sustained_active",
}

TO_MICROSECONDS = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}


class CountersError(RuntimeError):
    """ncu is missing or failed; the message is one line."""


def find_ncu() -> str:
    """Path of ncu; raises CountersError where there is none."""
    if path := shutil.which("ncu"):
        return path
    raise CountersError("ncu, Nsight Compute's command, was not found, so no counters were read")


def read_counters(command: list[str], kernel: str, timeout: float) -> list[dict[str, float]]:
    """Counters of the kernels whose names match ``kernel`` (a regular expression), as ``command`` launches them.

    The GPU's clock is left alone (ncu would hold it down otherwise). Raises CountersError.
    """
    options = ["--clock-control", "none", "--kernel-name", f"regex:{kernel}", "--csv"]
    options += ["--metrics", ",".join(METRICS.values())]
    try:
        done = subprocess.run(
            [find_ncu(), *options, *command],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=timeout,
        )
    except subprocess.TimeoutExpired:
        raise CountersError(f"ncu gave no answer within {timeout:g} s") from None
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise CountersError(f"ncu failed: {lines[-1] if lines else f'exit status {done.returncode}'}")
    return parse(done.stdout)


def together(kernels: Sequence[dict[str, float]]) -> dict[str, float]:
    """Counters of several kernels as those of one that ran as long as all of them: sums, and means over the time."""
    if len(kernels) == 1:
        return kernels[0]
    time = sum(kernel["time_us"] for kernel in kernels)
    found = {}
    for name in (name for name in kernels[0] if all(name in kernel for kernel in kernels)):
        if name.endswith("_pct"):
            found[name] = sum(kernel[name] * kernel["time_us"] for kernel in kernels) / time
        else:
            found[name] = sum(kernel[name] for kernel in kernels)
    return found


def parse(output: str) -> list[dict[str, float]]:
    """ncu's CSV, which stands behind its own messages, as counters of every kernel; raises CountersError for none."""
    table = output[output.find('"ID"') :] if '"ID"' in output else ""
    names = {metric: name for name, metric in METRICS.items()}
    kernels: dict[int, dict[str, float]] = {}
    for row in csv.DictReader(io.StringIO(table)):
        name = names.get(row["Metric Name"])
        if name is None:
            continue
        value = float(row["Metric Value"].replace(",", ""))
        counters = kernels.setdefault(int(row["ID"]), {})
        counters[name] = value * TO_MICROSECONDS[row["Metric Unit"]] if name == "time_us" else value
    if not kernels:
        raise CountersError("ncu read no counters: no kernel matched, or this user may not read them")
    return [{name: counters[name] for name in METRICS if name in counters} for _, counters in sorted(kernels.items())]
