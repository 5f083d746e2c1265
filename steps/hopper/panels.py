"""Tiles of Q and K of 192 columns, in three panels of 64.

The sizes of tensors are powers of two, and so a tile of 192 columns would take the shared memory of 256. But the widest
swizzle has 64 columns: in shared memory a wider tile lies in panels of 64 columns anyway, one behind the other. Here
every panel is a tensor of its own. A slot of a ring has three of them, which share its mbarriers, and the QK product is
the sum of three.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma, warpgroup_mma


@gluon.jit
def room_of_panels(dtype: gl.constexpr, slots: gl.constexpr, rows: gl.constexpr, variant: gl.constexpr):
    """So many slots in shared memory: panels [rows, columns of a panel], those of a slot one behind the other."""
    SHAPE: gl.constexpr = [slots * variant.panels] + variant.outer + [rows, variant.panel_columns]  # noqa: RUF005
    return gl.allocate_shared_memory(dtype, SHAPE, variant.shared)


@gluon.jit
def panels_in(ring, slot, rows: gl.constexpr, variant: gl.constexpr):
    """The panels [rows, columns of a panel] of a slot."""
    PANELS: gl.constexpr = variant.panels
    panels = ()
    for n in gl.static_range(PANELS):
        panels = panels + (ring.index(slot * PANELS + n).reshape([rows, variant.panel_columns]),)  # noqa: RUF005
    return panels


@gluon.jit
def fetch_panels(array, ring, full, at, slot, variant: gl.constexpr):
    """Ask TMA for the panels of a slot. at: where the first begins in its array. full: the mbarrier of the slot."""
    PANELS: gl.constexpr = variant.panels
    for n in gl.static_range(PANELS):
        place = [at[0], at[1], at[2], n * variant.panel_columns]
        tma.async_load(array, place, full, ring.index(slot * PANELS + n))


@gluon.jit
def issue_scores_of_panels(queries, keys, scores, variant: gl.constexpr):
    """Begin the QK product [query, key]: a product for every panel, which adds to those before it."""
    PANELS: gl.constexpr = variant.panels
    for n in gl.static_range(PANELS):
        scores = warpgroup_mma(queries[n], keys[n].permute((1, 0)), scores, use_acc=n > 0, is_async=True)
    return scores
