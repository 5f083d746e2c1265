"""Kernels that begin before the kernel in front of them has ended: programmatic dependent launch.

A kernel that was launched to begin early waits until all kernels before it have ended, and what they have written is
there. And a block lets the next kernel begin; it does when all blocks have, or have ended. [PTX ISA: griddepcontrol]
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

AWAIT_KERNELS_BEFORE = gl.constexpr("griddepcontrol.wait; mov.b32 $0, 0;")
LET_NEXT_BEGIN = gl.constexpr("griddepcontrol.launch_dependents; mov.b32 $0, 0;")


@gluon.jit
def await_kernels_before():
    """Wait until all kernels before this one have ended, as this one may begin early."""
    gl.inline_asm_elementwise(AWAIT_KERNELS_BEFORE, "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def let_next_begin():
    """Let the next kernel begin, as soon as blocks of it find room."""
    gl.inline_asm_elementwise(LET_NEXT_BEGIN, "=r", [], dtype=gl.int32, is_pure=False, pack=1)
