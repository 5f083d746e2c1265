"""One buffer each for K and V: in which order to wait for one tile and to begin the copy of the other."""

from __future__ import annotations

import re
from dataclasses import dataclass

from steps.exercises.in_kernel import InKernel
from tutorial_lib.exercises import Wrong, source_of

RESCUED = (
    "The numbers are right, because Triton's compiler finds where warps must wait for each other and puts a missing "
    "barrier "
    "in. A compiler of CUDA C++ does not, so write it where it belongs."
)
CALLS = re.compile(r"^[^#\n]*?\b(wait_group|barrier|copy_panels|commit_group|load)\(", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class InOrder(InKernel):
    """Judged by the order of its calls, too: neither the simulator nor Triton's compiler needs its barriers.

    order: (before, after, words): a call of ``after`` without one of ``before`` in front of it is wrong.
    followed: (call, by, words): so is a call that no call of ``by`` follows.
    """

    order: tuple[tuple[str, str, str], ...] = ()
    followed: tuple[tuple[str, str, str], ...] = ()

    def judge(self, function, chance):
        if wrong := super().judge(function, chance):
            return wrong
        calls = CALLS.findall(source_of(function))
        places = list(enumerate(calls))
        wrong = [
            *(w for before, after, w in self.order for n, call in places if call == after and before not in calls[:n]),
            *(w for call, by, w in self.followed for n, other in places if other == call and by not in calls[n:]),
        ]
        return f"{RESCUED} {wrong[0]}" if wrong else None


EXERCISE = InOrder(
    name="one_buffer",
    step="shared_kv_buffer",
    function="wait_then_copy",
    kinds=({"heads": 1, "seq_len_q": 40}, {"heads": 1, "seq_len_q": 40, "dtype": "bfloat16"}),
    lengths=(130, 190),
    order=(
        (
            "barrier",
            "copy_panels",
            "Another warp may still read the buffer that your copy fills: a `gl.barrier()` belongs in front of every "
            "copy.",
        ),
        (
            "wait_group",
            "barrier",
            "A thread waits for its own copies only. A barrier in front of the wait does not tell it that the copies "
            "of other "
            "threads have come: wait first.",
        ),
    ),
    typical=((r"race on.*read by", "A tile is read whose copy is not known to have ended."),),
    hints=(
        "When it is called for V, three things must be true afterwards: this tile of K has come, all warps are done "
        "with "
        "the V before, and the copy of the next V is under way.",
        "At the call exactly one group is under way, that of the tile that is used next. So which number does "
        "wait_group "
        "need? The barrier makes the wait of each thread count for all of them.",
        "wait_group(0), gl.barrier(), copy_panels(free, pointer, row_stride, tile, seq_len_kv), commit_group().",
    ),
    solution="""
def wait_then_copy(free, pointer, row_stride, tile, seq_len_kv):
    async_copy.wait_group(0)
    gl.barrier()
    copy_panels(free, pointer, row_stride, tile, seq_len_kv)
    async_copy.commit_group()
""",
    wrong=(
        Wrong("one group may be under way", "not known to have ended", old="wait_group(0)", new="wait_group(1)"),
        Wrong("no barrier", "Another warp may still read the buffer", old="    gl.barrier()\n", new=""),
        Wrong(
            "the copy begins before the wait",
            "Another warp may still read the buffer",
            source="""
def wait_then_copy(free, pointer, row_stride, tile, seq_len_kv):
    copy_panels(free, pointer, row_stride, tile, seq_len_kv)
    async_copy.commit_group()
    async_copy.wait_group(1)
    gl.barrier()
""",
        ),
        Wrong(
            "the barrier stands in front of the wait",
            "A thread waits for its own copies only",
            source="""
def wait_then_copy(free, pointer, row_stride, tile, seq_len_kv):
    gl.barrier()
    async_copy.wait_group(0)
    copy_panels(free, pointer, row_stride, tile, seq_len_kv)
    async_copy.commit_group()
""",
        ),
        Wrong("no group", "not known to have ended", old="    async_copy.commit_group()\n", new=""),
    ),
    debrief="One wait and one barrier serve two purposes: the tile that comes next has arrived, and the buffer that "
    "was used "
    "last is free. A copy has half a turn to arrive, where step stages gives it a whole one.",
)
