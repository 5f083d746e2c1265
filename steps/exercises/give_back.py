"""Where a consumer gives the places of its tiles back: behind the product that reads them, and no later."""

from steps.exercises.in_kernel import InKernel
from tutorial_lib.exercises import Wrong, source_of

KEYS, VALUES = "release(barriers.key_empty, turn, STAGES)", "release(barriers.value_empty, turn, STAGES)"
LATE = (
    "Everything is in order, but a place is given back later than it could be: until then the producer cannot fill "
    "it. The keys have been read when the QK product is over, before the softmax begins."
)


class GiveBack(InKernel):
    """Also refuses what is right but late."""

    def judge(self, function, chance):
        wrong = super().judge(function, chance)
        if wrong is None:
            source = source_of(function)
            keys, values, softmax = map(source.find, (KEYS, VALUES, "= softmax("))
            if -1 < values < softmax:
                return EARLY
            if keys > softmax:
                return LATE
        return wrong


EARLY = (
    "Nothing was found, but the place of the values is given back before they have been read. What saves you is the "
    "producer: it waits for the keys' place first, and you give that back last. Do not build on another's order."
)

SOLUTION = """
def attend(query, tiles, barriers, place, turn, scale):
    ROW: gl.constexpr = gl.SliceLayout(1, ACCUMULATOR)
    row_max = gl.full([ROWS], float("-inf"), gl.float32, ROW)
    row_sum = gl.full([ROWS], 0.0, gl.float32, ROW)
    accumulator = gl.full([ROWS, HEAD_DIM], 0.0, gl.float32, OUTPUT)
    none = gl.full([ROWS, TILE_KEY], 0.0, gl.float32, ACCUMULATOR)
    _, end = tiles_to_visit(place.seq_len_kv)
    for j in range(0, end):
        # --- scores: QK product ---
        await_tile(barriers.key_full, turn, STAGES)
        key = tiles.key.index(turn % STAGES).reshape([TILE_KEY, HEAD_DIM])
        scores = warpgroup_mma(query, key.permute((1, 0)), none, use_acc=False, is_async=True)
        scores = warpgroup_mma_wait(0, deps=[scores])
        release(barriers.key_empty, turn, STAGES)

        # --- online softmax ---
        weights, correction, row_max = softmax(scores, row_max, scale)
        row_sum = row_sum * correction + gl.sum(weights, 1)
        accumulator = accumulator * by_row(correction)
        weights = gl.convert_layout(weights.to(tiles.key.dtype), WEIGHTS)

        # --- output: PV product ---
        await_tile(barriers.value_full, turn, STAGES)
        value = tiles.value.index(turn % STAGES).reshape([TILE_KEY, HEAD_DIM])
        accumulator = warpgroup_mma(weights, value, accumulator, is_async=True)
        accumulator = warpgroup_mma_wait(0, deps=[accumulator])
        release(barriers.value_empty, turn, STAGES)
        turn += 1
    return accumulator, row_sum, turn
"""


def placed(behind_scores: str, behind_output: str) -> str:
    """The solution with other statements where a place is given back."""
    return SOLUTION.replace(VALUES, "VALUES").replace(KEYS, behind_scores).replace("VALUES", behind_output)


EXERCISE = GiveBack(
    name="give_back",
    step="producer",
    function="attend",
    kinds=(
        {"heads": 1, "seq_len_q": 128},
        {"heads": 2, "kv_heads": 1, "head_dim": 128, "seq_len_q": 128, "dtype": "bfloat16"},
    ),
    lengths=(640, 768),
    multiple=128,
    typical=(
        (
            r"race on tiles.key[^\n]*TMA load.*after: read by wgmma",
            "The place of the keys is given back while the QK product still reads it: the product is begun, but not "
            "over.",
        ),
        (
            r"race on tiles.value[^\n]*TMA load.*after: read by wgmma",
            "The place of the values is given back while the PV product still reads it: the product is begun, but not "
            "over.",
        ),
        (
            r"race on tiles.value[^\n]*.*after: TMA load",
            "The producer fills a place of the values that this turn has not read yet: it was given back too early.",
        ),
        (
            r"race on tiles.key[^\n]*.*after: TMA load",
            "The producer fills a place of the keys that holds a tile which nobody has read yet: the place is given "
            "back more than once in a turn.",
        ),
        (
            r"more arrivals",
            "A place is given back more than once in a turn: `free` was made for one arrival of each of the two "
            "groups.",
        ),
        (
            r"a deadlock.*produce 2 waits for barriers.key_empty",
            "The producer waits for a place of the keys that nobody gives back.",
        ),
        (
            r"a deadlock.*produce 2 waits for barriers.value_empty",
            "The producer waits for a place of the values that nobody gives back.",
        ),
    ),
    hints=(
        "Two calls are missing, one for the keys and one for the values. Which instruction is the last that reads the "
        "keys of this turn?",
        "A product reads its tile from its beginning to its end. It has ended behind its `warpgroup_mma_wait`.",
        "`release(barriers.key_empty, turn, STAGES)` stands directly behind the wait for the scores, "
        "`release(barriers.value_empty, turn, STAGES)` directly behind the wait for the output.",
    ),
    solution=SOLUTION,
    wrong=(
        Wrong(
            "the keys when the product is begun",
            "the QK product still reads it",
            old="""        scores = warpgroup_mma_wait(0, deps=[scores])
        release(barriers.key_empty, turn, STAGES)
""",
            new="""        release(barriers.key_empty, turn, STAGES)
        scores = warpgroup_mma_wait(0, deps=[scores])
""",
        ),
        Wrong(
            "the values when the product is begun",
            "the PV product still reads it",
            old="""        accumulator = warpgroup_mma_wait(0, deps=[accumulator])
        release(barriers.value_empty, turn, STAGES)
""",
            new="""        release(barriers.value_empty, turn, STAGES)
        accumulator = warpgroup_mma_wait(0, deps=[accumulator])
""",
        ),
        Wrong("the keys never", "a place of the keys that nobody", old=KEYS, new="pass"),
        Wrong("the values never", "a place of the values that nobody", old=VALUES, new="pass"),
        Wrong("both behind the first product", "has not read yet", source=placed(f"{KEYS}; {VALUES}", "pass")),
        Wrong("both at the end of the turn", "later than it could be", source=placed("pass", f"{KEYS}; {VALUES}")),
        Wrong("each behind the other's product", "before they have been read", source=placed(VALUES, KEYS)),
        Wrong("the keys twice", "more than once", source=placed(KEYS, f"{KEYS}; {VALUES}")),
    ),
    debrief="A place may be given back as soon as the last product that reads it is over. The keys' place is free "
    "while the softmax runs, and the producer can fill it in that time.",
)
