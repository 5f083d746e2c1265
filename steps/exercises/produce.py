"""The producer of the attention kernel: it asks TMA for queries, keys and values, each as soon as its slot is free."""

from itertools import pairwise

from steps.exercises.in_kernel import InKernel
from tutorial_lib.exercises import Wrong

# In step producer a block has one tile of queries, and would never fill the queries' slot again. Here it gets two.
TWO_TILES_A_BLOCK = """
def own_tiles():
    first = gl.program_id(0) * 2
    last = gl.minimum(first + 2, gl.num_programs(0))
    return first, last
"""

VALUES_AWAITED = "            mbarrier.wait(barriers.value_empty.index(stage), used)\n"
FIRST_COPIES = (
    6  # of a block, which need to wait for nobody: the queries of two warpgroups, two tiles of keys, two of values
)


def copies_overlap(run, problem) -> str | None:
    """Whether a block asks for its first copies without waiting for one of them to end."""
    loads: dict = {}
    for block, lane, kind, _, begin, end in run.trace:
        if (lane, kind) == ("TMA", "load"):
            loads.setdefault(block, []).append((begin, end))
    for its in loads.values():
        first = its[:FIRST_COPIES]
        for n, ((_, came), (asked, _)) in enumerate(pairwise(first), 2):
            if asked >= came:
                return (
                    "everything is in order and the numbers are right, but the producer does not fetch ahead: it asks "
                    f"for copy {n} of a block only when copy {n - 1} has come, although the slots are free. It must "
                    "wait for slots that are released, and never for a copy to end."
                )
    return None


