"""How a kernel function in cuTile is launched, whichever pass it belongs to."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import cuda.tile as ct

from steps.core.step import target_of
from steps.core.tiles import BlockShape
from tutorial_lib.identity import use_relative_paths


def runner(blocks: tuple[int, int, int], function: Callable, shape: BlockShape, device) -> Callable:
    """``run(*arguments)`` launches a kernel function; on the CPU, the interpreter does."""
    if target_of(device) == "cpu":
        from tutorial_lib import interpreter

        return lambda *arguments: interpreter.launch(blocks, function, arguments)
    import torch

    kernel, stream_of, index = compiled_when_launched(function, shape), torch._C._cuda_getCurrentRawStream, device.index
    return lambda *arguments: ct.launch(stream_of(index), blocks, kernel, arguments)


@cache
def compiled_when_launched(function: Callable, shape: BlockShape) -> ct.kernel:
    """A kernel function with the hints of its shape, for cuTile to compile when it is first launched."""
    use_relative_paths()
    return ct.kernel(function, occupancy=shape.occupancy, num_worker_warps=shape.warps, num_ctas=shape.cluster)
