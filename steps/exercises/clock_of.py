"""The SMs' clock, from two readings of counters that wrap."""

from __future__ import annotations

import math
import statistics

from tutorial_lib.exercises import Plain, Wrong

WRAP = 2**32


def readings(chance) -> tuple[dict, dict]:
    """Two readings of some SMs. Half of the counters wrap in between, a few SMs are slow, and one shows up first."""
    before, after = {}, {}
    processors = chance.sample(range(132), 9)
    for n, processor in enumerate(processors):
        ghz = chance.uniform(1.4, 1.8) if n > 2 else chance.uniform(0.3, 0.5)
        start = chance.randrange(10**9, 10**12)
        took = chance.randrange(8 * 10**8, 12 * 10**8)
        passed = round(ghz * took)
        first = chance.randrange(WRAP - passed, WRAP) if n % 2 else chance.randrange(0, WRAP - passed)
        before[processor], after[processor] = (first, start), ((first + passed) % WRAP, start + took)
    shuffled = list(after.items())
    chance.shuffle(shuffled)
    return before, dict(shuffled)


def rates(before, after, wrap=True) -> list[float]:
    found = []
    for processor, (cycles, nanoseconds) in before.items():
        passed = after[processor][0] - cycles
        found.append((passed % WRAP if wrap else passed) / (after[processor][1] - nanoseconds))
    return found


def judge(function, chance) -> str | None:
    for _ in range(5):
        before, after = readings(chance)
        mine, all_rates = function(dict(before), dict(after)), rates(before, after)
        right = statistics.median(all_rates)
        if not isinstance(mine, int | float):
            return f"A number must come, of GHz; this came: `{mine!r}`."
        if math.isclose(mine, right, rel_tol=1e-9):
            continue
        told = f"The clock is {right:.4f} GHz, and yours says {mine:.4g}."
        plain = rates(before, after, wrap=False)
        if math.isclose(mine, statistics.mean(all_rates), rel_tol=1e-9):
            return f"{told} That is the mean: three SMs of nine were slow, and pull it down. The median is not moved."
        if any(math.isclose(mine, of(plain), rel_tol=1e-6) for of in (statistics.mean, statistics.median)):
            return f"{told} Some counters wrapped: they were near 2^32 before, and are small afterwards."
        if math.isclose(mine, 1 / right, rel_tol=1e-6):
            return f"{told} Cycles in a nanosecond are GHz; yours is nanoseconds in a cycle."
        if any(math.isclose(mine, of(map(abs, plain)), rel_tol=1e-6) for of in (statistics.mean, statistics.median)):
            return f"{told} A counter that wrapped did not count backwards, so that its absolute value means nothing."
        return f"{told} The SMs of the first reading: {before}. Those of the second: {after}."
    return None


EXERCISE = Plain(
    name="clock_of",
    function="clock_of",
    by=judge,
    hints=(
        "Work on one SM first: how many cycles passed on it, in how many nanoseconds? How many cycles in a nanosecond "
        "are one GHz?",
        "A counter of 32 bits goes from 2^32 - 1 to 0. The difference modulo 2^32 is right in both cases, whether it "
        "wrapped or not: in Python, (now - then) % 2**32.",
        "rates = [((after[sm][0] - before[sm][0]) % 2**32) / (after[sm][1] - before[sm][1]) for sm in before], and "
        "then their median.",
    ),
    solution="""
def clock_of(before, after):
    import statistics

    rates = []
    for sm, (cycles, nanoseconds) in before.items():
        passed = (after[sm][0] - cycles) % 2**32
        rates.append(passed / (after[sm][1] - nanoseconds))
    return statistics.median(rates)
""",
    wrong=(
        Wrong("a wrapped counter", "Some counters wrapped", old=" % 2**32", new=""),
        Wrong("the mean", "That is the mean", old="statistics.median", new="statistics.mean"),
        Wrong(
            "the absolute difference",
            "did not count backwards",
            old="(after[sm][0] - cycles) % 2**32",
            new="abs(after[sm][0] - cycles)",
        ),
        Wrong(
            "upside down",
            "nanoseconds in a cycle",
            old="passed / (after[sm][1] - nanoseconds)",
            new="(after[sm][1] - nanoseconds) / passed",
        ),
        Wrong(
            "the SMs in the order in which they come",
            "The SMs of the first reading",
            source="""
def clock_of(before, after):
    import statistics

    pairs = zip(before.values(), after.values())
    return statistics.median(((b[0] - a[0]) % 2**32) / (b[1] - a[1]) for a, b in pairs)
""",
        ),
    ),
    debrief="A counter of 32 bits wraps every two to three seconds at such clocks. The project reads `%clock64`, which "
    "does not, and still checks that every SM counted forward.",
)
