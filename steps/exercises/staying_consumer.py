"""The consumer of a persistent block: what it waits for and gives back from one tile of queries to the next."""

from steps.exercises.in_kernel import InKernel
from tutorial_lib.exercises import Wrong

EXERCISE = InKernel(
    name="staying_consumer",
    step="lpt_scheduler",
    function="consume",
    kinds=({"head_dim": 128, "causal": True}, {"causal": True, "heads": 4, "kv_heads": 2, "dtype": "bfloat16"}),
    lengths=(512, 640),  # several tiles of queries for each of the simulator's three blocks
    multiple=128,
    schedules=6,
    lacking=(
        (
            "query_empty",
            "Nothing gives the place of Q back, and the producer waits for it with its second tile.",
        ),
        ("value_empty", "Nothing gives back the last place of V, which `attend_overlapped` leaves to you."),
    ),
    hints=(
        "Before the first product both of its factors must be there: tile query_turn of the queries, and tile turn "
        "of the "
        "keys. Behind attend_overlapped all QK products have ended, and one PV product is still under way.",
        "The place of Q is free at once. The place of V is free behind a wait for that product: wait(0), then "
        "release of "
        "tile turn. That tile has been used, so turn goes on by one. Nothing is set to 0 again.",
        "The place of the output may still be read for the tile before: tma.store_wait(0), then store, then "
        "fence_async_shared(), then the copy.",
    ),
    solution="""
def consume(arrays, tiles, barriers, work, scale, part: gl.constexpr):
    output = tiles.output.index(part)
    turn = 0
    query_turn = 0
    first, last = own_tiles(work)
    for n in range(first, last):
        head, batch, i = position(gl.load(work.order + n), work)
        place = Place(i * TILE_QUERY, head // GROUP_SIZE, batch, work.seq_len_kv)
        query = tiles.query.index(part).reshape([ROWS, HEAD_DIM])
        await_tile(barriers.query_full, query_turn, QUERY_STAGES)
        await_tile(barriers.key_full, turn, STAGES)
        scores = issue_scores(query, tiles.key, turn)
        accumulator, row_sum, turn, _ = attend_overlapped(scores, query, tiles, barriers, place, turn, scale, part)
        release(barriers.query_empty, query_turn, QUERY_STAGES)
        accumulator = warpgroup_mma_wait(0, deps=[accumulator])
        release(barriers.value_empty, turn, STAGES)
        turn += 1
        query_turn += 1

        # --- normalise and store ---
        o = (accumulator * by_row(1.0 / row_sum)).to(tiles.query.dtype)
        tma.store_wait(0)
        output.reshape(o.shape).store(o)
        fence_async_shared()
        tma.async_store(arrays.output, [batch, head, place.row + part * ROWS, 0], output)
    tma.store_wait(0)
""",
    wrong=(
        Wrong("the last tile of keys is not counted", ".key", old="        turn += 1\n", new=""),
        Wrong(
            "the ring begins anew for every tile of queries",
            ".key",
            old="        place = Place",
            new="        turn = 0\n        place = Place",
        ),
        Wrong(
            "always the first phase of the queries",
            "tiles.query",
            old="await_tile(barriers.query_full, query_turn",
            new="await_tile(barriers.query_full, 0",
        ),
        Wrong(
            "Q is not given back",
            "Nothing gives the place of Q back",
            old="        release(barriers.query_empty, query_turn, QUERY_STAGES)\n",
            new="",
        ),
        Wrong(
            "V is given back while it is read",
            "race on tiles.value",
            old="""        accumulator = warpgroup_mma_wait(0, deps=[accumulator])
        release(barriers.value_empty, turn, STAGES)
""",
            new="""        release(barriers.value_empty, turn, STAGES)
        accumulator = warpgroup_mma_wait(0, deps=[accumulator])
""",
        ),
        Wrong(
            "the output before is overwritten while it leaves",
            "race on tiles.output",
            old="        tma.store_wait(0)\n        output.reshape",
            new="        output.reshape",
        ),
        Wrong("no fence", "without fence_async_shared", old="        fence_async_shared()\n", new=""),
    ),
    debrief="The counters are set to 0 once and never again, because the barriers do not begin again either. The "
    "place of Q is "
    "free as soon as the scores are there, so the next queries arrive while this output leaves.",
)
