"""``python -m steps.run --doctor``: what this machine has, which kernels run on it, and why the others do not."""

from __future__ import annotations

import platform
import sys
from functools import cache

from tutorial_lib.hardware import describe_machine, describe_versions, has_gpu, why_no_gpu


@cache
def kernels_of_parts() -> dict[str, list]:
    """The steps with a kernel of their own, by the names of the parts that have some."""
    from steps.core.ladder import PARTS, whole_ladder

    with_kernel = [step for step in whole_ladder() if step.package and step.number is not None]
    found = {part.name: [step for step in with_kernel if step.number in part.numbers] for part in PARTS}
    return {name: steps for name, steps in found.items() if steps}


def why_not(target: str, missing: tuple[str, ...] = ()) -> dict[str, str | None]:
    """For every part: why none of its kernels runs on "sm_90", "cpu" and the like, all reasons; None where some do.

    missing: packages that are taken not to be installed.
    """
    found = {}
    for name, steps in kernels_of_parts().items():
        reasons = [
            f"the package {step.package} is not installed"
            if step.package in missing
            else step.unsupported(step.default_problem, target)
            for step in steps
        ]
        found[name] = None if None in reasons else "; ".join(dict.fromkeys(reasons))
    return found


def driver() -> str:
    """NVIDIA's driver and its GPUs, whether or not PyTorch can use them."""
    import pynvml

    try:
        pynvml.nvmlInit()
        handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
        return f"{pynvml.nvmlSystemGetDriverVersion()}, for {', '.join(map(pynvml.nvmlDeviceGetName, handles))}"
    except pynvml.NVMLError as error:
        return f"none found ({error})"


def compiler() -> str:
    """cuTile's compiler, or why there is none."""
    from tutorial_lib.compiler import CompilerError, compiler_version

    try:
        return compiler_version()
    except (CompilerError, ModuleNotFoundError) as error:
        return f"none: {error}"


def examine(console) -> None:
    """Show it, a line each. Asks nothing of the network, and runs no kernel."""
    from steps.core.rules import rules

    versions = describe_versions()
    rows = {
        "system": f"{platform.platform()}, {describe_machine('cpu')['cpu']}",
        "Python": f"{versions.pop('python')} at {sys.executable}",
        "packages": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "compiler": compiler(),
        "driver": driver(),
    }
    if gpu := has_gpu():
        here = describe_machine("cuda")
        rows["GPU"] = f"{here['name']}, {here['arch']}, {here['memory_bytes'] / 1e9:.0f} GB"
        told = why_not(here["arch"])
        rows["on the GPU"] = ", ".join(name for name, why in told.items() if why is None) or "PyTorch's steps alone"
        if not any(rule.timed_on(here["arch"]) for kernel in rules().values() for rule in kernel):
            rows["launch rules"] = f"untested: chosen by compiling, and never timed on {here['arch']}"
        rows |= {f"not {name}": why for name, why in told.items() if why}
    else:
        rows["GPU"] = f"none is used: {why_no_gpu()}"
    told = why_not("cpu")
    rows["on the CPU"] = ", ".join(name for name, why in told.items() if why is None) or "PyTorch's steps alone"
    if not gpu:
        rows |= {f"not {name}": why for name, why in told.items() if why}
    for name, value in rows.items():
        console.print(f"{name + ':':21}{value}", soft_wrap=True, markup=False)
