"""Queries that stay in registers: read once, from a buffer that the keys need next."""

from steps.exercises.one_buffer import InOrder
from tutorial_lib.exercises import Wrong

EXERCISE = InOrder(
    name="load_queries",
    step="q_registers",
    function="load_queries",
    kinds=({"heads": 1, "seq_len_q": 100}, {"heads": 1, "seq_len_q": 40, "dtype": "bfloat16"}),
    lengths=(70, 120),
    replaces="",
    functions={"hold_queries": "def hold_queries(query):\n    return (load_queries(query[0]),)\n"},  # of one panel
    order=(
        (
            "barrier",
            "load",
            "A thread waits for its own copies only, and reads those of others: a barrier belongs before the read.",
        ),
    ),
    followed=(
        (
            "load",
            "barrier",
            "The first warp that goes on begins to copy K over queries that another warp has not read yet: a barrier "
            "belongs behind the read.",
        ),
    ),
    typical=(
        (r"race on.*read by", "The queries are read before their copy is known to have ended."),
        (
            "factor 0 of a product has layout",
            "The queries are the left factor of a product, and come in another layout.",
        ),
    ),
    hints=(
        "The copy of Q has been asked for, and belongs to no group yet. What closes a group, and what waits for it?",
        "Then all warps must have waited before one of them reads. And all must have read before the caller begins "
        "to copy K "
        "into the same place.",
        "commit_group(), wait_group(0), gl.barrier(), q = place.load(LEFT), gl.barrier(), return q.",
    ),
    solution="""
def load_queries(place):
    async_copy.commit_group()
    async_copy.wait_group(0)
    gl.barrier()
    q = place.load(LEFT)
    gl.barrier()
    return q
""",
    wrong=(
        Wrong("no group", "before their copy is known", old="    async_copy.commit_group()\n", new=""),
        Wrong("no wait", "before their copy is known", old="    async_copy.wait_group(0)\n", new=""),
        Wrong(
            "waits before the group is closed",
            "before their copy is known",
            old="    async_copy.commit_group()\n    async_copy.wait_group(0)\n",
            new="    async_copy.wait_group(0)\n    async_copy.commit_group()\n",
        ),
        Wrong("read as the right factor", "left factor of a product", old="LEFT", new="RIGHT"),
        Wrong(
            "no barrier before the read", "before the read", old="    gl.barrier()\n    q = place", new="    q = place"
        ),
        Wrong("no barrier after the read", "to copy K over queries", old="LEFT)\n    gl.barrier()\n", new="LEFT)\n"),
    ),
    debrief="The second barrier protects a read from a later write. Without it a kernel in CUDA C++ would fail only "
    "now and "
    "then, when one warp is late.",
)
