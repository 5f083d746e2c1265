"""How many times as fast: the median of the ratios inside the rounds."""

from tutorial_lib.exercises import Compared, Wrong


def cases(chance):
    """Milliseconds of two kernels, the second a little faster; the clock drifts, and one round is disturbed."""
    for number in (5, 6, 7, 8, 14, 15):
        clocks = [1 + 0.15 * chance.random() for _ in range(number)]
        before = [round(clock * chance.uniform(0.99, 1.01), 4) for clock in clocks]
        now = [round(clock / 1.03 * chance.uniform(0.99, 1.01), 4) for clock in clocks]
        disturbed = chance.randrange(number)
        now[disturbed] = round(now[disturbed] * 1.5, 4)
        yield before, now


EXERCISE = Compared(
    name="times_as_fast",
    function="times_as_fast",
    cases=cases,
    close=1e-6,  # float32 is good enough
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
            "it is the ratio of two medians: they may come from different rounds, when the clock was another",
            old="return statistics.median(ratios)",
            new="return statistics.median(before) / statistics.median(now)",
        ),
        Wrong(
            "it is the ratio of two sums or means: one slow round moves them",
            old="return statistics.median(ratios)",
            new="return sum(before) / sum(now)",
        ),
        Wrong(
            "it is the lower one of the two middle ratios, as torch.median takes it: with an even number of rounds "
            "the median is their mean",
            old="statistics.median(ratios)",
            new="torch.median(torch.tensor(ratios)).item()",
        ),
        Wrong(
            "it is the upper one of the two middle ratios: with an even number of rounds the median is their mean",
            old="statistics.median(ratios)",
            new="sorted(ratios)[len(ratios) // 2]",
        ),
        Wrong(
            "it is the mean of the ratios: one disturbed round moves it",
            old="statistics.median(",
            new="statistics.mean(",
        ),
        Wrong(
            "it is the ratio of the best rounds, which come from different moments",
            old="return statistics.median(ratios)",
            new="return min(before) / min(now)",
        ),
        Wrong(
            "it is turned around: less time is faster, so the time before is divided by the time now",
            old="b / n for",
            new="n / b for",
        ),
        Wrong(
            "the times are sorted before they are paired: a pair must come from one round",
            old="zip(before, now)",
            new="zip(sorted(before), sorted(now))",
        ),
    ),
    debrief="Whatever slows both kernels down in a round falls out of their ratio, and one disturbed round does not "
    "move the median.",
)
