"""Blocks that add to dQ one after the other, always in the same order: then its last bits are the same every time.

A float32 sum depends on the order of its additions. For every tile of dQ, and every part, global memory holds a number:
how many blocks have added. A block waits until all before it have, adds, and counts itself. It counts itself a turn
later, when TMA has long written what it added, so that it seldom waits for that. Warps of their own may do all of
this, or count the block as soon as it has added (``adding``).

The order is that of the blocks' numbers, in which a GPU starts them: a block waits for such as have started, and they
cannot all wait. Without a mask all blocks begin with the first tile of queries, and the first to add is block 0. Under
a causal mask the last keys come first: of all that add to a tile, their block begins with it. A block comes to a tile
when those before it have gone on, and nobody waits for long. FlashAttention-3 has that order, and calls it "shortest
processing time first" (https://github.com/Dao-AILab/flash-attention/pull/1893).

Where blocks begin in sections (``place_in_section``), blocks of other heads begin between two of a head.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from steps.backward_hopper.instruction import AWAIT, WRITTEN
from steps.backward_hopper.pipeline import position
from steps.gluon import names  # noqa: F401


@gluon.jit
def count_of(Turns, turn, work, part: gl.constexpr, variant: gl.constexpr):
    """Where it is counted how many blocks have added to this part's dQ of a turn's tile."""
    head, i = position(work, turn, variant)
    line = work.batch * work.heads + head
    return Turns + ((line * (work.first + work.a_head) + i) * variant.parts + part)


@gluon.jit
def blocks_before(turn, work, variant: gl.constexpr):
    """How many blocks add to a turn's tile before this one."""
    TILE_KEY: gl.constexpr = variant.tile.key
    j = work.key_row // TILE_KEY
    if variant.causal:
        _, i = position(work, turn, variant)
        last = gl.minimum(gl.cdiv(work.seq_len_kv, TILE_KEY), gl.cdiv((i + 1) * variant.tile.query, TILE_KEY)) - 1
        return last - j
    else:
        return j


@gluon.jit
def pass_on(Turns, turn, work, part: gl.constexpr, variant: gl.constexpr):
    """Count this block at a turn's tile, to which it has added."""
    if variant.by_tma:
        gl.inline_asm_elementwise(WRITTEN, "=r", [], dtype=gl.int32, is_pure=False, pack=1)
    gl.barrier()  # one thread counts for all
    gl.atomic_add(count_of(Turns, turn, work, part, variant), 1, sem="release", scope="gpu")


@gluon.jit
def await_own_turn(Turns, turn, work, part: gl.constexpr, variant: gl.constexpr):
    """Pass the tile before on, and wait for this one."""
    if turn > 0:
        pass_on(Turns, turn - 1, work, part, variant)
    await_turn(Turns, turn, work, part, variant)


@gluon.jit
def await_turn(Turns, turn, work, part: gl.constexpr, variant: gl.constexpr):
    """Wait until all blocks that add to a turn's tile earlier have."""
    count = count_of(Turns, turn, work, part, variant)
    before = blocks_before(turn, work, variant)
    gl.inline_asm_elementwise(AWAIT, "=r,l,r", [count, before], dtype=gl.int32, is_pure=False, pack=1)
