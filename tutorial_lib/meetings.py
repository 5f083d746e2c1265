"""Meetings of a group's warps that nothing needs, taken out of the PTX that Triton makes.

A meeting is a barrier (PTX: ``bar.sync``) that holds up every warp of a group until the last has come. Gluon writes
down none. Triton puts them in, among others in front of every arrival at an mbarrier, and, before Triton 3.9, in front
of the first wait for an mbarrier behind an arrival. Two kinds are taken out of a kernel whose PTX holds the comment
``MARK``:

- In front of a wait for an mbarrier. A warp that comes early does nothing but wait there, and what it does next is
  behind a product of all warps of its group, or behind a meeting that stays.
- In front of an arrival that says that a product has read a tile. The product (``wgmma``) is one operation of all four
  warps, and one of them arrives once it is complete. FlashAttention-3 arrives like that, too
  (``hopper/sm90_pipeline_no_cluster.hpp``).

All others stay: in front of arrivals behind anything else, of what warps write to shared memory, and of copies by TMA.
Also stays a meeting of the second kind where another warp may still be loading a product's factor from shared memory
into registers (``_loading``).

Whoever asks for this answers for one thing that is not looked for: warps load from shared memory only what TMA has
written, and never what other warps have.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

ASKED = "// no meetings that nothing needs"
# Triton keeps compiled kernels by their source, and MARK is part of that: so it changes with what is taken out.
VERSION = f"{zlib.crc32(Path(__file__).read_bytes()):08x}"
MARK = f"{ASKED} ({VERSION})"

# What touches memory or other threads, or branches. What stands between two of these works in registers.
EVENT = re.compile(
    r"\s*(?:@!?%p\d+ )?(?P<event>(?:\$L__BB|bar\.|barrier\.|mbarrier\.|wgmma\.|ld\.|st\.|ldmatrix|stmatrix|atom|red\."
    r"|cp\.|fence|setmaxnreg|bra|brx|call|ret|\{\s*\S).*)"  # in one line in braces: what ``multicast`` has rewritten
)
MEETING, WAIT, COMPLETE = "bar.sync", "mbarrier.try_wait", "wgmma.wait_group"
# What Triton puts a meeting right in front of, each time; and a store by TMA of what was written.
ARRIVAL, WRITE = "mbarrier.arrive.shared::cta", "stmatrix"
STORE = re.compile(r"cp\.async\.bulk\.tensor\S*\.global\.shared")
# Loads and stores that count on no meeting: of other memory, and how Triton tells warps their roles. And what the
# producer does: an arrival that says how many bytes will come.
HARMLESS = re.compile(
    r"(?:ld|st)\.(?:global|param|local)|ld\.shared\.b8|st\.shared\S*\s+\[global_smem[^,]*\], \{?\d"
    r"|mbarrier\.arrive\.expect_tx"
)
# A warp's own load of what a product takes from registers; such a product; and where the code goes on elsewhere.
LOAD = re.compile(r"ldmatrix\S+ \{(?P<registers>[^}]*)\}")
COPY = re.compile(r"\s*mov\.b32\s+(?P<to>%r\d+), (?P<of>%r\d+);")  # Triton 3.9 hands a product copies of them
BATCHED = "wgmma.commit_group"  # the products begun so far are one batch
PRODUCT = re.compile(r"wgmma\.mma_async\S* \{[^}]*\},\s*(?:\{(?P<registers>[^}]*)\})?")
LEFT, MOST = re.compile(r"wgmma\.wait_group\S* (\d+)"), 8  # batches that a wait leaves; as many as are told apart
NOT_KNOWN = "tutorial_lib.meetings was written for the PTX of Triton 3.6 to 3.9, and does not know what is here: {}"
LABEL, JUMP = re.compile(r"(\$L__BB\w+):"), re.compile(r"bra\S*\s+(\$L__BB\w+);")


def without(ptx: str, instead: str = "") -> str:
    """The PTX without these meetings; unchanged if it is not asked for.

    instead: what is written in place of each. Raises ValueError for a PTX that holds what is not known here, and so may
    need a meeting that would go.
    """
    if ASKED not in ptx:  # a kernel that was written to a file may hold an older version's MARK
        return ptx
    lines = ptx.splitlines(keepends=True)
    events, copies = [], []  # copies: of registers, between an event and the next one
    for n, line in enumerate(lines):
        if found := EVENT.match(line):
            events.append((n, found["event"]))
            copies.append([])
        elif events and (found := COPY.match(line)):
            copies[-1].append((found["of"], found["to"]))
    if unknown := _unknown([event for _, event in events]):
        raise ValueError(NOT_KNOWN.format(unknown))
    in_front_of_waits, behind_products = set(), set()  # meetings, by their place among the events
    tile_was_read = False  # a product is complete, and behind its wait stand only arrivals
    for n, ((_, event), (_, follows)) in enumerate(pairwise(events)):
        if event.startswith(MEETING):
            if follows.startswith(WAIT):
                in_front_of_waits.add(n)
            elif tile_was_read and follows.startswith(ARRIVAL):
                behind_products.add(n)
        else:
            tile_was_read = event.startswith(COMPLETE) or (tile_was_read and event.startswith(ARRIVAL))
    may_go = in_front_of_waits | behind_products
    if not _is_written([event for _, event in events], may_go):
        raise ValueError(NOT_KNOWN.format("a store by TMA of what no meeting says is written"))
    loading = _loading([event for _, event in events], copies, may_go)
    gone = {events[n][0] for n in in_front_of_waits | {n for n in behind_products if not loading[n]}}
    return "".join(instead if n in gone else line for n, line in enumerate(lines))


def _loading(events: list[str], copies: list[list[tuple[str, str]]], may_go: set[int]) -> list[bool]:
    """For each event, whether another warp may still be loading a product's factor there from shared memory.

    It may if on any way through the code there is a load of registers before it, and behind the load neither a meeting
    that stays, nor the end of a product that takes these registers, or copies of them. A product is complete only when
    all four warps have begun it, and a warp begins it with what it has loaded. Where no way leads, it may as well.
    """

    # On their way: (register, batches that the warp has begun since a product took it; None if none has).
    def after(n: int, coming: frozenset) -> frozenset:
        event = events[n]
        if found := LOAD.match(event):
            coming |= {(register, None) for register in found["registers"].split(", ")}
        elif (found := PRODUCT.match(event)) and found["registers"]:
            taken = set(found["registers"].split(","))
            coming = frozenset((r, 0 if batches is None and r in taken else batches) for r, batches in coming)
        elif event.startswith(BATCHED):
            coming = frozenset((r, None if batches is None else min(batches + 1, MOST)) for r, batches in coming)
        elif found := LEFT.match(event):
            coming = frozenset((r, batches) for r, batches in coming if batches is None or batches <= int(found[1]))
        elif event.startswith(MEETING) and n not in may_go:
            coming = frozenset()
        for register, copy in copies[n]:
            coming = frozenset((copy if r == register else r, batches) for r, batches in coming)
        return coming

    return [coming is None or bool(coming) for coming in _coming(events, after)]


def _is_written(events: list[str], may_go: set[int]) -> bool:
    """Whether what TMA stores is written by then: a meeting that stays is behind what warps write, on every way."""

    def after(n: int, coming: frozenset) -> frozenset:
        if events[n].startswith(WRITE):
            return frozenset({WRITE})
        return frozenset() if events[n].startswith(MEETING) and n not in may_go else coming

    coming = _coming(events, after)
    return not any(coming[n] for n, event in enumerate(events) if STORE.match(event))


def _coming(events: list[str], after: Callable[[int, frozenset], frozenset]) -> list[frozenset | None]:
    """What is under way when an event begins, on any way through the code; None where no way leads.

    after(n, coming) -> what is under way behind event n.
    """
    places = {found[1]: n for n, event in enumerate(events) if (found := LABEL.match(event))}
    coming: list[frozenset | None] = [None] * len(events)
    todo = [(0, frozenset())]
    while todo:
        n, under_way = todo.pop()
        if n == len(events) or (coming[n] is not None and under_way <= coming[n]):
            continue
        coming[n] = (coming[n] or frozenset()) | under_way
        event, left = events[n], after(n, coming[n])
        if found := JUMP.match(event):
            todo.append((places[found[1]], left))
        elif event.startswith("brx"):
            todo += [(place, left) for place in places.values()]
        if not event.startswith(("bra.uni", "brx", "ret")):
            todo.append((n + 1, left))
    return coming


def _unknown(events: list[str]) -> str | None:
    """What may count on a meeting that goes; None where whatever needs a meeting has one of its own."""
    for before, event in pairwise(events):
        if event.startswith((ARRIVAL, WRITE)):
            more_rows = event.startswith(WRITE) and before.startswith(WRITE)
            if not (before.startswith(MEETING) or more_rows):
                return event
        elif event.startswith(("ld", "st.", "atom", "red.", "mbarrier.arrive")) and not (
            HARMLESS.match(event) or LOAD.match(event)
        ):
            return event
    return None
