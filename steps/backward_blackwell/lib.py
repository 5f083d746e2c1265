"""Pieces that both large kernels share: mbarriers, and what is known of a query; and the small kernel in front.

No piece knows of a step.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from steps.backward_hopper.lib import Aside
from steps.backward_hopper.rows import prepare_rows
from steps.blackwell.sharing import joint_ring, ring_of_each


@gluon.jit
def joint_barrier():
    """An mbarrier of both CTAs: TMA tells it what it brings to either, and only the first CTA waits."""
    return joint_ring(1).index(0)


@gluon.jit
def barrier_of_each():
    """An mbarrier of each CTA, which a product of both completes in both."""
    return ring_of_each(1).index(0)


@gluon.jit
def numbers_of(Numbers, line, row, count: gl.constexpr, padded, layout: gl.constexpr):
    """The numbers of so many queries of a head, from ``row`` on; rows are padded to whole tiles."""
    offset = line.to(gl.int64) * padded + row + gl.arange(0, count, layout)
    return gl.load(Numbers + gl.max_contiguous(gl.multiple_of(offset, [4]), [4]))


@gluon.jit(do_not_specialize=["seq_len_q", "padded", "heads", "batches"])
def prepare(Out, DO, LSE, Numbers, strides, seq_len_q, padded, heads, batches, variant: gl.constexpr):
    """For every query the log-sum-exp in base 2, and behind all of these D, the sum of dO O over head_dim."""
    ROWS: gl.constexpr = variant.tile.query
    aside = Aside(None, Out, DO, LSE, Numbers, None, None, strides, None, seq_len_q, padded, heads, batches)
    line = gl.program_id(2) * heads + gl.program_id(1)
    prepare_rows(aside, gl.program_id(0) * ROWS, line, False, ROWS, variant)
