"""Three mistakes in what the producer does for a tile of keys and one of values."""

from steps.exercises.in_kernel import InKernel, copies_overlap
from tutorial_lib.exercises import Wrong

EXERCISE = InKernel(
    name="mend_fetch",
    step="producer",
    function="fetch_both",
    mend=True,
    replaces="fetch_key_and_value",
    kinds=({"heads": 1},),
    lengths=(300, 384),  # three tiles: the ring is used a second time
    watch=copies_overlap,
    hints=(
        "Mend one mistake at a time, and read what the simulator says then. First: who waits, for which phase of "
        "which barrier, and has anybody ever used that slot?",
        "A slot that nobody has used is free: its first wait must pass at once, and a wait for parity 1 does. For the "
        "second mistake look at the bytes that are missing: an element has two. For the third compare what is done for "
        "keys with what is done for values.",
        "`used = iteration // STAGES & 1 ^ 1`; `size = TILE_KEY * HEAD_DIM * 2`; and "
        "`mbarrier.wait(barriers.value_empty.index(stage), used)` before the values are asked for.",
    ),
    solution="""
def fetch_both(arrays, tiles, barriers, kv_head, batch, row, iteration):
    stage = iteration % STAGES
    used = iteration // STAGES & 1 ^ 1
    size = TILE_KEY * HEAD_DIM * 2
    mbarrier.wait(barriers.key_empty.index(stage), used)
    full = barriers.key_full.index(stage)
    mbarrier.expect(full, size)
    tma.async_load(arrays.key, [batch, kv_head, row, 0], full, tiles.key.index(stage))
    mbarrier.wait(barriers.value_empty.index(stage), used)
    full = barriers.value_full.index(stage)
    mbarrier.expect(full, size)
    tma.async_load(arrays.value, [batch, kv_head, row, 0], full, tiles.value.index(stage))
""",
    wrong=(
        Wrong(
            "as the chapter gives it",
            "produce 2 waits for barriers.key_empty[0] with parity 0 (0 phases complete",
            source="""
def fetch_both(arrays, tiles, barriers, kv_head, batch, row, iteration):
    stage = iteration % STAGES
    used = iteration // STAGES & 1
    size = TILE_KEY * HEAD_DIM
    mbarrier.wait(barriers.key_empty.index(stage), used)
    full = barriers.key_full.index(stage)
    mbarrier.expect(full, size)
    tma.async_load(arrays.key, [batch, kv_head, row, 0], full, tiles.key.index(stage))
    full = barriers.value_full.index(stage)
    mbarrier.expect(full, size)
    tma.async_load(arrays.value, [batch, kv_head, row, 0], full, tiles.value.index(stage))
""",
        ),
        Wrong("the bytes are not mended", "bytes missing", old="HEAD_DIM * 2", new="HEAD_DIM"),
        Wrong(
            "nobody waits for the slot of values", "race on tiles.value", without="mbarrier.wait(barriers.value_empty."
        ),
        Wrong("the wrong parity", "a deadlock", old=" & 1 ^ 1", new=" & 1"),
        Wrong("a parity that never changes", "got more arrivals", old="iteration // STAGES & 1 ^ 1", new="1"),
        Wrong(
            "the keys' copy is waited for",
            "never for a copy to end",
            old="    mbarrier.wait(barriers.value_empty.index(stage), used)\n",
            new="    mbarrier.wait(full, used ^ 1)\n    mbarrier.wait(barriers.value_empty.index(stage), used)\n",
        ),
    ),
    debrief="Three mistakes, three messages: a deadlock in which the producer waits for a slot that nobody has used, "
    "a deadlock with bytes that never come, and a race that a GPU might show now and then, or never.",
)
