"""Attention in float64, the answer that every step is compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

from tutorial_lib.problem import positive

SCORE_BYTES = 1 << 29  # float64 scores held at once: half a GiB, so that S=16384 fits beside the inputs


def attention_float64(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False, scale: float | None = None
) -> torch.Tensor:
    """Attention in float64, a few query rows of one head at a time.

    q ``[B, Hq, Sq, D]``, k and v ``[B, Hkv, Skv, D]`` of any float dtype; returns float64 ``[B, Hq, Sq, D]`` on
    q's device. ``causal`` hides key ``j`` from query ``i`` where ``j > i``.
    """
    import torch

    batch, heads, seq_len_q, head_dim = q.shape
    kv_heads, seq_len_kv = k.shape[1], k.shape[2]
    scale = head_dim**-0.5 if scale is None else scale
    rows = max(1, min(seq_len_q, SCORE_BYTES // (8 * seq_len_kv)))
    out = torch.empty(q.shape, dtype=torch.float64, device=q.device)
    for b in range(batch):
        for h in range(heads):
            kv_head = h // (heads // kv_heads)
            key = k[b, kv_head].double()
            value = v[b, kv_head].double()
            for start in range(0, seq_len_q, rows):
                stop = min(start + rows, seq_len_q)
                keys = min(stop, seq_len_kv) if causal else seq_len_kv  # what lies further right no row here sees
                scores = (q[b, h, start:stop].double() @ key[:keys].T).mul_(scale)
                if causal:
                    i = torch.arange(start, stop, device=q.device)[:, None]
                    j = torch.arange(keys, device=q.device)[None, :]
                    scores.masked_fill_(j > i, float("-inf"))
                out[b, h, start:stop] = torch.softmax(scores, dim=-1) @ value[:keys]
    return out


def sdpa_error(
    inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor], exact: torch.Tensor, causal: bool, scale: float | None
) -> float:
    """The largest error of ``scaled_dot_product_attention`` on these inputs: the yardstick for every step.

    A scale below zero is given to it as its opposite, with -q: PyTorch's CPU kernel returns NaN for it otherwise.
    """
    from torch.nn.functional import scaled_dot_product_attention

    from tutorial_lib.accuracy import max_error

    q, k, v = inputs
    sign, scale = positive(q.shape[-1] ** -0.5 if scale is None else scale)
    q = q if sign == 1 else q * sign
    grouped = q.shape[1] != k.shape[1]
    return max_error(scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale, enable_gqa=grouped), exact)
