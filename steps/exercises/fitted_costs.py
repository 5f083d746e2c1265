"""The costs of a kernel, from what it has to do and how long it takes: least squares of relative errors."""

import random

import torch

from tutorial_lib.exercises import Plain, Wrong
from tutorial_lib.values import alike

NOISE = 0.03  # of a recorded time
NEAR = 1e-3  # how near to the best fit a cost must be, as a share


def made_up(chance: random.Random) -> tuple[list[tuple[float, float, float]], list[float]]:
    """Counts (iterations, tiles, launches) of some launches, from short to long, and their times in microseconds."""
    costs = [chance.uniform(0.4, 0.8), chance.uniform(1.0, 3.0), chance.uniform(4.0, 9.0)]
    counts = []
    for exponent in range(10):
        tiles = chance.randint(1, 4) * 2 ** (exponent // 2)
        counts.append((float(tiles * chance.randint(2, 3 * 2 ** (exponent // 2))), float(tiles), 1.0))
    times = [sum(a * b for a, b in zip(costs, row)) * (1 + chance.uniform(-NOISE, NOISE)) for row in counts]
    return counts, times


def best_fit(counts, times) -> list[float]:
    rows, wanted = torch.tensor(counts, dtype=torch.float64), torch.tensor(times, dtype=torch.float64)
    shares = rows / wanted[:, None]
    return torch.linalg.lstsq(shares, torch.ones_like(shares[:, :1])).solution[:, 0].tolist()


def judged(function, chance: random.Random) -> str | None:
    for _ in range(3):
        counts, times = made_up(chance)
        mine = torch.as_tensor(function([tuple(row) for row in counts], list(times)), dtype=torch.float64).flatten()
        if mine.numel() != len(counts[0]):
            return f"there must be {len(counts[0])} costs, one for each count, and yours are {mine.numel()}."
        mine, wanted = mine.tolist(), best_fit(counts, times)
        if not alike(mine, wanted, NEAR):
            return (
                f"for counts {counts[0]} to {counts[-1]} the costs are {_told(wanted)}, and yours are {_told(mine)}. "
                f"The longest launch takes {max(times) / min(times):.0f} times as long as the shortest."
                + EXERCISE.recognised([((counts, times), mine)], NEAR)
            )
    return None


def _told(costs: list[float]) -> str:
    return ", ".join(f"{cost:.3f}" for cost in costs)


EXERCISE = Plain(
    name="fitted_costs",
    function="fitted",
    by=judged,
    hints=(
        "Without noise, `counts @ costs` would be `times`. There are more launches than costs, so nothing fits "
        "exactly. `torch.linalg.lstsq(a, b).solution` gives the x for which `a @ x` is nearest "
        "to b, in the sum of squares.",
        "That sum is of squares of microseconds, and the longest launches decide it. You want the errors as shares of "
        "the time: (counts @ costs) / time should be near 1 for every launch.",
        "Divide each row of counts by its own time, and let the right side be ones: "
        "`lstsq(counts / times[:, None], torch.ones(n, 1))`.",
    ),
    solution="""
def fitted(counts, times):
    counts = torch.tensor(counts, dtype=torch.float64)
    times = torch.tensor(times, dtype=torch.float64)
    shares = counts / times[:, None]
    wanted = torch.ones(len(times), 1, dtype=torch.float64)
    return torch.linalg.lstsq(shares, wanted).solution.flatten().tolist()
""",
    wrong=(
        Wrong(
            "errors in microseconds are made small, where the longest launch decides alone, and not shares of the time",
            source="""
def fitted(counts, times):
    counts = torch.tensor(counts, dtype=torch.float64)
    times = torch.tensor(times, dtype=torch.float64)
    return torch.linalg.lstsq(counts, times[:, None]).solution.flatten().tolist()
""",
        ),
        Wrong(
            "only the counts are divided by the times: the right side must be, too, and is then ones",
            old="wanted = torch.ones(len(times), 1, dtype=torch.float64)",
            new="wanted = times[:, None]",
        ),
        Wrong(
            "a cost alone: time per iteration",
            "there must be 3 costs",
            source="""
def fitted(counts, times):
    return [sum(times) / sum(row[0] for row in counts)]
""",
        ),
        Wrong("counts are multiplied by the times in place of divided", old="counts / times", new="counts * times"),
    ),
    debrief="This is how `steps/core/cost.py` finds the costs of every step, with one more rule: no cost is below "
    "zero. A short launch and a long one then count the same, as a choice between kernels is about ratios of times.",
)
