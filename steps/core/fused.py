"""What the steps with a kernel of their own share: a skeleton with holes, of which each step fills one otherwise."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

from steps.core.step import Step
from steps.core.tiles import Tile
from tutorial_lib.compiler import CUTILE_ARCHITECTURES, GLUON_ARCHITECTURES
from tutorial_lib.problem import Problem
from tutorial_lib.results import NEW_KERNEL


def hole(told: bool = True, by_problem: bool = False, none: str = "left to the compiler", **kwargs):
    """A field that a step may fill differently from its predecessor. told: whether a skeleton's first step lists it.

    by_problem: whether a step may fill it for some problems alone; the skeleton reads it from ``for_problem``.
    none: what None means there.
    """
    return field(metadata={"hole": True, "told": told, "by_problem": by_problem, "none": none}, kw_only=True, **kwargs)


@dataclass(frozen=True)
class OnlyFor:
    """What fills a hole for some problems alone: ``takes`` says for which. For others it is ``otherwise``, as before.

    Either may be another ``OnlyFor``: a step leaves to the steps before it what it is not for.
    """

    takes: Callable[[Problem], bool]
    value: object
    otherwise: object

    def decided(self, problem: Problem) -> object:
        """What fills the hole for ``problem``."""
        found = self.value if self.takes(problem) else self.otherwise
        return found.decided(problem) if isinstance(found, OnlyFor) else found


class Pieces:
    """Functions that fill a hole together, the fields of a dataclass. It is told by their names.

    Compare with ``==``: in a process that a step was sent to they are equal to a module's own, and not the same object.
    """

    def __str__(self) -> str:
        values = (getattr(self, f.name) for f in dataclasses.fields(self))
        return ", ".join(dict.fromkeys(name for value in values if (name := function_name(value))))


def function_name(value: object) -> str | None:
    """The name of a function, as it is or as a compiler's decorator keeps it; None for anything else."""
    function = getattr(value, "fn", value)
    return function.__name__ if inspect.isfunction(function) else None


