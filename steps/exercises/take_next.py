"""Tiles taken one by one: the request for a block that has not begun, and when it may be made."""

from steps.exercises.in_kernel import InKernel
from tutorial_lib.exercises import Wrong

EXERCISE = InKernel(
    name="take_next",
    step="dynamic_scheduler",
    function="take_next",
    kinds=({"causal": True, "heads": 3, "kv_heads": 1},),
    lengths=(258, 300),  # six tiles of queries, of which the simulator's first block takes all
    typical=(
        (
            r"race on taken\.answer[^\n]*: answer to a request",
            "The answer is overwritten before all roles have read the one before. `work.taken.free` completes when "
            "they have.",
        ),
        (
            r"waits for taken\.free",
            "The role that takes tiles waits for others to have read an answer. The first wait must pass at once, as "
            "nothing was answered before: a fresh barrier lets pass who waits for parity 1.",
        ),
        (
            r"waits for taken\.ready[^\n]*-\d+ bytes missing",
            "`work.taken.ready` completes when one role has arrived and all announced bytes have come. "
            "mbarrier.expect does both: it arrives, and announces bytes. How many bytes has an answer?",
        ),
    ),
    lacking=(
        (
            "try_cancel(",
            "Nobody asks for a block: clc.try_cancel(work.taken.answer, work.taken.ready.index(0)).",
        ),
        (
            "told(",
            "All roles must go on with the same tile, or end together: told(last, turn, work) waits for the answer and "
            "reads it, as the others do.",
        ),
    ),
    hints=(
        "Three things come before the answer is read: the wait for work.taken.free, the bytes that "
        "work.taken.ready is to expect, and the request.",
        "An answer is two numbers of 64 bits: mbarrier.expect(work.taken.ready.index(0), 16).",
        "The wait: mbarrier.wait(work.taken.free.index(0), turn & 1 ^ 1). Then the bytes, and behind them "
        "clc.try_cancel(work.taken.answer, work.taken.ready.index(0)).",
    ),
    solution="""
def take_next(last, turn, work):
    mbarrier.wait(work.taken.free.index(0), turn & 1 ^ 1)
    mbarrier.expect(work.taken.ready.index(0), 16)
    clc.try_cancel(work.taken.answer, work.taken.ready.index(0))
    return told(last, turn, work)
""",
    wrong=(
        Wrong(
            "nobody waits for the readers",
            "is overwritten before all roles",
            old="    mbarrier.wait(work.taken.free.index(0), turn & 1 ^ 1)\n",
            new="",
        ),
        Wrong("the other parity", "The first wait must pass at once", old="turn & 1 ^ 1", new="turn & 1"),
        Wrong(
            "no bytes are announced",
            "How many bytes has an answer",
            old="    mbarrier.expect(work.taken.ready.index(0), 16)\n",
            new="",
        ),
        Wrong("half of the bytes", "How many bytes has an answer", old="16)", new="8)"),
        Wrong(
            "nobody asks",
            "Nobody asks for a block",
            old="    clc.try_cancel(work.taken.answer, work.taken.ready.index(0))\n",
            new="",
        ),
        Wrong(
            "it reads without waiting",
            "read by copy",
            source="""
def take_next(last, turn, work):
    mbarrier.wait(work.taken.free.index(0), turn & 1 ^ 1)
    mbarrier.expect(work.taken.ready.index(0), 16)
    clc.try_cancel(work.taken.answer, work.taken.ready.index(0))
    return clc.load_result(work.taken.answer).program_id(0)
""",
        ),
        Wrong(
            "it ends by itself",
            "must go on with the same tile",
            old="return told(last, turn, work)",
            new="return last",
        ),
    ),
    debrief="The hardware knows which blocks have not begun, and gives each of them away once. What is left to the "
    "kernel is to keep an answer until all roles have read it.",
)
