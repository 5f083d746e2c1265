"""The barrier that is to blame for a deadlock, from what the simulator says of who waits for what."""

from __future__ import annotations

import dataclasses
import re
from typing import NamedTuple

from steps import get_step
from steps.simulate import Examination
from steps.writing.written import plainly, write_step
from tutorial_lib.exercises import Plain, Wrong
from tutorial_lib.problem import Problem
from tutorial_lib.simulator.breaking import LEFT_OUT, NOT_AT_LAST, Broken, mistaken

FEW = Problem(batch=1, heads=1, seq_len_q=128, seq_len_kv=640, head_dim=64)
CALLED = frozenset({"fetch", "release", "barrier_ring"})  # of ``steps.hopper.lib``, in whose calls mistakes are made


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


def waits_in(message: str) -> list[Wait]:
    """Who waits for which barrier, from the simulator's message about a deadlock."""
    found = [line.group(*Wait._fields) for line in LINE.finditer(message)]
    return [Wait(role, barrier, int(missing), int(extra or 0)) for role, barrier, missing, extra in found]


def broken(function: str, about: str, mistake: str) -> Broken:
    """Step producer's kernel with a mistake in one call of a function: see ``mistaken``."""
    return mistaken(write_step(get_step("producer"), FEW, keep=CALLED).text, function, about, mistake)


def deadlock(function: str, about: str, mistake: str) -> str:
    """What the simulator says of that kernel."""
    return _told(broken(function, about, mistake))


def _told(kernel: Broken) -> str:
    step = dataclasses.replace(write_step(get_step("producer"), FEW), text=kernel.text)
    wrong, _, _ = Examination(step, FEW, 0).under(None)
    return plainly(wrong[-1])


def mistakes(chance) -> list[tuple[str, str, tuple[str, str, str]]]:
    """(barrier, what is wrong with it, the call with the mistake, as ``broken`` takes it): one of each kind."""
    kind = chance.choice(["key", "value"])
    full, empty = f"{kind}_full", f"{kind}_empty"
    few = "Another number of bytes was announced than TMA brings."
    free = "The producer has not asked for the tile that the consumers wait for, because it waits itself. "
    never = "The producer has ended and is not in the list: it never asked for this tile."
    return [
        ("query_full", few, ("expect", "query", "twice the bytes")),
        ("key_full", few, ("expect", "array", "half of the bytes")),  # of ``fetch``; keys come first
        (empty, free + "Its parity is wrong.", ("wait", empty, "other parity")),
        (empty, free + "The slot is never released.", ("release", empty, LEFT_OUT)),
        (empty, free + "The barrier wants more arrivals than come.", ("barrier_ring", empty, "one more arrival")),
        (full, never, ("fetch", full, NOT_AT_LAST)),
    ]


def judge(function, chance) -> str | None:
    for barrier, why, call in mistakes(chance):
        kernel = broken(*call)
        message = _told(kernel)
        mine = function(waits_in(message))
        if mine != barrier:
            where = f"The mistake is in `{kernel.what}`: {kernel.how}."
            return f"To blame is `{barrier}`, and yours says `{mine}`. {why} {where}\n\n```\n{message}\n```"
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
