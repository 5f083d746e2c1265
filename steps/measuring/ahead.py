"""Compiles the kernels of many steps side by side, before they are run one after the other."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from contextlib import suppress

from steps.core.step import Step
from tutorial_lib.problem import Problem
from tutorial_lib.worker import deaf_to_ctrl_c

KERNELS_A_PROCESS = 3  # fewer do not repay the seconds that a process takes to start


def compile_ahead(
    kernels: Sequence[tuple[Step, Problem]], arch: str, timeout: float, tell: Callable[[str], None]
) -> None:
    """Compile each step for its problem and ``arch`` in as many processes as there are cores, and keep it on disk.

    What fails here is compiled again in its turn, and told then. Ends when none is ready within ``timeout`` seconds.
    tell: is told what is being done.
    """
    processes = min(os.cpu_count() or 1, len(kernels) // KERNELS_A_PROCESS)
    if processes < 2:
        return
    tell(f"compiling {len(kernels)} kernels, {processes} at a time")
    with deaf_to_ctrl_c():
        pool = multiprocessing.get_context("spawn").Pool(processes, initializer=_silence)
    with pool:  # ends them when it is left
        compiled = pool.imap_unordered(_compile, [(*kernel, arch) for kernel in kernels])
        for n in range(len(kernels)):
            try:
                compiled.next(timeout)
            except multiprocessing.TimeoutError:
                return
            tell(f"compiling {len(kernels)} kernels, {processes} at a time: {n + 1} done")


def _silence() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)


def _compile(what: tuple[Step, Problem, str]) -> None:
    step, problem, arch = what
    with suppress(Exception):  # told in the step's own turn
        step.compile(problem, arch)