@dataclass(frozen=True, kw_only=True)
class FusedStep(Step):
    """A step that runs a kernel of the tutorial's own; its skeleton is a subclass.

    A skeleton offers, beside ``make_ready`` and ``compile``: ``variant(problem, arch)``, the constants that a kernel is
    compiled with; ``entry(problem, arch)``, the kernel's function and what of its parameters is constant, from which
    ``steps.show`` writes it out; ``compile_kernel`` and ``make_kernel_ready``, which do with a kernel that is given
    what ``compile`` and ``make_ready`` do with the step's own.
    """

    shown: ClassVar[str] = "The whole kernel"  # what ``entry`` gives; several kernels may work together
    package: ClassVar[str] = "triton"
    architectures: ClassVar[tuple[str, ...]] = GLUON_ARCHITECTURES  # that it can be compiled for
    elsewhere: ClassVar[str] = f"Triton makes no code for {{}}: it must be one of {', '.join(GLUON_ARCHITECTURES)}"

    def evolve(self, only_for: Callable[[Problem], bool] | None = None, **changes) -> FusedStep:
        """The next step, as ``Step.evolve``. only_for: for which problems it fills the holes in ``changes`` otherwise.

        For all others it is what this step is, down to the machine code. ``only_for`` is asked about the problem with
        the head_dim of its tiles. It must be a function of a module, as steps are sent to other processes. A step that
        changes this for some problems and that for others is evolved once for each, and names as ``previous`` what it
        is compared with. Raises ValueError for a hole that is the same for all problems.
        """
        if only_for is not None:
            holes = {f.name: f.metadata["by_problem"] for f in dataclasses.fields(self) if f.metadata.get("hole")}
            if fixed := [name for name in changes if not holes.get(name, True)]:
                raise ValueError(f"{', '.join(fixed)} must be the same for all problems, so only_for cannot go with it")
            filled = changes.keys() & holes.keys()
            changes |= {name: OnlyFor(only_for, changes[name], getattr(self, name)) for name in filled}
        return super().evolve(**changes)

    def for_problem(self, problem: Problem) -> FusedStep:
        """This step as it is for ``problem``: every hole filled, and none ``OnlyFor`` some problems."""
        if not self._by_problem:
            return self
        asked = self.in_tiles(problem)
        found = {name: value.decided(asked) for name, value in self._by_problem.items()}
        same = tuple(map(id, found.values()))  # of what this step itself keeps alive
        if same not in self._decided:
            self._decided[same] = dataclasses.replace(self, **found)
        return self._decided[same]

    @cached_property
    def _by_problem(self) -> dict[str, OnlyFor]:
        """The holes that are filled for some problems alone."""
        return {name: value for name, value in self.holes().items() if isinstance(value, OnlyFor)}

    @cached_property
    def _decided(self) -> dict[tuple, FusedStep]:
        """What ``for_problem`` has made: a few steps, as many as problems make a difference."""
        return {}

    def __getstate__(self) -> dict:
        made = ("_by_problem", "_decided")
        return {name: value for name, value in super().__getstate__().items() if name not in made}

    def holes(self) -> dict[str, object]:
        """What fills each hole of the skeleton, those that a first step lists in front."""
        found = [f for f in dataclasses.fields(self) if f.metadata.get("hole")]
        return {f.name: getattr(self, f.name) for f in sorted(found, key=lambda f: not f.metadata["told"])}

    def filled(self, problem: Problem) -> dict[str, str]:
        """In words, what fills each hole of the skeleton for ``problem``."""
        none = {f.name: f.metadata["none"] for f in dataclasses.fields(self) if f.metadata.get("hole")}
        return {name: _show(value, none[name]) for name, value in self.for_problem(problem).holes().items()}

    @property
    def begins_a_skeleton(self) -> bool:
        """Whether this is the first step of its skeleton, which has no predecessor to differ from in a hole."""
        return type(self.previous) is not type(self)

    def changed_holes(self) -> dict[str, tuple[object, object]]:
        """What the previous step fills otherwise: hole -> (before, now).

        Empty for the first step of a skeleton.
        """
        if self.begins_a_skeleton:
            return {}
        before = self.previous.holes()
        return {name: (before[name], now) for name, now in self.holes().items() if before[name] != now}

    def key_changes(self) -> list[str]:
        none = {f.name: f.metadata["none"] for f in dataclasses.fields(self) if f.metadata.get("hole")}
        if self.begins_a_skeleton:
            told = {f.name for f in dataclasses.fields(self) if f.metadata.get("told")}
            holes = {name: value for name, value in self.holes().items() if name in told}
            return [f"{NEW_KERNEL}; {name} = {_show(value, none[name])}" for name, value in holes.items()]
        changed = self.changed_holes().items()
        return [f"{name}: {_show_change(*pair, none[name])}" for name, pair in changed]

    def configured(self, problem: Problem, arch: str) -> FusedStep:
        """This step with everything decided that is left open until problem and architecture are known."""
        return self

    def what_runs(self, problem: Problem, arch: str) -> tuple:
        """All that decides what a call computes on ``problem``: two steps for which it is equal do the same there.

        Kernel and constants; who has holes that neither shows adds them. A hole that is missing here makes two steps
        look alike that are not.
        """
        step = self.configured(problem, arch)
        kernel, constants = step.entry(problem, arch)
        told = tuple(sorted(constants.items(), key=lambda item: item[0]))
        return kernel, told, *step.beside_the_kernel(problem, arch)

    def beside_the_kernel(self, problem: Problem, arch: str) -> tuple:
        """What else a launch is told; here every hole, whatever it does: no two steps are alike."""
        return tuple(self.holes().items())

    def kernels_for(self, problem: Problem, arch: str) -> tuple:
        return self.what_runs(problem, arch)

    def choices(self, problem: Problem, target: str) -> tuple[str, ...]:
        """By which launch rule; a step that brings its own shape says "Own" and its tile."""
        tile = self.variant(problem, target).tile
        return (f"Own_{tile.query}x{tile.key}",)

    def unsupported(self, problem: Problem, target: str) -> str | None:
        if reason := super().unsupported(problem, target):
            return reason
        if target not in (*self.architectures, "cpu"):
            return self.elsewhere.format(target)
        if max(problem.batch, problem.heads) > 65535:
            return f"batch and heads must be at most 65535 (the grid's limit), got {problem.batch} and {problem.heads}"
        return None


