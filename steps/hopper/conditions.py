"""For which problems steps of this part change something: what several of them ask (``only_for`` of ``evolve``).

They are asked about the problem with the head_dim of its tiles. A condition of one step alone stands in its module.
"""

from __future__ import annotations

from steps.core.rules import rule_for, shared_kib
from steps.core.step import DEFAULT_ARCH
from steps.core.tiles import IN_PANELS, Tile
from tutorial_lib.architectures import KIB
from tutorial_lib.problem import BYTES_PER_ELEMENT, Problem

STAGES = 2  # tiles of keys, and of values, that shared memory holds


def launched(problem: Problem) -> Tile:
    """The tile of the launch rule; raises ValueError where there is none."""
    if rule := rule_for("hopper", problem, DEFAULT_ARCH):
        return rule.choice.tile
    raise ValueError(f"no launch rule of Hopper's kernels takes {problem.describe()}")


def next_queries_fit(problem: Problem) -> bool:
    """Shared memory holds two tiles of queries and one of the output beside keys and values: up to head_dim 128."""
    tile = launched(problem)
    rows = 2 * tile.query + tile.query + 2 * STAGES * tile.key
    return rows * problem.head_dim * BYTES_PER_ELEMENT <= shared_kib(DEFAULT_ARCH) * KIB


def wide(problem: Problem) -> bool:
    """It does not: beyond head_dim 128."""
    return not next_queries_fit(problem)


def wide_and_masked(problem: Problem) -> bool:
    return wide(problem) and problem.causal


def in_panels(problem: Problem) -> bool:
    """Tiles of Q and K lie in panels (``steps.hopper.panels``): q and k have 129 to 192 columns, and v has 128 at most.

    So shared memory holds two tiles of 128 keys and values each. Where tiles of Q and K have 256 columns, it holds two
    of 64.
    """
    return problem.value_dim <= 128 < problem.head_dim <= IN_PANELS


def up_to_64(problem: Problem) -> bool:
    return problem.head_dim <= 64


def up_to_128(problem: Problem) -> bool:
    return problem.head_dim <= 128


def at_128(problem: Problem) -> bool:
    return problem.head_dim == 128