EXERCISE = InKernel(
    name="produce",
    step="producer",
    function="produce",
    functions={"one_tile": TWO_TILES_A_BLOCK},
    # Three tiles of keys, an odd number, for each of several tiles of queries, and heads of K and V that are shared.
    kinds=(
        {"heads": 1, "seq_len_q": 256, "seq_len_kv": 384},
        {"batch": 2, "heads": 2, "kv_heads": 1, "seq_len_q": 128, "dtype": "bfloat16"},
    ),
    lengths=(257, 383),
    watch=copies_overlap,
    typical=(
        # --- in the source ---
        (
            r"(race on tiles|more arrivals|a deadlock).*# source(?!.*[^_]iteration \+= 1)",
            "`iteration` stays what it is, and so every tile goes into the same slot.",
        ),
        # --- nobody can go on ---
        (
            r"a deadlock.*produce 2 waits for barriers.query_empty\[0\] with parity 0 \(0 phases",
            "The producer waits for the slot of the queries before anybody has used it: for its first use the wait "
            "for `query_empty` must pass at once.",
        ),
        (
            r"key_full\[0\] with parity 0 \(0 .*produce 2 waits for barriers.(key|value)_empty\[0\] with parity 0",
            "The producer waits for a slot of the ring that nobody has used yet. In the first round the wait for "
            "the empty barrier must pass at once: a fresh barrier lets a wait for parity 1 pass.",
        ),
        (
            r"-\d+ bytes missing",
            "TMA brought more bytes than were announced to this barrier. How many bytes have the queries of a block, "
            "with both copies together?",
        ),
        (
            r"a deadlock.*query_full[^\n]*[1-9]\d* bytes missing",
            "The queries' barrier still waits for bytes that nobody brings: count those of both copies, and no others.",
        ),
        (
            r"more arrivals.*mbarrier.expect\(full.*# source.*for warpgroup in[^\n]*\n[^\n]*expect",
            "`expect` is an arrival, and the queries' barrier wants one a phase: announce both copies together, in "
            "front of the loop.",
        ),
        # --- not in order ---
        (
            r"race on tiles.query[^\n]*read by wgmma.*after: TMA load",
            "A consumer multiplies queries that have not come yet: the barrier's phase is complete too early. It must "
            "count the bytes of both copies.",
        ),
        (
            r"(race on tiles.query|query_full[^\n]*more arrivals|barriers.query_full\[0\] with parity)",
            "The queries are not in order. In a block with several tiles of queries the slot of the queries is "
            "filled again: the producer must wait for `query_empty`, with the parity of this use, and count its tiles "
            "of queries.",
        ),
        (
            r"race on tiles.key",
            "The keys are not in order: TMA fills a slot that may still be read, or holds a tile that nobody has "
            "read. Wait for `key_empty` in front of the copy, with the slot and the parity of this iteration.",
        ),
        (
            r"race on tiles.value",
            "The values are not in order: TMA fills a slot that may still be read, or holds a tile that nobody has "
            "read. Wait for `value_empty` in front of the copy, with the slot and the parity of this iteration.",
        ),
        (
            r"more arrivals",
            "A tile is announced for a slot whose last tile has not come yet: nothing held the producer back. Is "
            "there a wait for the empty barrier in front of every copy, with the slot and parity of this iteration?",
        ),
        (
            r"a deadlock.*consume \d waits for barriers.(key|value)_full(?!.*produce 2)",
            "The producer has ended, and a consumer still waits for a tile: are there as many tiles as "
            "`tiles_to_visit` says, and does each go into the slot that its number says?",
        ),
        (
            r"a deadlock.*produce 2 waits for barriers.(key|value)_empty",
            "The producer waits for a phase that does not come. The remainder of `iteration` says which slot, its "
            "quotient how often that slot was filled, over all tiles of queries of the block.",
        ),
        # --- in order, and wrong ---
        (
            r"first wrong number",
            "Everything is in order, but the numbers are wrong: another tile came than should have. Look at the "
            "coordinates: head and first row of each copy. K and V have fewer heads than Q.",
        ),
    ),
    hints=(
        "Every tile is brought by the same three statements: wait until its slot is free, announce its bytes to "
        "the full barrier, ask TMA. For K and V `fetch` does the last two. Which counter belongs to the "
        "queries, and which to the ring?",
        "Tile number t of a ring of S slots has slot t % S, and the wait for its empty barrier has the parity t // S & "
        "1 ^ 1. For keys and values t is `iteration`, which goes on counting from one tile of queries to the next; for "
        "the queries it is `query_iteration`.",
        "The queries of a block are TILE_QUERY * HEAD_DIM elements of 2 bytes, announced once, and WARPGROUPS copies "
        "of ROWS rows, that of warpgroup w from row `row + w * ROWS`. Keys: `fetch(arrays.key, tiles.key, "
        "barriers.key_full, kv_head, batch, j * TILE_KEY, stage)`.",
    ),
    solution="""
def produce(arrays, tiles, barriers, work):
    iteration = 0
    query_iteration = 0
    first, last = own_tiles()
    for n in range(first, last):
        head, batch, i = position(n, work)
        row = i * TILE_QUERY
        _, end = tiles_to_visit(work.seq_len_kv)
        kv_head = head // GROUP_SIZE

        # --- queries ---
        slot = query_iteration % QUERY_STAGES
        mbarrier.wait(barriers.query_empty.index(slot), query_iteration // QUERY_STAGES & 1 ^ 1)
        full = barriers.query_full.index(slot)
        mbarrier.expect(full, TILE_QUERY * HEAD_DIM * 2)
        for warpgroup in gl.static_range(WARPGROUPS):
            at = [batch, head, row + warpgroup * ROWS, 0]
            tma.async_load(arrays.query, at, full, tiles.query.index(slot * WARPGROUPS + warpgroup))
        query_iteration += 1

        # --- keys and values ---
        for j in range(end):
            stage = iteration % STAGES
            used = iteration // STAGES & 1 ^ 1
            mbarrier.wait(barriers.key_empty.index(stage), used)
            fetch(arrays.key, tiles.key, barriers.key_full, kv_head, batch, j * TILE_KEY, stage)
            mbarrier.wait(barriers.value_empty.index(stage), used)
            fetch(arrays.value, tiles.value, barriers.value_full, kv_head, batch, j * TILE_KEY, stage)
            iteration += 1
""",
    wrong=(
        Wrong(
            "free starts closed",
            "nobody has used yet",
            old="iteration // STAGES & 1 ^ 1\n",
            new="iteration // STAGES & 1\n",
        ),
        Wrong(
            "tiles are counted, not uses",
            "how often that slot was filled",
            old="used = iteration // STAGES & 1 ^ 1",
            new="used = iteration & 1 ^ 1",
        ),
        Wrong("always passable", "held the producer back", old="used = iteration // STAGES & 1 ^ 1", new="used = 1"),
        Wrong(
            "one wait for both",
            "The values are not in order",
            old="mbarrier.wait(barriers.value_empty.index(stage), used)",
            new="pass",
        ),
        Wrong(
            "free is waited for behind the copy",
            "in front of the copy",
            without="mbarrier.wait(barriers.value_empty.",
            behind="fetch(arrays.value",
        ),
        Wrong(
            "the iteration does not go on",
            "every tile goes into the same slot",
            old="            iteration += 1\n",
            new="",
        ),
        Wrong(
            "every tile of queries counts anew",
            "over all tiles of queries",
            old="        # --- keys and values ---",
            new="        iteration = 0",
        ),
        Wrong("the slot is that of j", "says which slot", old="stage = iteration % STAGES", new="stage = j % STAGES"),
        Wrong(
            "queries are not waited for",
            "wait for `query_empty`",
            old="mbarrier.wait(barriers.query_empty.index(slot), query_iteration // QUERY_STAGES & 1 ^ 1)",
            new="pass",
        ),
        Wrong(
            "the queries' slot starts closed",
            "before anybody has used it",
            old="query_iteration // QUERY_STAGES & 1 ^ 1",
            new="query_iteration // QUERY_STAGES & 1",
        ),
        Wrong("tiles of queries are not counted", "count its tiles", old="        query_iteration += 1\n", new=""),
        Wrong(
            "bytes of one copy", "count the bytes of both copies", old="TILE_QUERY * HEAD_DIM", new="ROWS * HEAD_DIM"
        ),
        Wrong("bytes of float32", "bytes that nobody brings", old="HEAD_DIM * 2)", new="HEAD_DIM * 4)"),
        Wrong(
            "announced for each copy",
            "in front of the loop",
            old="""        mbarrier.expect(full, TILE_QUERY * HEAD_DIM * 2)
        for warpgroup in gl.static_range(WARPGROUPS):
""",
            new="""        for warpgroup in gl.static_range(WARPGROUPS):
            mbarrier.expect(full, ROWS * HEAD_DIM * 2)
""",
        ),
        Wrong("both warpgroups the same rows", "Look at the coordinates", old="row + warpgroup * ROWS", new="row"),
        Wrong("the queries' head for K and V", "fewer heads than Q", old="head // GROUP_SIZE", new="head"),
        Wrong(
            "the keys' copy is waited for",
            "never for a copy to end",
            old=VALUES_AWAITED,
            new="            mbarrier.wait(barriers.key_full.index(stage), used ^ 1)\n" + VALUES_AWAITED,
        ),
        Wrong(
            "each tile must be used before the next is asked for",
            "does not fetch ahead",
            old="            iteration += 1\n",
            new="            mbarrier.wait(barriers.value_empty.index(stage), used ^ 1)\n            iteration += 1\n",
        ),
    ),
    debrief="This is the producer of every kernel that follows: two counters, a wait for the empty barrier before "
    "every copy, and no wait for a copy to end. In which order it waits for the slots of keys and values is up to you.",
)
