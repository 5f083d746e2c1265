"""What a call of the front door asks for beside q, k and v: arguments in one form, or refused by name."""

from types import NoneType
from typing import NamedTuple

import torch

from steps.core.tensors import check_sinks, check_type_of_sinks
from tutorial_lib import packing
from tutorial_lib.blockwise import Scoring
from tutorial_lib.problem import Problem, check_window, number

CU_SEQLENS = ("cu_seqlens_q", "cu_seqlens_k")


class Asked(NamedTuple):
    """The operators' arguments behind q, k and v, in their order.

    Query i sees key j where j > i - window and j <= i + right; None hides nothing. A causal mask hides j > i, and then
    right is None.
    """

    causal: bool = False
    scale: float | None = None
    window: int | None = None
    right: int | None = None
    softcap: float | None = None
    cu_seqlens_q: torch.Tensor | None = None
    cu_seqlens_k: torch.Tensor | None = None
    sinks: torch.Tensor | None = None


INSTEAD = {
    "attn_mask": "no mask but causal=True and window=N or (left, right) is known here; sequences of several lengths "
    "go packed, with cu_seqlens_q, and a cap on the scores is softcap",
    "dropout_p": "no weights are dropped here; softcap, sinks, windows and packed sequences are what is taken",
    "is_causal": "say causal=True",
    "enable_gqa": "k and v may have fewer heads without it",
}


def refuse(causal, **of_sdpa) -> None:
    """Raises ValueError for what a caller of ``scaled_dot_product_attention`` passes by habit, or TypeError."""
    if isinstance(causal, torch.Tensor):
        raise ValueError(f"causal must be True or False, got a tensor: {INSTEAD['attn_mask']}")
    for name, value in of_sdpa.items():
        if name not in INSTEAD:
            raise TypeError(f"attention() got an unexpected keyword argument {name!r}")
        nothing = value is None or (name != "attn_mask" and isinstance(value, (int, float)) and value == 0)
        if name == "is_causal" or not nothing:
            came = repr(value) if isinstance(value, (bool, int, float, str)) else f"a {type(value).__name__}"
            raise ValueError(f"{name} is an argument of scaled_dot_product_attention, got {came}: {INSTEAD[name]}")


def asked_of(causal: bool, scale: float | None, window, softcap, cu_seqlens_q, cu_seqlens_k, sinks) -> Asked:
    """The one form of these arguments of the front door; raises ValueError for what is none."""
    if sinks is not None:
        check_type_of_sinks(sinks)
    for name, cu in zip(CU_SEQLENS, (cu_seqlens_q, cu_seqlens_k)):
        if cu is not None and not isinstance(cu, torch.Tensor):
            raise ValueError(f"{name} must be an int32 tensor [sequences + 1], got {type(cu).__name__}")
    if cu_seqlens_q is not None and cu_seqlens_k is None:
        cu_seqlens_k = cu_seqlens_q
    softcap = None if softcap is None else number("softcap", softcap)
    return Asked(*_mask(causal, scale, window), softcap, cu_seqlens_q, cu_seqlens_k, sinks)


def _mask(causal: bool, scale: float | None, window) -> tuple:
    """(causal, scale, window, right) of a window, or of a pair (left, right) of them."""
    if not isinstance(window, (tuple, list)):
        if window is not None:
            check_window(window, causal)
        return causal, scale, window, None
    if len(window) != 2 or not all(isinstance(n, int) and not isinstance(n, bool) and n >= -1 for n in window):
        raise ValueError(
            f"window must be a whole number, or a pair (left, right) of whole numbers of at least 0, or -1 for no "
            f"bound, got {window!r}"
        )
    left, right = window
    if right >= 2**31:
        raise ValueError(f"window must be less than 2^31 on the right, got {right}: -1 hides nothing there")
    causal = causal or right == 0
    window = None if left == -1 else left + 1
    if window is not None:
        check_window(window, True)
    return causal, scale, window, None if causal or right == -1 else right


def has_more(asked: Asked) -> bool:
    """Whether more than causal and scale is asked for."""
    return any(x is not None for x in asked[2:])


def scoring(asked: Asked, head_dim: int) -> Scoring:
    """The same for ``tutorial_lib.blockwise``."""
    left = None if asked.window is None else asked.window - 1
    scale = head_dim**-0.5 if asked.scale is None else asked.scale
    return Scoring(scale, asked.softcap, left, 0 if asked.causal else asked.right)


def for_steps(asked: Asked) -> bool:
    """Whether a ``Problem`` can say which keys a query sees: all, those of a causal mask, or the last of these."""
    return asked.right is None and (asked.causal or asked.window is None)


def problem_of(q, k, v, asked: Asked) -> Problem:
    """The problem that a call poses; of a mask that no ``Problem`` has, the causal one that hides as much on the left.

    Raises ValueError naming the argument, what it must be and what came. Waits for the device to read cu_seqlens.
    """
    more = {"window": asked.window, "softcap": asked.softcap, "sinks": asked.sinks is not None}
    begins = asked.cu_seqlens_q, asked.cu_seqlens_k
    if any(x is not None for x in begins):
        q, k, v = packing.as_batches(q=q, k=k, v=v)
        for name, cu in zip(CU_SEQLENS, begins):
            packing.check(name, cu, q.device)
        each = zip(CU_SEQLENS, begins, (q, k))
        if begins[0] is begins[1] and q.shape[2] == k.shape[2]:  # read once
            more["lengths"] = more["lengths_kv"] = packing.read_lengths(CU_SEQLENS[0], begins[0], q.shape[2])
        else:
            more["lengths"], more["lengths_kv"] = (packing.read_lengths(name, cu, x.shape[2]) for name, cu, x in each)
    problem = Problem.of(q, k, v, asked.causal or asked.window is not None, asked.scale, **more)
    if asked.sinks is not None:
        check_sinks(asked.sinks, q)
    return problem


def check_sizes(q, k, v, asked: Asked) -> None:
    """What ``problem_of`` tells of tensors that hold no numbers, and whose sizes may be names."""
    window, begins = asked.window, (asked.cu_seqlens_q, asked.cu_seqlens_k)
    if any(x is not None for x in begins):
        q, k, v = packing.as_batches(q=q, k=k, v=v)
        for name, cu in zip(CU_SEQLENS, begins):
            packing.check(name, cu, q.device)
        window = None  # whether every query sees a key depends on the lengths
    sizes = [length for x in (q, k, v) if isinstance(x, torch.Tensor) for length in x.shape]
    if all(type(n) is int for n in sizes) and type(window) in (int, NoneType):
        Problem.of(q, k, v, asked.causal or window is not None, asked.scale, window=window, softcap=asked.softcap)
    if asked.sinks is not None:
        check_sinks(asked.sinks, q)
