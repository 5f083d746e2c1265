"""The end of a tile of queries: the next QK product is begun behind the last PV product, and runs on."""

from steps.exercises.in_kernel import InKernel
from tutorial_lib.exercises import Wrong, clean
from tutorial_lib.simulator.under_way import begun_together, share_under_products


def stored_under_a_product(run, problem) -> str | None:
    if share_under_products(run, "smem") == 0.0:
        return (
            "the numbers are right and everything is in order, but the gap is not closed: when a warpgroup stores its "
            "output, none of its products is under way. Begin the next QK product before you wait for the last PV "
            "product, and leave one under way."
        )
    return None


def begun_behind(exercise, source: str, chance) -> str | None:
    """Refuses what is right, but waits for the old product before the new one is begun."""
    problem = exercise.problems(chance)[0]
    [mine], [needed] = (exercise.traced(problem, text) for text in (source, clean(exercise.solution)))
    if begun_together(mine) < begun_together(needed):
        return (
            "The numbers are right and everything is in order, but you wait for the last PV product before you begin "
            "the next QK product. The tensor cores then have nothing to do until your warpgroup wakes up. Begin it "
            "first, and wait for the PV product alone."
        )
    return None


# The rings of Q and of K and V both have two slots in this step. With three for K and V, for
# which there is room at head_dim 64, mixing them up is seen.
EXERCISE = InKernel(
    name="epilogue_overlap",
    step="epilogue_overlap",
    function="link",
    replaces="link",
    functions={"say_free": "def say_free(barriers, query_iteration):\n    pass\n"},  # the answer says so
    constants={"STAGES": 3},
    kinds=({"head_dim": 64, "causal": True}, {"head_dim": 64, "dtype": "bfloat16", "causal": True, "heads": 1}),
    lengths=(512, 640),  # several tiles of queries for each of the simulator's three blocks
    multiple=128,
    watch=stored_under_a_product,
    last=begun_behind,
    lacking=(
        ("release(barriers.query_empty", "Nothing releases the slot of the queries, and the producer waits for it."),
        ("release(barriers.value_empty", "Nothing releases the last slot of V, and the producer waits for it."),
    ),
    typical=(
        (
            r"place 2 of 2, at ",
            "The ring of the queries has QUERY_STAGES slots, those of keys and values have STAGES. The judge gives "
            "keys and values three slots.",
        ),
    ),
    hints=(
        "All QK products of these queries have ended, so their slot can be released at once. The next product needs "
        "two things that TMA brings: tile query_iteration + 1 of the queries and tile iteration + 1 of the keys.",
        "After a block's last tile nothing more arrives. A wait for it would never end, so both waits belong under "
        "`if more`. The product itself is begun in any case.",
        "Two products are under way then: the last PV product, which is older, and the next QK product. "
        "warpgroup_mma_wait(1, deps=[accumulator]) waits for the older alone. Then the slot of V, iteration, is empty.",
    ),
    solution="""
def link(accumulator, tiles, barriers, iteration, query_iteration, more, warpgroup: gl.constexpr):
    release(barriers.query_empty, query_iteration, QUERY_STAGES)
    if more:
        await_tile(barriers.query_full, query_iteration + 1, QUERY_STAGES)
        await_tile(barriers.key_full, iteration + 1, STAGES)
    following = query_of(tiles.query, query_iteration + 1, warpgroup)
    scores = issue_scores(following, tiles.key, iteration + 1)
    accumulator = warpgroup_mma_wait(1, deps=[accumulator])
    release(barriers.value_empty, iteration, STAGES)
    return scores, accumulator
""",
    wrong=(
        Wrong("the new product is waited for, too", "the gap is not closed", old="wait(1", new="wait(0"),
        Wrong(
            "the old product is waited for first",
            "does not wait for this product",
            old="    following = ",
            new="    accumulator = warpgroup_mma_wait(1, deps=[accumulator])\n    following = ",
        ),
        Wrong(
            "the old product is waited for before the new one is begun",
            "before you begin the next QK product",
            source="""
def link(accumulator, tiles, barriers, iteration, query_iteration, more, warpgroup: gl.constexpr):
    release(barriers.query_empty, query_iteration, QUERY_STAGES)
    accumulator = warpgroup_mma_wait(0, deps=[accumulator])
    release(barriers.value_empty, iteration, STAGES)
    if more:
        await_tile(barriers.query_full, query_iteration + 1, QUERY_STAGES)
        await_tile(barriers.key_full, iteration + 1, STAGES)
    following = query_of(tiles.query, query_iteration + 1, warpgroup)
    scores = issue_scores(following, tiles.key, iteration + 1)
    return scores, accumulator
""",
        ),
        Wrong(
            "the old product is waited for first, behind a product that is never begun",
            "before you begin the next QK product",
            old="    release(barriers.query_empty, query_iteration, QUERY_STAGES)\n",
            new="""    release(barriers.query_empty, query_iteration, QUERY_STAGES)
    if QUERY_STAGES > 9:
        scores = issue_scores(query_of(tiles.query, 0, warpgroup), tiles.key, 0)
    accumulator = warpgroup_mma_wait(0, deps=[accumulator])
""",
        ),
        Wrong(
            "the next queries are awaited in a ring of STAGES",
            "has QUERY_STAGES slots",
            old="query_iteration + 1, QUERY_STAGES",
            new="query_iteration + 1, STAGES",
        ),
        Wrong(
            "waits behind the last tile, too",
            "a deadlock",
            old="""    if more:
        await_tile(barriers.query_full, query_iteration + 1, QUERY_STAGES)
        await_tile(barriers.key_full, iteration + 1, STAGES)
""",
            new="""    await_tile(barriers.query_full, query_iteration + 1, QUERY_STAGES)
    await_tile(barriers.key_full, iteration + 1, STAGES)
""",
        ),
        Wrong(
            "these queries once more",
            "race on tiles.query",
            old="query_of(tiles.query, query_iteration + 1",
            new="query_of(tiles.query, query_iteration",
        ),
        Wrong("nobody waits for the next queries", "race on tiles.query", without="await_tile(barriers.query_full"),
        Wrong("nobody waits for the next keys", "race on tiles.key", without="await_tile(barriers.key_full"),
        Wrong(
            "V is released while it is read",
            "race on tiles.value",
            without="accumulator =",
            behind="release(barriers.value_empty",
        ),
        Wrong(
            "the slot of the queries is not released",
            "releases the slot of the queries",
            without="release(barriers.query_empty",
        ),
    ),
    debrief="The counters of a persistent block go on from one tile of queries to the next, so a product can be begun "
    "for tiles that belong to later work. What it costs is a second slot for Q.",
)
