"""A call in two halves, so that one may multiply while dQ of the other is scaled.

Before and after the kernel whose blocks own keys, small kernels read and write device memory, and the tensor cores
wait. Half of the batch, or of the heads, needs nothing of the other half. So the second half goes to a stream of its
own: its large kernel may begin before that of the first, and the small kernel behind that, are done
[CUDA C++ Programming Guide, "Streams"].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from tutorial_lib.problem import Problem

if TYPE_CHECKING:
    import torch

BATCH, HEADS = 0, 1  # axes of the tensors
LEAST = 1024  # blocks of a half; with half as many, six launches may take the host longer than the GPU


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


def ready_in_halves(make: Callable, problem: Problem, tensors: tuple, axis: int) -> Callable:
    """``run(*tensors)`` launches both halves; ``make(problem, tensors)`` makes such a function for one of them."""
    device = tensors[0].device

    def cut(tensors):
        return zip(*(x.chunk(2, axis) for x in tensors), strict=True)

    first, second = (make(half_of(problem, axis), half) for half in cut(tensors))

    def run(*tensors):
        mine, others = cut(tensors)
        with beside(device) as elsewhere:
            first(*mine)
            with elsewhere:
                second(*others)

    return run


@contextmanager
def beside(device: torch.device) -> Iterator:
    """Yields a context: launches inside it go to a second stream. On the CPU it changes nothing.

    That stream first waits for all that the current stream was given before. At the end the current stream waits for
    it, so that no memory is handed out again while a kernel still needs it.
    """
    if device.type == "cpu":
        yield nullcontext()
        return
    import torch

    current = torch.cuda.current_stream(device)
    stream, begun, ended = _second(device, current.cuda_stream)
    begun.record(current)
    stream.wait_event(begun)
    try:
        yield torch.cuda.stream(stream)
    finally:
        ended.record(stream)
        current.wait_event(ended)


@lru_cache(maxsize=64)
def _second(device: torch.device, stream: int) -> tuple:
    """Of a stream: the second one, and two events.

    Threads that share a stream share these, too: an event that another has recorded again comes later in that stream.
    """
    import torch

    second = torch.cuda.Stream(device)
    while second.cuda_stream == stream:  # PyTorch hands out the streams of a pool in turn
        second = torch.cuda.Stream(device)
    return second, torch.cuda.Event(), torch.cuda.Event()
