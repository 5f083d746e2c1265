"""When a consumer releases the slots of its tiles: behind the product that reads them, and no later."""

import dataclasses

from steps.exercises.in_kernel import InKernel
from tutorial_lib.exercises import Wrong, clean

KEYS, VALUES = "release(barriers.key_empty, iteration, STAGES)", "release(barriers.value_empty, iteration, STAGES)"
PREVIOUS = "release(barriers.value_empty, iteration - 1, STAGES)"
QUERY_COPIES = 2  # of a block, which come before its tiles of keys and values
TOLERANCE = 20.0  # simulated clocks; a softmax takes hundreds

# The kernel's own producer waits for the slot of the keys first, which hides a slot of values that is free too early.
VALUES_FIRST = """
def produce(arrays, tiles, barriers, work):
    n, _ = one_tile()
    head, batch, i = position(n, work)
    full = barriers.query_full.index(0)
    mbarrier.expect(full, TILE_QUERY * HEAD_DIM * 2)
    for warpgroup in gl.static_range(WARPGROUPS):
        at = [batch, head, i * TILE_QUERY + warpgroup * ROWS, 0]
        tma.async_load(arrays.query, at, full, tiles.query.index(warpgroup))
    kv_head = head // GROUP_SIZE
    _, end = tiles_to_visit(work.seq_len_kv)
    for j in range(end):
        stage = j % STAGES
        used = j // STAGES & 1 ^ 1
        mbarrier.wait(barriers.value_empty.index(stage), used)
        fetch(arrays.value, tiles.value, barriers.value_full, kv_head, batch, j * TILE_KEY, stage)
        mbarrier.wait(barriers.key_empty.index(stage), used)
        fetch(arrays.key, tiles.key, barriers.key_full, kv_head, batch, j * TILE_KEY, stage)
"""
EARLY = (
    "Nothing is wrong with this producer, because it waits for a slot of the keys before it waits for one of the "
    "values. With a producer that fetches the values first, the simulator finds a mistake. Release each slot after "
    "the product that reads it, and rely on nobody's order."
)
LATE = {
    "keys": "Everything is in order, but a slot of the keys is released later than it could be, so TMA fetches the "
    "next tile later. The keys have been read when the QK product has ended, before the softmax begins.",
    "values": "Everything is in order, but a slot of the values is released later than it could be, so TMA fetches the "
    "next tile later. The values have been read when the PV product of the same iteration has ended.",
}


def neither_early_nor_late(exercise: InKernel, source: str, chance) -> str | None:
    """Refuses what only the producer's order saves, and what is right but late."""
    other = {"functions": {"produce": VALUES_FIRST}, "kinds": exercise.kinds[:1], "schedules": 1, "typical": ()}
    if wrong := dataclasses.replace(exercise, **other, last=None).judged(source, chance):
        return f"{EARLY}\n\n{wrong}"
    problem = exercise.problems(chance)[0]
    mine, needed = (copies(exercise, problem, text) for text in (source, clean(exercise.solution)))
    late = [n for n, (begin, soonest) in enumerate(zip(mine, needed, strict=True)) if begin > soonest + TOLERANCE]
    return LATE[("keys", "values")[late[0] % 2]] if late else None


def copies(exercise: InKernel, problem, source: str) -> list[float]:
    """When TMA begins to fetch each tile of keys and of values, one after the other: simulated clocks."""
    [run] = exercise.traced(problem, source)
    begun = [begin for block, lane, kind, _, begin, _ in run.trace if (lane, kind) == ("TMA", "load")]
    return begun[QUERY_COPIES:]


ATTEND = """
def attend(query, tiles, barriers, query_tile, iteration, scale):
    ROW: gl.constexpr = gl.SliceLayout(1, ACCUMULATOR)
    row_max = gl.full([ROWS], LEAST, gl.float32, ROW)
    row_sum = gl.full([ROWS], 0.0, gl.float32, ROW)
    accumulator = gl.full([ROWS, HEAD_DIM], 0.0, gl.float32, OUTPUT)
    none = gl.full([ROWS, TILE_KEY], 0.0, gl.float32, ACCUMULATOR)
    _, end = tiles_to_visit(query_tile.seq_len_kv)
    for j in range(0, end):
        # --- scores: QK product ---
        await_tile(barriers.key_full, iteration, STAGES)
        key = tiles.key.index(iteration % STAGES).reshape([TILE_KEY, HEAD_DIM])
        scores = warpgroup_mma(query, key.permute((1, 0)), none, use_acc=False, is_async=True)
        scores = warpgroup_mma_wait(0, deps=[scores])
        {behind_scores}

        # --- online softmax ---
        weights, correction, row_max = softmax(scores, row_max, scale)
        row_sum = row_sum * correction + gl.sum(weights, 1)
        accumulator = accumulator * by_row(correction)
        {behind_softmax}
        weights = gl.convert_layout(weights.to(tiles.key.dtype), WEIGHTS)

        # --- output: PV product ---
        await_tile(barriers.value_full, iteration, STAGES)
        value = tiles.value.index(iteration % STAGES).reshape([TILE_KEY, HEAD_DIM])
        accumulator = warpgroup_mma(weights, value, accumulator, is_async=True)
        accumulator = warpgroup_mma_wait(0, deps=[accumulator])
        {behind_output}
        iteration += 1
        {behind_the_count}
    {at_the_end}
    return accumulator, row_sum, iteration
"""
PLACES = ("behind_scores", "behind_softmax", "behind_output", "behind_the_count", "at_the_end")


