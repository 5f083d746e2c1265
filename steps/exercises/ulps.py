"""How far a result is from the exact one, in units in the last place of float32."""

import random

import torch

from tutorial_lib.exercises import Plain, Wrong


def ulps(approximate: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """approximate: float32. exact: float64, no zeros among it. Returns float64."""
    unit = 2.0 ** (torch.floor(torch.log2(exact.abs())) - 23)
    return (approximate.double() - exact).abs() / unit


def _exponent(exact, how):
    return 2.0 ** (how(torch.log2(exact.abs())) - 23)


MISTAKES = {
    "one unit is 2^-23 only from 1 to 2; from 2 to 4 it is 2^-22": lambda a, e: (a.double() - e).abs() / 2.0**-23,
    "this is the error relative to the number itself, and a unit is the same for all numbers from one power of two to "
    "the next": lambda a, e: ((a.double() - e) / e).abs() / 2.0**-23,
    "the exponent must be rounded down, not to the nearest": lambda a, e: (
        (a.double() - e).abs() / _exponent(e, torch.round)
    ),
    "the exponent must be rounded down, not up": lambda a, e: (a.double() - e).abs() / _exponent(e, torch.ceil),
    "float32 has 23 bits behind the point, so that from 1 to 2 one unit is 2^-23": lambda a, e: ulps(a, e) * 2,
    "the difference must be taken in float64: in float32 the exact result is rounded first": lambda a, e: (
        (a - e.float()).abs().double() / _exponent(e, torch.floor)
    ),
    "an error has no sign here: take its magnitude": lambda a, e: (a.double() - e) / _exponent(e, torch.floor),
    "this is the error itself, and not yet in units": lambda a, e: (a.double() - e).abs(),
}


def _cases(chance: random.Random) -> tuple[torch.Tensor, torch.Tensor]:
    """Results a few units above and below numbers that lie between two powers of two, at all magnitudes."""
    exact = [sign * chance.uniform(1.05, 1.95) * 2.0 ** chance.randint(-20, 20) for sign in (1, -1) for _ in range(40)]
    exact = torch.tensor([1.5, 3.0, 1.9, 0.3, -5.0, *exact], dtype=torch.float64) * (1 + 2.0**-26)
    unit = _exponent(exact, torch.floor)
    approximate = (exact + unit * torch.tensor([chance.choice((-3, -2, -1, 0, 1, 2)) for _ in exact])).float()
    return approximate, exact


def _judge(function, chance: random.Random):
    approximate, exact = _cases(chance)
    mine, right = function(approximate, exact), ulps(approximate, exact)
    if not isinstance(mine, torch.Tensor) or mine.shape != exact.shape:
        return f"One number for each of the {len(exact)} results must come back, as a tensor of the same shape."
    wrong = ~((mine.double() - right).abs() <= 1e-3)
    if not wrong.any():
        return None
    n = int(wrong.nonzero()[0])
    told = (
        f"The exact result is {exact[n]:.10g}, the approximate one {approximate[n]:.10g}: they are "
        f"{right[n]:.3g} units apart, and yours gives {mine[n]:.3g}."
    )
    found = [what for what, other in MISTAKES.items() if torch.allclose(mine.double(), other(approximate, exact))]
    if mine.isnan().any():
        found = ["a negative number has no logarithm: take its magnitude first"]
    return f"{told} **{found[0][0].upper()}{found[0][1:]}.**" if len(found) == 1 else told


EXERCISE = Plain(
    name="ulps",
    function="ulps",
    by=_judge,
    hints=(
        "float32 keeps 23 bits behind the point. So from 1 to 2 neighbours are 2^-23 apart, from 2 to 4 they are 2^-22 "
        "apart. How large is one unit from 2^e to 2^(e + 1)?",
        "One unit is 2^(e - 23), where e is the logarithm to base 2 of the magnitude, rounded down.",
        "e = torch.floor(torch.log2(exact.abs())). The difference must be taken in float64: approximate.double() - "
        "exact. Its magnitude, divided by the unit, is the answer.",
    ),
    solution="""
def ulps(approximate, exact):
    exponent = torch.floor(torch.log2(exact.abs()))
    unit = 2.0 ** (exponent - 23)
    return (approximate.double() - exact).abs() / unit
""",
    wrong=(
        Wrong("one unit for all numbers", "from 2 to 4 it is", old="(exponent - 23)", new="-23"),
        Wrong("the relative error", "relative to the number itself", old="/ unit", new="/ exact.abs() / 2.0**-23"),
        Wrong(
            "the exponent is rounded to the nearest", "rounded down, not to the", old="torch.floor", new="torch.round"
        ),
        Wrong("the exponent is rounded up", "rounded down, not up", old="torch.floor", new="torch.ceil"),
        Wrong("24 bits", "23 bits behind the point", old="exponent - 23", new="exponent - 24"),
        Wrong(
            "the exact result is rounded",
            "must be taken in float64",
            old="approximate.double() - exact",
            new="approximate - exact.float()",
        ),
        Wrong(
            "the sign is kept",
            "has no sign",
            old="(approximate.double() - exact).abs()",
            new="(approximate.double() - exact)",
        ),
        Wrong("the logarithm of a negative number", "no logarithm", old="exact.abs()", new="exact"),
    ),
    debrief="A unit in the last place is the distance to the next number that float32 can hold, so it grows with the "
    "number. An operation that rounds correctly errs by half a unit at most.",
)
