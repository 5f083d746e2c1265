"""cuDNN's attention by its own Python package, ``nvidia-cudnn-frontend``, which PyTorch does without.

A graph is described and built once for each kind of call, and run from then on (docs/operations/Attention.md in
https://github.com/NVIDIA/cudnn-frontend). The library below it is the one that PyTorch has loaded.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from steps.core.step import Unsupported

if TYPE_CHECKING:
    import torch

FACTORS = ("descale_q", "descale_k", "descale_v", "descale_s", "scale_s", "scale_o")
OF_WEIGHTS = 256.0  # what weights, at most 1, are multiplied by before they are rounded to fp8
ONE = (1, 1, 1, 1)


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool,
    scale: float,
    window: int | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """o ``[B, Hq, Sq, Dv]`` of q ``[B, Hq, Sq, D]``, k and v, in 16 bits; sinks ``[Hq]`` in float32."""
    more = () if sinks is None else (sinks.view(1, -1, 1, 1),)
    return _built(*map(_kind, (q, k, v)), causal, scale, q.device, window, bool(more))(q, k, v, *more)


def fp8_attention(q, k, v, causal: bool, scale: float, scales, dtype) -> torch.Tensor:
    """o in e4m3, of inputs in fp8 with one scale a tensor: the first of each of ``scales`` ``[B, Hkv]``.

    A GPU of compute capability 9 gets no other output (``node/sdpa_support_surface.h`` of the package, 1.32).
    """
    run = _built(*map(_kind, (q, k, v)), causal, scale, q.device)
    return run(q, k, v, *(x.view(-1)[:1].view(ONE) for x in scales), *_constants(q.device))


def _kind(x: torch.Tensor) -> tuple:
    return tuple(x.shape), x.stride(), x.dtype


@cache
def _constants(device: torch.device) -> tuple[torch.Tensor, ...]:
    """The last three of ``FACTORS``."""
    import torch

    return tuple(torch.full(ONE, x, device=device) for x in (1 / OF_WEIGHTS, OF_WEIGHTS, 1.0))


@cache
def _handle(device: torch.device):
    import cudnn
    import torch

    with torch.cuda.device(device):
        return cudnn.create_handle()


@lru_cache(maxsize=64)
def _built(
    q: tuple, k: tuple, v: tuple, causal: bool, scale: float, device: torch.device, window=None, sinks: bool = False
) -> Callable:
    """``run(q, k, v, *others)``, for tensors of these kinds; raises Unsupported, with what the package says.

    others: in fp8 ``FACTORS``; sinks ``[1, Hq, 1, 1]`` where they are asked for.
    """
    import cudnn
    import torch

    try:
        handle = _handle(device)
        graph, inputs, outputs = describe(q, k, v, causal, scale, handle, window, sinks)
        graph.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        workspace = torch.empty(max(1, graph.get_workspace_size()), dtype=torch.uint8, device=device)
    except Exception as error:  # whatever another version of it lacks
        told = str(error).strip().partition("\n")[0] or type(error).__name__
        versions = f"{getattr(cudnn, '__version__', '?')} with cuDNN {cudnn.backend_version()}"
        raise Unsupported(f"nvidia-cudnn-frontend {versions} does not build it: {told}") from None
    shape = (*q[0][:-1], v[0][-1])
    largest = [torch.empty(ONE, device=device) for _ in outputs[1:]]

    def run(*tensors):
        o = torch.empty(shape, dtype=q[2], device=device)
        cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream(device).cuda_stream)
        graph.execute(dict(zip((*inputs, *outputs), (*tensors, o, *largest), strict=True)), workspace, handle=handle)
        return o

    return run


def describe(
    q: tuple,
    k: tuple,
    v: tuple,
    causal: bool,
    scale: float,
    handle=None,
    window: int | None = None,
    sinks: bool = False,
) -> tuple:
    """(graph, its inputs, its outputs) for q, k and v of these kinds: shape, strides and dtype.

    Inputs in fp8 have ``FACTORS`` behind them, and the output the largest weight and the largest output. Sinks are
    behind all other inputs.
    """
    import cudnn
    import torch

    known, number = cudnn.data_type, cudnn.data_type.FLOAT
    types = {torch.float16: known.HALF, torch.bfloat16: known.BFLOAT16, torch.float8_e4m3fn: known.FP8_E4M3}
    kept = types[q[2]]
    graph = cudnn.pygraph(
        io_data_type=kept,
        intermediate_data_type=number,
        compute_data_type=number,
        **({"handle": handle} if handle else {}),
    )
    inputs = [
        graph.tensor(name=name, dim=shape, stride=strides, data_type=kept)
        for name, (shape, strides, _) in zip("qkv", (q, k, v))
    ]
    asked = {**dict(zip("qkv", inputs)), "attn_scale": scale, "is_inference": True, "use_causal_mask": causal}
    if window:  # of so many keys, the query's own among them
        asked["diagonal_band_left_bound"] = window
    if sinks:
        shape = (1, q[0][1], 1, 1)
        asked["sink_token"] = graph.tensor(name="sink_token", dim=shape, stride=(q[0][1], 1, 1, 1), data_type=number)
        inputs.append(asked["sink_token"])
    if kept == known.FP8_E4M3:
        factors = [graph.tensor(name=name, dim=ONE, stride=ONE, data_type=number) for name in FACTORS]
        o, _, *largest = graph.sdpa_fp8(**asked, **dict(zip(FACTORS, factors)))
        inputs += factors
    else:
        (o, _), largest = graph.sdpa(**asked), []
    shape = (*q[0][:-1], v[0][-1])
    strides = tuple(math.prod(shape[n + 1 :]) for n in range(len(shape)))
    o.set_output(True).set_dim(shape).set_stride(strides).set_data_type(kept)
    for x in largest:
        x.set_output(True).set_dim(ONE).set_stride(ONE).set_data_type(number)
    return graph, inputs, [o, *largest]
