"""Meetings of a group's warps that nothing needs, taken out of the PTX that Triton makes.

A meeting is a barrier (PTX: ``bar.sync``) that holds up every warp of a group until the last has come. Gluon writes
down none. Triton puts them in, among others in front of every arrival at an mbarrier, and in front of the first wait
for an mbarrier behind an arrival. Two kinds are taken out of a kernel whose PTX holds the comment ``MARK``:

- In front of a wait for an mbarrier. A warp that comes early does nothing but wait there, and what it does next is
  behind a product of all warps of its group, or behind a meeting that stays.
- In front of an arrival that says that a product has read a tile. The product (``wgmma``) is one operation of all four
  warps, and one of them arrives once it is complete. FlashAttention-3 arrives like that, too
  (``hopper/sm90_pipeline_no_cluster.hpp``).

All others stay: in front of arrivals behind anything else, of what warps write to shared memory, and of copies by TMA.
"""

from __future__ import annotations

import re
import zlib
from itertools import pairwise
from pathlib import Path

ASKED = "// no meetings that nothing needs"
# Triton 3.6 keeps compiled kernels by their source, and MARK is part of that: so it changes with what is taken out.
VERSION = f"{zlib.crc32(Path(__file__).read_bytes()):08x}"
MARK = f"{ASKED} ({VERSION})"

# What touches memory or other threads, or branches. What stands between two of these works in registers.
EVENT = re.compile(
    r"\s*(?:@!?%p\d+ )?(?P<event>(?:\$L__BB|bar\.|barrier\.|mbarrier\.|wgmma\.|ld\.|st\.|ldmatrix|stmatrix|atom|red\."
    r"|cp\.|fence|setmaxnreg|bra|brx|call|ret|\{\s*\S).*)"  # in one line in braces: what ``multicast`` has rewritten
)
MEETING, WAIT, COMPLETE = "bar.sync", "mbarrier.try_wait", "wgmma.wait_group"
# What Triton puts a meeting right in front of, each time.
ARRIVAL, WRITE, STORE = "mbarrier.arrive.shared::cta", "stmatrix", "cp.async.bulk.tensor"
# Loads and stores that count on no meeting: of other memory, and how Triton tells warps their roles. And what the
# producer does: an arrival that says how many bytes will come.
HARMLESS = re.compile(
    r"(?:ld|st)\.(?:global|param|local)|ld\.shared\.b8|st\.shared\S*\s+\[global_smem[^,]*\], \{?\d"
    r"|mbarrier\.arrive\.expect_tx"
)


def without(ptx: str, instead: str = "") -> str:
    """The PTX without these meetings; unchanged if it is not asked for, or holds anything that may need them.

    instead: what is written in place of each.
    """
    if ASKED not in ptx:  # a kernel that was written to a file may hold an older version's MARK
        return ptx
    lines = ptx.splitlines(keepends=True)
    events = [(n, found["event"]) for n, line in enumerate(lines) if (found := EVENT.match(line))]
    if not _is_known([event for _, event in events]):
        return ptx
    gone = set()
    tile_was_read = False  # a product is complete, and behind its wait stand only arrivals
    for (n, event), (_, follows) in pairwise(events):
        if event.startswith(MEETING):
            if follows.startswith(WAIT) or (tile_was_read and follows.startswith(ARRIVAL)):
                gone.add(n)
        else:
            tile_was_read = event.startswith(COMPLETE) or (tile_was_read and event.startswith(ARRIVAL))
    return "".join(instead if n in gone else line for n, line in enumerate(lines))


def _is_known(events: list[str]) -> bool:
    """Whether what needs a meeting has one of its own, and so none that goes can have protected it."""
    for before, event in pairwise(events):
        guarded = event.startswith((ARRIVAL, WRITE)) or (event.startswith(STORE) and ".global.shared" in event)
        if guarded:
            more_rows = event.startswith(WRITE) and before.startswith(WRITE)
            if not (before.startswith(MEETING) or more_rows):
                return False
        elif event.startswith(("ld", "st.", "atom", "red.", "mbarrier.arrive")) and not HARMLESS.match(event):
            return False
    return True
