"""How kernel functions in cuTile are launched, whichever pass they belong to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import NamedTuple

import cuda.tile as ct

from steps.core import driver
from steps.core.launch import MAKING_READY
from steps.core.step import target_of
from steps.core.tiles import BlockShape
from tutorial_lib.identity import use_relative_paths


class Part(NamedTuple):
    """A kernel of a call.

    blocks: how many, along three axes. arguments: ``arguments(*tensors)`` is what the function takes for these tensors,
    which stand in it in this order, as they are or in another shape; calls of one kind differ in nothing else.
    tensors: their positions among those of the call and behind them its scratch memory; None: all.
    """

    blocks: tuple[int, int, int]
    function: Callable
    shape: BlockShape
    arguments: Callable[..., tuple]
    tensors: Sequence[int] | None = None

    def of(self, tensors: tuple) -> list:
        return list(tensors) if self.tensors is None else [tensors[n] for n in self.tensors]


def launcher(parts: Sequence[Part], device, scratch: Callable[[], tuple] = tuple) -> Callable[..., None]:
    """``run(*tensors)`` launches kernels one after the other; on the CPU, the interpreter does.

    scratch: ``scratch()`` makes the tensors that a call has for itself.
    """
    on_gpu, ready = target_of(device) != "cpu", None
    if on_gpu:
        import torch

        stream_of = partial(torch._C._cuda_getCurrentRawStream, device.index)

    def one_by_one(*tensors):
        tensors = *tensors, *scratch()
        for part in parts:
            arguments = part.arguments(*part.of(tensors))
            _launch(part, arguments, stream_of()) if on_gpu else _interpret(part, arguments)

    def by_the_driver(tensors, pieces) -> Callable[..., None]:
        captured = []
        for part in parts:
            given = part.of((*tensors, *pieces))
            kernel = driver.Captured(partial(_launch, part, part.arguments(*given)), given, device)
            captured.append((kernel, range(len(given)) if part.tensors is None else part.tensors))
        return driver.launcher(captured, device, driver.Memory(pieces, device) if pieces else None)

    def run(*tensors):
        nonlocal ready
        if ready is None:
            with MAKING_READY:
                pieces = scratch()
                try:
                    ready = by_the_driver(tensors, pieces)
                except (driver.OtherParameters, AttributeError, RuntimeError):  # another cuTile, or no graphs here
                    ready = one_by_one
        ready(*tensors)

    return run if on_gpu else one_by_one


def _interpret(part: Part, arguments: tuple) -> None:
    from tutorial_lib import interpreter

    interpreter.launch(part.blocks, part.function, arguments)


def _launch(part: Part, arguments: tuple, stream: int) -> None:
    ct.launch(stream, part.blocks, compiled_when_launched(part.function, part.shape), arguments)


@cache
def compiled_when_launched(function: Callable, shape: BlockShape) -> ct.kernel:
    """A kernel function with the hints of its shape, for cuTile to compile when it is first launched."""
    use_relative_paths()
    return ct.kernel(function, occupancy=shape.occupancy, num_worker_warps=shape.warps, num_ctas=shape.cluster)
