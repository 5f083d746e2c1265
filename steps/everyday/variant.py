"""What the kernels of the decoding steps are compiled with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from steps.core.tiles import Tile
from steps.cutile.variant import Latency
from steps.everyday.decode_kernel import Splitting

NUMBERS = 4  # in e4m3, in a word of 32 bits


@dataclass(frozen=True)
class DecodeVariant:
    """What a decoding kernel is compiled for. Everything here is a constant in the compiled code.

    members, queries: of the rows of a tile, powers of two: so many heads of a group, and so many queries of each.
    """

    load_key: Callable
    load_value: Callable
    softmax: Callable
    latency: Latency
    tile: Tile
    head_dim: int
    members: int
    queries: int
    seq_len_q: int
    splitting: Splitting
    ragged: bool  # the last tile of keys may not be full
    page_size: int | None
    causal: bool  # with pages alone: the queries are the last of their sequence
    quantized: bool = False  # K and V are in e4m3, and come as words: ``steps.everyday.words``
    lse: bool = False

    @property
    def columns(self) -> int:
        """Of a tile of K or V as it lies in memory."""
        return self.head_dim // NUMBERS if self.quantized else self.head_dim
