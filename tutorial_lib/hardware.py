"""The machine that a number was measured on, the software on it, and what its GPU does while it is timed."""

from __future__ import annotations

import platform
import re
import tempfile
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from tutorial_lib.architectures import ARCHITECTURES

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

WAITS: list[Callable[[bool], None]] = []  # see ``gpu_turn``
NO_GPU = "PyTorch finds no CUDA GPU here"
PACKAGES = ("torch", "triton", "cuda-tile", "nvidia-cuda-tileiras", "flash-attn-4", "tokenspeed-fa3", "tilegym")


def has_gpu() -> bool:
    """Whether there is a GPU here that PyTorch can use and the compilers make code for."""
    return why_no_gpu() is None


def why_no_gpu() -> str | None:
    """Why kernels run on the CPU here, as a clause; None where there is a GPU for them.

    On a GPU that is older than what the compilers know, kernels run on the CPU as if there were none.
    """
    import torch

    if not torch.cuda.is_available():
        return NO_GPU
    if (arch := architecture_of(0)) not in ARCHITECTURES:
        return f"the compilers make no code for the GPU here, which is {arch}"
    return None


def architecture_of(gpu: int | torch.device) -> str:
    """The architecture of a GPU as compilers name it: "sm_90", or "gfx950" for AMD's.

    PyTorch for ROCm calls AMD's GPUs CUDA devices, too. Behind the architecture it names features that are switched on
    or off, as in "gfx950:sramecc+:xnack-".
    """
    import torch

    if torch.version.hip:
        return torch.cuda.get_device_properties(gpu).gcnArchName.split(":")[0]
    major, minor = torch.cuda.get_device_capability(gpu)
    return f"sm_{major}{minor}"


def describe_machine(device: str, count: int = 1) -> dict:
    """The machine as results.json holds it; ``device`` is "cuda" or "cpu". count: GPUs, or processes, used together."""
    if count > 1:
        one = describe_machine(device)
        return {**one, "name": f"{count} × {one['name']}", "slug": f"{one['slug']}-x{count}"}
    import torch

    host = {"cpu": _cpu_name(), "system": f"{platform.system()} {platform.machine()}"}
    if device == "cpu":
        name = f"CPU, {platform.machine()}"
        return {"name": name, "slug": f"cpu-{platform.machine()}", "kind": "cpu", "arch": None, **host}
    gpu = torch.cuda.get_device_properties(0)
    return {
        "name": gpu.name,
        "slug": re.sub(r"[^a-z0-9]+", "-", gpu.name.lower()).strip("-"),
        "kind": "gpu",
        "arch": architecture_of(0),
        "multiprocessors": gpu.multi_processor_count,
        "memory_bytes": gpu.total_memory,
        "l2_bytes": gpu.L2_cache_size,
        **host,
        **_nvml_description(),
    }


def describe_versions() -> dict[str, str]:
    """Versions of everything that a result depends on; what is not installed is left out."""
    import torch

    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    versions["torch"] = torch.__version__  # with the build, such as +cu130
    if torch.cuda.is_available():
        if torch.version.hip:
            versions["rocm"] = torch.version.hip
        else:
            versions["cuda"] = torch.version.cuda
            versions["cudnn"] = str(torch.backends.cudnn.version())
            versions["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return versions


def available_bytes(device: str) -> int:
    """Memory that a new tensor could still take on ``device``; none where not even PyTorch's own share is left."""
    if device == "cpu":
        import psutil

        return psutil.virtual_memory().available
    import torch

    try:
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info()[0]
    except torch.OutOfMemoryError:
        return 0
    except torch.AcceleratorError as error:  # the first call makes a context, which takes memory, too
        if "out of memory" not in str(error):
            raise
        return 0


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            names = re.findall(r"^model name\s*:\s*(.+)$", file.read(), re.MULTILINE)
    except OSError:
        names = []
    return f"{names[0]}, {len(names)} cores" if names else platform.processor()


# --- NVML: what the GPU does while it is timed ------------------------------------------------------------------------


@cache
def _nvml():
    """(pynvml, handle of the GPU that PyTorch calls cuda:0), or None where NVML cannot be used."""
    import pynvml
    import torch

    try:
        pynvml.nvmlInit()
        uuid = torch.cuda.get_device_properties(0).uuid
        return pynvml, pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except (pynvml.NVMLError, AttributeError):
        return None


def _nvml_description() -> dict:
    if _nvml() is None:
        return {}
    nvml, gpu = _nvml()
    return {
        "driver": nvml.nvmlSystemGetDriverVersion(),
        "max_sm_clock_mhz": nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_SM),
        "power_limit_w": nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000,
    }


THROTTLE_REASONS = {  # NVML's bits for what holds the clock down, idle and application settings left out
    0x04: "power limit",
    0x08: "hardware slowdown",
    0x20: "thermal limit",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}


@dataclass(frozen=True)
class GpuState:
    """One reading of NVML: SM clock in MHz, power in W, temperature in degrees Celsius, what throttles."""

    sm_clock_mhz: int
    power_w: float
    temperature_c: int
    throttled_by: tuple[str, ...]


def gpu_state() -> GpuState | None:
    """What the GPU does at this moment; None where NVML cannot be used."""
    if _nvml() is None:
        return None
    nvml, gpu = _nvml()
    reasons = nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu)
    return GpuState(
        sm_clock_mhz=nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
        power_w=nvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
        temperature_c=nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
        throttled_by=tuple(name for bit, name in THROTTLE_REASONS.items() if reasons & bit),
    )


def energy_joules() -> float | None:
    """What the GPU has used since its driver was loaded, in joules; None where NVML does not count it."""
    if _nvml() is None:
        return None
    nvml, gpu = _nvml()
    try:
        return nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1000
    except nvml.NVMLError:
        return None


@contextmanager
def gpu_turn(device: str):
    """Hold the GPU while others on this machine who also ask for it wait: two notebooks, say, that measure at once.

    Does nothing for device "cpu", and does not wait where the lock's file cannot be opened. Not to be taken twice: who
    has it and asks again waits for itself. ``WAITS`` are told when a wait begins (True) and when it is over (False).
    """
    if device != "cuda":
        yield
        return
    try:
        import fcntl

        lock = open(Path(tempfile.gettempdir(), "fmha-tutorial-gpu.lock"), "ab")  # noqa: SIM115  closed below
    except (ModuleNotFoundError, OSError):  # Windows has no such locks; another user's file
        yield
        return
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # given back when the file is closed, or its process ends
        except BlockingIOError:
            try:
                for told in WAITS:
                    told(True)
                fcntl.flock(lock, fcntl.LOCK_EX)
            finally:
                for told in WAITS:
                    told(False)
        yield
