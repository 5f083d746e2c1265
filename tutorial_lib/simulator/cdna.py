"""CDNA's operations: MFMA, buffer loads and stores, copies straight into LDS, stages of waves; and Triton's product.

Copies into LDS and their groups are as Ampere's (``ampere``), but for the waves: each waits for its own copies alone,
and of the others' copies it learns where all waves meet. The compiler lets them meet behind a wait for copies, and
where one instruction touches what another has touched, if one of the two writes (tests look at the machine code). Of
``load_shared_relaxed`` Triton takes note since 3.9; before, the kernel had to see to it that nobody overwrites what is
read.

Sources: the reference pages of Gluon's ``amd`` modules; "AMD Instinct MI300" and "CDNA4" Instruction Set Architecture,
sections on S_WAITCNT, S_BARRIER and MFMA; the pass that orders stages, ConvertWarpPipeline.cpp in Triton.
"""

from __future__ import annotations

import re

from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.amd import AMDMFMALayout

from tutorial_lib.simulator import ampere, state
from tutorial_lib.simulator.block import KernelError, at
from tutorial_lib.simulator.language import SEQUENCES, load, multiplied_by_vote, store
from tutorial_lib.simulator.memory import Memory
from tutorial_lib.simulator.translate import operation
from tutorial_lib.simulator.values import Pointer, Tensor, plain

FIRST_HALF = 4  # waves: one for each SIMD of a compute unit


# --- global memory, by a pointer and offsets ---


@operation("buffer_load")
def buffer_load(ptr: Pointer, offsets: Tensor, mask=None, other=0, cache=None):
    return load(ptr + offsets, mask, 0 if other is None else other)


@operation("buffer_store")
def buffer_store(stored_value: Tensor, ptr: Pointer, offsets: Tensor, mask=None, cache=None):
    store(ptr + offsets, stored_value, mask)


# --- LDS ---


@operation("buffer_load_to_shared")
def buffer_load_to_shared(dest: Memory, ptr: Pointer, offsets: Tensor, mask=None, other=None, cache_modifier=""):
    """Asked for now, past the registers; it belongs to the group that is committed next."""
    if not isinstance(offsets.layout, gl.BlockedLayout | gl.SliceLayout):
        raise KernelError(at(f"a copy into LDS takes offsets in a blocked layout, not in {offsets.layout}"))
    me = state.role()
    ampere.async_copy(dest, ptr + offsets, mask)
    me.others_do(dest, True, "copy into LDS by other waves", me.copies)


@operation("load_shared_relaxed")
def load_shared_relaxed(smem: Memory, layout):
    """As ``smem.load``."""
    return smem.load(layout)


# --- products ---


@operation("mfma")
def mfma(a: Tensor, b: Tensor, acc: Tensor) -> Tensor:
    """The waves wait for the product."""
    if not isinstance(acc.layout, AMDMFMALayout):
        raise KernelError(at(f"MFMA adds to a tile in its own layout, not in {acc.layout}"))
    for number, factor in enumerate((a, b)):
        its = factor.layout
        if not (isinstance(its, gl.DotOperandLayout) and (its.parent, its.operand_index) == (acc.layout, number)):
            raise KernelError(at(f"factor {number} of a product has layout {its}"))
    return dot(a, b, acc)


@operation("dot")
def dot(input, other, acc=None, **_) -> Tensor:
    """Triton's product of two tiles: the compiler chooses the instructions."""
    me = state.role()
    result = ampere.product(plain(input), plain(other), plain(acc))
    kind = "mfma" if me.block.machine.mfma else "mma"
    me.use("tensor cores", ampere.operations(input, other) / ampere.rate(kind), "product")
    return Tensor(result, acc.layout if isinstance(acc, Tensor) else None)


def _voted(found: re.Match, x: Tensor, factor: Tensor) -> Tensor:
    """``multiplied_by_vote``; one vote is for an instruction's block, of which a wave multiplies all its registers."""
    rows, columns = x.layout.instr_shape[:2]
    number = len(re.findall("v_mul_f32", found[0]))
    if rows * columns != 64 * number:
        raise KernelError(at(f"a vote on {number} registers, where a product fills {rows * columns // 64}"))
    return multiplied_by_vote(x, factor, rows, columns)


# Compare with 1, jump where no lane of the wave says yes, else multiply registers by the factor that was compared.
SEQUENCES[r"v_cmp_neq_f32 vcc, 1\.0, \$(\d+)\s+s_cbranch_vccz (\d)f\s+(?:v_mul_f32 \$(\d+), \$\3, \$\1\s+)+\2:"] = (
    _voted
)


# --- stages ---


@operation("warp_pipeline_stage")
class Stage:
    """A stage of the waves: all meet at its end. Of more than four, the second half is one barrier behind the first.

    A wait for copies between two stages comes in front of that barrier, and sets no other one (a test looks at the
    machine code). Priorities decide who goes first, which changes no number here.
    """

    def __init__(self, label=None, *, priority=None):
        self.label, self.kind = str(label), "stage first" if priority else "stage"

    def __enter__(self):
        self.role = me = state.role()
        me.point()
        if not me.staggered:
            me.meet()
            me.staggered = me.warps > FIRST_HALF
        self.began = me.time
        return self

    def __exit__(self, kind, error, trace):
        if kind is None:
            self.role.owes = True
            self.role.block.draw("stages", self.kind, self.label, self.began, self.role.time)
        return False
