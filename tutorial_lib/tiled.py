"""Attention in tiles, in plain PyTorch, with the mistakes that people make in it: so that a mistake can be recognised.

``weighted_mean`` is one row, seen in pieces; ``attention_in_tiles`` is one head. ``Watch`` sees every tensor that a
function makes.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable

import torch
from torch.utils._python_dispatch import TorchDispatchMode

UPDATE = {  # mistake in the update -> when it comes, and what would be right
    "sum": "the sum is not rescaled: row_sum is relative to the old maximum, so it must be multiplied by the "
    "correction before the new weights are added",
    "accumulator": "the accumulator is not rescaled: it is relative to the old maximum, so it must be multiplied by "
    "the correction before the new product is added",
    "both": "neither the sum nor the accumulator is rescaled: both are relative to the old maximum",
    "inverted": "the correction is turned around (it must be exp(old maximum - new maximum))",
    "old maximum": "the weights are relative to the old maximum, which is minus infinite in the first iteration (they "
    "must be relative to the new one)",
    "not kept": "the new maximum is not kept for the next iteration: the correction is then always 0, and only the "
    "last tile of keys counts",
    "no division": "the division is missing: at the end the accumulator must be divided by row_sum",
    "no maximum": "no maximum is subtracted: the exponential of a large score is infinite, and infinite divided by "
    "infinite is NaN",
    "own maximum": "the maximum is that of the tile alone: where a later tile has much smaller scores, the correction "
    "is infinite; the new maximum must be the larger one of the old and the tile's",
}
WHOLE = {  # mistakes beside the update
    "no mask": "the mask is forgotten: with `causal`, a key is hidden where its number is larger than the query's",
    "too much hidden": "the mask hides the diagonal, too: a query must see its own key",
    "within the tile": "the mask counts within the tile: the numbers of queries and keys must begin at first_query and "
    "first_key",
    "late mask": "the mask comes too late: the weights of hidden keys are already in row_sum; mask the scores, before "
    "the maximum and the exponential",
    "hidden is zero": "hidden scores are set to 0, whose exponential is not 0: they must be minus infinite",
    "no scale": "the scale is forgotten: scores must be divided by the square root of head_dim",
    "diagonal left out": "the loop over keys ends before the tile on the diagonal: the last query of a tile sees the "
    "key of its own number",
    **UPDATE,
}


def _update(scores, values, row_max, row_sum, accumulator, mistake: str | None, hidden=None):
    """Maximum, sum and output of some rows with one more tile; scores [query, key], values [key, head_dim]."""
    new_max = torch.maximum(row_max, scores.amax(-1, keepdim=True))
    if mistake == "own maximum":
        new_max = scores.amax(-1, keepdim=True)
    if mistake == "no maximum":
        new_max = torch.zeros_like(row_max)
    weights = torch.exp(scores - (row_max if mistake == "old maximum" else new_max))
    correction = torch.exp(new_max - row_max if mistake == "inverted" else row_max - new_max)
    if mistake == "no maximum":
        correction = torch.ones_like(correction)
    row_sum = row_sum * (1 if mistake in ("sum", "both") else correction) + weights.sum(-1, keepdim=True)
    if hidden is not None:
        weights = weights.masked_fill(hidden, 0.0)
    accumulator = accumulator * (1 if mistake in ("accumulator", "both") else correction) + weights @ values
    return row_max if mistake == "not kept" else new_max, row_sum, accumulator


def _start(rows: int, head_dim: int):
    return torch.full((rows, 1), -math.inf), torch.zeros(rows, 1), torch.zeros(rows, head_dim)


def weighted_mean(scores, values, tile: int, mistake: str | None = None):
    """Of values [key, head_dim] the mean with weights softmax(scores [key]), a tile of keys at a time."""
    state = _start(1, values.shape[1])
    for first in range(0, len(scores), tile):
        state = _update(scores[None, first : first + tile], values[first : first + tile], *state, mistake)
    _, row_sum, accumulator = state
    return accumulator[0] if mistake == "no division" else (accumulator / row_sum)[0]


def attention_in_tiles(q, k, v, causal: bool, tile: int, mistake: str | None = None):
    """Attention of one head, q [query, head_dim], k and v [key, head_dim], in float32; no score matrix is ever made."""
    o = torch.empty_like(q)
    for first_query in range(0, len(q), tile):
        queries = q[first_query : first_query + tile]
        state = _start(len(queries), q.shape[1])
        end = min(len(k), first_query + (0 if mistake == "diagonal left out" else tile)) if causal else len(k)
        for first_key in range(0, end, tile):
            keys, values = k[first_key : first_key + tile], v[first_key : first_key + tile]
            scores = queries @ keys.T
            if mistake != "no scale":
                scores = scores / math.sqrt(q.shape[1])
            hidden = None
            if causal and mistake != "no mask":
                origin = (0, 0) if mistake == "within the tile" else (first_query, first_key)
                query_index, key_index = (torch.arange(n) + o for n, o in zip(scores.shape, origin, strict=True))
                hidden = key_index >= query_index[:, None] + (mistake != "too much hidden")
            if hidden is not None and mistake != "late mask":
                scores = scores.masked_fill(hidden, 0.0 if mistake == "hidden is zero" else -math.inf)
                hidden = None
            state = _update(scores, values, *state, mistake, hidden)
        _, row_sum, accumulator = state
        o[first_query : first_query + tile] = accumulator if mistake == "no division" else accumulator / row_sum
    return o


class Suspects:
    """Which mistakes give all the outputs that were seen. mistakes: ``UPDATE`` or ``WHOLE``.

    compute: the function with a mistake as its last argument.
    """

    def __init__(self, mistakes: dict[str, str], compute: Callable[..., torch.Tensor]):
        self.mistakes, self.compute = mistakes, compute
        self.seen: list[tuple[torch.Tensor, tuple]] = []

    def see(self, output: torch.Tensor, *inputs, wrong: bool) -> None:
        self.seen.insert(0 if wrong else len(self.seen), (output, inputs))  # a wrong one leaves few suspects

    @property
    def told(self) -> str:
        """In words; empty where no mistake is known that does."""
        left = self.mistakes
        for output, inputs in self.seen:
            left = {name: when for name, when in left.items() if _alike(output, self.compute(*inputs, name))}
        return f"This is what comes when {', or when '.join(left.values())}." if left else ""


def _alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a.float(), b, 1e-3, 1e-4, equal_nan=True)


class TooLarge(Exception):
    """A function has made a tensor that it must not make; the message says which, and where."""


class Watch(TorchDispatchMode):
    """Sees every tensor that is made while it is open. largest: the shape of the one with most elements.

    refused: says of a shape why it must not be made, or None; then ``TooLarge`` is raised, with a line of ``file``.
    """

    def __init__(self, refused: Callable[[Iterable[int]], str | None] | None = None, file: str = ""):
        super().__init__()
        self.refused, self.file = refused, file
        self.largest: tuple[int, ...] = ()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, list | tuple) else [made]:
            if not isinstance(tensor, torch.Tensor):
                continue
            shape = tuple(tensor.shape)
            if math.prod(shape) > math.prod(self.largest) or not self.largest:
                self.largest = shape
            if self.refused and (why := self.refused(shape)):
                raise TooLarge(f"A tensor of shape {list(shape)} is made{self._where()}: {why}")
        return made

    def _where(self) -> str:
        """The line of the watched function that is being executed."""
        import linecache

        frame = sys._getframe()
        while frame is not None:
            if frame.f_code.co_filename == self.file:
                return f" in `{linecache.getline(self.file, frame.f_lineno).strip()}`"
            frame = frame.f_back
        return ""


def largest(function: Callable, *args) -> tuple[int, ...]:
    """The shape of the largest tensor that a call makes."""
    with Watch() as watch:
        function(*args)
    return watch.largest
