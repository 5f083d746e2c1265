"""Which number e4m3 has in place of another."""

import torch

from tutorial_lib.exercises import Compared, Wrong
from tutorial_lib.quantize import LARGEST


def to_e4m3(x: torch.Tensor) -> torch.Tensor:
    """x: float64. Returns float64, as PyTorch rounds it, and what is too large as the largest."""
    return x.clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn).double()


def cases(chance):
    """Numbers of all magnitudes: below the least normal one, between neighbours and half way, beyond the largest."""
    few = [0.0, 1.0, 1.07, 1.18, 3.3, -5.6, 447.0, 449.0, -1000.0, 0.0013, -0.011]
    signs, exponents = (1, -1), range(-11, 10)
    yield (torch.tensor(few, dtype=torch.float64),)
    yield (
        torch.tensor(
            [chance.choice(signs) * chance.uniform(1, 2) * 2.0**e for e in exponents for _ in range(3)],
            dtype=torch.float64,
        ),
    )
    yield (torch.tensor([(n + 0.5) * 2.0 ** (e - 3) for e in range(-6, 8) for n in range(8, 16)]).double(),)


EXERCISE = Compared(
    name="e4m3",
    function="to_e4m3",
    cases=cases,
    right=to_e4m3,
    named=lambda x: f"to_e4m3(x) for {', '.join(f'{n:.4g}' for n in x[:11].tolist())}, …",
    hints=(
        "Three bits behind the leading one make eight numbers from 2^e to 2^(e + 1). How far apart are they?",
        "They are 2^(e - 3) apart. Divide by that, round to a whole number, and multiply again: torch.round takes the "
        "even one half way, as hardware does.",
        "e = torch.floor(torch.log2(x.abs())), but never less than -6: below the least normal number they stay as far "
        "apart as there. At the end, clamp to what e4m3 holds.",
    ),
    solution="""
def to_e4m3(x):
    exponent = torch.floor(torch.log2(x.abs())).clamp(min=-6)
    step = 2.0 ** (exponent - 3)
    return (torch.round(x / step) * step).clamp(-448, 448)
""",
    wrong=(
        Wrong("three bits behind the leading one, and not two", old="exponent - 3", new="exponent - 2"),
        Wrong(
            "below 2^-6 numbers stay 2^-9 apart, and do not come closer",
            old=".clamp(min=-6)",
            new=".clamp(min=-60)",
        ),
        Wrong("what is too large becomes 448, the largest number", old=".clamp(-448, 448)", new=""),
        Wrong(
            "the largest number is 448: of 480 the bits mean that it is no number",
            old="clamp(-448, 448)",
            new="clamp(-480, 480)",
        ),
        Wrong("to the nearest number, and not to the one below", old="torch.round", new="torch.floor"),
        Wrong("the logarithm of a negative number is taken, which there is not", old="x.abs()", new="x"),
    ),
    debrief="The error of a number is at most a sixteenth of it, from 2^-6 up to 448. Below that, what is less than "
    "2^-10 becomes zero.",
)
