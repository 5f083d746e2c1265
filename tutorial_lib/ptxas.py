"""Which ptxas makes machine code of Triton's PTX: Triton's wheel has two.

Triton 3.9 gives Hopper's kernels to the newer one (13.4). That one keeps less in registers than the older one (12.9):
``results/nvidia-h200/compilers.json`` has what it costs. So Hopper's code is made by the older one here, and
Blackwell's by the newer one, which knows all of its variants. $TRITON_PTXAS_BLACKWELL_PATH is stronger than that.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

HOPPER = "sm_90"
CHOSEN = "TRITON_PTXAS_BLACKWELL_PATH"


@contextmanager
def chosen_for(arch: str) -> Iterator[None]:
    """Inside, Triton compiles for ``arch`` ("sm_90") by the ptxas chosen here. For one thread at a time."""
    from triton import knobs
    from triton.backends.nvidia import compiler

    if arch != HOPPER or CHOSEN in os.environ:
        yield
        return
    everywhere, compiler.get_ptxas_version = compiler.get_ptxas_version, _version_text
    try:
        with knobs.nvidia.scope():
            knobs.nvidia.ptxas_blackwell = knobs.nvidia.ptxas.path
            yield
    finally:
        compiler.get_ptxas_version = everywhere


@cache
def _version_text(arch: int) -> str:
    """What the ptxas chosen here says of itself, which is part of the name under which Triton keeps a kernel.

    Triton asks once in a process, and so might have the answer of the other ptxas, which another kernel needed.
    """
    from triton.backends.nvidia import compiler

    return subprocess.check_output([compiler.get_ptxas(arch).path, "--version"], encoding="utf-8")


def version_for(arch: str) -> str:
    """Such as "12.9": the release of the ptxas that makes machine code for ``arch``."""
    from triton.backends.nvidia import compiler

    with chosen_for(arch):
        return compiler.get_ptxas(int(arch.removeprefix("sm_"))).version
