"""The output leaves through a place in shared memory that holds half of it."""

from steps.exercises.in_kernel import InKernel
from tutorial_lib.exercises import Wrong

EXERCISE = InKernel(
    name="output_in_halves",
    step="split_epilogue",
    function="store_in_halves",
    replaces="store_halves",
    kinds=({"head_dim": 256},),
    lengths=(256, 256),
    hints=(
        "Four things happen for each half: the place must be free, the half is written into it, TMA is told, and TMA "
        "is asked to copy. Two of them need a synchronisation.",
        "The copy reads the place later, by itself. tma.store_wait(0) waits until all copies that this group asked for "
        "have read their place. In front of which two lines is it needed? The group comes here for every tile.",
        "In front of both writes: the place may still be read for the tile before, and then for the left half. Between "
        "a write and its copy stands fence_async_shared(), since TMA reads what ordinary instructions wrote.",
    ),
    solution="""
def store_in_halves(o, array, place, batch, head, row):
    left, right = o.reshape([ROWS, 2, OUTPUT_COLUMNS]).permute((0, 2, 1)).split()
    tma.store_wait(0)
    place.reshape(left.shape).store(left)
    fence_async_shared()
    tma.async_store(array, [batch, head, row, 0], place)
    tma.store_wait(0)
    place.reshape(right.shape).store(right)
    fence_async_shared()
    tma.async_store(array, [batch, head, row, OUTPUT_COLUMNS], place)
""",
    wrong=(
        Wrong(
            "the left half is overwritten while it leaves",
            "race on",
            old="    tma.store_wait(0)\n    place.reshape(right",
            new="    place.reshape(right",
        ),
        Wrong(
            "the tile before is overwritten while it leaves",
            "race on",
            old="    tma.store_wait(0)\n    place.reshape(left",
            new="    place.reshape(left",
        ),
        Wrong(
            "no fence",
            "without fence_async_shared",
            old="    place.reshape(right.shape).store(right)\n    fence_async_shared()\n",
            new="    place.reshape(right.shape).store(right)\n",
        ),
        Wrong("both halves at column 0", "wrong number", old="row, OUTPUT_COLUMNS]", new="row, 0]"),
        Wrong("the column is counted in halves", "wrong number", old="row, OUTPUT_COLUMNS]", new="row, 1]"),
    ),
    debrief="What is saved in shared memory is paid in time: the second half waits in registers until the first has "
    "left. The copy of the second half goes on while the next tile of queries is computed.",
)
