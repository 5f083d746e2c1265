"""A call in two halves: the small kernels of one run while the large kernel of the other does.

Before and after the kernel whose blocks own keys, small kernels read and write device memory, and the tensor cores
wait. Half of the batch, or of the heads, needs nothing of the other half. So the second half goes to a stream of its
own: its large kernel begins when that of the first has no more blocks to give out, and not only when the small kernel
behind that is done [CUDA C++ Programming Guide, "Streams"].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from tutorial_lib.problem import Problem

if TYPE_CHECKING:
    import torch

BATCH, HEADS = 0, 1  # axes of the tensors
LEAST = 264  # blocks of a half: two for each of an H100's SMs, so that either half could fill the GPU


def axis_of(problem: Problem, blocks: int) -> int | None:
    """The axis along which a call is cut; None where it stays whole. blocks: that the call has."""
    if blocks < 2 * LEAST:
        return None
    return BATCH if problem.batch % 2 == 0 else HEADS if problem.kv_heads % 2 == 0 else None


def half_of(problem: Problem, axis: int) -> Problem:
    """What one of the halves computes."""
    if axis == BATCH:
        return replace(problem, batch=problem.batch // 2)
    return replace(problem, heads=problem.heads // 2, kv_heads=problem.kv_heads // 2)


def ready_in_halves(make_ready: Callable, problem: Problem, axis: int, tensors: tuple, out: tuple | None) -> Callable:
    """As ``make_ready(problem, tensors, out)``, of which the halves are made: ``launch(q, k, v, o, lse, do, out)``."""
    import torch

    def cut(tensors, out):
        """Of each tensor the first halves, and the second."""
        if out is None:
            out = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in tensors[:3]]
        return out, *zip(*(x.chunk(2, axis) for x in (*tensors, *out)), strict=True)

    half, device = half_of(problem, axis), tensors[0].device
    first, second = (make_ready(half, mine[:6], mine[6:]) for mine in cut(tensors, out)[1:])

    def launch(q, k, v, o, lse, do, out):
        made, mine, others = cut((q, k, v, o, lse, do), out)
        if device.type == "cpu":
            first(*mine[:6], mine[6:])
            second(*others[:6], others[6:])
            return tuple(made)
        current = torch.cuda.current_stream(device)
        beside = _beside(device, current.cuda_stream)
        beside.wait_stream(current)
        first(*mine[:6], mine[6:])
        with torch.cuda.stream(beside):
            second(*others[:6], others[6:])
        current.wait_stream(beside)  # also before memory of this stream is handed out again
        return tuple(made)

    return launch


@lru_cache(maxsize=64)
def _beside(device: torch.device, stream: int) -> torch.cuda.Stream:
    """The stream for second halves of calls in this one: one that is being captured shares it with no other."""
    import torch

    return torch.cuda.Stream(device)
