"""How many times as fast: the median of the ratios inside the rounds."""

import statistics

from tutorial_lib.exercises import Plain, Wrong

MISTAKES = {  # what is computed -> how, and what is said
    "medians": (
        lambda before, now: statistics.median(before) / statistics.median(now),
        "it is the ratio of two medians: they may come from different rounds, when the clock was another. First divide "
        "inside every round, and then take the median",
    ),
    "means": (
        lambda before, now: sum(before) / sum(now),
        "it is the ratio of two sums or means: one slow round moves them",
    ),
    "mean": (
        lambda before, now: statistics.mean(b / n for b, n in zip(before, now, strict=True)),
        "it is the mean of the ratios: one disturbed round moves it; take the median",
    ),
    "best": (
        lambda before, now: min(before) / min(now),
        "it is the ratio of the best rounds, which come from different moments",
    ),
    "inverted": (
        lambda before, now: statistics.median(n / b for b, n in zip(before, now, strict=True)),
        "it is turned around: less time is faster, so the time before is divided by the time now",
    ),
    "sorted": (
        lambda before, now: statistics.median(b / n for b, n in zip(sorted(before), sorted(now), strict=True)),
        "the times are sorted before they are paired: a pair must come from one round",
    ),
    "middle": (
        lambda before, now: sorted(b / n for b, n in zip(before, now, strict=True))[len(now) // 2],
        "it is the upper one of the two middle ratios: with an even number of rounds the median is their mean",
    ),
    "lower": (
        lambda before, now: sorted(b / n for b, n in zip(before, now, strict=True))[(len(now) - 1) // 2],
        "it is the lower one of the two middle ratios, as torch.median takes it: with an even number of rounds the "
        "median is their mean",
    ),
}


EVEN = "middle", "lower"  # these give the median of an odd number of rounds
TOLERANCE = 1e-6  # float32 is good enough


def right(before, now) -> float:
    return statistics.median(b / n for b, n in zip(before, now, strict=True))


def rounds(chance, number: int):
    """Milliseconds of two kernels, the second a little faster; the clock drifts, and one round is disturbed."""
    clocks = [1 + 0.15 * chance.random() for _ in range(number)]
    before = [round(clock * chance.uniform(0.99, 1.01), 4) for clock in clocks]
    now = [round(clock / 1.03 * chance.uniform(0.99, 1.01), 4) for clock in clocks]
    disturbed = chance.randrange(number)
    now[disturbed] = round(now[disturbed] * 1.5, 4)
    return before, now


def cases(chance):
    """Rounds in which every mistake gives something else."""
    for number in (5, 6, 15):
        while True:
            times = rounds(chance, number)
            others = [how(*times) for name, (how, _) in MISTAKES.items() if name not in EVEN or number % 2 == 0]
            if min(abs(other - right(*times)) for other in others) > 1e-3:
                break
        yield times


def judge(function, chance):
    wrong, left = "", MISTAKES
    for before, now in cases(chance):
        mine, theirs = function(list(before), list(now)), right(before, now)
        if not isinstance(mine, int | float):
            return f"The result must be a number, such as 1.03; got `{mine!r}`."
        if abs(mine - theirs) > TOLERANCE and not wrong:
            wrong = f"With before = {before} and now = {now} it must be {theirs:.6f}, and yours gives {mine:.6f}."
        left = {name: (how, told) for name, (how, told) in left.items() if abs(mine - how(before, now)) < TOLERANCE}
    if wrong and left:
        return f"{wrong} Yours is another number because {', or '.join(told for _, told in left.values())}."
    return wrong or None


EXERCISE = Plain(
    name="times_as_fast",
    function="times_as_fast",
    hints=(
        "`before[3]` and `now[3]` were measured in the same round, soon after one another, and so at nearly the same "
        "clock. Which two numbers may you divide?",
        "Make a list with one ratio for each round, and take its median. Which time stands above, if 2 is to mean "
        "twice as fast?",
        "The ratios are `[b / n for b, n in zip(before, now)]`; `statistics.median` takes their median.",
    ),
    solution="""
def times_as_fast(before, now):
    import statistics

    ratios = [b / n for b, n in zip(before, now)]
    return statistics.median(ratios)
""",
    wrong=(
        Wrong(
            "ratio of medians",
            "ratio of two medians",
            old="return statistics.median(ratios)",
            new="return statistics.median(before) / statistics.median(now)",
        ),
        Wrong(
            "ratio of means",
            "ratio of two sums or means",
            old="return statistics.median(ratios)",
            new="return sum(before) / sum(now)",
        ),
        Wrong(
            "torch.median",
            "as torch.median takes it",
            old="statistics.median(ratios)",
            new="torch.median(torch.tensor(ratios)).item()",
        ),
        Wrong("mean of ratios", "the mean of the ratios", old="statistics.median(", new="statistics.mean("),
        Wrong(
            "ratio of the best",
            "of the best rounds",
            old="return statistics.median(ratios)",
            new="return min(before) / min(now)",
        ),
        Wrong("turned around", "turned around", old="b / n for", new="n / b for"),
        Wrong(
            "sorted", "sorted before they are paired", old="zip(before, now)", new="zip(sorted(before), sorted(now))"
        ),
        Wrong(
            "the upper middle",
            "the upper one of the two",
            old="statistics.median(ratios)",
            new="sorted(ratios)[len(ratios) // 2]",
        ),
    ),
    debrief="Whatever slows both kernels down in a round falls out of their ratio, and one disturbed round does not "
    "move the median.",
    by=judge,
)
