"""Where the wait for the PV product stands: in the text, and in the machine code that becomes of it."""

from steps.core.problems import HEADLINE
from steps.exercises.in_kernel import InKernel
from tutorial_lib.exercises import Wrong

ARCH = "sm_90"


def held_wait(exercise, source: str, chance) -> str | None:
    """What a warp does in an iteration of the compiled loop."""
    return placed(exercise.kernel(HEADLINE, source).compile(HEADLINE, ARCH).hot_order, "await_tile" in source)


def placed(order, asks: bool) -> str | None:
    """None if an iteration's second wait stands after the maxima and before most exponentials. asks: for V again."""
    told = " → ".join(name if (name, count) == ("wait", 1) else f"{count} {name}" for name, count in order)
    seen = f"The numbers are right, and the simulator finds nothing. But the machine code of an iteration is `{told}`, "
    waits = [n for n, (name, _) in enumerate(order) if name == "wait"]
    if len(waits) < 2:
        return f"{seen}with {len(waits)} wait. An iteration needs two: for the scores, and for the output."

    def share(name: str) -> float:
        """Of the instructions of this name, how many stand in front of the second wait."""
        counts = [(n, count) for n, (what, count) in enumerate(order) if what == name]
        return sum(count for n, count in counts if n < waits[1]) / max(1, sum(count for _, count in counts))

    if share("FMNMX") < 0.5:
        why = (
            "Your text waits for V a second time, but not between the maxima and the wait."
            if asks
            else "Nothing in your text keeps the wait where you wrote it, so ptxas may move it up. It moves nothing "
            "over a loop, and a wait for an mbarrier is one."
        )
        return f"{seen}so the wait for the output stands in front of nearly all maxima (FMNMX). {why}"
    if share("EX2") > 0.5:
        return (
            f"{seen}so the wait for the output stands after the exponentials (EX2) of the weights. Then the rescaling "
            "of the output comes at the very end of the iteration, with nothing left to mix with it. Put the wait in "
            "front of the weights."
        )
    return None


# The kernel's name for it would tell less than the answer needs.
ADD_UP = """
def add_up(row_sum, correction, weights):
    return add_own(row_sum, correction, weights)
"""

EXERCISE = InKernel(
    name="pv_wait_after_max",
    step="pv_wait_after_max",
    function="softmax_around_wait",
    last=held_wait,
    replaces="softmax_under_product",
    beside=ADD_UP,
    kinds=({"head_dim": 128, "causal": True, "heads": 1},),
    lengths=(384, 512),
    multiple=128,
    lacking=(
        ("release(barriers.value_empty", "Nothing releases the slot of V, and the producer waits for it."),
        ("by_row(correction)", "The accumulator is never multiplied by the correction, so it mixes two maxima."),
    ),
    hints=(
        "Two things need the end of the PV product: the release of the slot of V, and the rescaling of the "
        "accumulator. The maxima and the correction do not. In which order do you write the statements?",
        "Maxima and correction first, then the wait, then weights, sums, release and rescaling. That is the text; "
        "ptxas may still move the wait up. Across which kind of statement does it move nothing?",
        "await_tile(barriers.value_full, iteration, STAGES), right in front of the wait: the tile of V has arrived, "
        "so this costs one test. The test is a loop, and ptxas moves nothing across a loop.",
    ),
    solution="""
def softmax_around_wait(scores, row_max, row_sum, accumulator, barriers, iteration, scale):
    new_max = raise_maxima(scores, row_max, scale)
    correction = exp2(row_max - new_max)
    await_tile(barriers.value_full, iteration, STAGES)
    accumulator, new_max, correction = warpgroup_mma_wait(0, deps=[accumulator, new_max, correction])
    weights = weigh(scores, new_max, scale)
    row_sum = add_up(row_sum, correction, weights)
    release(barriers.value_empty, iteration, STAGES)
    accumulator = accumulator * by_row(correction)
    return weights, new_max, row_sum, accumulator
""",
    wrong=(
        Wrong("nothing holds the wait", "ptxas may move it up", without="await_tile("),
        Wrong(
            "waits before the maxima",
            "in front of nearly all maxima",
            source="""
def softmax_around_wait(scores, row_max, row_sum, accumulator, barriers, iteration, scale):
    await_tile(barriers.value_full, iteration, STAGES)
    accumulator = warpgroup_mma_wait(0, deps=[accumulator])
    new_max = raise_maxima(scores, row_max, scale)
    correction = exp2(row_max - new_max)
    weights = weigh(scores, new_max, scale)
    row_sum = add_up(row_sum, correction, weights)
    release(barriers.value_empty, iteration, STAGES)
    accumulator = accumulator * by_row(correction)
    return weights, new_max, row_sum, accumulator
""",
        ),
        Wrong(
            "waits after the whole softmax",
            "after the exponentials",
            source="""
def softmax_around_wait(scores, row_max, row_sum, accumulator, barriers, iteration, scale):
    new_max = raise_maxima(scores, row_max, scale)
    correction = exp2(row_max - new_max)
    weights = weigh(scores, new_max, scale)
    row_sum = add_up(row_sum, correction, weights)
    await_tile(barriers.value_full, iteration, STAGES)
    accumulator, weights = warpgroup_mma_wait(0, deps=[accumulator, weights])
    release(barriers.value_empty, iteration, STAGES)
    accumulator = accumulator * by_row(correction)
    return weights, new_max, row_sum, accumulator
""",
        ),
        Wrong(
            "rescales before the wait",
            "used before it is waited for",
            without="accumulator =",
            behind="correction = exp2(",
        ),
        Wrong(
            "the slot of V is released before its product has ended",
            "race on tiles.value",
            old="    new_max = raise_maxima",
            new="    release(barriers.value_empty, iteration, STAGES)\n    new_max = raise_maxima",
        ),
        Wrong(
            "the maximum of before",
            "wrong number",
            old="weigh(scores, new_max, scale)",
            new="weigh(scores, row_max, scale)",
        ),
    ),
    debrief="A wait promises that the product has ended before what follows. It does not promise that what stands in "
    "front of it also happens in front of it: the compiler may move that down. Only the machine code tells.",
)
