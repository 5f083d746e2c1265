"""What is said of a name that nothing has: the names that are nearest to it, and never all of them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

FEW = 3  # names that are offered, at most
NEAR, AS_NEAR = 0.6, 0.1  # how alike a name must be (difflib's ratio), and how much less than the nearest one
WHOLE_WORD = 3  # letters from which on a name is found inside longer ones
STEPS_LISTED = "`python -m steps.run --list` lists them"


def unknown(kind: str, name: object, known: Iterable[str], listed: str) -> str:
    """One line, such as ``no step exp3; did you mean exp2?``.

    kind: what the name is one of, such as "step". listed: where all names are told, which is said when none is near.
    """
    asked = str(name).strip()
    told = " ".join(asked.split()) or "without a name"
    near = nearest(asked, known)
    if not near:
        return f"no {kind} {told}; {listed}"
    *first, last = near
    return f"no {kind} {told}; did you mean {', '.join(first)}{' or ' if first else ''}{last}?"


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Up to ``FEW`` of the names: those spelled nearly the same, nearest first, or else those that hold the word."""
    by_lower = {each.lower(): each for each in known}
    asked = name.lower()
    if asked.isdecimal() or not asked:  # that a number is near another one tells nothing of what was meant
        return []
    alike = {each: difflib.SequenceMatcher(None, each, asked).ratio() for each in by_lower}
    least = max(NEAR, max(alike.values(), default=0) - AS_NEAR)
    found = sorted((each for each in alike if alike[each] >= least), key=lambda each: -alike[each])
    if not found and len(asked) >= WHOLE_WORD:
        found = [each for each in by_lower if asked in each]
    return [by_lower[each] for each in found[:FEW]]
