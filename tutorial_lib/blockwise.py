"""Attention and its gradients in plain PyTorch, a tile of queries at a time: memory grows with the length.

It computes everything that the front door takes, on every device: windows to both sides, soft caps, packed sequences,
attention sinks, grouped heads, values of another width than keys. Sums are in float32. On a GPU factors are rounded to
16 bits before they are multiplied; slopes of scores, which may be tiny, are first scaled by a power of two, not to
vanish in float16. A tile of queries has all the keys that it sees at once, so its softmax needs no second pass.

With weights P and capped scores s: dV = P^T dO, dP = dO V^T, ds = P (dP - delta), where delta is a row's sum of dO O.
A gradient of the log-sum-exp comes off delta, as the derivative of that by a score is the weight.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, product
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch

SCORES = 1 << 24  # that a tile of queries has at once; backward about four float32 tensors of so many numbers live
LEAST_ROWS = 16  # of a tile, however long its rows are
ROWS = 128  # that a tile has before it takes more of the batch and of the heads: each reads all keys that it sees


class Scoring(NamedTuple):
    """How a score comes from a product, and which keys query i sees: i - left <= j <= i + right.

    left, right: None where nothing is hidden on that side.
    """

    scale: float
    softcap: float | None = None
    left: int | None = None
    right: int | None = None


class Tile(NamedTuple):
    """Some rows of scores: of which queries and keys, and the first key's position less the first query's.

    queries, keys: indices of batch, heads and tokens.
    """

    queries: tuple[slice, slice, slice]
    keys: tuple[slice, slice, slice]
    offset: int


def forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scoring: Scoring,
    sinks: torch.Tensor | None = None,
    pairs: Sequence[tuple[int, int]] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(o, lse) of attention: ``[B, Hq, Sq, Dv]`` in q's dtype, and the natural log-sum-exp ``[B, Hq, Sq]`` in float32.

    q ``[B, Hq, Sq, D]``, k ``[B, Hkv, Skv, D]``, v ``[B, Hkv, Skv, Dv]``, of a 16-bit type; sinks ``[Hq]`` of any float
    type, which the log-sum-exp then holds, too. pairs: (queries, keys) of packed sequences, which lie behind each other
    in a batch of one. Every query must see a key. One whose scores are all minus infinity gets 0, as from SDPA.
    """
    import torch

    o = q.new_empty(*q.shape[:-1], v.shape[-1])
    lse = torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device)
    with torch.autocast(q.device.type, enabled=False):
        for tile in _tiles(q, k, scoring, pairs):
            scores, _ = _scores(q, k, scoring, tile)
            sums = torch.logsumexp(scores, dim=-1)
            if sinks is not None:
                sums = torch.logaddexp(sums, _by_groups(sinks.float()[None, tile.queries[1], None], k[tile.keys]))
            weights = scores.sub_(_finite(sums).unsqueeze(-1)).exp_()
            made = _product(weights.flatten(2, 3), v[tile.keys])
            o[tile.queries] = made.view(*sums.shape, -1).flatten(1, 2)
            lse[tile.queries] = sums.flatten(1, 2)
    return o, lse


