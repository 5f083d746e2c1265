"""Step 141: blocks end together also where the last tiles of queries are long.

Heads are dealt in sections whose keys and values fit into a part of L2, the longest tiles of a section first. So the
last section's longest tiles begin late. Beyond head_dim 128 a section has few heads, and its tiles keep the blocks busy
for a shorter time than its longest tile takes: most blocks are done while a few still work on long tiles. Here the last
section has as many heads as it takes to keep all blocks busy for that long. Their keys and values may need more of L2
than a section should. Where blocks end together anyway, the lists are those of step pieces.
"""

import dataclasses

from steps.core.order import DEALT
from steps.everyday import step140_pieces
from tutorial_lib.problem import Problem

STEP = step140_pieces.STEP.evolve(
    number=141,
    name="even_end",
    title="All end together",
    change="The last section of heads is larger where its long tiles would else begin too late: beyond head_dim 128.",
    fork=True,
    default_problem=Problem(batch=4, heads=16, seq_len_q=4096, seq_len_kv=4096, head_dim=256, causal=True),
    order=dataclasses.replace(DEALT, even_end=True),
)