class InCuTile:
    """What all steps in cuTile have in common."""

    backend: ClassVar[str] = "cutile"
    package: ClassVar[str] = "cuda-tile"
    architectures: ClassVar[tuple[str, ...]] = CUTILE_ARCHITECTURES
    elsewhere: ClassVar[str] = f"cuTile makes no code for {{}}: it must be one of {', '.join(CUTILE_ARCHITECTURES)}"
    takes_long_strides: ClassVar[bool] = False  # cuTile holds them in 32 bits
    head_dims: ClassVar[tuple[int, ...]] = (32, 64, 128, 256)
    pads_head_dim: ClassVar[bool] = True


SIMULATED_TILES = 50_000  # of K and V, all blocks together: more are not simulated, as nobody would wait for it


def too_long_to_simulate(problem: Problem, tile: Tile) -> str | None:
    """Why nobody would wait for the simulator, or None."""
    if (tiles := tiles_visited(problem, tile)) <= SIMULATED_TILES:
        return None
    return f"{tiles:,} tiles of keys, which is long for the simulator (it is given at most {SIMULATED_TILES:,})"


def grid(problem: Problem, tile: Tile) -> tuple[int, int, int]:
    """Blocks: query tiles fastest, so that blocks which run together share the keys and values of a head in L2.

    Of packed sequences each may need one tile more than whole ones: where they begin is not known here.
    """
    if problem.lengths is not None:
        return (problem.seq_len_q // tile.query + len(problem.lengths), problem.heads, 1)
    return (-(-problem.seq_len_q // tile.query), problem.heads, problem.batch)


def tiles_visited(problem: Problem, tile: Tile) -> int:
    """K/V tiles that all blocks together go through, counted as the kernels count them."""
    if problem.lengths is not None:
        return sum(tiles_visited(sequence, tile) for sequence in problem.sequences)
    tiles = range(-(-problem.seq_len_q // tile.query))
    return problem.batch * problem.heads * sum(tiles_seen(problem, tile, i) for i in tiles)


def tiles_seen(problem: Problem, tile: Tile, i: int) -> int:
    """K/V tiles of which some query of the i-th tile of queries sees a key."""
    keys = min(problem.seq_len_kv, (i + 1) * tile.query) if problem.causal else problem.seq_len_kv
    first = max(0, i * tile.query + 1 - problem.window) // tile.key if problem.window else 0
    return -(-keys // tile.key) - first


def queries_seen(problem: Problem, tile: Tile, j: int) -> int:
    """Tiles of queries of which some query sees a key of the j-th tile of keys."""
    first, end = 0, -(-problem.seq_len_q // tile.query)
    if problem.causal:
        first = j * tile.key // tile.query
    if problem.window:
        end = min(end, -(-((j + 1) * tile.key - 1 + problem.window) // tile.query))
    return max(0, end - first)


def _show_change(before: object, now: object, none: str) -> str:
    """What was and what is, with words for None; of pieces of the same kind those functions that are others.

    Of what is for some problems alone: what is there, and where. Elsewhere it is what was.
    """
    if isinstance(now, OnlyFor) and before == now.otherwise:
        told = _show(now.value, none) if isinstance(before, OnlyFor) else _show_change(before, now.value, none)
        return f"{told} where {function_name(now.takes)}"
    if isinstance(now, Pieces) and type(before) is type(now):
        both = [(getattr(before, f.name), getattr(now, f.name)) for f in dataclasses.fields(now)]
        others = [[function_name(value) for value in pair] for pair in both if pair[0] is not pair[1]]
        names = [dict.fromkeys(name for name in side if name) for side in zip(*others)]
        return " -> ".join(", ".join(side) for side in names)
    return f"{_show(before, none)} -> {_show(now, none)}"


def _show(value: object, none: str) -> str:
    if isinstance(value, OnlyFor):
        return f"{_show(value.value, none)} where {function_name(value.takes)}, else {_show(value.otherwise, none)}"
    if name := function_name(value):
        return name if inspect.isfunction(value) else f"{value.fn.__module__.rpartition('.')[2]}.{name}"
    if isinstance(value, tuple) and all(isinstance(x, str) for x in value):
        return ", ".join(value) or "nothing"
    return none if value is None else str(value)
