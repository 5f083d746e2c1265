"""Peers: other people's attention, measured beside the ladder with ``--peers``.

Each takes what it takes; one that cannot run a problem says why, and is skipped.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import ClassVar

from steps.core.paged import TorchPaged
from steps.core.quantized import TorchQuantized
from steps.core.step import TorchStep
from steps.reference import cudnn_graph
from steps.reference.autograd import AutogradGradients
from steps.reference.step001_naive import quadratic_bytes
from tutorial_lib.architectures import ARCHITECTURES
from tutorial_lib.compiler import CUTILE_ARCHITECTURES
from tutorial_lib.packing import as_batch, as_packed
from tutorial_lib.problem import FP8
from tutorial_lib.reference import sdpa_masked


@dataclass(frozen=True, kw_only=True)
class _Elsewhere:
    """What somebody else's code needs. requires: the module; top_left: causal also where the lengths differ.

    architectures: the only ones that it is made for; none: not known here, and it says so itself when it is called.
    counted: as ``Step`` has it, and empty where no counters are read.
    """

    requires: str | None = None
    architectures: tuple[str, ...] = ()
    install: str = ""
    top_left: bool = True
    counted: str = ""

    def unsupported(self, problem, target):
        if target == "cpu":
            return "peers are timed on a GPU only"
        if reason := super().unsupported(problem, target):
            return reason
        if self.architectures and target not in self.architectures:
            return f"made for {', '.join(self.architectures)}, not for {target}"
        if self.requires and not _installed(self.requires):
            return f"not installed ({self.install})"
        unequal = any(queries != keys for queries, keys in problem.pairs_of_lengths)
        if problem.causal and unequal and not self.top_left:
            return "its causal mask lines up with the last key, not the first, where the lengths differ"
        return None

    def make_ready(self, problem, *tensors, **asked):
        """Imports the module now, which takes seconds: the first call, in which nobody else may measure, need not."""
        if self.requires:
            import_module(self.requires)
        return super().make_ready(problem, *tensors, **asked)


@dataclass(frozen=True, kw_only=True)
class Peer(_Elsewhere, TorchStep):
    """Somebody else's attention."""

    backend: ClassVar[str] = "peer"


@dataclass(frozen=True, kw_only=True)
class GradientPeer(_Elsewhere, AutogradGradients):
    """Somebody else's gradients: those of a peer's attention."""

    backend: ClassVar[str] = "peer"
    rounds_sinks: ClassVar[bool] = True  # to bfloat16, in which the only one that has their gradient takes them


@dataclass(frozen=True, kw_only=True)
class PagedPeer(_Elsewhere, TorchPaged):
    """Somebody else's attention to keys in pages."""

    backend: ClassVar[str] = "peer"
    takes: ClassVar[tuple[str, ...]] = ("page_size",)


@dataclass(frozen=True, kw_only=True)
class QuantizedPeer(_Elsewhere, TorchQuantized):
    """Somebody else's attention of inputs in fp8."""

    backend: ClassVar[str] = "peer"
    takes: ClassVar[tuple[str, ...]] = ("fp8",)
    formats: ClassVar[tuple[str, ...]] = (FP8,)

    def sums_in_tensor_cores(self, problem) -> bool:
        return True


@dataclass(frozen=True, kw_only=True)
class OneScalePeer(QuantizedPeer):
    """One that takes a scale for a tensor, and writes e4m3."""

    one_scale: ClassVar[bool] = True
    writes: ClassVar[str | None] = FP8


@cache
def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # its parent package is missing
        return False


def _sdpa_with(backend: str, q, k, v, causal, scale, **masks):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(getattr(SDPBackend, backend)):
        return sdpa_masked(q, k, v, causal, scale, **masks)


def sdpa_cudnn(q, k, v, causal, scale, **masks):
    return _sdpa_with("CUDNN_ATTENTION", q, k, v, causal, scale, **masks)


def sdpa_flash(q, k, v, causal, scale, packing=None):  # takes no mask
    return _sdpa_with("FLASH_ATTENTION", q, k, v, causal, scale, packing=packing)


def sdpa_efficient(q, k, v, causal, scale, **masks):
    return _sdpa_with("EFFICIENT_ATTENTION", q, k, v, causal, scale, **masks)


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


