"""Sequences of different lengths, packed into one tensor: the tokens of one stand behind those of the other.

The layout and the names are flash-attn's (``flash_attn_varlen_func``): tensors ``[tokens, heads, head_dim]``, and
``cu_seqlens``, int32 ``[sequences + 1]``, which holds where every sequence begins, and last the number of all tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch


class Packing(NamedTuple):
    """Where sequences begin in packed tensors: among the queries, among the keys; and (queries, keys) of each."""

    cu_seqlens_q: torch.Tensor
    cu_seqlens_k: torch.Tensor
    pairs: tuple[tuple[int, int], ...]


def cu_seqlens(lengths: Sequence[int], device: str | torch.device = "cpu") -> torch.Tensor:
    """Where sequences of these lengths begin, and where the last ends: int32 ``[sequences + 1]``."""
    import torch

    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)


def as_batch(packed: torch.Tensor) -> torch.Tensor:
    """``[tokens, heads, head_dim]`` seen as a batch of one, ``[1, heads, tokens, head_dim]``."""
    return packed.transpose(0, 1).unsqueeze(0)


def as_batches(**tensors) -> list[torch.Tensor]:
    """As ``as_batch``, of each; raises ValueError naming the one that is no packed tensor."""
    import torch

    for name, x in tensors.items():
        if not isinstance(x, torch.Tensor) or x.ndim != 3:
            came = f"shape {tuple(x.shape)}" if isinstance(x, torch.Tensor) else type(x).__name__
            raise ValueError(f"with cu_seqlens_q {name} must be a tensor [tokens, heads, head_dim], got {came}")
    return [as_batch(x) for x in tensors.values()]


def as_packed(batch: torch.Tensor) -> torch.Tensor:
    """``[1, heads, tokens, head_dim]`` seen as ``[tokens, heads, head_dim]``."""
    return batch.squeeze(0).transpose(0, 1)


def split(q, k, v, pairs: Sequence[tuple[int, int]]) -> Iterator[tuple]:
    """(q, k, v) of every sequence, parts of tensors ``[1, heads, tokens, head_dim]``; pairs: its (queries, keys)."""
    queries, keys = (accumulate(each, initial=0) for each in zip(*pairs))
    for (q0, q1), (k0, k1) in zip(pairwise(queries), pairwise(keys)):
        yield q[:, :, q0:q1], k[:, :, k0:k1], v[:, :, k0:k1]


def check(name: str, cu: torch.Tensor, device: torch.device) -> None:
    """Raises ValueError unless ``cu`` is of the kind of ``cu_seqlens``; what it holds is not read."""
    import torch

    if not isinstance(cu, torch.Tensor) or cu.dtype != torch.int32 or cu.ndim != 1 or cu.device != device:
        came = f"{tuple(cu.shape)} {cu.dtype} on {cu.device}" if isinstance(cu, torch.Tensor) else type(cu).__name__
        raise ValueError(f"{name} must be an int32 tensor [sequences + 1] on {device}, got {came}")
    if len(cu) < 2 or not cu.is_contiguous():
        raise ValueError(f"{name} must be contiguous and hold two numbers at least, got {len(cu)} numbers")


def remembered(lengths: Sequence[int], device: str | torch.device) -> torch.Tensor:
    """As ``cu_seqlens``, for a caller who never writes to it: ``read_lengths`` need not read it from the device."""
    cu = cu_seqlens(lengths, device)
    _known()[cu] = tuple(cu.tolist())
    return cu


def read_lengths(name: str, cu: torch.Tensor, tokens: int) -> tuple[int, ...]:
    """The lengths of the sequences, for which the host waits for the device, but for what is ``remembered``.

    Raises ValueError for numbers that do not rise from 0 to ``tokens``.
    """
    begins = _known().get(cu) or tuple(cu.tolist())
    if begins[0] != 0 or begins[-1] != tokens or any(a >= b for a, b in pairwise(begins)):
        shown = ", ".join(map(str, begins[:8])) + (", ..." if len(begins) > 8 else "")
        empty = "; every sequence must hold a token" if any(a == b for a, b in pairwise(begins)) else ""
        raise ValueError(f"{name} must rise from 0 to the number of tokens, {tokens}, got {shown}{empty}")
    return tuple(b - a for a, b in pairwise(begins))


@cache
def _known():
    from torch.utils.weak import WeakTensorKeyDictionary

    return WeakTensorKeyDictionary()
