"""Walking the keys backwards: which tile comes when, and what a group does with a tile that only another one sees."""

from steps.exercises.in_kernel import InKernel
from tutorial_lib.exercises import Wrong

EXERCISE = InKernel(
    name="diagonal_first",
    step="diagonal_first",
    function="pass_over",
    edits=(
        (
            """\
        # Pass over the first tile of keys, where only a later part sees it. Returns the turn of the next.
        _, block_end = tiles_to_visit(place.row, place.seq_len_kv)
        _, end = own_tiles_to_visit(place.row + part * ROWS, place.seq_len_kv, block_end)
        if end < block_end:
            await_tile(barriers.key_ready, turn, STAGES)
            release(barriers.key_free, turn)
            await_tile(barriers.value_ready, turn, STAGES)
            release(barriers.value_free, turn)
            turn += 1
""",
            """\
        turn = pass_over(place, barriers, turn, part)
""",
        ),
    ),
    kinds=(
        {"head_dim": 256, "causal": True, "heads": 4, "seq_len_q": 256, "seq_len_kv": 256},
        {"head_dim": 256, "causal": True, "dtype": "bfloat16"},
    ),
    lengths=(384, 512),
    multiple=128,
    schedules=16,  # what is given back too early is a race under about half of them
    hints=(
        "The producer brings the last tile of keys first. A group needs its tiles [0, end), the block those of [0, "
        "block_end). At head_dim 256 at most one tile lies between.",
        "The ring does not know that a group passes over a tile: the places of K and of V are free only when both "
        "groups have said so, and the group's count of tiles must go on, too.",
        "Wait for the tile before you give it back (await_tile, then release, for keys and for values). Without the "
        "wait the arrival could be counted for an earlier tile in the same place. Then turn += 1.",
    ),
    solution="""
def pass_over(place, barriers, turn, part: gl.constexpr):
    _, block_end = tiles_to_visit(place.row, place.seq_len_kv)
    _, end = own_tiles_to_visit(place.row + part * ROWS, place.seq_len_kv, block_end)
    if end < block_end:
        await_tile(barriers.key_ready, turn, STAGES)
        release(barriers.key_free, turn)
        await_tile(barriers.value_ready, turn, STAGES)
        release(barriers.value_free, turn)
        turn += 1
    return turn
""",
    wrong=(
        Wrong(
            "nothing is given back",
            "a deadlock",
            source="""
def pass_over(place, barriers, turn, part: gl.constexpr):
    _, block_end = tiles_to_visit(place.row, place.seq_len_kv)
    _, end = own_tiles_to_visit(place.row + part * ROWS, place.seq_len_kv, block_end)
    if end < block_end:
        turn += 1
    return turn
""",
        ),
        Wrong("the count does not go on", ".key", old="        turn += 1\n", new=""),
        Wrong("nothing is passed over", "a deadlock", old="if end < block_end", new="if end > block_end"),
        Wrong("every tile is passed over", "a deadlock", old="if end < block_end", new="if end <= block_end"),
        Wrong(
            "values given back unseen",
            "race on tiles.value",
            old="        await_tile(barriers.value_ready, turn, STAGES)\n",
            new="",
        ),
        Wrong(
            "both unseen",
            "race on tiles.value",
            source="""
def pass_over(place, barriers, turn, part: gl.constexpr):
    _, block_end = tiles_to_visit(place.row, place.seq_len_kv)
    _, end = own_tiles_to_visit(place.row + part * ROWS, place.seq_len_kv, block_end)
    if end < block_end:
        release(barriers.key_free, turn)
        release(barriers.value_free, turn)
        turn += 1
    return turn
""",
        ),
    ),
    debrief="The barrier counts arrivals and does not ask who arrives. Who passes over a tile must still arrive once, "
    "and not before the tile is there.",
)
