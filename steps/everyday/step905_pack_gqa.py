"""Step 905: the queries of all heads of a group in one tile.

Query heads of a group share their keys and values (grouped-query attention, Ainslie et al. 2023,
https://arxiv.org/abs/2305.13245). A block that owns queries of one head fetches K and V for that head alone; where
there are fewer queries than a tile has rows, most of the tile is empty, and the group's K and V cross to the SMs once
for every head. Here a tile of rows holds fewer queries, each for every head of the group: K and V are fetched once for
all of them, and the tile is full with an eighth of the queries where eight heads share. The mask asks for a row's own
query. flash-attn calls this ``pack_gqa``.
"""

from steps.everyday import step904_varlen
from tutorial_lib.problem import Problem

STEP = step904_varlen.STEP.evolve(
    number=905,
    name="pack_gqa",
    title="A group in a tile",
    change="A tile holds the queries of all heads of a group, which share its tiles of keys and values.",
    default_problem=Problem(
        batch=16, heads=64, kv_heads=8, seq_len_q=16, seq_len_kv=8192, head_dim=128, dtype="bfloat16"
    ),
    pack_groups=True,
)
