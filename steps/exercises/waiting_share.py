"""How much of its time each role of a block waits, from the events of a trace."""

from __future__ import annotations

import math

from tutorial_lib.exercises import Plain, Wrong
from tutorial_lib.files import RESULTS
from tutorial_lib.records import recorded_traces

WAITING = ("wait", "product", "store")
WORKING = ("softmax", "issue", "other")


def right(events, waiting=WAITING) -> dict[str, float]:
    spent: dict[str, list[int]] = {}
    for role, kind, _, begin, end in events:
        its = spent.setdefault(role, [0, 0])
        its[0] += (end - begin) * (kind in waiting)
        its[1] += end - begin
    return {role: waited / took for role, (waited, took) in spent.items()}


def made_up(chance) -> list[tuple]:
    """Events of three roles, of which one never waits, without those in the middle."""
    events = []
    for role in ("consume 0", "consume 1", "produce 2"):
        at = chance.randrange(50)
        for n in range(40):
            end = at + chance.randrange(10, 900)
            kinds = WAITING if role.startswith("produce") and n % 4 else (*WAITING, *WORKING)
            kind = chance.choice(WORKING if role == "consume 1" else kinds)
            events.append((role, kind, f"{kind} {n}", at, end))
            at = end + (20000 if n == 19 else 0)
    chance.shuffle(events)
    return events


def close(mine, theirs) -> bool:
    return (
        isinstance(mine, dict)
        and mine.keys() == theirs.keys()
        and all(isinstance(x, int | float) and math.isclose(x, theirs[role], abs_tol=1e-6) for role, x in mine.items())
    )


def judge(function, chance) -> str | None:
    traces = recorded_traces(RESULTS)
    cases = [("made up events", made_up(chance)) for _ in range(3)]
    cases += [(f"the recorded trace of step {t.step}", list(t.events)) for t in traces]
    for what, events in cases:
        mine, theirs = function(list(events)), right(events)
        if close(mine, theirs):
            continue
        if not isinstance(mine, dict) or mine.keys() != theirs.keys():
            return f"On {what} a dictionary of {', '.join(map(repr, theirs))} must come; this came: `{mine!r}`."
        spans = {role: [e for e in events if e[0] == role] for role in theirs}
        over_span = {
            role: theirs[role] * sum(e[4] - e[3] for e in its) / (max(e[4] for e in its) - min(e[3] for e in its))
            for role, its in spans.items()
        }
        counted = {role: sum(e[1] in WAITING for e in its) / len(its) for role, its in spans.items()}
        total = sum(e[4] - e[3] for e in events)
        of_all = {role: theirs[role] * sum(e[4] - e[3] for e in its) / total for role, its in spans.items()}
        told = ""
        if close(mine, over_span):
            told = "It divides by the time from a role's first event to its last. But a trace keeps the events of a "
            told += "block's begin and of its end alone; divide by what the kept events take."
        elif close(mine, counted):
            told = "It counts events. What matters is how many clocks they take."
        elif close(mine, of_all):
            told = "It divides by the time of all roles together. Each role has a clock of its own."
        elif close(mine, right(events, ("wait",))):
            told = "It counts waits for barriers alone. Waits for a product and for a store are waits, too."
        elif close(mine, right(events, WORKING)):
            told = "That is the share in which it works."
        role = max(theirs, key=lambda role: abs(float(mine[role]) - theirs[role]))
        said = f"`{role}` waits for {theirs[role]:.1%} of its time, and yours says {float(mine[role]):.1%}"
        return f"On {what} {said}. {told}"
    return None


EXERCISE = Plain(
    name="waiting_share",
    function="waiting_share",
    by=judge,
    hints=(
        "Two numbers for each role: the clocks that its events took, and those of them that were waits.",
        'An event takes end - begin clocks. It is a wait if its kind is "wait", "product" or "store".',
        "Keep two dictionaries, waited and took, add to both in one loop over the events, and divide at the end: "
        "{role: waited[role] / took[role] for role in took}.",
    ),
    solution="""
def waiting_share(events):
    waited, took = {}, {}
    for role, kind, label, begin, end in events:
        took[role] = took.get(role, 0) + end - begin
        if kind in ("wait", "product", "store"):
            waited[role] = waited.get(role, 0) + end - begin
    return {role: waited.get(role, 0) / took[role] for role in took}
""",
    wrong=(
        Wrong(
            "only barriers",
            "barriers alone",
            old='kind in ("wait", "product", "store")',
            new='kind == "wait"',
        ),
        Wrong(
            "events are counted",
            "counts events",
            source="""
def waiting_share(events):
    waited, took = {}, {}
    for role, kind, label, begin, end in events:
        took[role] = took.get(role, 0) + 1
        waited[role] = waited.get(role, 0) + (kind in ("wait", "product", "store"))
    return {role: waited[role] / took[role] for role in took}
""",
        ),
        Wrong(
            "from the first event to the last",
            "first event to its last",
            source="""
def waiting_share(events):
    waited, first, last = {}, {}, {}
    for role, kind, label, begin, end in events:
        first[role], last[role] = min(begin, first.get(role, begin)), max(end, last.get(role, end))
        if kind in ("wait", "product", "store"):
            waited[role] = waited.get(role, 0) + end - begin
    return {role: waited.get(role, 0) / (last[role] - first[role]) for role in first}
""",
        ),
        Wrong(
            "of the time of all roles",
            "all roles together",
            old="waited.get(role, 0) / took[role] for",
            new="waited.get(role, 0) / sum(took.values()) for",
        ),
        Wrong(
            "a role that never waits is left out",
            "a dictionary of",
            old="waited.get(role, 0) / took[role] for role in took",
            new="waited[role] / took[role] for role in waited",
        ),
        Wrong("the rest of the time", "in which it works", old="kind in (", new="kind not in ("),
    ),
    debrief="A share says where a role is, not what that costs: the producer of a good kernel waits most of its time, "
    "since its work is to ask. A consumer's wait costs time only when the tensor cores have nothing to do meanwhile.",
)