def gradients(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    do: torch.Tensor,
    scoring: Scoring,
    sinks: torch.Tensor | None = None,
    pairs: Sequence[tuple[int, int]] | None = None,
    dlse: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """(dq, dk, dv, dsinks), in the types of what they belong to, contiguous; dsinks is None without sinks.

    o and lse are what ``forward`` returned, do and dlse their gradients (dlse None: zero); the others as there.
    """
    import torch

    dq = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    dk, dv = (torch.zeros(x.shape, dtype=torch.float32, device=q.device) for x in (k, v))
    with torch.autocast(q.device.type, enabled=False):
        delta = row_sums(o, do)
        if dlse is not None:
            delta -= dlse
        lse = _finite(lse)
        for queries, keys, offset in _tiles(q, k, scoring, pairs):
            scores, bent = _scores(q, k, scoring, Tile(queries, keys, offset))
            rows = _by_groups(q[queries], k[keys]).flatten(2, 3)
            grad = _by_groups(do[queries], k[keys]).flatten(2, 3)
            weights = scores.sub_(_by_groups(lse[queries], k[keys]).unsqueeze(-1)).exp_()
            dv[keys] += _product(weights.flatten(2, 3).mT, grad)
            slopes = _product(grad, v[keys].mT).view(weights.shape)
            slopes.sub_(_by_groups(delta[queries], k[keys]).unsqueeze(-1)).mul_(weights)
            if bent is not None:
                slopes.mul_(bent.square_().neg_().add_(1))
            slopes = slopes.flatten(2, 3)
            unit = _unit(slopes)
            slopes.div_(unit)
            dk[keys] += _product(slopes.mT, rows).mul_(unit)
            made = _product(slopes, k[keys]).mul_(unit * scoring.scale)
            dq[queries] = made.view(*weights.shape[:-1], -1).flatten(1, 2)
    dsinks = None if sinks is None else gradient_of_sinks(sinks, lse, delta).to(sinks.dtype)
    return dq, dk.mul_(scoring.scale).to(k.dtype), dv.to(v.dtype), dsinks


def row_sums(o: torch.Tensor, do: torch.Tensor) -> torch.Tensor:
    """delta: sums of do * o ``[..., Dv]`` along the last axis, in float32."""
    return (o.float() * do).sum(-1)  # in float32, without a copy of do in it


def gradient_of_sinks(sinks: torch.Tensor, lse: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
    """The gradient ``[Hq]`` of attention sinks, in float32: minus the sum of exp(sink - lse) delta over a head's rows.

    sinks ``[Hq]``; lse, which holds them, and delta ``[B, Hq, Sq]``. exp(sink - lse) is the weight of the sink.
    ds = P (dP - delta) holds for it, too: it has no value, so its dP is 0.
    """
    return -((sinks.float()[:, None] - lse).exp() * delta).sum((0, 2))


def _tiles(q, k, scoring: Scoring, pairs: Sequence[tuple[int, int]] | None) -> Iterator[Tile]:
    """Tiles of queries, none of two sequences, with the keys that some of their queries see.

    Of as many heads and batches at once as leave a tile ``ROWS``.
    """
    pairs = pairs or ((q.shape[2], k.shape[2]),)
    _, _, left, right = scoring
    beginnings = (accumulate(lengths, initial=0) for lengths in zip(*pairs))
    for (queries, keys), first_query, first_key in zip(pairs, *beginnings):
        seen = keys if left is None or right is None else min(keys, left + right + 1)
        most = queries if seen == keys else min(queries, max(LEAST_ROWS, seen))  # else many are hidden of a tile
        room, group = SCORES // seen, q.shape[1] // k.shape[1]  # a tile's rows, of all its heads
        batch = max(1, min(q.shape[0], room // (q.shape[1] * min(ROWS, most))))
        heads = max(1, min(k.shape[1], room // (batch * group * min(ROWS, most))))
        rows = min(most, max(LEAST_ROWS, room // (batch * heads * group)))
        for b, h in product(range(0, q.shape[0], batch), range(0, k.shape[1], heads)):
            of_q = slice(b, b + batch), slice(h * group, (h + heads) * group)
            of_k = slice(b, b + batch), slice(h, h + heads)
            for start in range(0, queries, rows):
                stop = min(start + rows, queries)
                begin = 0 if left is None else max(0, start - left)
                end = keys if right is None else min(keys, stop + right)
                of_queries = slice(first_query + start, first_query + stop)
                of_keys = slice(first_key + begin, first_key + end)
                yield Tile((*of_q, of_queries), (*of_k, of_keys), begin - start)


def _scores(q, k, scoring: Scoring, tile: Tile):
    """(scores, tanh) [B, Hkv, group, query, key] in float32: scaled, capped and masked; tanh None without a cap."""
    import torch

    scale, softcap, left, right = scoring
    keys = k[tile.keys]
    rows = _by_groups(q[tile.queries], keys)
    scores, bent = _product(rows.flatten(2, 3), keys.mT).mul_(scale).view(*rows.shape[:-1], -1), None
    if softcap is not None:
        bent = scores.div_(softcap).tanh_()
        scores = bent * softcap
    queries, keys = scores.shape[-2:]
    nearest, farthest = tile.offset - queries + 1, tile.offset + keys - 1  # of j - i
    if (left is not None and nearest < -left) or (right is not None and farthest > right):
        j, i = torch.arange(keys, device=q.device) + tile.offset, torch.arange(queries, device=q.device)[:, None]
        for hidden in (() if left is None else (j < i - left,)) + (() if right is None else (j > i + right,)):
            scores.masked_fill_(hidden, float("-inf"))
    return scores, bent


def _finite(lse):
    """lse without minus infinity, which taken off scores that are as low would give NaN, and not weights of 0."""
    import torch

    return lse.clamp_min(torch.finfo(torch.float32).min)


def _unit(slopes):
    """A power of two for each matrix [B, H, 1, 1], by which its largest number is near 2^15; 1 where none is finite.

    It stays on the device. float16 then holds, to all its digits, what is 2^-29 of the largest.
    """
    import torch

    largest = torch.linalg.vector_norm(slopes, float("inf"), dim=(-2, -1), keepdim=True)
    exponent = torch.frexp(largest).exponent.clamp(-100, 100)
    return torch.ldexp(torch.ones_like(largest), exponent - 15).where(largest.isfinite() & (largest > 0), 1.0)


def _by_groups(x, k):
    """x [B, Hq, ...] as [B, Hkv, group, ...], where k [B, Hkv, ...] has the heads that groups share."""
    return x.unflatten(1, (k.shape[1], -1))


def _product(a, b):
    """The product of matrices [B, H, m, n] and [B, H, n, p] in float32; b is of a 16-bit type, a of that or float32.

    On a GPU both factors have 16 bits, as in the kernels; elsewhere float32 costs less than rounding to them.
    """
    import torch

    if not a.is_cuda:
        return a.float() @ b.float()
    a = a.to(b.dtype).flatten(0, 1)
    return torch.bmm(a, b.flatten(0, 1), out_dtype=torch.float32).unflatten(0, b.shape[:2])
