"""The kernel that writes V transposed: [batch, kv_head, head_dim, key], with the keys in an order of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from steps.gluon import names  # noqa: F401
from steps.gluon.functions import compiled_as
from steps.hopper.dependent import let_next_begin

KEYS = gl.constexpr(128)  # of a block
WARPS = gl.constexpr(4)
WIDE = gl.constexpr(16)  # elements that a lane loads and stores at once: 16 bytes
# A lane loads so many keys. It has the bytes of their columns side by side then, and stores 32 bits to shared memory.
FOUR = gl.constexpr(4)


@dataclass(frozen=True)
class Constants:
    """What the kernel is compiled with, for all masks and lengths alike.

    order(place): which key stands at a place in memory.
    """

    head_dim: int
    order: Callable

    @property
    def cache_key(self) -> str:
        """What Triton knows them by: a function by its source, not by its name."""
        return compiled_as(self)


@gluon.jit
def key_in_order(place):
    """Which key stands at a place in memory: as they come."""
    return place


@gluon.jit
def key_at(place):
    """Which key stands at a place in memory: the order in which a lane has the weights.

    The places of 16 keys are counted as fours of halves of pairs; their keys as halves of fours of pairs.
    """
    pair = place % 2
    half = place // 2 % 2
    four = place // 4 % 4
    return place - place % 16 + half * 8 + four * 2 + pair


@gluon.jit(do_not_specialize=["seq_len_kv", "kv_heads"])
def transpose(V, strides, Out, seq_len_kv, kv_heads, padded, head_dim, constants: gl.constexpr):
    """A block turns ``KEYS`` keys of a head. padded: keys of a row of Out; behind seq_len_kv they are zeros."""
    let_next_begin()
    COLUMNS: gl.constexpr = constants.head_dim
    IN: gl.constexpr = gl.BlockedLayout([FOUR, WIDE], [32 * WIDE // COLUMNS, COLUMNS // WIDE], [WARPS, 1], [1, 0])
    OUT: gl.constexpr = gl.BlockedLayout([1, WIDE], [32 * WIDE // KEYS, KEYS // WIDE], [WARPS, 1], [1, 0])
    first, head, batch = gl.program_id(0) * KEYS, gl.program_id(1), gl.program_id(2).to(gl.int64)

    key = constants.order(first + gl.arange(0, KEYS, gl.SliceLayout(1, IN)))[:, None]
    column = gl.arange(0, COLUMNS, gl.SliceLayout(0, IN))[None, :]
    begin = V + (batch * strides[0] + head * strides[1] + first.to(gl.int64) * strides[2])
    there = (key < seq_len_kv) & (column < head_dim)
    value = gl.load(begin + ((key - first) * strides[2] + column * strides[3]), mask=there, other=0.0)

    value = gl.convert_layout(value.permute((1, 0)), OUT)
    row = gl.arange(0, COLUMNS, gl.SliceLayout(1, OUT))[:, None]
    place = first + gl.arange(0, KEYS, gl.SliceLayout(0, OUT))[None, :]
    begin = Out + (batch * kv_heads + head) * head_dim * padded
    gl.store(begin + (row * padded + place), value, mask=(row < head_dim) & (place < padded))
