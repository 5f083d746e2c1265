"""The loop of the first Hopper kernel: products that are begun and waited for, and a place that is filled again."""

from steps.exercises.in_kernel import InKernel
from tutorial_lib.exercises import Wrong

EXERCISE = InKernel(
    name="wgmma_loop",
    step="wgmma",
    function="attend",
    kinds=(
        {"heads": 1, "seq_len_q": 128},
        {"heads": 2, "kv_heads": 1, "head_dim": 128, "seq_len_q": 128, "dtype": "bfloat16"},
    ),
    lengths=(512, 768),
    multiple=128,
    typical=(
        (
            r"race on tiles.(key|value)[^\n]*TMA load.*after: read by wgmma",
            "TMA is asked to fill a place that a product still reads: wait for the product first, and let all warps "
            "meet.",
        ),
        (
            r"race on tiles.(key|value)[^\n]*read by wgmma",
            "A product begins before TMA has brought its tile: which barrier tells that the tile is there?",
        ),
        (
            r"does not wait for this product|used before it is waited for|NoneType",
            "A product is used before it has ended. `warpgroup_mma` returns at once; the numbers are there behind a "
            "wait that leaves no product under way.",
        ),
        (
            r"race on tiles.(key|value)[^\n]*TMA load.*after: TMA load",
            "TMA is asked for two tiles in the same place: into which place does tile j + STAGES go?",
        ),
        (
            r"first wrong number.*# source.*place, j \+ 1,",
            "Everything is in order, but the wrong tile comes into this place: the next one has a place already.",
        ),
        (
            r"a deadlock.*(key|value)_ready",
            "The warps wait for a tile that nobody has asked TMA for. A place that has been read must be filled "
            "again, for the turn that is STAGES later, as long as there are tiles.",
        ),
        (
            r"more arrivals",
            "A tile is announced to a barrier that still waits for another one: into which place does tile j + STAGES "
            "go?",
        ),
    ),
    hints=(
        "Each product takes two statements: one that begins it, with `is_async=True`, and one that waits for it. Only "
        "the second gives numbers that may be used.",
        "`scores = warpgroup_mma_wait(0, deps=[scores])`, and the same for the output. The QK product starts from "
        "nothing (`use_acc=False`), the PV product adds to `accumulator`.",
        "Behind the PV product: `gl.barrier()`, so that both warp groups have read the tile. Then, if j + STAGES < "
        "end, `fetch_both(arrays, tiles, barriers, place, j + STAGES, turn % STAGES)`.",
    ),
    solution="""
def attend(query, arrays, tiles, barriers, place, turn, scale):
    ROW: gl.constexpr = gl.SliceLayout(1, ACCUMULATOR)
    row_max = gl.full([ROWS], float("-inf"), gl.float32, ROW)
    row_sum = gl.full([ROWS], 0.0, gl.float32, ROW)
    accumulator = gl.full([ROWS, HEAD_DIM], 0.0, gl.float32, OUTPUT)
    none = gl.full([ROWS, TILE_KEY], 0.0, gl.float32, ACCUMULATOR)
    _, end = tiles_to_visit(place.seq_len_kv)
    for j in range(0, end):
        # --- scores: QK product ---
        await_tile(barriers.key_ready, turn, STAGES)
        key = tiles.key.index(turn % STAGES).reshape([TILE_KEY, HEAD_DIM])
        scores = warpgroup_mma(query, key.permute((1, 0)), none, use_acc=False, is_async=True)
        scores = warpgroup_mma_wait(0, deps=[scores])

        # --- online softmax ---
        weights, correction, row_max = softmax(scores, row_max, scale)
        row_sum = row_sum * correction + gl.sum(weights, 1)
        accumulator = accumulator * by_row(correction)
        weights = gl.convert_layout(weights.to(tiles.key.dtype), WEIGHTS)

        # --- output: PV product ---
        await_tile(barriers.value_ready, turn, STAGES)
        value = tiles.value.index(turn % STAGES).reshape([TILE_KEY, HEAD_DIM])
        accumulator = warpgroup_mma(weights, value, accumulator, is_async=True)
        accumulator = warpgroup_mma_wait(0, deps=[accumulator])

        # --- fill the places again ---
        gl.barrier()
        if j + STAGES < end:
            fetch_both(arrays, tiles, barriers, place, j + STAGES, turn % STAGES)
        turn += 1
    return accumulator, row_sum, turn
""",
    wrong=(
        Wrong(
            "the scores are not waited for",
            "used before it has ended",
            old="scores = warpgroup_mma_wait(0, deps=[scores])",
            new="pass",
        ),
        Wrong(
            "one product may still be under way",
            "used before it has ended",
            old="warpgroup_mma_wait(0, deps=[accumulator])",
            new="warpgroup_mma_wait(1, deps=[accumulator])",
        ),
        Wrong(
            "the values are not waited for",
            "which barrier tells that the tile is there",
            old="await_tile(barriers.value_ready, turn, STAGES)",
            new="pass",
        ),
        Wrong(
            "the output begins anew with every tile",
            "wrong number",
            old="warpgroup_mma(weights, value, accumulator, is_async=True)",
            new="warpgroup_mma(weights, value, accumulator, use_acc=False, is_async=True)",
        ),
        Wrong(
            "the next tile in place of the one after",
            "wrong number",
            old="place, j + STAGES, turn",
            new="place, j + 1, turn",
        ),
        Wrong(
            "into the other place",
            "into which place",
            old="j + STAGES, turn % STAGES",
            new="j + STAGES, (turn + 1) % STAGES",
        ),
        Wrong(
            "the places are not filled again",
            "nobody has asked TMA for",
            old="fetch_both(arrays, tiles, barriers, place, j + STAGES, turn % STAGES)",
            new="pass",
        ),
        Wrong(
            "filled again before the product is over",
            "a place that a product still reads",
            old="""        accumulator = warpgroup_mma_wait(0, deps=[accumulator])

        # --- fill the places again ---
        gl.barrier()
        if j + STAGES < end:
            fetch_both(arrays, tiles, barriers, place, j + STAGES, turn % STAGES)
""",
            new="""        gl.barrier()
        if j + STAGES < end:
            fetch_both(arrays, tiles, barriers, place, j + STAGES, turn % STAGES)
        accumulator = warpgroup_mma_wait(0, deps=[accumulator])
""",
        ),
    ),
    debrief="A product is over behind its wait, for the warp group that waits. Before its place is filled again, all "
    "groups that read it must be done: here they meet, every turn.",
)
