"""Peers: other people's attention, measured beside the ladder with ``--peers``.

Each takes what it takes; one that cannot run a problem says why, and is skipped.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import ClassVar

from steps.core.step import TorchStep
from steps.reference.autograd import AutogradGradients
from steps.reference.step01_naive import quadratic_bytes
from tutorial_lib.reference import sdpa


@dataclass(frozen=True, kw_only=True)
class _Elsewhere:
    """What somebody else's code needs. requires: the module; top_left: causal also where the lengths differ."""

    requires: str | None = None
    install: str = ""
    top_left: bool = True

    def unsupported(self, problem, target):
        if target == "cpu":
            return "peers are timed on a GPU only"
        if reason := super().unsupported(problem, target):
            return reason
        if self.requires and not _installed(self.requires):
            return f"not installed ({self.install})"
        if problem.causal and problem.seq_len_q != problem.seq_len_kv and not self.top_left:
            return "its causal mask lines up with the last key, not the first, where the lengths differ"
        return None


@dataclass(frozen=True, kw_only=True)
class Peer(_Elsewhere, TorchStep):
    """Somebody else's attention."""

    backend: ClassVar[str] = "peer"


@dataclass(frozen=True, kw_only=True)
class GradientPeer(_Elsewhere, AutogradGradients):
    """Somebody else's gradients: those of a peer's attention."""

    backend: ClassVar[str] = "peer"


@cache
def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # its parent package is missing
        return False


def _sdpa_with(backend: str, q, k, v, causal, scale):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(getattr(SDPBackend, backend)):
        return sdpa(q, k, v, causal, scale)


def sdpa_cudnn(q, k, v, causal, scale):
    return _sdpa_with("CUDNN_ATTENTION", q, k, v, causal, scale)


def sdpa_flash(q, k, v, causal, scale):
    return _sdpa_with("FLASH_ATTENTION", q, k, v, causal, scale)


def sdpa_efficient(q, k, v, causal, scale):
    return _sdpa_with("EFFICIENT_ATTENTION", q, k, v, causal, scale)


def sdpa_math(q, k, v, causal, scale):
    return _sdpa_with("MATH", q, k, v, causal, scale)


def _math_bytes(problem):
    """The math backend works in float32 as naive does, and keeps the masked scores as well."""
    return 2 * quadratic_bytes(problem)


@cache
def _compiled_flex():
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)


@cache
def _causal_block_mask(seq_len_q: int, seq_len_kv: int):
    from torch.nn.attention.flex_attention import create_block_mask

    return create_block_mask(lambda b, h, i, j: j <= i, B=None, H=None, Q_LEN=seq_len_q, KV_LEN=seq_len_kv)


def flex(q, k, v, causal, scale):
    mask = _causal_block_mask(q.shape[2], k.shape[2]) if causal else None
    return _compiled_flex()(q, k, v, block_mask=mask, scale=scale, enable_gqa=q.shape[1] != k.shape[1])


def flash_attn_4(q, k, v, causal, scale):
    from flash_attn.cute import flash_attn_func

    q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # it wants [batch, seq_len, heads, head_dim]; strides are free
    o = flash_attn_func(q, k, v, softmax_scale=scale, causal=causal)
    return (o[0] if isinstance(o, tuple) else o).transpose(1, 2)


def tilegym(q, k, v, causal, scale):
    from tilegym.ops import fmha

    return fmha(q, k, v, scaling=scale, is_causal=causal)


PEERS = (
    Peer(name="sdpa_cudnn", title="SDPA, cuDNN", change="cuDNN's fused attention.", function=sdpa_cudnn),
    Peer(name="sdpa_flash", title="SDPA, FlashAttention", change="FlashAttention-2 in PyTorch.", function=sdpa_flash),
    Peer(
        name="sdpa_efficient",
        title="SDPA, memory-efficient",
        change="The memory-efficient attention of xFormers in PyTorch.",
        function=sdpa_efficient,
    ),
    Peer(
        name="sdpa_math",
        title="SDPA, math",
        change="PyTorch's unfused attention in float32.",
        function=sdpa_math,
        scratch=_math_bytes,
    ),
    Peer(name="flex", title="FlexAttention", change="FlexAttention under torch.compile, in Triton.", function=flex),
    Peer(
        name="flash_attn_4",
        title="flash-attn-4",
        change="FlashAttention in CuTe DSL, its kernel for this architecture.",
        function=flash_attn_4,
        requires="flash_attn.cute",
        install="pip install flash-attn-4",
        top_left=False,
    ),
    Peer(
        name="tilegym",
        title="TileGym",
        change="NVIDIA's tuned attention in cuTile.",
        function=tilegym,
        requires="tilegym",
        install="see https://github.com/NVIDIA/TileGym",
        top_left=False,
    ),
)


def peers_of(direction: str) -> tuple:
    """The peers that compute this pass. Of FlexAttention, PyTorch's math and TileGym the backward pass is not asked."""
    if direction == "forward":
        return PEERS
    return tuple(
        GradientPeer(
            name=peer.name,
            title=peer.title,
            change=f"The backward pass of: {peer.change}",
            function=peer.function,
            requires=peer.requires,
            install=peer.install,
            top_left=peer.top_left,
        )
        for peer in PEERS
        if peer.name in ("sdpa_cudnn", "sdpa_flash", "sdpa_efficient", "flash_attn_4")
    )