@lru_cache(maxsize=4)
def _block_mask(lengths: tuple[int, int], causal: bool, window: int | None, pairs: tuple | None, device):
    """What FlexAttention is told of a mask. lengths: of queries and keys; pairs: those of packed sequences.

    The last few are kept, as they cost more to make than the attention.
    """
    import torch
    from torch.nn.attention.flex_attention import create_block_mask

    def seen(i, j):
        sees = j <= i if causal else j >= 0
        return sees & (j > i - window) if window else sees

    if pairs is None:
        return create_block_mask(lambda b, h, i, j: seen(i, j), None, None, *lengths, device=device)

    def told(each: tuple[int, ...]):
        """For every token its sequence, and its number in that."""
        count = torch.tensor(each, device=device)
        which = torch.repeat_interleave(torch.arange(len(each), device=device), count)
        return which, torch.arange(sum(each), device=device) - (count.cumsum(0) - count)[which]

    (of_query, i_of), (of_key, j_of) = map(told, zip(*pairs))

    def inside(b, h, i, j):
        return (of_query[i] == of_key[j]) & seen(i_of[i], j_of[j])

    return create_block_mask(inside, None, None, *lengths, device=device)


@cache
def _capped(softcap: float):
    import torch

    return lambda score, b, h, i, j: softcap * torch.tanh(score / softcap)


def flex(q, k, v, causal, scale, window=None, softcap=None, packing=None, sinks=None):
    """With sinks it rescales what FlexAttention gives without: by the share that the keys have of all weights."""
    masked = causal or packing
    pairs = packing and packing.pairs
    mask = _block_mask((q.shape[2], k.shape[2]), causal, window, pairs, q.device) if masked else None
    cap = _capped(softcap) if softcap else None
    more = {"score_mod": cap, "block_mask": mask, "scale": scale, "enable_gqa": q.shape[1] != k.shape[1]}
    if sinks is None:
        return _compiled_flex()(q, k, v, **more)
    from torch.nn.attention.flex_attention import AuxRequest

    o, found = _compiled_flex()(q, k, v, return_aux=AuxRequest(lse=True), **more)
    return o * (found.lse - sinks[:, None]).sigmoid()[..., None].to(o.dtype)


def flash_attn_4(q, k, v, causal, scale, window=None, softcap=None, packing=None, sinks=None):
    from flash_attn.cute import flash_attn_func, flash_attn_varlen_func

    more = {"window_size": (window - 1, 0)} if window else {}
    if sinks is not None:  # it wants them in bfloat16
        more["learnable_sink"] = sinks.bfloat16()
    if softcap:
        more["softcap"] = softcap
    if packing:  # it wants [tokens, heads, head_dim]
        begins = {"cu_seqlens_q": packing.cu_seqlens_q, "cu_seqlens_k": packing.cu_seqlens_k}
        q, k, v = map(as_packed, (q, k, v))
        o = flash_attn_varlen_func(q, k, v, softmax_scale=scale, causal=causal, **begins, **more)
        return as_batch(o[0] if isinstance(o, tuple) else o)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # it wants [batch, seq_len, heads, head_dim]; strides are free
    o = flash_attn_func(q, k, v, softmax_scale=scale, causal=causal, **more)
    return (o[0] if isinstance(o, tuple) else o).transpose(1, 2)


def flash_attn_4_pages(q, k_pages, v_pages, page_table, lengths, causal, scale):
    from flash_attn.cute import flash_attn_varlen_func

    where = {"page_table": page_table, "seqused_k": lengths}
    o = flash_attn_varlen_func(q.transpose(1, 2), k_pages, v_pages, softmax_scale=scale, causal=causal, **where)
    return (o[0] if isinstance(o, tuple) else o).transpose(1, 2)


def flash_attn_3(q, k, v, causal, scale, window=None, softcap=None, packing=None, sinks=None):
    from flash_attn_interface import flash_attn_func, flash_attn_varlen_func

    more = {"softmax_scale": scale, "causal": causal, "num_splits": 0}  # 0: as many as it likes
    if window:
        more["window_size"] = (window - 1, 0)
    if softcap:
        more["softcap"] = softcap
    if sinks is not None:  # it wants them in bfloat16
        more["sinks"] = sinks.bfloat16()
    if packing:
        of_sequences = packing.cu_seqlens_q, packing.cu_seqlens_k, *map(max, zip(*packing.pairs))
        o = flash_attn_varlen_func(*map(as_packed, (q, k, v)), *of_sequences, **more)
        return as_batch(o[0] if isinstance(o, tuple) else o)
    o = flash_attn_func(*(x.transpose(1, 2) for x in (q, k, v)), **more)
    return (o[0] if isinstance(o, tuple) else o).transpose(1, 2)


def flash_attn_3_fp8(q, k, v, causal, scale, scales, dtype):
    from flash_attn_interface import flash_attn_func

    descales = dict(zip(("q_descale", "k_descale", "v_descale"), scales))
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    o = flash_attn_func(q, k, v, softmax_scale=scale, causal=causal, **descales)
    return (o[0] if isinstance(o, tuple) else o).transpose(1, 2).to(dtype)  # it is in bfloat16


def tilegym(q, k, v, causal, scale):
    from tilegym.ops import fmha

    return fmha(q, k, v, scaling=scale, is_causal=causal)


MASKS = ("window", "lengths")  # of ``Problem.features``
ALL = ("window", "softcap", "lengths", "sinks", "head_dim_v")

