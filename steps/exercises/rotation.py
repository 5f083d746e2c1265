"""Rows times the Hadamard matrix, which spreads an outlier over the row and keeps products of rows."""

import torch

from tutorial_lib.exercises import Compared, Wrong
from tutorial_lib.quantize import rotate


def cases(chance):
    """One outlier, at a place that nobody chose; a short row; many rows as wide as a head."""
    alone = torch.zeros(8, dtype=torch.float64)
    alone[chance.randrange(1, 7)] = 8.0
    yield (alone,)
    generator = torch.Generator().manual_seed(chance.randrange(2**31))
    for shape in ((4,), (2, 3, 64)):
        yield (torch.randn(shape, generator=generator, dtype=torch.float64),)


EXERCISE = Compared(
    name="rotation",
    function="rotate",
    cases=cases,
    right=rotate,
    named=lambda x: f"rotate(x) for {', '.join(f'{n:.4g}' for n in x.flatten()[:8].tolist())}" + ", …" * (len(x) != 8),
    hints=(
        "The matrix of two rows is [[1, 1], [1, -1]]. It makes two numbers a and b their sum and their difference.",
        "The matrix of twice as many rows is [[H, H], [H, -H]]. So each turn does the same with numbers that are twice "
        "as far apart. The rows of the whole matrix must have length 1, as those of a rotation have.",
        "The turn stacks (a + b, a - b). The squares of D ones add up to D: divide by the root of D at the end.",
    ),
    solution="""
def rotate(x):
    for n in range(x.shape[-1].bit_length() - 1):
        a, b = x.unflatten(-1, (-1, 2, 2**n)).unbind(-2)
        x = torch.stack((a + b, a - b), -2).flatten(-3)
    return x / x.shape[-1] ** 0.5
""",
    wrong=(
        Wrong("nothing is divided by the root of D, so rows become longer", old=" / x.shape[-1] ** 0.5", new=""),
        Wrong("the sum is divided by D and not by its root, so rows become shorter", old=" ** 0.5", new=""),
        Wrong("the second number has the wrong sign: it is a - b", old="a - b", new="b - a"),
        Wrong("sum and difference are in the wrong order", old="a + b, a - b", new="a - b, a + b"),
        Wrong(
            "the last turn is left out, so halves of a row never meet", old=".bit_length() - 1", new=".bit_length() - 2"
        ),
    ),
    debrief="A row of D numbers takes log2(D) turns of D additions, and not D times D multiplications. A kernel that "
    "rotates Q and K where it makes them hides that under its memory traffic.",
)
