"""An iteration in which the softmax runs under a product: what is begun, waited for and released, and when."""

from steps.exercises.in_kernel import InKernel
from tutorial_lib.exercises import Wrong, clean
from tutorial_lib.simulator.under_way import begun_together, share_under_products

BIG = 100  # clocks: the exponentials of a tile of scores, not those of a column of corrections


def exponentials_run_under_products(run, problem) -> str | None:
    if share_under_products(run, "mufu", BIG) == 0.0:
        return (
            "the numbers are right and everything is in order, but nothing overlaps: whenever your warpgroup takes "
            "exponentials, no product of its own is under way. Begin both products first, then wait for the scores "
            "alone: `warpgroup_mma_wait(1, ...)` leaves the younger one running."
        )
    return None


def released_late(run) -> bool:
    """Whether a role takes a tile's exponentials between a wait for a product and the release of a slot of keys."""
    taken: dict = {}  # of each role: clocks of exponentials since its first wait behind its last release
    for block, role, what, which in run.asked:
        who = block, role
        if what == "wait":
            taken.setdefault(who, 0.0)
        elif what == "mufu" and who in taken:
            taken[who] += which
        elif what == "arrive" and "key_empty" in which and taken.pop(who, 0.0) >= BIG:
            return True
    return False


def together_and_early(exercise, source: str, chance) -> str | None:
    """Refuses what is right, but leaves the tensor cores without a second product, or releases K late."""
    problem = exercise.problems(chance)[0]
    [mine], [needed] = (exercise.traced(problem, text) for text in (source, clean(exercise.solution)))
    if begun_together(mine) < begun_together(needed):
        return (
            "The numbers are right and everything is in order, but the products are not begun together: you wait for "
            "the scores before you begin the PV product. The tensor cores then have nothing to do until your warpgroup "
            "has woken up."
        )
    if released_late(mine):
        return (
            "Everything is in order, but the slot of K is released later than it could be. The keys have been read "
            "when the scores are there, before the softmax begins."
        )
    return None


# In step producer a block has one tile of queries, and would never fill the queries' slot again. Here it gets two.
TWO_TILES_A_BLOCK = """
def own_tiles():
    first = gl.program_id(0) * 2
    last = gl.minimum(first + 2, gl.num_programs(0))
    return first, last
"""

ATTEND_TO_REST = """
def attend_to_rest(weights, row_max, row_sum, accumulator, query, tiles, barriers, end, iteration, scale):
    for j in range(1, end):
        weights, row_max, row_sum, accumulator = iteration_of_loop(
            query, weights, tiles, barriers, iteration, row_max, row_sum, accumulator, scale
        )
        weights = gl.convert_layout(weights.to(tiles.key.dtype), WEIGHTS)
        iteration += 1
    return accumulator, row_sum, iteration, weights
"""

