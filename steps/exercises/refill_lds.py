"""Direct copies: when a slot in LDS may be filled again, and what belongs to a group of copies. Step direct_to_lds."""

from dataclasses import dataclass, replace

from steps.exercises.in_kernel import InKernel
from tutorial_lib.exercises import Wrong, clean
from tutorial_lib.problem import Problem


@dataclass(frozen=True, kw_only=True)
class NeverFull(InKernel):
    """Without a mask, keys never fill all their tiles: the kernel then needs no length, and reads otherwise."""

    def problems(self, chance):
        found = super().problems(chance)
        return [p if p.causal or p.seq_len_kv % 64 else replace(p, seq_len_kv=p.seq_len_kv - 1) for p in found]


def no_longer_than_needed(exercise: InKernel, source: str, chance) -> str | None:
    """Refuses a wait for more than the tile that is used next."""
    problem = Problem(batch=1, heads=1, head_dim=64, seq_len_q=128, seq_len_kv=64 * chance.randint(6, 9) - 5)
    mine, needed = (exercise.clocks(problem, text) for text in (source, clean(exercise.solution)))
    if mine <= 1.01 * needed:
        return None
    return (
        "The numbers are right, and everything is in order. But a block waits for more than it needs: simulated, it "
        f"takes {mine:,.0f} clocks, and {needed:,.0f} are enough. It waits for copies of a tile that only the "
        "iteration after the next one uses. Either there is a wait for copies that nobody asked for, or an iteration "
        "commits more than one group, of which `wait_group(1)` leaves only the last one under way."
    )


REFILL_STAGE = """
def refill_stage(keys, values, K, V, k_stride, v_stride, stage, j, end, seq_len_kv):
    later = gl.minimum(j + TILES, end - 1)
    refill(keys.index(stage), values.index(stage), K, V, k_stride, v_stride, later, seq_len_kv)
"""

EXERCISE = NeverFull(
    name="refill_lds",
    step="direct_to_lds",
    function="refill",
    replaces="",
    functions={"refill_stage": REFILL_STAGE},
    last=no_longer_than_needed,
    typical=(
        (
            r"race on \w+ .*: read by all waves[\s\S]*after: copy into LDS",
            "A tile is read before it has come. The loop's `wait_group(1)` waits until one group is left under way. "
            "A group holds the copies that started before a `commit_group()`: do both copies of this iteration belong "
            "to a group of this iteration?",
        ),
        (
            r"first wrong number",
            "Everything is in order, but the numbers are wrong: does each buffer get the right tile, keys from `K` "
            "and values from `V`?",
        ),
    ),
    hints=(
        "Four statements: one before the copies, two copies, one after them.",
        "Before: a barrier of all waves, `gl.barrier()`. The copies are "
        "`fetch(slot, pointer, stride, later, seq_len_kv)`, one for the keys and one for the values.",
        "After both copies, and only there: `async_copy.commit_group()`. Then an iteration has one group.",
    ),
    solution="""
def refill(keys, values, K, V, k_stride, v_stride, later, seq_len_kv):
    gl.barrier()
    fetch(keys, K, k_stride, later, seq_len_kv)
    fetch(values, V, v_stride, later, seq_len_kv)
    async_copy.commit_group()
""",
    wrong=(
        Wrong("no group", "read before it has come", old="    async_copy.commit_group()\n", new=""),
        Wrong(
            "a group for each copy",
            "waits for more than it needs",
            old="    fetch(values",
            new="    async_copy.commit_group()\n    fetch(values",
        ),
        Wrong(
            "no new values", "the numbers are wrong", old="    fetch(values, V, v_stride, later, seq_len_kv)\n", new=""
        ),
        Wrong(
            "keys in the slot of values",
            "the numbers are wrong",
            old="fetch(values, V, v_stride",
            new="fetch(values, K, k_stride",
        ),
    ),
    debrief="All waves must have read a tile before any of them copies over it: that is what the barrier is for. "
    "Where it is left out, Triton 3.9 sets one by itself, so an answer without it is right as well. With one group an "
    "iteration, `wait_group(1)` leaves just the next tile under way.",
)
