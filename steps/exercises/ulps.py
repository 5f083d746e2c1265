"""How far a result is from the exact one, in units in the last place of float32."""

import torch

from tutorial_lib.exercises import Compared, Wrong


def ulps(approximate: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """approximate: float32. exact: float64, no zeros among it. Returns float64."""
    return (approximate.double() - exact).abs() / _unit(exact)


def _unit(exact: torch.Tensor) -> torch.Tensor:
    return 2.0 ** (torch.floor(torch.log2(exact.abs())) - 23)


def cases(chance):
    """Results a few units above and below numbers that lie between two powers of two, at all magnitudes."""
    exact = [sign * chance.uniform(1.05, 1.95) * 2.0 ** chance.randint(-20, 20) for sign in (1, -1) for _ in range(40)]
    exact = torch.tensor([1.5, 3.0, 1.9, 0.3, -5.0, *exact], dtype=torch.float64) * (1 + 2.0**-26)
    yield (exact + _unit(exact) * torch.tensor([chance.choice((-3, -2, -1, 0, 1, 2)) for _ in exact])).float(), exact


EXERCISE = Compared(
    name="ulps",
    function="ulps",
    cases=cases,
    right=ulps,
    named=lambda approximate, exact: f"ulps(approximate, exact) for {', '.join(f'{x:.4g}' for x in exact[:5])}, …",
    close=1e-3,
    hints=(
        "float32 keeps 23 bits behind the point. So from 1 to 2 neighbors are 2^-23 apart, from 2 to 4 they are 2^-22 "
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
        Wrong("one unit is 2^-23 for all numbers: from 2 to 4 it is 2^-22", old="(exponent - 23)", new="-23"),
        Wrong(
            "the error is relative to the number itself, and a unit is the same for all numbers from one power of two "
            "to the next",
            old="/ unit",
            new="/ exact.abs() / 2.0**-23",
        ),
        Wrong("the exponent is rounded to the nearest, and not down", old="torch.floor", new="torch.round"),
        Wrong("the exponent is rounded up, and not down", old="torch.floor", new="torch.ceil"),
        Wrong("float32 has 24 bits behind the point, and not 23", old="exponent - 23", new="exponent - 24"),
        Wrong(
            "the difference is taken in float32, where the exact result is rounded first",
            old="approximate.double() - exact",
            new="approximate - exact.float()",
        ),
        Wrong("the error has a sign", old="(approximate.double() - exact).abs()", new="(approximate.double() - exact)"),
        Wrong("the logarithm of a negative number is taken, which there is not", old="exact.abs()", new="exact"),
    ),
    debrief="A unit in the last place is the distance to the next number that float32 can hold, so it grows with the "
    "number. An operation that rounds correctly errs by half a unit at most.",
)
