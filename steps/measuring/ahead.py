"""Compiles the kernels of many steps side by side, in processes of their own, while others are run already."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from contextlib import suppress

from steps.core.fused import FusedStep
from steps.core.step import Step
from tutorial_lib import worker
from tutorial_lib.problem import Problem
from tutorial_lib.worker import deaf_to_ctrl_c

KERNELS_A_PROCESS = 3  # fewer do not repay the seconds that a process takes to start


class Ahead:
    """Compiles each step for its problem and ``arch`` in as many processes as there are cores, and keeps it on disk.

    Inside ``with`` the processes are at work; leaving ends them. What fails here is compiled again in its turn, and
    told then. Too few kernels are left to their turns, too: then ``processes`` is 0.
    """

    def __init__(self, kernels: Sequence[tuple[Step, Problem]], arch: str):
        self._kernels, self._arch = kernels, arch
        count = min(os.cpu_count() or 1, len(kernels) // KERNELS_A_PROCESS)
        self.processes = count if count > 1 else 0
        self.waiting = len(kernels) if self.processes else 0  # answers that are still to come

    def __enter__(self) -> Ahead:
        if self.processes:
            with deaf_to_ctrl_c():
                self._pool = worker.context.Pool(self.processes, initializer=_silence)
            work = [(n, *kernel, self._arch) for n, kernel in enumerate(self._kernels)]
            self._compiled = self._pool.imap_unordered(_compile, work)
        return self

    def __exit__(self, *exception) -> None:
        self.waiting = 0
        if self.processes:
            self._pool.terminate()
            self._pool.join()

    def finished(self, timeout: float) -> int | None:
        """The place among the kernels of the next that is compiled, or has failed.

        None when all are, or when none is within ``timeout`` seconds: then nothing more is waited for.
        """
        if not self.waiting:
            return None
        try:
            found = self._compiled.next(timeout)
        except multiprocessing.TimeoutError:
            self.waiting = 0
            return None
        self.waiting -= 1
        return found


def differing(kernels: Sequence[tuple[Step, Problem]], arch: str) -> list[tuple[Step, Problem]]:
    """One (step, problem) for each kernel. Problems that differ in length alone share one."""
    found, ran = [], []
    for step, problem in kernels:
        if isinstance(step, FusedStep) and step.unsupported(problem, arch) is None:
            runs = step.what_runs(problem, arch), problem.dtype, problem.kv_dtype
            if runs not in ran:
                ran.append(runs)
                found.append((step, problem))
    return found


def compile_ahead(
    kernels: Sequence[tuple[Step, Problem]], arch: str, timeout: float, tell: Callable[[str], None]
) -> None:
    """Compile all of them as ``Ahead`` does, and return when all are, or none was within ``timeout`` seconds.

    tell: is told what is being done.
    """
    with Ahead(kernels, arch) as ahead:
        what = f"compiling {len(kernels)} kernels, {ahead.processes} at a time"
        if ahead.processes:
            tell(what)
        while ahead.finished(timeout) is not None:
            tell(f"{what}: {len(kernels) - ahead.waiting} done")


def _silence() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)


def _compile(what: tuple[int, Step, Problem, str]) -> int:
    place, *kernel = what
    compile_quietly(*kernel)
    return place


def compile_quietly(step: Step, problem: Problem, arch: str) -> None:
    """Compile a step where that works: a launch finds it, and holds nobody up who waits for the GPU meanwhile.

    What does not work is told in the step's own turn.
    """
    with suppress(Exception):
        step.compile(problem, arch)
