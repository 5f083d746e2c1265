"""What the steps with a kernel of their own share: a skeleton with holes, of which each step fills one otherwise."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from dataclasses import dataclass, field

from steps.step import Step
from steps.tiles import Tile
from tutorial_lib.problem import Problem


def hole(switches: tuple[str, ...] = (), **kwargs):
    """A field that a step may fill differently from its predecessor.

    switches: where the value alone says little, the constants of the kernel's variant that follow from it.
    """
    return field(metadata={"hole": True, "switches": switches}, kw_only=True, **kwargs)


@dataclass(frozen=True, kw_only=True)
class FusedStep(Step):
    """A step that runs a kernel of the tutorial's own; its skeleton is a subclass."""

    def holes(self) -> dict[str, object]:
        """What fills each hole of the skeleton."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.metadata.get("hole")}

    def switched(self, hole: str) -> dict[str, str]:
        """The code that a hole switches on or off: function -> its branches that ask for what the hole decides."""
        [found] = [f for f in dataclasses.fields(self) if f.name == hole]
        asked = found.metadata["switches"]
        return branches(inspect.getsource(inspect.getmodule(type(self))), asked) if asked else {}

    @property
    def begins_a_skeleton(self) -> bool:
        """Whether this is the first step of its skeleton, which has no predecessor to differ from in a hole."""
        return type(self.previous) is not type(self)

    def changed_holes(self) -> dict[str, tuple[object, object]]:
        """The holes that the previous step fills otherwise: name -> (before, now). Empty before the first kernel."""
        if self.begins_a_skeleton:
            return {}
        before = self.previous.holes()
        return {name: (before[name], now) for name, now in self.holes().items() if before[name] != now}

    def key_changes(self) -> list[str]:
        if self.begins_a_skeleton:
            from tutorial_lib.results import NEW_KERNEL

            return [f"{NEW_KERNEL}; {name} = {_show(value)}" for name, value in self.holes().items()]
        return [f"{name}: {_show(before)} -> {_show(now)}" for name, (before, now) in self.changed_holes().items()]

    def unsupported(self, problem: Problem, target: str) -> str | None:
        if reason := super().unsupported(problem, target):
            return reason
        if max(problem.batch, problem.heads) > 65535:
            return f"batch and heads must be at most 65535 (the grid's limit), got {problem.batch} and {problem.heads}"
        return None


def branches(source: str, asked: tuple[str, ...]) -> dict[str, str]:
    """Of every function in ``source``, the outermost branches that ask for ``variant.<one of asked>``."""
    found: dict[str, str] = {}

    def look(node: ast.AST, texts: list[str]) -> None:
        for child in ast.iter_child_nodes(node):
            test = getattr(child, "test", None)
            if test is not None and any(f"variant.{name}" in ast.unparse(test).split() for name in asked):
                texts.append(textwrap.dedent(" " * child.col_offset + ast.get_source_segment(source, child)))
            else:
                look(child, texts)

    for function in ast.parse(source).body:
        if isinstance(function, ast.FunctionDef):
            texts: list[str] = []
            look(function, texts)
            if texts:
                found[function.name] = "\n...\n".join(texts)
    return found


def grid(problem: Problem, tile: Tile) -> tuple[int, int, int]:
    """Blocks: query tiles fastest, so that blocks which run together share the keys and values of a head in L2."""
    return (-(-problem.seq_len_q // tile.query), problem.heads, problem.batch)


def tiles_visited(problem: Problem, tile: Tile) -> int:
    """K/V tiles that all blocks together go through, counted as the kernels count them."""
    tiles = range(-(-problem.seq_len_q // tile.query))
    return problem.batch * problem.heads * sum(tiles_seen(problem, tile, i) for i in tiles)


def tiles_seen(problem: Problem, tile: Tile, i: int) -> int:
    """K/V tiles of which some query of the i-th tile of queries sees a key."""
    keys = min(problem.seq_len_kv, (i + 1) * tile.query) if problem.causal else problem.seq_len_kv
    return -(-keys // tile.key)


def _show(value: object) -> str:
    if inspect.isfunction(value):
        return value.__name__
    return "left to the compiler" if value is None else str(value)
