"""Kernels that begin before the kernel in front of them has ended. [PTX ISA: griddepcontrol]"""

from __future__ import annotations

from triton.experimental import gluon
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@gluon.jit
def await_kernels_before():
    """Until all kernels before this one have ended, and what they have written is there: this one may begin early."""
    gdc_wait()


@gluon.jit
def let_next_begin():
    """Let the next kernel begin, as soon as blocks of it find room."""
    gdc_launch_dependents()