PEERS = (
    Peer(
        name="sdpa_cudnn",
        title="SDPA, cuDNN",
        change="cuDNN's fused attention.",
        function=sdpa_cudnn,
        architectures=CUTILE_ARCHITECTURES,  # by PyTorch 2.15: sm_80 to sm_121
        takes=(*MASKS, "head_dim_v"),
        keeps_mask=True,
    ),
    Peer(
        name="sdpa_flash",
        title="SDPA, FlashAttention",
        change="FlashAttention-2 in PyTorch.",
        function=sdpa_flash,
        architectures=tuple(ARCHITECTURES),
        takes=("lengths",),
    ),
    Peer(
        name="sdpa_efficient",
        title="SDPA, memory-efficient",
        change="The memory-efficient attention of xFormers in PyTorch.",
        function=sdpa_efficient,
        keeps_mask=True,
        takes=(*MASKS, "head_dim_v"),
    ),
    Peer(
        name="sdpa_math",
        title="SDPA, math",
        change="PyTorch's unfused attention in float32.",
        function=sdpa_math,
        scratch=_math_bytes,
    ),
    Peer(
        name="flex",
        title="FlexAttention",
        change="FlexAttention under torch.compile, in Triton.",
        function=flex,
        takes=ALL,
    ),
    Peer(
        name="flash_attn_4",
        title="flash-attn-4",
        change="FlashAttention in CuTe DSL, its kernel for this architecture.",
        function=flash_attn_4,
        takes=ALL,
        requires="flash_attn.cute",
        install="pip install flash-attn-4",
        top_left=False,
    ),
    Peer(
        name="flash_attn_3",
        title="FlashAttention-3",
        change="FlashAttention-3, which is made for Hopper alone.",
        function=flash_attn_3,
        architectures=("sm_90",),
        takes=ALL,
        requires="flash_attn_interface",
        install="pip install tokenspeed-fa3",
        top_left=False,
    ),
    Peer(
        name="cudnn",
        title="cuDNN by its own package",
        change="cuDNN's fused attention, as its own Python package builds it.",
        function=cudnn_graph.attention,
        architectures=CUTILE_ARCHITECTURES,
        takes=("window", "sinks", "head_dim_v"),
        requires="cudnn",
        install="pip install nvidia-cudnn-frontend",
    ),
    Peer(
        name="tilegym",
        title="TileGym",
        change="NVIDIA's tuned attention in cuTile.",
        function=tilegym,
        requires="tilegym",
        install="pip install --no-deps tilegym",
        top_left=False,
    ),
)


PAGED_PEERS = (
    PagedPeer(
        name="flash_attn_4",
        title="flash-attn-4",
        change="FlashAttention in CuTe DSL, which reads pages.",
        function=flash_attn_4_pages,
        requires="flash_attn.cute",
        install="pip install flash-attn-4",
    ),
)


QUANTIZED_PEERS = (
    QuantizedPeer(
        name="flash_attn_3",
        title="FlashAttention-3",
        change="FlashAttention-3 with inputs in e4m3.",
        function=flash_attn_3_fp8,
        architectures=("sm_90",),
        requires="flash_attn_interface",
        install="pip install tokenspeed-fa3",
        top_left=False,
    ),
    OneScalePeer(
        name="cudnn",
        title="cuDNN by its own package",
        change="cuDNN's attention in fp8 on Hopper: one scale a tensor, and the output in e4m3.",
        function=cudnn_graph.fp8_attention,
        architectures=("sm_90",),
        requires="cudnn",
        install="pip install nvidia-cudnn-frontend",
    ),
)


# Of the backward pass: a part of the large kernel's name.
LARGE_KERNELS = {"sdpa_cudnn": "flash_bprop", "sdpa_flash": "flash_bwd_dq_dk_dv", "flash_attn_4": "flash_bwd_sm"}


def peers_of(direction: str) -> tuple:
    """The peers that compute this pass. Of FlexAttention, PyTorch's math and TileGym the backward pass is not asked."""
    if direction == "forward":
        return PEERS
    if direction == "paged":
        return PAGED_PEERS
    if direction == "fp8":
        return QUANTIZED_PEERS
    return tuple(
        GradientPeer(
            name=peer.name,
            title=peer.title,
            change=f"The backward pass of: {peer.change}",
            function=peer.function,
            requires=peer.requires,
            architectures=peer.architectures,
            install=peer.install,
            top_left=peer.top_left,
            takes=tuple(name for name in ("window", "softcap", "lengths", "sinks") if name in peer.takes),
            counted=LARGE_KERNELS.get(peer.name, ""),
        )
        for peer in PEERS
        if peer.name in ("sdpa_cudnn", "sdpa_flash", "sdpa_efficient", "flash_attn_4", "flash_attn_3")
    )
