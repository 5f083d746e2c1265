"""Attention and its gradients in float64, the answer that every step is compared with, and PyTorch's own errors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

from tutorial_lib.packing import Packing, split
from tutorial_lib.problem import positive

SCORE_BYTES = 1 << 29  # float64 scores held at once: half a GiB, so that S=16384 fits beside the inputs


def attention_float64(*given, **more) -> torch.Tensor:
    """The output of ``attention_and_lse_float64``, which takes the same arguments."""
    return attention_and_lse_float64(*given, **more)[0]


def attention_and_lse_float64(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool = False,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention in float64, a few query rows of one head at a time: (o, lse).

    q ``[B, Hq, Sq, D]``, k ``[B, Hkv, Skv, D]``, v ``[B, Hkv, Skv, Dv]`` of any float dtype; o is ``[B, Hq, Sq, Dv]``
    in float64 on q's device. ``causal`` hides key ``j`` from query ``i`` where ``j > i``; ``window``, ``softcap`` and
    ``sinks`` ``[Hq]`` of any float dtype are as in ``Problem``. A query that sees no finite score gets 0 where its head
    has a finite sink, and NaN elsewhere. lse ``[B, Hq, Sq]`` is the natural logarithm of the sum of exp(score) over a
    row and, with sinks, its head's sink.
    """
    import torch

    out = torch.empty(*q.shape[:-1], v.shape[-1], dtype=torch.float64, device=q.device)
    lse = torch.empty(q.shape[:-1], dtype=torch.float64, device=q.device)
    for b, h, kv_head, rows, keys, scores in _scores_float64(q, k, causal, scale, window, softcap):
        weights, lse[b, h, rows] = _softmax_float64(scores, sinks, h)
        out[b, h, rows] = weights @ v[b, kv_head, :keys].double()
    return out, lse


