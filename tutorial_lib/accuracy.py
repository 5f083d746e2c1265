"""The rule of what is correct, in one place.

A step is correct on a problem when, on fresh random inputs, every element of its output was written and

    max |o - o_64|  <=  2 * max |o_sdpa - o_64|  +  one rounding step

where ``o_64`` is attention in float64 on the same inputs, ``o_sdpa`` is what ``scaled_dot_product_attention``
gives for them in the same dtype on the same device, and the rounding step is the distance between neighbouring
numbers of that dtype at the largest magnitude in ``o_64``. The output is filled with NaN before the step runs,
so an element that nobody wrote fails the comparison: NaN never passes. For inputs in fp8, which SDPA does not take, the
error in its place is of attention that rounds and adds as hardware does (``Quantized`` in ``tutorial_lib.passes``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import torch

PIECE = 1 << 24  # elements: 128 MiB in float64


@dataclass(frozen=True)
class Accuracy:
    """How far an output lies from float64 attention, and how far it may."""

    max_error: float  # max |o - o_64|; NaN when an element was not written or is not a number
    reference_error: float  # max |o_sdpa - o_64|
    limit: float  # 2 * reference_error + one rounding step
    cosine: float | None = None  # of the angle between o and o_64, each as one long vector; None: one of them is zero

    @property
    def correct(self) -> bool:
        return self.max_error <= self.limit  # False for NaN

    def explain(self) -> str:
        """Why the output is wrong, in one sentence."""
        if math.isnan(self.max_error):
            return "wrong result: the output holds NaN, or elements that were never written"
        return f"wrong result: the largest error is {self.max_error:.3g}, at most {self.limit:.3g} is allowed"


def rounding_step(exact: torch.Tensor, dtype: torch.dtype) -> float:
    """The distance between neighbouring numbers of ``dtype`` at the largest magnitude in ``exact``."""
    import torch

    largest = exact.abs().max().item()
    return torch.finfo(dtype).eps * 2.0 ** math.floor(math.log2(largest)) if largest > 0 else 0.0


def max_error(output: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest absolute difference, NaN if ``output`` has one."""
    import torch

    worst = [(o.double() - e).abs().max() for o, e in _pieces(output, exact)]
    return torch.stack(worst).max().item()  # max() propagates NaN


def cosine(output: torch.Tensor, exact: torch.Tensor) -> float | None:
    """The cosine of the angle between both, as one long vector each; None where one of them is zero, or holds NaN.

    It tells little: an error in one row of thousands does not show. It is here because others publish it.
    """
    import torch

    sums = torch.zeros(3, dtype=torch.float64, device=exact.device)
    for o, e in _pieces(output, exact):
        o, e = o.double().flatten(), e.flatten()
        sums += torch.stack([o @ e, o @ o, e @ e])
    product, mine, right = sums.tolist()
    length = math.sqrt(mine * right)
    return product / length if length > 0 else None


def _pieces(output: torch.Tensor, exact: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Parts of both that together are all of them, so small that copies in float64 fit beside a long problem.

    They are as large as that allows: a kernel for each token of packed sequences would take minutes.
    """
    if output.numel() <= PIECE:
        yield output, exact
    elif output[0].numel() > PIECE:
        for pair in zip(output, exact):
            yield from _pieces(*pair)
    else:
        rows = PIECE // output[0].numel()
        yield from zip(output.split(rows), exact.split(rows))


def compare(output: torch.Tensor, exact: torch.Tensor, reference_error: float) -> Accuracy:
    """How right ``output`` is. exact: the same in float64. reference_error: SDPA's largest error on the same inputs."""
    limit = 2 * reference_error + rounding_step(exact, output.dtype)
    return Accuracy(max_error(output, exact), reference_error, limit, cosine(output, exact))


def first_difference(output: torch.Tensor, exact: torch.Tensor, limit: float) -> str:
    """Where an output [batch, heads, seq_len, head_dim] is wrong first, and what is seen there, for who wrote it."""
    import torch

    wrong = ~((output.double() - exact).abs() <= limit)  # NaN is wrong, too
    rows = wrong.any(-1)
    batch, head, query, column = (int(n) for n in wrong.nonzero()[0])
    mine, right = output[batch, head, query], exact[batch, head, query]
    bad = rows[batch, head].nonzero().flatten()
    told = [
        f"The first wrong number is at batch {batch}, head {head}, query {query}, column {column}: "
        f"it is {mine[column].item():.4g} and should be {right[column].item():.4g}.",
        f"In this head {len(bad)} of {rows.shape[-1]} queries are wrong, from {int(bad[0])} to {int(bad[-1])}.",
    ]
    if torch.isnan(mine).all():
        told.append("The whole row is NaN: nobody wrote it, or something in it was infinite minus infinite.")
    else:
        large = right.abs() > 10 * limit
        ratio = mine.double()[large] / right[large]
        alike = large.sum() >= 4 and (ratio - ratio.median()).abs().max() < 0.02 * ratio.median().abs()
        if alike and abs(ratio.median() - 1) > 0.02:
            told.append(f"The whole row is {ratio.median().item():.3g} times what it should be.")
    return " ".join(told)


def worst(found: Iterable[Accuracy]) -> Accuracy:
    """Of several outputs the one that is wrong, or else nearest to its limit."""
    return max(found, key=lambda a: (not a.correct, a.max_error / a.limit if a.limit else 0.0))