EXERCISE = InKernel(
    name="intra_warpgroup_overlap",
    step="intra_warpgroup_overlap",
    function="iteration_of_loop",
    replaces="",
    # A slot that is released for another tile is missed by the second tile of queries.
    functions={"attend_to_rest": ATTEND_TO_REST, "one_tile": TWO_TILES_A_BLOCK},
    # Once an even number of tiles of keys: with an odd one, releasing the slots in another order comes out even.
    kinds=(
        {"head_dim": 128, "heads": 1, "seq_len_kv": 512},
        {"head_dim": 128, "dtype": "bfloat16", "kv_heads": 1},
    ),
    lengths=(512, 640),  # four tiles of keys: a slot that is not released is missed with the fourth
    multiple=128,
    watch=exponentials_run_under_products,
    last=together_and_early,
    lacking=(
        ("by_row(correction)", "The accumulator is never multiplied by the correction, so it mixes two maxima."),
        ("release(barriers.key_empty", "Nothing releases the slot of K, and the producer waits for it."),
        ("release(barriers.value_empty", "Nothing releases the slot of V, and the producer waits for it."),
    ),
    typical=(
        (
            r"# source.*release\(barriers.value_empty, iteration \+ 1",
            "The slot of V that is released must be that of tile `iteration`: its product is the one that has ended.",
        ),
    ),
    hints=(
        "Number `iteration` is the tile before: its weights are there, and its slot of V is still held. Number "
        "`iteration + 1` is this tile. Both products can be begun at once, because neither needs the other's result.",
        "Begin the scores first, then the output. `warpgroup_mma_wait(1, deps=[scores])` waits until at most one "
        "product is under way; products end in the order in which they were begun, so the scores are there. Then the "
        "slot of K is free.",
        "Before anything touches `accumulator`, and before the slot of V is released, the second product must have "
        "ended: `accumulator = warpgroup_mma_wait(0, deps=[accumulator])`, after the weights. Only then rescale.",
    ),
    solution="""
def iteration_of_loop(query, weights, tiles, barriers, iteration, row_max, row_sum, accumulator, scale):
    # --- issue: scores of this tile, output of the tile before ---
    await_tile(barriers.key_full, iteration + 1, STAGES)
    scores = issue_scores(query, tiles.key, iteration + 1)
    await_tile(barriers.value_full, iteration, STAGES)
    accumulator = issue_output(weights, tiles.value, iteration, accumulator)
    scores = warpgroup_mma_wait(1, deps=[scores])
    release(barriers.key_empty, iteration + 1, STAGES)

    # --- online softmax, while the output is computed ---
    new_max = raise_maxima(scores, row_max, scale)
    correction = exp2(row_max - new_max)
    weights = weigh(scores, new_max, scale)
    row_sum = row_sum * correction + gl.sum(weights, 1)

    # --- the output of the tile before ---
    accumulator = warpgroup_mma_wait(0, deps=[accumulator])
    release(barriers.value_empty, iteration, STAGES)
    accumulator = accumulator * by_row(correction)
    return weights, new_max, row_sum, accumulator
""",
    wrong=(
        Wrong("both products are waited for", "nothing overlaps", old="wait(1, deps", new="wait(0, deps"),
        Wrong(
            "the output is begun first",
            "wait(1) does not wait for this product",
            source="""
def iteration_of_loop(query, weights, tiles, barriers, iteration, row_max, row_sum, accumulator, scale):
    await_tile(barriers.value_full, iteration, STAGES)
    accumulator = issue_output(weights, tiles.value, iteration, accumulator)
    await_tile(barriers.key_full, iteration + 1, STAGES)
    scores = issue_scores(query, tiles.key, iteration + 1)
    scores = warpgroup_mma_wait(1, deps=[scores])
    release(barriers.key_empty, iteration + 1, STAGES)
    new_max = raise_maxima(scores, row_max, scale)
    correction = exp2(row_max - new_max)
    weights = weigh(scores, new_max, scale)
    row_sum = row_sum * correction + gl.sum(weights, 1)
    accumulator = warpgroup_mma_wait(0, deps=[accumulator])
    release(barriers.value_empty, iteration, STAGES)
    accumulator = accumulator * by_row(correction)
    return weights, new_max, row_sum, accumulator
""",
        ),
        Wrong(
            "V is released before its product has ended",
            "race on tiles.value",
            without="accumulator = warpgroup_mma_wait(",
            behind="release(barriers.value_empty",
        ),
        Wrong(
            "rescaled while a product adds to it",
            "used before it is waited for",
            without="accumulator = accumulator",
            behind="# --- the output",
        ),
        Wrong(
            "the slot of the next tile of V is released",
            "must be that of tile `iteration`",
            old="release(barriers.value_empty, iteration,",
            new="release(barriers.value_empty, iteration + 1,",
        ),
        Wrong(
            "the PV product is begun behind the wait for the scores",
            "not begun together",
            old="""    accumulator = issue_output(weights, tiles.value, iteration, accumulator)
    scores = warpgroup_mma_wait(1, deps=[scores])
""",
            new="""    scores = warpgroup_mma_wait(0, deps=[scores])
    accumulator = issue_output(weights, tiles.value, iteration, accumulator)
""",
        ),
        Wrong(
            "K is released at the end of the iteration",
            "later than it could be",
            without="release(barriers.key_empty",
            behind="accumulator = accumulator * by_row",
        ),
        Wrong(
            "K is released behind weights that are written out",
            "later than it could be",
            old="""    release(barriers.key_empty, iteration + 1, STAGES)

    # --- online softmax, while the output is computed ---
    new_max = raise_maxima(scores, row_max, scale)
    correction = exp2(row_max - new_max)
    weights = weigh(scores, new_max, scale)
""",
            new="""    new_max = raise_maxima(scores, row_max, scale)
    correction = exp2(row_max - new_max)
    weights = exp2(scores * scale - new_max[:, None])
    release(barriers.key_empty, iteration + 1, STAGES)
""",
        ),
        Wrong(
            "K is released just before the function returns",
            "later than it could be",
            without="release(barriers.key_empty",
            behind="row_sum = row_sum * correction",
        ),
        Wrong("K is not released", "releases the slot of K", without="release(barriers.key_empty"),
        Wrong(
            "the keys of the tile before are released",
            ".key",
            old="release(barriers.key_empty, iteration + 1",
            new="release(barriers.key_empty, iteration",
        ),
        Wrong("the output is not rescaled", "never multiplied by the correction", without="accumulator = accumulator"),
    ),
    debrief="`wait(n)` counts products, from the youngest: it leaves n of them running. What a running product reads "
    "or adds to, V and the accumulator, is not yours until it has ended.",
)
