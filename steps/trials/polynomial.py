"""Trial: part of the exponentials as a polynomial, on units that a GPU has more of than for exponentials.

An SM of Hopper takes 16 exponentials a clock and 128 multiply-adds. FlashAttention-4 (Zadouri et al. 2026,
https://arxiv.org/abs/2603.05451) therefore computes a share of the exponentials of a tile on the multiply-add units.
2^x is 2^n times 2^f with n the whole number next to x and f between -1/2 and 1/2: a polynomial gives 2^f, and n is
added to its exponent bits (Cody and Waite 1980).
"""

from __future__ import annotations

import struct
from functools import cache

from steps.core.problems import FULL, standard
from steps.trials.trial import Trial

PACK = 8  # exponentials that one piece of PTX computes
DEGREE = 3  # errs less than rounding a weight to 16 bits does; see tests/test_exponential.py
LEAST = -126.0  # below, 2^x is no normal number; what a mask has hidden becomes this, and its weight next to nothing
SHIFT = 1.5 * 2.0**23  # a float32 of this size has no places after the point: adding it rounds


@cache
def coefficients() -> tuple[float, ...]:
    """Of the polynomial for 2^f, lowest power first: it meets 2^f at Chebyshev's points of [-1/2, 1/2]."""
    from numpy.polynomial import Chebyshev, Polynomial

    found = Chebyshev.interpolate(lambda f: 2.0**f, DEGREE, domain=[-0.5, 0.5])
    return tuple(found.convert(kind=Polynomial).coef)


@cache
def ptx(share: int) -> str:
    """PTX for PACK exponentials of base 2, of which the last ``share`` are polynomials."""
    lines = ["{ .reg .f32 n, f, p; .reg .b32 whole, bits;"]
    for i in range(PACK):
        result, x = f"${i}", f"${PACK + i}"
        if i < PACK - share:
            lines.append(f"ex2.approx.ftz.f32 {result}, {x};")
            continue
        *lower, highest = coefficients()
        lines += [
            f"max.ftz.f32 f, {x}, {_hex(LEAST)};",
            f"add.rn.ftz.f32 n, f, {_hex(SHIFT)};",  # the whole number, in the lowest bits
            "mov.b32 whole, n;",
            f"sub.rn.ftz.f32 n, n, {_hex(SHIFT)};",
            "sub.rn.ftz.f32 f, f, n;",
            f"mov.f32 p, {_hex(highest)};",
            *(f"fma.rn.ftz.f32 p, p, f, {_hex(c)};" for c in reversed(lower)),
            "mov.b32 bits, p;",
            "shl.b32 whole, whole, 23;",
            "add.s32 bits, bits, whole;",
            f"mov.b32 {result}, bits;",
        ]
    return " ".join([*lines, "}"])


CONSTRAINTS = ",".join(["=&f"] * PACK + ["f"] * PACK)


def _hex(value: float) -> str:
    return "0f" + struct.pack(">f", value).hex().upper()


def functions(percent: float) -> dict[str, str]:
    """percent: of the exponentials, of which one piece of PTX computes PACK."""
    weigh = f"""
def weigh(scores, row_max, scale):
    return gl.inline_asm_elementwise(
        {ptx(round(percent / 100 * PACK))!r},
        {CONSTRAINTS!r},
        [scores * scale - row_max[:, None]],
        dtype=gl.float32,
        is_pure=True,
        pack={PACK},
    )
"""
    return {"weigh": weigh} if percent else {}


TRIAL = Trial(
    name="polynomial",
    question="Would some of the exponentials be faster as a polynomial on the multiply-add units?",
    base="hopper_deferred_sum",
    values=tuple(12.5 * share for share in range(7)),
    problems=(standard(head_dim=64), FULL),
    axis="exponentials computed as a polynomial, %",
    functions=functions,
)
