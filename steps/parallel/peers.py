"""PyTorch's own context parallelism, measured beside the steps over several ranks.

``torch.distributed.tensor.experimental.context_parallel`` puts a ring around scaled_dot_product_attention: keys and
values are gathered, or sent round by all-to-all. Under a causal mask it shares the sequence out as step zigzag does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import ClassVar

from steps.core.step import TorchStep
from steps.parallel.shares import ZIGZAG, Share
from steps.reference.autograd import AutogradGradients, passes_of
from tutorial_lib.reference import sdpa


@dataclass(frozen=True, kw_only=True)
class _ContextParallel:
    """What both directions share. rotation: how PyTorch moves keys and values, "allgather" or "alltoall"."""

    rotation: str

    backend: ClassVar[str] = "peer"
    several: ClassVar[bool] = True
    share: ClassVar[Share] = ZIGZAG

    def part(self, whole, rank: int, ranks: int):
        """The tokens that a rank holds; without a mask their order does not matter."""
        return self.share.part(whole, rank, ranks)

    def unsupported(self, problem, target):
        return "peers are timed on a GPU only" if target == "cpu" else super().unsupported(problem, target)


@dataclass(frozen=True, kw_only=True)
class ContextParallel(_ContextParallel, TorchStep):
    """PyTorch's ring around its own attention, on this rank's part of the sequence."""


@dataclass(frozen=True, kw_only=True)
class ContextParallelGradients(_ContextParallel, AutogradGradients):
    """The backward pass of the same."""

    def make_ready(self, problem, tensors, out):
        import torch

        def launch(q, k, v, o, lse, do, out):
            kept = passes_of(self.function).find(q, k, v, problem)
            with in_context(problem.causal, self.rotation, q.device.type):
                made = torch.autograd.grad(*kept, do, retain_graph=True)
            return made if out is None else tuple(place.copy_(x) for place, x in zip(out, made, strict=True))

        return launch


@cache
def _mesh(device: str):
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(device, (dist.get_world_size(),))


@contextmanager
def in_context(causal: bool, rotation: str, device: str) -> Iterator[None]:
    """Inside, scaled_dot_product_attention is PyTorch's over all ranks; cuDNN computes its parts where it can.

    PyTorch decides by the first buffer's length whether the sequence is shared out evenly: where it is a multiple of
    twice the ranks. Without a mask it must not be. The tensors of a call are shared out already, so that the buffer
    is one of that length and nothing else.
    """
    import torch
    from torch.distributed.tensor.experimental import context_parallel
    from torch.distributed.tensor.experimental._attention import set_rotate_method
    from torch.nn.attention import SDPBackend, sdpa_kernel

    set_rotate_method(rotation)
    mesh = _mesh(device)
    buffer = torch.zeros(mesh.size() * (2 if causal else 1), device=device)
    fastest_first = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]
    with context_parallel(mesh, buffers=[buffer], buffer_seq_dims=[0]), sdpa_kernel(fastest_first, set_priority=True):
        yield


def context_parallel_sdpa(q, k, v, causal, scale, *, rotation):
    with in_context(causal, rotation, q.device.type):
        return sdpa(q, k, v, causal, scale)


@cache
def peers_over_ranks(direction: str) -> tuple:
    """The peers that compute this pass over several ranks."""
    found = []
    for rotation, how in (("allgather", "keys and values are gathered"), ("alltoall", "keys and values go round")):
        function = partial(context_parallel_sdpa, rotation=rotation)
        name = f"context_parallel_{rotation}"
        title = f"PyTorch's context parallelism, {rotation}"
        change = f"PyTorch's own: {how}."
        make = ContextParallel if direction == "forward" else ContextParallelGradients
        found.append(make(name=name, title=title, change=change, function=function, rotation=rotation))
    return tuple(found)
