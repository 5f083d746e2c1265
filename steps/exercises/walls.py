"""What the tensor cores and the exponentials allow, in TFLOPS, over head_dim."""

from __future__ import annotations

import math

from tutorial_lib.exercises import Plain, Wrong

NAMES = ("tensor cores alone", "exponentials alone", "one after the other")


def right(head_dim: int) -> tuple[float, float, float]:
    clocks, operations = 132 * 1.98e9, 4 * head_dim
    tensor, exponential = operations / 4096, 1 / 16
    return tuple(operations / time * clocks / 1e12 for time in (tensor, exponential, tensor + exponential))


def judge(function, chance) -> str | None:
    for head_dim in [64, 128, *(8 * chance.randint(2, 64) for _ in range(3))]:
        found, theirs = function(head_dim), right(head_dim)
        call = f"`walls({head_dim})`"
        if not (isinstance(found, tuple | list) and len(found) == 3):
            return f"{call} must give three numbers of TFLOPS, and yours gives `{found!r}`."
        for name, mine, its in zip(NAMES, found, theirs, strict=True):
            if math.isclose(mine, its, rel_tol=1e-6):
                continue
            told = f"{call}, {name}: {its:,.1f} TFLOPS, and yours says {mine:,.4g}."
            tensor, exponential, _ = theirs
            if name == NAMES[2] and math.isclose(mine, min(tensor, exponential), rel_tol=1e-6):
                told += " That is when one hides behind the other. Here their times add."
            elif name == NAMES[2] and math.isclose(mine, tensor + exponential, rel_tol=1e-6):
                told += " Times add, and not speeds."
            elif name == NAMES[2] and math.isclose(mine, (tensor + exponential) / 2, rel_tol=1e-6):
                told += " Times add, and not speeds; and a mean of speeds is no time either."
            elif math.isclose(mine, its / 2, rel_tol=1e-6):
                told += " There are two products, and each has a multiplication and an addition for every element."
            elif math.isclose(mine, its / head_dim, rel_tol=1e-6) or math.isclose(
                mine, its / (4 * head_dim), rel_tol=1e-6
            ):
                told += " There is one exponential for a score, however long its rows are."
            elif math.isclose(mine, its * 1e12, rel_tol=1e-6) or math.isclose(mine, its / 132, rel_tol=1e-6):
                told += " Think of the units: TFLOPS are 10^12 operations a second, of all 132 SMs."
            return told
    return None


EXERCISE = Plain(
    name="walls",
    function="walls",
    by=judge,
    hints=(
        "Take one score, that is one query and one key. How many operations do both products need for it, and how many "
        "exponentials does the softmax need? How many clocks of an SM is each of them?",
        "A score costs 2 * head_dim operations in QK and as many in PV, which is 4 * head_dim / 4096 clocks, and one "
        "exponential, which is 1 / 16 of a clock. One after the other, these times add.",
        "TFLOPS are operations / time * 132 * 1.98e9 / 1e12, with operations = 4 * head_dim and time each of "
        "operations / 4096, 1 / 16, and their sum.",
    ),
    solution="""
def walls(head_dim):
    clocks = 132 * 1.98e9
    operations = 4 * head_dim
    tensor = operations / 4096
    exponential = 1 / 16
    times = (tensor, exponential, tensor + exponential)
    return [operations / time * clocks / 1e12 for time in times]
""",
    wrong=(
        Wrong(
            "they overlap",
            "one hides behind the other",
            old="exponential, tensor + exponential)",
            new="exponential, max(tensor, exponential))",
        ),
        Wrong("one product", "two products", old="4 * head_dim", new="2 * head_dim"),
        Wrong(
            "an exponential for each element of a row", "one exponential for a score", old="1 / 16", new="head_dim / 16"
        ),
        Wrong("of one SM", "Think of the units", old="132 * 1.98e9", new="1.98e9"),
        Wrong(
            "speeds are added",
            "Times add",
            source="""
def walls(head_dim):
    clocks = 132 * 1.98e9
    operations = 4 * head_dim
    tensor = operations / (operations / 4096) * clocks / 1e12
    exponential = operations / (1 / 16) * clocks / 1e12
    return [tensor, exponential, tensor + exponential]
""",
        ),
    ),
    debrief="At head_dim 64 both units take the same time: there stands the exponential wall. Twice the head_dim "
    "halves the share of the exponentials, and a chip with faster tensor cores moves the wall to larger head_dims.",
)
