"""What stamps tell: when each role of a block waited, and for what.

A stamp is a number: the SM's clock, and in the lowest bits which segment of the kernel ended then
(``steps.writing.stamps``). A role's stamps follow one another, so that a segment began where the one before it ended.
"""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

Event = tuple[str, str, str, int, int]  # role, kind, label, begin, end: in clocks since the block's first stamp
WINDOW = 12_000  # clocks at a block's begin, and as many at its end, of which events are kept


@dataclass(frozen=True)
class Traced:
    """What the stamps of some blocks tell; see ``records.Trace``."""

    blocks: int
    clocks: float
    shares: dict[str, dict[str, float]]
    events: list[Event]


def events_of(stamps: Sequence[Sequence[int]], segments: Sequence, roles: Sequence[str], bits: int) -> list[Event]:
    """Every segment of a block, role by role. stamps: of each role, in order; those below zero were never written."""
    read = [[(stamp >> bits, segments[stamp & (1 << bits) - 1]) for stamp in row if stamp >= 0] for row in stamps]
    first = min(row[0][0] for row in read if row)
    events = []
    for role, row in zip(roles, read, strict=True):
        for (begin, _), (end, segment) in itertools.pairwise(row):
            events.append((role, segment.kind, segment.label, begin - first, end - first))
    return events


def summarise(stamps: Sequence[Sequence[Sequence[int]]], segments: Sequence, roles: Sequence[str], bits: int) -> Traced:
    """stamps: [block][role]; a block without any was not launched. Kept are the events of the block that took longest.

    Raises ValueError where no block wrote any, and where a role had more to write than there was room for.
    """
    if any(row and row[-1] >= 0 for block in stamps for row in block):
        raise ValueError(f"a role writes more than {len(stamps[0][0])} stamps: trace a shorter problem")
    written = [block for block in stamps if any(stamp >= 0 for row in block for stamp in row)]
    blocks = [events for block in written if (events := events_of(block, segments, roles, bits))]
    if not blocks:
        raise ValueError("no block of the kernel wrote a stamp")
    took = [max(end for *_, end in events) for events in blocks]
    spent: dict[str, dict[str, int]] = {role: defaultdict(int) for role in roles}
    for role, _, label, begin, end in (event for events in blocks for event in events):
        spent[role][label] += end - begin
    shares = {
        role: {label: clocks / max(1, sum(its.values())) for label, clocks in sorted(its.items(), key=lambda x: -x[1])}
        for role, its in spent.items()
    }
    longest = max(range(len(blocks)), key=took.__getitem__)
    kept = [e for e in blocks[longest] if e[3] < WINDOW or e[4] > took[longest] - WINDOW]
    return Traced(len(blocks), statistics.median(took), shares, kept)
