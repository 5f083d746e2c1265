"""Who computes what: which of a rank's queries see which of another rank's keys, and whether all of them.

A rank's tokens are one piece of the sequence, or two. Where the mask is causal, pieces that lie wholly before a query
are computed without a mask, those behind it are left out, and the mask is needed on the diagonal alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

ALL = slice(None)


class Block(NamedTuple):
    """Scores that a rank computes: rows of its queries, some of the other's keys. causal: with the mask."""

    rows: slice
    keys: slice
    causal: bool


@dataclass(frozen=True)
class Share:
    """How the sequence is shared out. pieces: that each rank holds; held(rank, ranks): which, of ranks * pieces.

    block(own, owner, tokens, causal): what rank ``own`` computes with the keys of rank ``owner``, or None; each has
    ``tokens``.
    """

    pieces: int
    held: Callable[[int, int], tuple[int, ...]]
    block: Callable[[int, int, int, bool], Block | None]

    def part(self, whole, rank: int, ranks: int):
        """The tokens of a rank, of a tensor of the whole sequence ``[B, H, tokens, ...]``.

        Raises ValueError where the tokens do not make so many pieces of equal length.
        """
        import torch

        if wrong := self.uneven(whole.shape[2], ranks):
            raise ValueError(wrong)
        pieces = whole.chunk(ranks * self.pieces, dim=2)
        return torch.cat([pieces[n] for n in self.held(rank, ranks)], dim=2)

    def uneven(self, tokens: int, ranks: int) -> str | None:
        """Why so many ranks cannot share out so many tokens, or None."""
        if tokens % (ranks * self.pieces):
            return f"the sequence must be a multiple of {ranks * self.pieces} tokens for {ranks} ranks, got {tokens}"
        return None


def in_order(own: int, owner: int, tokens: int, causal: bool) -> Block | None:
    """Rank r holds piece r: keys of later ranks come after all queries."""
    if causal and owner > own:
        return None
    return Block(ALL, ALL, causal and owner == own)


def zigzag(own: int, owner: int, tokens: int, causal: bool) -> Block | None:
    """Rank r of N holds pieces r and 2N - 1 - r: with everybody's keys it computes half of all scores."""
    early, late = slice(0, tokens // 2), slice(tokens // 2, tokens)
    if not causal or owner == own:
        return Block(ALL, ALL, causal)  # the rank's own pieces, one after the other, have the mask of a sequence
    if owner < own:
        return Block(ALL, early, False)  # the owner's first piece is before both of ours, its second after both
    return Block(late, ALL, False)  # both of the owner's pieces are after our first, and before our second


def one_piece(rank: int, ranks: int) -> tuple[int, ...]:
    return (rank,)


def two_pieces(rank: int, ranks: int) -> tuple[int, ...]:
    return rank, 2 * ranks - 1 - rank


IN_ORDER = Share(1, one_piece, in_order)
ZIGZAG = Share(2, two_pieces, zigzag)
