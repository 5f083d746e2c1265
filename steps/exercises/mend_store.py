"""A store of the output that is handed to TMA in the wrong order."""

from steps.exercises.in_kernel import InKernel
from tutorial_lib.exercises import Wrong, source_of

# The kernel hands over the array alone; the answer knows it as one of several.
STORE_WHOLE = """
def store_whole(o, array, place, batch, head, row):
    store_output(o, place, Arrays(array, array, array, array), batch, head, row)
"""

LATE = (
    "Everything is in order, but the block waits for its copy at once, and TMA shall read the place while the block "
    "goes on. Wait as late as you may: in front of the next write to the place."
)


class MendStore(InKernel):
    """Also refuses a wait that is right but early."""

    def judge(self, function, chance):
        wrong = super().judge(function, chance)
        source = source_of(function)
        if wrong is None and source.rfind("store_wait(") > source.find("async_store("):
            return LATE
        return wrong


EXERCISE = MendStore(
    name="mend_store",
    step="lpt_scheduler",
    function="store_output",
    mend=True,
    replaces="",
    functions={"store_whole": STORE_WHOLE},
    kinds=({"causal": True},),
    lengths=(270, 384),  # six tiles of queries for three blocks
    hints=(
        "The first message names two lines: an ordinary store, and a TMA copy that reads what it wrote. What must "
        "stand between them?",
        "A fence orders what came before it. For the second message: in this step a block stays, and computes several "
        "tiles. What may TMA still be reading when the second one is written?",
        "Wait for the last copy (tma.store_wait(0)), write, fence_async_shared(), copy: in this order.",
    ),
    solution="""
def store_output(o, output, arrays, batch, head, row):
    tma.store_wait(0)
    output.reshape(o.shape).store(o)
    fence_async_shared()
    tma.async_store(arrays.output, [batch, head, row, 0], output)
""",
    wrong=(
        Wrong(
            "as the chapter gives it",
            "no fence on tiles.output",
            source="""
def store_output(o, output, arrays, batch, head, row):
    fence_async_shared()
    output.reshape(o.shape).store(o)
    tma.async_store(arrays.output, [batch, head, row, 0], output)
""",
        ),
        Wrong(
            "nobody waits for the last copy",
            "race on tiles.output",
            old="    tma.store_wait(0)\n",
            new="",
        ),
        Wrong(
            "the wait stands between writing and copying",
            "race on tiles.output",
            source="""
def store_output(o, output, arrays, batch, head, row):
    output.reshape(o.shape).store(o)
    tma.store_wait(0)
    fence_async_shared()
    tma.async_store(arrays.output, [batch, head, row, 0], output)
""",
        ),
        Wrong(
            "the fence stands behind the copy",
            "no fence on tiles.output",
            source="""
def store_output(o, output, arrays, batch, head, row):
    tma.store_wait(0)
    output.reshape(o.shape).store(o)
    tma.async_store(arrays.output, [batch, head, row, 0], output)
    fence_async_shared()
""",
        ),
        Wrong(
            "the copy is waited for at once",
            "as late as you may",
            source="""
def store_output(o, output, arrays, batch, head, row):
    output.reshape(o.shape).store(o)
    fence_async_shared()
    tma.async_store(arrays.output, [batch, head, row, 0], output)
    tma.store_wait(0)
""",
        ),
        Wrong(
            "one copy may still be under way",
            "race on tiles.output",
            old="store_wait(0)",
            new="store_wait(1)",
        ),
    ),
    debrief="Wait, write, fence, copy. The fence is missed in every block; the wait only where a block has a second "
    "tile, so a test with short sequences would not have found it.",
)
