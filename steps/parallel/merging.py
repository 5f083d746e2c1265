"""Attention over some keys, and over others, put together by the log-sum-exp of each.

Let o be attention over some keys, and L the log-sum-exp of their scaled scores. Over other keys it is o' and L'. Over
all of them the weights' sum is exp(L) + exp(L'), so that the output is o + w (o' - o) with w = exp(L') / (exp(L) +
exp(L')) = sigmoid(L' - L), and the log-sum-exp is log(exp(L) + exp(L')). Neither needs an exponential that could
overflow. Liu et al. 2023, "Ring Attention with Blockwise Transformers for Near-Infinite Context",
https://arxiv.org/abs/2310.01889, put parts together so that live on other GPUs.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def merge(o: torch.Tensor, lse: torch.Tensor, part_o: torch.Tensor, part_lse: torch.Tensor) -> None:
    """Put a part, ``part_o [..., D]`` and ``part_lse [...]``, into ``o`` and ``lse``, which are written to.

    o may be float32 or have 16 bits, and is computed in float32; lse is the natural logarithm, in float32, minus
    infinity for a query that has seen no key. The two sets of keys must have none in common.
    """
    (_fused() if o.is_cuda else _merge)(o, lse, part_o, part_lse)


def _merge(o, lse, part_o, part_lse):
    import torch

    share = torch.sigmoid(part_lse - lse).nan_to_num(0.0)  # of the part; no key in either: infinity minus infinity
    o.copy_(torch.lerp(o.float(), part_o.float(), share[..., None]))
    lse.copy_(torch.logaddexp(lse, part_lse))


@cache
def _fused():
    """As one kernel: PyTorch alone would move float32 copies of both outputs through memory."""
    import torch

    return torch.compile(_merge, dynamic=True)


def accumulator(o: torch.Tensor, parts: int) -> torch.Tensor:
    """Where ``parts`` more parts are put to ``o``: in float32 where several are; one is rounded once."""
    return o.float() if parts > 1 else o