def _softmax_float64(scores, sinks: torch.Tensor | None, head: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(weights [query, key], log-sum-exp [query]); with sinks, of all columns but that of this head's sink."""
    import torch

    if sinks is not None:
        scores = torch.cat([scores, sinks[head].to(scores).expand(len(scores), 1)], dim=-1)
    weights = torch.softmax(scores, dim=-1)
    return weights if sinks is None else weights[:, :-1], torch.logsumexp(scores, dim=-1)


def log_sum_exp(
    q: torch.Tensor,
    k: torch.Tensor,
    causal: bool,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    packing: Packing | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """The log-sum-exp of the scaled scores ``[B, Hq, Sq]``: computed in float64, returned in float32."""
    import torch

    if packing:
        each = split(q, k, k, packing.pairs)
        return torch.cat([log_sum_exp(q, k, causal, scale, window, softcap, None, sinks) for q, k, _ in each], dim=2)
    lse = torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device)
    for b, h, _, rows, _, scores in _scores_float64(q, k, causal, scale, window, softcap):
        lse[b, h, rows] = _softmax_float64(scores, sinks, h)[1].float()
    return lse


def gradients_float64(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    do: torch.Tensor,
    causal: bool = False,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    o: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:
    """(dq, dk, dv) in float64, shaped as q, k and v; do ``[B, Hq, Sq, D]`` is the gradient of the output.

    With weights P and scores S: dV = P^T dO, dP = dO V^T, dS = P (dP - D) where D is a row's sum of P dP, and with the
    scale dQ = dS K, dK = dS^T Q (Dao et al. 2022, https://arxiv.org/abs/2205.14135, appendix B). A capped score s
    passes on 1 - (s / softcap)^2 of its gradient.

    With sinks, (dq, dk, dv, dsinks ``[Hq]``): a sink is a score whose value is 0, so dP is 0 there, and what is left of
    dS is minus its weight times D, summed over the rows of its head.

    o: D is a row's sum of do o, as kernels have it, and not of P dP: so one sees what is lost where o was rounded.
    """
    import torch

    used = q.shape[-1] ** -0.5 if scale is None else scale
    made = (q, k, v) if sinks is None else (q, k, v, sinks)
    dq, dk, dv, *dsinks = (torch.zeros(x.shape, dtype=torch.float64, device=q.device) for x in made)
    for b, h, kv_head, rows, keys, scores in _scores_float64(q, k, causal, scale, window, softcap):
        weights, lse = _softmax_float64(scores, sinks, h)
        grad = do[b, h, rows].double()
        dv[b, kv_head, :keys] += weights.T @ grad
        d_weights = grad @ v[b, kv_head, :keys].double().T
        delta = ((weights * d_weights) if o is None else grad * o[b, h, rows]).sum(-1, keepdim=True)
        d_scores = weights * (d_weights - delta) * used
        if softcap:
            d_scores *= 1 - scores.masked_fill(weights == 0, 0.0).div(softcap).square()
        if dsinks:
            dsinks[0][h] -= (torch.exp(sinks[h].double() - lse) * delta[:, 0]).sum()
        dq[b, h, rows] = d_scores @ k[b, kv_head, :keys].double()
        dk[b, kv_head, :keys] += d_scores.T @ q[b, h, rows].double()
    return dq, dk, dv, *dsinks


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
    sinks: torch.Tensor | None = None,
) -> float:
    """The largest error of ``scaled_dot_product_attention`` on these inputs: the yardstick for every step.

    A scale below zero is given to it as its opposite, with -q: PyTorch's CPU kernel returns NaN for it otherwise.
    With a soft cap or sinks, which it does not know, the yardstick is ``unfused``.
    """
    from tutorial_lib.accuracy import max_error

    q, k, v = inputs
    sign, scale = positive(q.shape[-1] ** -0.5 if scale is None else scale)
    more = {} if softcap is None and sinks is None else {"softcap": softcap, "sinks": sinks}
    own = unfused if more else sdpa_masked
    return max_error(own(q if sign == 1 else q * sign, k, v, causal, scale, window, packing=packing, **more), exact)


def in_float32(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a @ b of any float dtype, in float32."""
    return a.float() @ b.float()


def fp8_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scales: tuple,
    causal: bool,
    scale: float | None,
    offset: int = 0,
    multiply: tuple[Callable, Callable] = (in_float32, in_float32),
    rows: torch.Tensor | None = None,
    first: int = 0,
) -> torch.Tensor:
    """Attention of inputs in fp8 as hardware has it, in float32 ``[B, Hq, Sq, D]``: what is lost in fp8, and no more.

    The weights are rounded for the PV product, to e4m3 or, where q has 16 bits, to its dtype; their sums are not. The
    largest weight of a row is 2^offset. scales: of q, k and v, or of k and v where q has 16 bits, ``[B, Hkv]`` each.
    multiply: how the QK and the PV product are added up, of several heads at once. rows: compute these queries only,
    int64. first: the key that the first query is at, where a causal mask hides keys behind a query.
    """
    import torch

    group = q.shape[1] // k.shape[1]
    used = q.shape[-1] ** -0.5 if scale is None else scale
    rows = torch.arange(q.shape[2], device=q.device) if rows is None else rows
    rounded = q.dtype if q.itemsize > 1 else torch.float8_e4m3fn
    keys, at_once = torch.arange(k.shape[2], device=q.device), max(1, SCORE_BYTES // (8 * k.shape[2]))
    heads = torch.arange(q.shape[1], device=q.device).split(max(1, at_once // len(rows)))
    out = torch.empty(*q.shape[:2], len(rows), v.shape[-1], dtype=torch.float32, device=q.device)
    for b, each in product(range(q.shape[0]), heads):
        kv_heads, made = each // group, []
        of_query, of_key, of_value = (1, *(x[b, kv_heads, None, None] for x in scales))[-3:]
        for its in rows.split(at_once):
            scores = multiply[0](q[b, each[:, None], its], k[b, kv_heads].mT) * (used * of_query * of_key)
            if causal:
                scores.masked_fill_(keys > its[:, None] + first, float("-inf"))
            weights = torch.exp(scores - scores.amax(-1, keepdim=True)) * 2.0**offset
            total = multiply[1](weights.to(rounded), v[b, kv_heads])
            made.append(total * (of_value / weights.sum(-1, keepdim=True)))
        out[b, each] = torch.cat(made, 1)
    return out


def sdpa_gradients(
    q, k, v, do, causal: bool, scale: float | None, sinks=None, window: int | None = None, softcap: float | None = None
) -> tuple[torch.Tensor, ...]:
    """(dq, dk, dv) as PyTorch computes them for ``scaled_dot_product_attention`` in the inputs' dtype.

    Of what that does not know, a window, a soft cap and sinks, the gradients of ``unfused``, a query head at a time;
    with sinks (dq, dk, dv, dsinks).
    """
    import torch

    if sinks is None and window is None and softcap is None:
        return torch.autograd.grad(*with_graph(sdpa, q, k, v, causal, scale), do)
    group = q.shape[1] // k.shape[1]
    given = (q, k, v) if sinks is None else (q, k, v, sinks)
    made = tuple(torch.zeros_like(x, dtype=torch.float32) for x in given)
    for h in range(q.shape[1]):
        own, shared = slice(h, h + 1), slice(h // group, h // group + 1)
        leaf = () if sinks is None else (sinks[own].detach().requires_grad_(),)
        by = partial(unfused, window=window, softcap=softcap, sinks=leaf[0] if leaf else None)
        o, leaves = with_graph(by, q[:, own], k[:, shared], v[:, shared], causal, scale)
        found = torch.autograd.grad(o, (*leaves, *leaf), do[:, own])
        for total, where, part in zip(made, (own, shared, shared), found):
            total[:, where] += part
        if leaf:
            made[3][own] = found[3]
    return tuple(total.to(x.dtype) for total, x in zip(made, given))


def sdpa(q, k, v, causal: bool, scale: float):
    """PyTorch's own attention, its choice of backend; scale must not be negative."""
    return ready_sdpa(q, k, causal, scale)(q, k, v)


def ready_sdpa(q, k, causal: bool, scale: float) -> Callable:
    """``sdpa`` of (q, k, v) for tensors of these shapes."""
    from torch.nn.functional import scaled_dot_product_attention

    return partial(scaled_dot_product_attention, is_causal=causal, scale=scale, **_grouped(q, k))


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


def unfused(
    q,
    k,
    v,
    causal: bool,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    packing: Packing | None = None,
    sinks: torch.Tensor | None = None,
):
    """Attention written out in PyTorch, scores and softmax in float32, weights in the inputs' dtype."""
    import torch

    if packing:
        each = split(q, k, v, packing.pairs)
        return torch.cat([unfused(*one, causal, scale, window, softcap, None, sinks) for one in each], dim=2)
    group = q.shape[1] // k.shape[1]
    rows = visible(q.shape[2], k.shape[2], window or q.shape[2], q.device) if causal else None
    made = []
    for b, h in product(range(q.shape[0]), range(q.shape[1])):
        scores = q[b, h].float() @ k[b, h // group].float().T * scale
        if softcap:
            scores = torch.tanh(scores / softcap) * softcap
        if rows is not None:
            scores = scores.masked_fill(~rows, float("-inf"))
        if sinks is not None:
            scores = torch.cat([scores, sinks[h].float().expand(len(scores), 1)], dim=-1)
        weights = torch.softmax(scores, dim=-1)[:, : k.shape[2]]
        made.append(weights.to(q.dtype) @ v[b, h // group])
    return torch.stack(made).view(*q.shape[:-1], v.shape[-1])


def with_graph(attention: Callable, q, k, v, causal: bool, scale: float | None, sinks=None) -> tuple:
    """(o, (q, k, v)) of the forward pass ``attention(q, k, v, causal, scale)``; autograd knows the gradients.

    With sinks it takes these by name, and the leaves are (q, k, v, sinks).
    """
    import torch

    sign, scale = positive(q.shape[-1] ** -0.5 if scale is None else scale)
    leaves = tuple(x.detach().requires_grad_() for x in (q, k, v, sinks) if x is not None)
    with torch.enable_grad():
        q, k, v, *more = leaves
        return attention(q if sign == 1 else q * sign, k, v, causal, scale, **dict(zip(("sinks",), more))), leaves


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
