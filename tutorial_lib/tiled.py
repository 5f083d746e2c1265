"""Attention in tiles, in plain PyTorch, and ``Watch``, which sees every tensor that a function makes."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable

import torch
from torch.utils._python_dispatch import TorchDispatchMode


def attention_in_tiles(q, k, v, causal: bool, tile: int):
    """Attention of one head, q [query, head_dim], k and v [key, head_dim], in float32; no score matrix is ever made."""
    o = torch.empty_like(q)
    for first_query in range(0, len(q), tile):
        queries = q[first_query : first_query + tile]
        row_max = torch.full((len(queries), 1), -math.inf)
        row_sum = torch.zeros(len(queries), 1)
        accumulator = torch.zeros_like(queries)
        end = min(len(k), first_query + tile) if causal else len(k)
        for first_key in range(0, end, tile):
            keys, values = k[first_key : first_key + tile], v[first_key : first_key + tile]
            scores = queries @ keys.T / math.sqrt(q.shape[1])  # [query, key]
            if causal:
                query_index = first_query + torch.arange(len(queries))
                key_index = first_key + torch.arange(len(keys))
                scores = scores.masked_fill(key_index > query_index[:, None], -math.inf)
            new_max = torch.maximum(row_max, scores.amax(1, keepdim=True))
            weights = torch.exp(scores - new_max)
            correction = torch.exp(row_max - new_max)
            row_sum = row_sum * correction + weights.sum(1, keepdim=True)
            accumulator = accumulator * correction + weights @ values
            row_max = new_max
        o[first_query : first_query + tile] = accumulator / row_sum
    return o


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
