"""The producer of a block that stays: queries as well, and counters that go on from one tile of queries to the next."""

from steps.exercises.in_kernel import InKernel
from tutorial_lib.exercises import Wrong

EXERCISE = InKernel(
    name="staying_producer",
    step="dealt",
    function="produce",
    kinds=({"head_dim": 128, "causal": True}, {"causal": True, "heads": 4, "kv_heads": 2, "dtype": "bfloat16"}),
    lengths=(384, 640),  # several tiles of queries for each of the simulator's three blocks
    lacking=(
        (" turn += 1", "The counters `turn` and `query_turn` must go on, each by one for a tile."),
        ("query_free", "Nothing waits until the groups have read the last queries in the place of Q."),
    ),
    hints=(
        "The place of a tile is its number modulo the number of places. How often was that place filled before this "
        "tile? "
        "The groups have completed the barrier `free` so many times when the place is free for it.",
        "Use u of a place (u = 0, 1, 2 ...) has to wait for phase u - 1 of its barrier `free`, and the first use for "
        "nothing. "
        "A fresh barrier lets a wait for parity 1 pass. So the parity is that of u, turned round: u & 1 ^ 1.",
        "For keys and values u is turn // STAGES. For queries there is one place, so u is query_turn itself. Count "
        "turn up "
        "in the inner loop and query_turn in the outer one, and set neither to 0 again.",
    ),
    solution="""
def produce(arrays, tiles, barriers, work):
    turn = 0
    query_turn = 0
    first, last = own_tiles(work)
    for n in range(first, last):
        head, batch, i = position(gl.load(work.order + n), work)
        row = i * TILE_QUERY
        _, end = tiles_to_visit(row, work.seq_len_kv)
        mbarrier.wait(barriers.query_free.index(0), query_turn & 1 ^ 1)
        ready = barriers.query_ready.index(0)
        mbarrier.expect(ready, TILE_QUERY * HEAD_DIM * 2)
        for part in gl.static_range(PARTS):
            at = [batch, head, row + part * ROWS, 0]
            tma.async_copy_global_to_shared(arrays.query, at, ready, tiles.query.index(part))
        query_turn += 1
        for j in range(end):
            stage = turn % STAGES
            used = turn // STAGES & 1 ^ 1
            mbarrier.wait(barriers.key_free.index(stage), used)
            fetch(arrays.key, tiles.key, barriers.key_ready, head // GROUP_SIZE, batch, j * TILE_KEY, stage)
            mbarrier.wait(barriers.value_free.index(stage), used)
            fetch(arrays.value, tiles.value, barriers.value_ready, head // GROUP_SIZE, batch, j * TILE_KEY, stage)
            turn += 1
""",
    wrong=(
        Wrong(
            "the ring begins anew for every tile of queries",
            "a deadlock",
            old="        for j in range(end):\n",
            new="        turn = 0\n        for j in range(end):\n",
        ),
        Wrong("the place is that of j", "a deadlock", old="stage = turn % STAGES", new="stage = j % STAGES"),
        Wrong("the parity of the groups", "a deadlock", old="turn // STAGES & 1 ^ 1", new="turn // STAGES & 1"),
        Wrong("the parity is that of the tile", "a deadlock", old="turn // STAGES & 1 ^ 1", new="turn & 1 ^ 1"),
        Wrong("the first parity for all queries", ".query", old="query_turn & 1 ^ 1", new="1"),
        Wrong(
            "nobody waits for the place of Q",
            "Nothing waits until the groups",
            old="        mbarrier.wait(barriers.query_free.index(0), query_turn & 1 ^ 1)\n",
            new="",
        ),
        Wrong(
            "nobody waits for the place of V",
            "race on tiles.value",
            old="            mbarrier.wait(barriers.value_free.index(stage), used)\n",
            new="",
        ),
    ),
    debrief="A counter that never goes back tells everything: the place of a tile, how often the place was filled, "
    "and so the "
    "phase to wait for. The producer runs ahead into the next tile of queries by itself, as far as places are free.",
)
