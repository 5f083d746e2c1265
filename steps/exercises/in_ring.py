"""An exercise inside the ring of step stages: judged in two stages and in three, and also by what it waits for."""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass

from steps.core.fused import FusedStep
from steps.exercises.in_kernel import InKernel
from tutorial_lib.exercises import clean, explained, source_of
from tutorial_lib.passes import pass_of
from tutorial_lib.problem import Problem

TILE = 64  # keys


@dataclass(frozen=True, kw_only=True)
class InRing(InKernel):
    """In a ring of two stages and in one of three. Waiting for more than the next tile is wrong, too."""

    stages: int = 2

    def problems(self, chance: random.Random) -> list[Problem]:
        """Several tiles of keys, and a single one: fewer than there are stages."""
        fixed = {"batch": 1, "heads": 1, "head_dim": 64, "seq_len_q": chance.randint(20, TILE)}
        return [Problem(**fixed, seq_len_kv=tiles * TILE) for tiles in (chance.randint(4, 6), 1)]

    def judge(self, function, chance):
        source = source_of(function)
        for stages in (2, 3):
            ring = dataclasses.replace(self, stages=stages)
            problems = ring.problems(chance)
            for problem in problems:
                if wrong := ring._on(problem, source, chance):
                    return explained(f"With {stages} stages, on {problem.describe()}: {wrong}", self.typical, source)
            mine, needed = (ring.clocks(problems[0], text) for text in (source, clean(self.solution)))
            if mine > 1.01 * needed:
                return (
                    f"With {stages} stages the numbers are right, but the block waits for more than it needs: "
                    f"simulated, it takes {mine:,.0f} clocks, and {needed:,.0f} are enough. It waits for the tile of "
                    "a later iteration."
                )
        return None

    def whole(self) -> FusedStep:
        return dataclasses.replace(super().whole(), stages=self.stages)

    def clocks(self, problem: Problem, source: str) -> float:
        """What all blocks take together, by the simulator's clock."""
        from tutorial_lib.simulator.run import watched

        step = self.kernel(problem, source)
        kind = pass_of(step)
        inputs = kind.inputs(problem, 0)
        with watched(None) as watch:
            kind.call(step, problem, inputs, kind.poisoned(inputs))
        return sum(sum(run.clocks.values()) for run in watch.runs)
