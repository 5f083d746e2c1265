"""The barrier that is to blame for a deadlock, from what the simulator says of who waits for what."""

from __future__ import annotations

import re
from typing import NamedTuple

from steps import get_step
from steps.simulate import Examination
from steps.writing.written import edited, plainly, write_step
from tutorial_lib.exercises import Plain, Wrong
from tutorial_lib.problem import Problem

FEW = Problem(batch=1, heads=1, seq_len_q=128, seq_len_kv=640, head_dim=64)


class Wait(NamedTuple):
    """Who waits in a deadlock, and for which barrier: so many of its arrivals are missing, and so many bytes.

    Bytes are missing where more were announced than came; their number is negative where fewer were announced.
    """

    role: str
    barrier: str
    missing: int
    bytes: int


LINE = re.compile(
    r"^  (?P<role>.+) waits for [\w.]*?(?P<barrier>\w+)\[\d+\] with parity \d "
    r"\(\d+ phases? complete, (?P<missing>\d+) of \d+ arrivals missing(, (?P<bytes>-?\d+) bytes)?",
    re.MULTILINE,
)

# Pieces of step producer's kernel. They are text, as in the chapter, which breaks one line of a kernel at a time and
# shows it. A function in place of another would hold much more than the one mistake that the learner looks for.
QUERIES = "arrays.query.nbytes_per_cta"
KEYS = "array.nbytes_per_cta"
FREE = "mbarrier.wait(barriers.{0}_empty.index(stage), used)"
DONE = "release(barriers.{0}_empty, iteration, STAGES)"
RINGS = "{0}_full, {0}_empty = barrier_ring(STAGES, 1), barrier_ring(STAGES, WARPGROUPS)"


def waits_in(message: str) -> list[Wait]:
    """Who waits for which barrier, from the simulator's message about a deadlock."""
    found = [line.group(*Wait._fields) for line in LINE.finditer(message)]
    return [Wait(role, barrier, int(missing), int(extra or 0)) for role, barrier, missing, extra in found]


def deadlock(*edits: tuple[str, str]) -> str:
    """What the simulator says of step producer with pieces of its kernel replaced."""
    broken = edited(write_step(get_step("producer"), FEW), *edits)
    wrong, _, _ = Examination(broken, FEW, 0).under(None)
    return plainly(wrong[-1])


def mistakes(chance) -> list[tuple[str, str, tuple[str, str]]]:
    """(barrier, what is wrong with it, the edit that makes the mistake): one of each kind."""
    kind = chance.choice(["key", "value"])
    rings = RINGS.format(kind)
    few = "Another number of bytes was announced than TMA brings."
    free = "The producer has not asked for the tile that the consumers wait for, because it waits itself. "
    waited, released = FREE.format(kind), DONE.format(kind)
    fetched = f"fetch(arrays.{kind}, tiles.{kind}, barriers.{kind}_full, head, batch, key, stage)"
    never = "The producer has ended and is not in the list: it never asked for this tile."
    return [
        ("query_full", few, (QUERIES, f"{QUERIES} * 2")),
        ("key_full", few, (KEYS, f"{KEYS} // 2")),
        (f"{kind}_empty", free + "Its parity is wrong.", (waited, waited.replace("used)", "used ^ 1)"))),
        (f"{kind}_empty", free + "The slot is never released.", (released, "pass")),
        (
            f"{kind}_empty",
            free + "The barrier wants more arrivals than come.",
            (rings, rings.replace("WARPGROUPS", "WARPGROUPS + 1")),
        ),
        (f"{kind}_full", never, (fetched, f"if j + 1 < end:\n                {fetched}")),
    ]


def judge(function, chance) -> str | None:
    for barrier, why, edit in mistakes(chance):
        message = deadlock(edit)
        mine = function(waits_in(message))
        if mine != barrier:
            return f"To blame is `{barrier}`, and yours says `{mine}`. {why}\n\n```\n{message}\n```"
    return None


EXERCISE = Plain(
    name="culprit",
    function="culprit",
    by=judge,
    hints=(
        "In a deadlock everybody waits for somebody else. Begin with a consumer: what must happen so that it can go "
        "on, and who should have done that?",
        "A tile that was asked for has no arrival missing: the producer arrived when it asked. If bytes are missing "
        "then, or too many came, that barrier is to blame. If the arrival is missing, ask what holds the producer up.",
        "Three cases, in this order: a barrier whose number of bytes is not 0; the barrier that the producer waits "
        "for; and, where no producer waits because it has ended, the barrier that the consumers wait for.",
    ),
    solution="""
def culprit(waits):
    for wait in waits:
        if wait.bytes != 0:
            return wait.barrier
    for wait in waits:
        if wait.role.startswith("produce"):
            return wait.barrier
    return waits[0].barrier
""",
    wrong=(
        Wrong("the first who waits", "yours says", source="def culprit(waits):\n    return waits[0].barrier"),
        Wrong("only bytes that are missing", "Another number of bytes", old="wait.bytes != 0", new="wait.bytes > 0"),
        Wrong(
            "always the producer's",
            "To blame is",
            source="""
def culprit(waits):
    return [wait.barrier for wait in waits if wait.role.startswith("produce")][-1]
""",
        ),
    ),
    debrief="A deadlock is a circle of waits, and most of them are innocent. Follow each wait to the role that should "
    "have ended it, until you find a wait that nobody can end.",
)
