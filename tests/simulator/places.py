"""Breaks the synchronisations of written kernels, each place once: what kernels share word for word, in one of them."""

from __future__ import annotations

import ast
import dataclasses
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator

from tests.selection import ALL, parse, turn
from tutorial_lib.passes import pass_of
from tutorial_lib.simulator.block import Deadlock, KernelError
from tutorial_lib.simulator.breaking import Broken, broken
from tutorial_lib.simulator.run import watched

SEEDS = (1, 2)  # beside the latencies of the model
PARTS = 2  # of the places of a kernel one in so many is broken, unless everything runs
Way = tuple[str, str]  # how a place is broken, and its statement
_broken_already: set[tuple] = set()  # in this process


class Examination:
    """Problems with inputs, and what is right for them."""

    def __init__(self, kind, shapes):
        self.kind, self.shapes = kind, []
        for shape in shapes:
            inputs = kind.inputs(shape, 0)
            exact = kind.reference(shape, inputs)
            self.shapes.append((shape, inputs, exact, kind.yardstick(shape, inputs, exact)))

    def of(self, step, seed: int | None) -> str | None:
        """What the simulator says of a kernel first, for one of the problems."""
        return next(filter(None, (self._of_one(step, seed, *shape) for shape in self.shapes)), None)

    def _of_one(self, step, seed, shape, inputs, exact, allowed) -> str | None:
        try:
            with watched(seed, until_found=True) as watch:
                accuracy = self.kind.check(step, shape, inputs, exact, allowed)
        except (Deadlock, KernelError) as error:
            return type(error).__name__
        kinds = {kind for run in watch.runs for kind, *_ in run.found}
        return " and ".join(sorted(kinds)) or (None if accuracy.correct else "wrong numbers alone")


def check_that_all_is_missed(
    whole, shapes: Iterable, harmless: Callable[[Counter], dict[Way, int | None]], config
) -> None:
    """A written step is found right, and every way to break it is found out, but for ``harmless``.

    harmless(there): of the ways that a kernel has, and at how many places, what is not seen, and at how many of them;
    None: at one at least. A place is known by the text of its function, and broken once in a process. config: pytest's;
    it tells the selection, by which a part of the places is broken, and one of the seeds is tried where nothing shall
    be seen.
    """
    chosen = parse(config.option.selection)
    number = 0 if chosen == ALL else turn(chosen)
    seeds = None, *SEEDS[number % len(SEEDS) :], *SEEDS[: number % len(SEEDS)]
    enough = len(seeds) if chosen == ALL else 2
    examination = Examination(pass_of(whole), shapes)
    assert [examination.of(whole, seed) for seed in seeds[:enough]] == [None] * enough
    places = dict(_places(whole.text))
    not_seen = harmless(Counter({way: len(each) for way, (each, _) in places.items()}))
    assert not_seen.keys() <= places.keys(), "these are nowhere in the kernel"
    for way, (each, around) in places.items():
        its_turn = chosen == ALL or zlib.crc32(repr((way, around)).encode()) % PARTS == (number + chosen) % PARTS
        if (way, around) in _broken_already or not its_turn:
            continue
        _broken_already.add((way, around))
        unseen, wanted = list(each), not_seen.get(way, 0)
        most = len(each) if wanted is None else wanted
        for tried, seed in enumerate(seeds, 1):
            unseen = [place for place in unseen if not _seen(examination, whole, place, seed)]
            if len(unseen) <= most and (tried >= enough or not unseen):
                break
        right = bool(unseen) if wanted is None else len(unseen) == wanted
        assert right, [*map(str, unseen), f"expected: {wanted} of {len(each)}"]


def _seen(examination: Examination, whole, place: Broken, seed: int | None) -> bool:
    found = examination.of(dataclasses.replace(whole, text=place.text), seed)
    assert found != "wrong numbers alone", place  # what makes numbers wrong is told, with its place
    return found is not None


def _places(text: str) -> Iterator[tuple[Way, tuple[list[Broken], tuple[str, ...]]]]:
    """(how and what, (places, the texts of the functions around them))."""
    functions = [f for f in ast.parse(text).body if isinstance(f, ast.FunctionDef)]
    lines, found = text.splitlines(), defaultdict(list)
    for place in broken(text):
        found[place.how, place.what].append(place)
    for way, each in found.items():
        around = [f for f in functions if any(f.lineno <= place.line <= f.end_lineno for place in each)]
        yield way, (each, tuple("\n".join(lines[f.lineno - 1 : f.end_lineno]) for f in around))
