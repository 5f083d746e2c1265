"""Tiles taken one by one: the counter, what is done with it at the end, and how the other roles hear the number."""

from dataclasses import dataclass

from steps.core.fused import tiles_visited
from steps.exercises.in_kernel import InKernel
from tutorial_lib.accuracy import compare
from tutorial_lib.exercises import Wrong, source_of
from tutorial_lib.passes import pass_of
from tutorial_lib.problem import Problem

AT_ONCE = 3  # blocks, which is all that the simulator starts of a kernel whose blocks stay


@dataclass(frozen=True, kw_only=True)
class TakenOnce(InKernel):
    """Every tile is computed once, and the same launch can be made again."""

    def judge(self, function, chance):
        if wrong := super().judge(function, chance):
            return wrong
        source, problem = source_of(function), self.problems(chance)[0]
        step = self.kernel(problem, source)
        variant = step.base.variant(problem)
        needed = 2 * variant.parts * tiles_visited(problem, variant.tile)
        correct, products = launched_twice(step, problem)
        if products > needed:
            return (
                f"The numbers are right, but the blocks begin {products} products, and {needed} are enough: some "
                "tiles are computed more than once. Every block begins with the tile of its own number, so the tiles "
                "that are taken come behind these. And as long as a block may still take a tile, nobody may set the "
                "counter back."
            )
        if not correct:
            return (
                "The first launch is right, and the second is not. It finds the counter where the first one left it. "
                "Whoever takes the last number of all sets it back: how often do all blocks together add to it?"
            )
        return None


def launched_twice(step, problem: Problem) -> tuple[bool, int]:
    """Whether the second launch with the same counter is right, and how many products the first began."""
    from tutorial_lib.simulator.run import watched
    from tutorial_lib.simulator.under_way import begun

    kind = pass_of(step)
    inputs = kind.inputs(problem, 0)
    [exact] = kind.reference(problem, inputs)
    [allowed] = kind.yardstick(problem, inputs, (exact,))
    launch = step.make_ready(problem, *inputs, *kind.poisoned(inputs))
    with watched(trace=True, at_once=AT_ONCE) as watch:
        for _ in range(2):
            [out] = kind.poisoned(inputs)
            launch(*inputs, out)
    return compare(out, exact, allowed).correct, sum(begun(watch.runs[0]).values())


EXERCISE = TakenOnce(
    name="take_next",
    step="taken",
    function="take_next",
    edits=(
        ("while n < last:", "while n < last and query_turn <= last:"),
    ),  # tiles that never end would be taken forever
    kinds=({"causal": True, "heads": 3, "kv_heads": 1},),
    lengths=(258, 300),  # six tiles of queries for three blocks
    schedules=1,  # a launch that is repeated is told apart below
    typical=(
        (
            r"race on [^\n]*",
            "The number is overwritten before all roles have read the one before. `work.taken.free` completes when "
            "they have.",
        ),
        (
            r"a deadlock.*taken\.free",
            "The role that takes tiles waits for others to have read a number. The first wait must pass at once, as "
            "nothing was told before: a fresh barrier lets pass who waits for parity 1.",
        ),
    ),
    lacking=(
        (
            "mbarrier.arrive(work.taken.ready",
            "The others wait for a number, and nobody says that it is there. Who has stored it arrives at "
            "`work.taken.ready`.",
        ),
    ),
    hints=(
        "The counter says how many tiles were taken beyond the first of every block. There are gl.num_programs(0) "
        "blocks, and they begin with the tiles 0, 1, 2 and so on.",
        "A block adds once for each tile that it has computed, the last time in vain. So all blocks together add "
        "`last` times, and the number that the last of them gets is last - 1. Then gl.store(work.starts, 0).",
        "Before the number is stored: mbarrier.wait(work.taken.free.index(0), turn & 1 ^ 1). After it: "
        "mbarrier.arrive(work.taken.ready.index(0), count=1).",
    ),
    solution="""
def take_next(n, last, turn, work):
    count = gl.atomic_add(work.starts, 1, sem="relaxed", scope="gpu")
    if count == last - 1:
        gl.store(work.starts, 0)
    n = gl.num_programs(0) + count
    ONE: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    mbarrier.wait(work.taken.free.index(0), turn & 1 ^ 1)
    work.taken.number.store(gl.full([1], n, gl.int32, ONE))
    mbarrier.arrive(work.taken.ready.index(0), count=1)
    return n
""",
    wrong=(
        Wrong(
            "the counter stays where it is",
            "The first launch is right, and the second is not",
            old="    if count == last - 1:\n        gl.store(work.starts, 0)\n",
            new="",
        ),
        Wrong(
            "whoever finds no tile sets it back",
            "some tiles are computed more than once",
            source="""
def take_next(n, last, turn, work):
    count = gl.atomic_add(work.starts, 1, sem="relaxed", scope="gpu")
    n = gl.num_programs(0) + count
    if n == last:
        gl.store(work.starts, 0)
    ONE: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    mbarrier.wait(work.taken.free.index(0), turn & 1 ^ 1)
    work.taken.number.store(gl.full([1], n, gl.int32, ONE))
    mbarrier.arrive(work.taken.ready.index(0), count=1)
    return n
""",
        ),
        Wrong(
            "the first tiles are taken again",
            "some tiles are computed more than once",
            old="gl.num_programs(0) + count",
            new="count + 0",
        ),
        Wrong(
            "nobody waits for the readers",
            "is overwritten before all roles",
            old="    mbarrier.wait(work.taken.free.index(0), turn & 1 ^ 1)\n",
            new="",
        ),
        Wrong("the other parity", "The first wait must pass at once", old="turn & 1 ^ 1", new="turn & 1"),
        Wrong(
            "nobody is told",
            "nobody says that it is there",
            old="    mbarrier.arrive(work.taken.ready.index(0), count=1)\n",
            new="",
        ),
    ),
    debrief="An addition in global memory gives every block a number of its own, and the block that gets the last of "
    "all numbers is the last that will ever ask.",
)
