"""The loop of the first Hopper kernel: products that are begun and waited for, and a slot that is filled again."""

from steps.exercises.in_kernel import InKernel
from tutorial_lib.exercises import Wrong

AT_ONCE = (
    "The numbers are right, but a product is not begun and waited for: with `is_async=False` the compiler puts a wait "
    "after it. Begin both products with `is_async=True`, and write both waits yourself."
)
NOT_MET = (
    "Nothing was found, but the warpgroups do not meet between the wait for the PV product and the request to TMA. "
    "Each warpgroup has waited for its own products alone. Today's compiler lets all warps meet before a request; do "
    "not rely on that, and write `gl.barrier()` where the other warpgroup must have read the tile."
)


KEYS = 128  # of a tile


def nothing_behind_the_end(run, problem) -> str | None:
    """Whether every block asks for its queries and for as many tiles of keys and values as there are."""
    asked: dict = {}
    for block, lane, kind, *_ in run.trace:
        if (lane, kind) == ("TMA", "load"):
            asked[block] = asked.get(block, 0) + 1
    if max(asked.values()) > 1 + 2 * (problem.seq_len_kv // KEYS):
        return (
            "the numbers are right, but TMA is asked for tiles after the last one. Nobody waits for them, and a block "
            "may not end while TMA still writes to its shared memory: ask only if there is a tile `j + STAGES`."
        )
    return None


def put_right_by_the_compiler(exercise, source: str, chance) -> str | None:
    """Refuses what only the compiler puts right."""
    [run] = exercise.traced(exercise.problems(chance)[0], source)
    over: dict = {}  # of each block: whether its warpgroups have met since its last product
    for block, _, what, _ in run.asked:
        if what == "wgmma at once":
            return AT_ONCE
        if what == "load" and not over.get(block, True):
            return NOT_MET
        if what in ("wgmma", "wait", "barrier"):  # whoever meets before a wait has met too early
            over[block] = what == "barrier"
    return None


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
    watch=nothing_behind_the_end,
    last=put_right_by_the_compiler,
    typical=(
        (
            r"race on tiles.(key|value)[^\n]*TMA load.*after: read by wgmma",
            "TMA is asked to fill a slot that a product still reads: wait for the product first, and let all warps "
            "meet.",
        ),
        (
            r"race on tiles.(key|value)[^\n]*read by wgmma",
            "A product begins before TMA has brought its tile: which barrier tells that the tile is there?",
        ),
        (
            r"does not wait for this product|used before it is waited for|NoneType",
            "A product is used before it has ended. `warpgroup_mma` returns at once; the numbers are there after a "
            "wait that leaves no product under way.",
        ),
        (
            r"race on tiles.(key|value)[^\n]*TMA load.*after: TMA load",
            "TMA is asked for two tiles in the same slot: into which slot does tile j + STAGES go?",
        ),
        (
            r"first wrong number.*# source.*query_tile, j \+ 1,",
            "Everything is in order, but the wrong tile comes into this slot: the next one has a slot already.",
        ),
        (
            r"a deadlock.*(key|value)_full",
            "The warps wait for a tile that nobody has asked TMA for. A slot that has been read must be filled "
            "again, for the iteration that is STAGES later, as long as there are tiles.",
        ),
        (
            r"more arrivals",
            "A tile is announced to a barrier that still waits for another one: into which slot does tile j + STAGES "
            "go?",
        ),
    ),
    hints=(
        "Each product takes two statements: one that begins it, with `is_async=True`, and one that waits for it. Only "
        "the second gives numbers that may be used.",
        "`scores = warpgroup_mma_wait(0, deps=[scores])`, and the same for the output. The QK product starts from "
        "nothing (`use_acc=False`), the PV product adds to `accumulator`.",
        "After the PV product: `gl.barrier()`, so that both warpgroups have read the tile. Then, if j + STAGES < "
        "end, `fetch_both(arrays, tiles, barriers, query_tile, j + STAGES, iteration % STAGES)`.",
    ),
    solution="""
def attend(query, arrays, tiles, barriers, query_tile, iteration, scale):
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

        # --- online softmax ---
        weights, correction, row_max = softmax(scores, row_max, scale)
        row_sum = row_sum * correction + gl.sum(weights, 1)
        accumulator = accumulator * by_row(correction)
        weights = gl.convert_layout(weights.to(tiles.key.dtype), WEIGHTS)

        # --- output: PV product ---
        await_tile(barriers.value_full, iteration, STAGES)
        value = tiles.value.index(iteration % STAGES).reshape([TILE_KEY, HEAD_DIM])
        accumulator = warpgroup_mma(weights, value, accumulator, is_async=True)
        accumulator = warpgroup_mma_wait(0, deps=[accumulator])

        # --- fill the slots again ---
        gl.barrier()
        if j + STAGES < end:
            fetch_both(arrays, tiles, barriers, query_tile, j + STAGES, iteration % STAGES)
        iteration += 1
    return accumulator, row_sum, iteration
""",
    wrong=(
        Wrong(
            "the scores are not waited for",
            "used before it has ended",
            old="scores = warpgroup_mma_wait(0, deps=[scores])",
            new="pass",
        ),
        Wrong(
            "the values are not waited for",
            "which barrier tells that the tile is there",
            old="await_tile(barriers.value_full, iteration, STAGES)",
            new="pass",
        ),
        Wrong(
            "the output begins anew with every tile",
            "wrong number",
            old="warpgroup_mma(weights, value, accumulator, is_async=True)",
            new="warpgroup_mma(weights, value, accumulator, use_acc=False, is_async=True)",
        ),
        Wrong(
            "into the other slot",
            "into which slot",
            old="j + STAGES, iteration % STAGES",
            new="j + STAGES, (iteration + 1) % STAGES",
        ),
        Wrong(
            "the slots are not filled again",
            "nobody has asked TMA for",
            old="fetch_both(arrays, tiles, barriers, query_tile, j + STAGES, iteration % STAGES)",
            new="pass",
        ),
        Wrong("the warpgroups do not meet", "do not meet between", old="        gl.barrier()\n", new=""),
        Wrong(
            "the warpgroups meet behind the request",
            "do not meet between",
            without="gl.barrier()",
            behind="fetch_both(",
        ),
        Wrong(
            "tiles behind the last one",
            "asked for tiles after the last one",
            old="if j + STAGES < end:",
            new="if True:",
        ),
        Wrong(
            "a product that is not begun and waited for",
            "write both waits yourself",
            old="""none, use_acc=False, is_async=True)
        scores = warpgroup_mma_wait(0, deps=[scores])
""",
            new="""none, use_acc=False, is_async=False)
""",
        ),
        Wrong(
            "a product at once, and its wait behind it",
            "write both waits yourself",
            old="accumulator, is_async=True)",
            new="accumulator)  # is_async=True",
        ),
        Wrong(
            "filled again before the product is over",
            "a slot that a product still reads",
            without="accumulator = warpgroup_mma_wait(",
            behind="fetch_both(",
        ),
    ),
    debrief="A product has ended after its wait, for the warpgroup that waits. Before its slot is filled again, all "
    "warpgroups must have read it: here they meet in every iteration.",
)
