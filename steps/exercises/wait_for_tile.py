"""The ring: which stage a tile lies in, and how many groups may still be under way when it is read."""

import dataclasses
from dataclasses import dataclass

from steps.exercises.in_kernel import InKernel
from tutorial_lib.exercises import Wrong, clean, explained
from tutorial_lib.problem import Problem

TILE = 64  # keys


@dataclass(frozen=True, kw_only=True)
class InRing(InKernel):
    """In a ring of two stages and in one of three. Waiting for more than the next tile is wrong, too."""

    stages: int = 2

    def problems(self, chance):
        """Several tiles of keys, and a single one: fewer than there are stages."""
        fixed = {"batch": 1, "heads": 1, "head_dim": 64, "seq_len_q": chance.randint(20, TILE)}
        return [Problem(**fixed, seq_len_kv=tiles * TILE) for tiles in (chance.randint(4, 6), 1)]

    def judged(self, source, chance):
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

    def whole(self):
        return dataclasses.replace(super().whole(), stages=self.stages)


EXERCISE = InRing(
    name="wait_for_tile",
    step="stages",
    function="wait_for_tile",
    typical=((r"race on.*read by.*index\(stage\)", "A tile is read whose copy is not known to have ended."),),
    hints=(
        "Write down for STAGES = 2 which groups have been committed when iteration 0 begins, and which of them that "
        "iteration needs.",
        "Before the loop STAGES groups were committed, and every iteration commits one more. So in iteration j there "
        "are STAGES + j groups. Tile j is in number j, and those after it may be under way.",
        "STAGES - 1 groups are younger than that of tile j. The tile lies in stage j % STAGES.",
    ),
    solution="""
def wait_for_tile(j):
    async_copy.wait_group(STAGES - 1)
    return j % STAGES
""",
    wrong=(
        Wrong("waits for everything", "waits for more than it needs", old="STAGES - 1", new="0"),
        Wrong("one more may be under way", "not known to have ended", old="STAGES - 1", new="STAGES"),
        Wrong("one, whatever the number of stages", "With 3 stages the numbers are right", old="STAGES - 1", new="1"),
        Wrong("two stages, whatever the number", "With 3 stages", old="j % STAGES", new="j % 2"),
        Wrong("the stage of the next tile", "race on", old="j % STAGES", new="(j + 1) % STAGES"),
        Wrong("no wait", "not known to have ended", old="async_copy.wait_group(STAGES - 1)", new="pass"),
    ),
    debrief="wait_group counts from the youngest group backwards. So its number is how far the copies run ahead, and "
    "it is the same in every iteration, as long as each commits exactly one group.",
)
