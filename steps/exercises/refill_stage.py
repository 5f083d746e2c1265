"""The ring: which tile is copied into the place that has just become free, and a group for every turn."""

from steps.exercises.in_ring import InRing
from tutorial_lib.exercises import Wrong

EXERCISE = InRing(
    name="refill_stage",
    step="stages",
    function="refill",
    typical=(
        ("elements .* of a tensor that has", "A tile is copied from behind the end of K."),
        (
            r"race on.*: cp\.async of all warps.*after: cp\.async",
            "Two copies into the same stage are under way at once.",
        ),
        (
            r"race on.*read by.*# source.*if .*commit_group",
            "A tile is read too early in the last turns. Those turns commit no group, so fewer groups are under way "
            "than "
            "`wait_group(STAGES - 1)` allows, and it waits for nothing.",
        ),
        ("race on.*read by", "A tile is read whose copy is not known to have ended: which groups does the wait count?"),
        (
            "first wrong number",
            "The order is right and the numbers are not: some stage does not hold the tile of K or of V that the loop "
            "expects there.",
        ),
    ),
    hints=(
        "Tile j has just been used, and its stage is free. The other stages hold tiles j + 1 to j + STAGES - 1. "
        "Which tile "
        "is the next that belongs into the stage of tile j?",
        "Tile j + STAGES. Near the end there is none: copy the last tile once more, which nobody will read. And "
        "close the "
        "group in every turn, also there, because the wait counts groups.",
        "later = gl.minimum(j + STAGES, end - 1); two calls of copy_panels into stage j % STAGES; then "
        "async_copy.commit_group().",
    ),
    solution="""
def refill(keys, values, K, V, row_stride, j, end, seq_len_kv):
    later = gl.minimum(j + STAGES, end - 1)
    copy_panels(keys, j % STAGES, K, row_stride, later, seq_len_kv)
    copy_panels(values, j % STAGES, V, row_stride, later, seq_len_kv)
    async_copy.commit_group()
""",
    wrong=(
        Wrong("the end is forgotten", "behind the end of K", old="gl.minimum(j + STAGES, end - 1)", new="j + STAGES"),
        Wrong("the next tile", "does not hold the tile", old="j + STAGES,", new="j + 1,"),
        Wrong("one tile too far", "does not hold the tile", old="j + STAGES,", new="j + STAGES + 1,"),
        Wrong(
            "into the stage of the next tile",
            "Two copies into the same stage",
            source="""
def refill(keys, values, K, V, row_stride, j, end, seq_len_kv):
    later = gl.minimum(j + STAGES, end - 1)
    copy_panels(keys, (j + 1) % STAGES, K, row_stride, later, seq_len_kv)
    copy_panels(values, (j + 1) % STAGES, V, row_stride, later, seq_len_kv)
    async_copy.commit_group()
""",
        ),
        Wrong("no group", "which groups does the wait count", old="async_copy.commit_group()", new="pass"),
        Wrong(
            "no group when there is nothing left to copy",
            "fewer groups are under way",
            source="""
def refill(keys, values, K, V, row_stride, j, end, seq_len_kv):
    if j + STAGES < end:
        copy_panels(keys, j % STAGES, K, row_stride, j + STAGES, seq_len_kv)
        copy_panels(values, j % STAGES, V, row_stride, j + STAGES, seq_len_kv)
        async_copy.commit_group()
""",
        ),
        Wrong(
            "V is forgotten",
            "does not hold the tile",
            old="    copy_panels(values, j % STAGES, V, row_stride, later, seq_len_kv)\n",
            new="",
        ),
    ),
    debrief="Copying a tile that nobody reads looks wasteful, but it keeps one group a turn, and so one wait for all "
    "turns. An empty group would do as well.",
)