def attend(**calls: str) -> str:
    """The function with these calls at these of ``PLACES``, and none elsewhere."""
    filled = ATTEND.format(**dict.fromkeys(PLACES, "") | calls)
    return "\n".join(line for line in filled.split("\n") if not line.isspace())  # which was a place


SOLUTION = attend(behind_scores=KEYS, behind_output=VALUES)


EXERCISE = InKernel(
    name="give_back",
    step="producer",
    function="attend",
    kinds=(
        {"heads": 1, "seq_len_q": 128},
        {"heads": 2, "kv_heads": 1, "head_dim": 128, "seq_len_q": 128, "dtype": "bfloat16"},
    ),
    lengths=(640, 768),
    multiple=128,
    last=neither_early_nor_late,
    typical=(
        (
            r"race on tiles.key[^\n]*TMA load.*after: read by wgmma",
            "The slot of the keys is released while the QK product still reads it: the product has begun, but not "
            "ended.",
        ),
        (
            r"race on tiles.value[^\n]*TMA load.*after: read by wgmma",
            "The slot of the values is released while the PV product still reads it: the product has begun, but not "
            "ended.",
        ),
        (
            r"race on tiles.value[^\n]*.*after: TMA load",
            "The producer fills a slot of the values that this iteration has not read yet: it was released too early.",
        ),
        (
            r"race on tiles.key[^\n]*.*after: TMA load",
            "The producer fills a slot of the keys that holds a tile which nobody has read yet: the slot is released "
            "more than once in an iteration.",
        ),
        (
            r"more arrivals",
            "A slot is released more than once in an iteration; its empty barrier counts one arrival a warpgroup.",
        ),
        (
            r"a deadlock.*# source.*iteration \+= 1\s+release\(",
            "After `iteration += 1` the number `iteration` is that of the next tile, so a slot of the values or of "
            "the keys is released that has not been read.",
        ),
        (
            r"a deadlock.*produce 2 waits for barriers.key_empty",
            "The producer waits for a slot of the keys that nobody releases.",
        ),
        (
            r"a deadlock.*produce 2 waits for barriers.value_empty",
            "The producer waits for a slot of the values that nobody releases.",
        ),
    ),
    hints=(
        "Two calls are missing, one for the keys and one for the values. Which instruction is the last that reads the "
        "keys of this iteration?",
        "A product reads its tile from its beginning to its end. It has ended when its `warpgroup_mma_wait` returns.",
        "`release(barriers.key_empty, iteration, STAGES)` comes directly after the wait for the scores, "
        "`release(barriers.value_empty, iteration, STAGES)` directly after the wait for the output.",
    ),
    solution=SOLUTION,
    wrong=(
        Wrong(
            "the keys when the product is begun",
            "the QK product still reads it",
            without="scores = warpgroup_mma_wait(",
            behind="release(barriers.key_empty",
        ),
        Wrong(
            "the values when the product is begun",
            "the PV product still reads it",
            without="accumulator = warpgroup_mma_wait(",
            behind="release(barriers.value_empty",
        ),
        Wrong("the keys never", "a slot of the keys that nobody", old=KEYS, new="pass"),
        Wrong("the values never", "a slot of the values that nobody", old=VALUES, new="pass"),
        Wrong("both behind the first product", "has not read yet", source=attend(behind_scores=f"{KEYS}; {VALUES}")),
        Wrong(
            "both at the end", "slot of the keys is released later", source=attend(behind_output=f"{KEYS}; {VALUES}")
        ),
        Wrong(
            "the values in the next iteration",
            "slot of the values is released later",
            source=attend(behind_scores=KEYS, behind_output=f"if iteration > 0: {PREVIOUS}", at_the_end=PREVIOUS),
        ),
        Wrong(
            "the keys behind the softmax",
            "slot of the keys is released later",
            source=attend(behind_softmax=KEYS, behind_output=VALUES),
        ),
        Wrong("behind the count", "slot of the", source=attend(behind_the_count=f"{KEYS}; {VALUES}")),
        Wrong("the keys behind the count", "slot of the", source=attend(behind_output=VALUES, behind_the_count=KEYS)),
        Wrong("the values behind the count", "slot of the", source=attend(behind_scores=KEYS, behind_the_count=VALUES)),
        Wrong(
            "each behind the other's product",
            "rely on nobody's order",
            source=attend(behind_scores=VALUES, behind_output=KEYS),
        ),
        Wrong("the keys twice", "more than once", source=attend(behind_scores=KEYS, behind_output=f"{KEYS}; {VALUES}")),
    ),
    debrief="A slot may be released as soon as the last product that reads it has ended. The keys' slot is free while "
    "the softmax runs, and the producer can fill it in that time.",
)
