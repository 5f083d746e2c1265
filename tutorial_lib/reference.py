"""Attention and its gradients in float64, the answer that every step is compared with, and PyTorch's own errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

from tutorial_lib.packing import Packing, split
from tutorial_lib.problem import positive

SCORE_BYTES = 1 << 29  # float64 scores held at once: half a GiB, so that S=16384 fits beside the inputs


def attention_float64(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool = False,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
) -> torch.Tensor:
    """Attention in float64, a few query rows of one head at a time.

    q ``[B, Hq, Sq, D]``, k and v ``[B, Hkv, Skv, D]`` of any float dtype; returns float64 ``[B, Hq, Sq, D]`` on
    q's device. ``causal`` hides key ``j`` from query ``i`` where ``j > i``; ``window`` and ``softcap`` are as in
    ``Problem``.
    """
    return attention_and_lse_float64(q, k, v, causal, scale, window, softcap)[0]


def attention_and_lse_float64(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool = False,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As ``attention_float64``, and the log-sum-exp of the scaled scores ``[B, Hq, Sq]``, natural logarithm."""
    import torch

    out = torch.empty(q.shape, dtype=torch.float64, device=q.device)
    lse = torch.empty(q.shape[:-1], dtype=torch.float64, device=q.device)
    for b, h, kv_head, rows, keys, scores in _scores_float64(q, k, causal, scale, window, softcap):
        lse[b, h, rows] = torch.logsumexp(scores, dim=-1)
        out[b, h, rows] = torch.softmax(scores, dim=-1) @ v[b, kv_head, :keys].double()
    return out, lse


def log_sum_exp(
    q: torch.Tensor,
    k: torch.Tensor,
    causal: bool,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    packing: Packing | None = None,
) -> torch.Tensor:
    """The log-sum-exp of the scaled scores ``[B, Hq, Sq]``: computed in float64, returned in float32."""
    import torch

    if packing:
        each = split(q, k, k, packing.pairs)
        return torch.cat([log_sum_exp(q, k, causal, scale, window, softcap) for q, k, _ in each], dim=2)
    lse = torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device)
    for b, h, _, rows, _, scores in _scores_float64(q, k, causal, scale, window, softcap):
        lse[b, h, rows] = torch.logsumexp(scores, dim=-1).float()
    return lse


def gradients_float64(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    do: torch.Tensor,
    causal: bool = False,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(dq, dk, dv) in float64, shaped as q, k and v; do ``[B, Hq, Sq, D]`` is the gradient of the output.

    With weights P and scores S: dV = P^T dO, dP = dO V^T, dS = P (dP - D) where D is a row's sum of P dP, and with the
    scale dQ = dS K, dK = dS^T Q (Dao et al. 2022, https://arxiv.org/abs/2205.14135, appendix B).
    """
    import torch

    used = q.shape[-1] ** -0.5 if scale is None else scale
    dq, dk, dv = (torch.zeros(x.shape, dtype=torch.float64, device=q.device) for x in (q, k, v))
    for b, h, kv_head, rows, keys, scores in _scores_float64(q, k, causal, scale):
        weights = torch.softmax(scores, dim=-1)
        grad = do[b, h, rows].double()
        dv[b, kv_head, :keys] += weights.T @ grad
        d_weights = grad @ v[b, kv_head, :keys].double().T
        d_scores = weights * (d_weights - (weights * d_weights).sum(-1, keepdim=True)) * used
        dq[b, h, rows] = d_scores @ k[b, kv_head, :keys].double()
        dk[b, kv_head, :keys] += d_scores.T @ q[b, h, rows].double()
    return dq, dk, dv


def _scores_float64(q, k, causal: bool, scale: float | None, window: int | None = None, softcap: float | None = None):
    """Scaled and masked scores, some rows at a time: (batch, head, its kv head, rows, keys that they see, scores)."""
    import torch

    batch, heads, seq_len_q, head_dim = q.shape
    kv_heads, seq_len_kv = k.shape[1], k.shape[2]
    scale = head_dim**-0.5 if scale is None else scale
    rows = max(1, min(seq_len_q, SCORE_BYTES // (8 * seq_len_kv)))
    for b in range(batch):
        for h in range(heads):
            kv_head = h // (heads // kv_heads)
            key = k[b, kv_head].double()
            for start in range(0, seq_len_q, rows):
                stop = min(start + rows, seq_len_q)
                keys = min(stop, seq_len_kv) if causal else seq_len_kv  # what lies further right no row here sees
                scores = (q[b, h, start:stop].double() @ key[:keys].T).mul_(scale)
                if softcap:
                    scores = scores.div_(softcap).tanh_().mul_(softcap)
                if causal:
                    i = torch.arange(start, stop, device=q.device)[:, None]
                    j = torch.arange(keys, device=q.device)[None, :]
                    scores.masked_fill_(j > i, float("-inf"))
                    if window:
                        scores.masked_fill_(j <= i - window, float("-inf"))
                yield b, h, kv_head, slice(start, stop), keys, scores


def sdpa_error(
    inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    exact: torch.Tensor,
    causal: bool,
    scale: float | None,
    window: int | None = None,
    softcap: float | None = None,
    packing: Packing | None = None,
) -> float:
    """The largest error of ``scaled_dot_product_attention`` on these inputs: the yardstick for every step.

    A scale below zero is given to it as its opposite, with -q: PyTorch's CPU kernel returns NaN for it otherwise.
    With a soft cap, which it does not know, the yardstick is ``unfused``.
    """
    from tutorial_lib.accuracy import max_error

    q, k, v = inputs
    sign, scale = positive(q.shape[-1] ** -0.5 if scale is None else scale)
    own = unfused if softcap else sdpa_masked
    more = {"softcap": softcap} if softcap else {}
    return max_error(own(q if sign == 1 else q * sign, k, v, causal, scale, window, packing=packing, **more), exact)


def sdpa_gradients(q, k, v, do, causal: bool, scale: float | None) -> tuple[torch.Tensor, ...]:
    """(dq, dk, dv) as PyTorch computes them for ``scaled_dot_product_attention`` in the inputs' dtype."""
    import torch

    return torch.autograd.grad(*with_graph(sdpa, q, k, v, causal, scale), do)


def sdpa(q, k, v, causal: bool, scale: float):
    """PyTorch's own attention, its choice of backend; scale must not be negative."""
    from torch.nn.functional import scaled_dot_product_attention

    return scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale, **_grouped(q, k))


def _grouped(q, k) -> dict[str, bool]:
    """As an argument, and not as a condition, which torch.compile would keep as one."""
    return {"enable_gqa": True} if q.shape[1] != k.shape[1] else {}


def visible(seq_len_q: int, seq_len_kv: int, window: int, device) -> torch.Tensor:
    """Which keys a query sees under a sliding window, bool ``[seq_len_q, seq_len_kv]``."""
    import torch

    i = torch.arange(seq_len_q, device=device)[:, None]
    j = torch.arange(seq_len_kv, device=device)[None, :]
    return (j <= i) & (j > i - window)


def sdpa_masked(
    q,
    k,
    v,
    causal: bool,
    scale: float,
    window: int | None = None,
    packing: Packing | None = None,
    mask_of: Callable = visible,
):
    """As ``sdpa``, which has no argument for a window or packed sequences: a mask, and a call for each sequence.

    mask_of: ``visible``, or what keeps masks that it has made.
    """
    from torch import cat
    from torch.nn.functional import scaled_dot_product_attention

    if packing:
        each = split(q, k, v, packing.pairs)
        return cat([sdpa_masked(*one, causal, scale, window, None, mask_of) for one in each], dim=2)
    if window is None:
        return sdpa(q, k, v, causal, scale)
    mask = mask_of(q.shape[2], k.shape[2], window, q.device)
    return scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, **_grouped(q, k))


