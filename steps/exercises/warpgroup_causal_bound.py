"""Which tiles of keys a warpgroup visits under a causal mask: up to its own last query, and not the block's."""

from steps.exercises.in_kernel import InKernel
from tutorial_lib.exercises import Wrong
from tutorial_lib.simulator.under_way import begun

GROUPS, ROWS, KEYS = 3, 64, 128  # at head_dim 64


def nothing_in_vain(run, problem) -> str | None:
    """Whether the groups begin no more products than their queries need: two for every tile of keys they see."""
    needed = 0
    for block in range(0, problem.seq_len_q, GROUPS * ROWS):
        for first in range(block, block + GROUPS * ROWS, ROWS):
            keys = min(first + ROWS, block + GROUPS * ROWS, -(-problem.seq_len_kv // KEYS) * KEYS)
            needed += problem.heads * 2 * -(-keys // KEYS)
    counted = begun(run)
    mine = sum(counted.values()) - len(
        counted
    )  # every group begins one at the end that nobody needs: see step epilogue_overlap
    if mine > needed:
        return (
            f"the numbers are right, but the groups begin {mine} products, and {needed} are enough. Some group visits "
            "a tile of keys of which none of its 64 queries sees a key."
        )
    return None


EXERCISE = InKernel(
    name="warpgroup_causal_bound",
    step="warpgroup_causal_bound",
    function="own_tiles_to_visit",
    kinds=({"causal": True, "heads": 1}, {"causal": True, "heads": 1, "dtype": "bfloat16"}),
    lengths=(1346, 1400),  # with fewer queries two groups compute, and none has a tile to spare
    watch=nothing_in_vain,
    hints=(
        "The group's queries are first_query to first_query + ROWS - 1. Query q sees the keys 0 to q. How many keys "
        "does the last query of the group see, and the first?",
        "The last sees first_query + ROWS keys: so many that gl.cdiv by TILE_KEY gives the number of tiles. The first "
        "sees first_query + 1; every key below first_query is seen by all queries of the group.",
        "whole = gl.minimum(first_query, seq_len_kv) // TILE_KEY. A group whose queries lie behind the last one of all "
        "must not wait for keys that nobody fetches: end = gl.minimum(block_end, ...).",
    ),
    solution="""
def own_tiles_to_visit(first_query, seq_len_kv, block_end):
    whole = gl.minimum(first_query, seq_len_kv) // TILE_KEY
    end = gl.minimum(block_end, gl.cdiv(first_query + ROWS, TILE_KEY))
    return whole, end
""",
    wrong=(
        Wrong(
            "as far as the block",
            "none of its 64 queries sees a key",
            old="gl.minimum(block_end, gl.cdiv(first_query + ROWS, TILE_KEY))",
            new="block_end",
        ),
        Wrong("the group's first query, not its last", "a deadlock", old="first_query + ROWS,", new="first_query,"),
        Wrong("one tile too many", "none of its 64 queries", old="first_query + ROWS,", new="first_query + 2 * ROWS,"),
        Wrong(
            "beyond the keys that there are",
            "a deadlock",
            old="gl.minimum(block_end, gl.cdiv(first_query + ROWS, TILE_KEY))",
            new="gl.cdiv(first_query + ROWS, TILE_KEY)",
        ),
        Wrong(
            "a tile counts as whole that only the last query sees",
            "wrong number",
            old="gl.minimum(first_query, seq_len_kv)",
            new="gl.minimum(first_query + ROWS, seq_len_kv)",
        ),
    ),
    debrief="A group that ends early still gives back the places of the tiles that it passes over. It waits for each "
    "before it does: without the wait, its arrival could be counted for an earlier tile in the same place.",
)