def unfused(q, k, v, causal: bool, scale: float, window: int | None = None, softcap: float | None = None, packing=None):
    """Attention written out in PyTorch, scores and softmax in float32, weights in the inputs' dtype."""
    import torch

    if packing:
        each = split(q, k, v, packing.pairs)
        return torch.cat([unfused(*one, causal, scale, window, softcap) for one in each], dim=2)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    group = q.shape[1] // k.shape[1]
    rows = visible(q.shape[2], k.shape[2], window or q.shape[2], q.device) if causal else None
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            scores = (q[b, h].float() @ k[b, h // group].float().T).mul_(scale)
            if softcap:
                scores = scores.div_(softcap).tanh_().mul_(softcap)
            if rows is not None:
                scores.masked_fill_(~rows, float("-inf"))
            out[b, h] = torch.softmax(scores, dim=-1).to(q.dtype) @ v[b, h // group]
    return out


def with_graph(attention: Callable, q, k, v, causal: bool, scale: float | None) -> tuple:
    """(o, (q, k, v)) of the forward pass ``attention(q, k, v, causal, scale)``; autograd knows the gradients."""
    import torch

    sign, scale = positive(q.shape[-1] ** -0.5 if scale is None else scale)
    leaves = tuple(x.detach().requires_grad_() for x in (q, k, v))
    with torch.enable_grad():
        q, k, v = leaves
        return attention(q if sign == 1 else q * sign, k, v, causal, scale), leaves


def attention_of_last(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float | None):
    """Attention of queries that are the last of their sequence, in float64: query i sees j <= i + Skv - Sq if causal.

    q ``[1, Hq, Sq, D]``, k and v ``[1, Hkv, Skv, D]``; a kv head at a time, returns float64 ``[1, Hq, Sq, D]``.
    """
    import torch

    group = q.shape[1] // k.shape[1]
    used = q.shape[-1] ** -0.5 if scale is None else scale
    out = torch.empty(q.shape, dtype=torch.float64, device=q.device)
    for head in range(k.shape[1]):
        heads = slice(head * group, (head + 1) * group)
        scores = q[0, heads].double() @ k[0, head].double().T * used
        if causal:
            scores.masked_fill_(~last_mask(q.shape[2], k.shape[2], q.device), float("-inf"))
        out[0, heads] = scores.softmax(-1) @ v[0, head].double()
    return out


def last_mask(seq_len_q: int, seq_len_kv: int, device) -> torch.Tensor:
    """Which keys each of the last queries of a sequence sees, [seq_len_q, seq_len_kv]."""
    import torch

    return torch.ones(seq_len_q, seq_len_kv, dtype=torch.bool, device=device).tril(seq_len_kv - seq_len_q)


def sdpa_of_last(q, k, v, causal: bool, scale: float | None) -> torch.Tensor:
    """As ``attention_of_last``, by ``scaled_dot_product_attention`` in the inputs' dtype."""
    from torch.nn.functional import scaled_dot_product_attention

    sign, scale = positive(q.shape[-1] ** -0.5 if scale is None else scale)
    mask = last_mask(q.shape[2], k.shape[2], q.device) if causal else None
    q = q if sign == 1 else q * sign
    return scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, **_grouped(q, k))
