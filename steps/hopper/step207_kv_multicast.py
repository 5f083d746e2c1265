"""Step 207: TMA multicast. Two blocks on neighboring SMs share what TMA brings of keys and values.

Every block fetches all keys that its queries see, and all values. For 128 queries that is a byte for every 128
operations, and the way from L2 into shared memory takes energy, of which the power limit allows only so much a second:
trial ``fetched_seldom`` fetches half as many, and the clock rises. Here blocks are launched in clusters of two. Both
compute queries of the same head. TMA brings a tile of keys or values to the shared memory of both by one copy
(``.multicast::cluster``), which leaves L2 once.

The price: a slot is empty only when both blocks have read it, so the two cannot be further apart than the ring is long.
Under a causal mask one of two tiles of queries sees a tile of keys more than the other. The blocks have the longer one
in turn.

``split_head_dim``, inside this step: a head_dim between powers of two is multiplied in two pieces.

The sizes of tensors in Gluon are powers of two, and so are those of cuTile's tiles. A head of 192 columns comes to
shared memory as one of 256, whose last 64 are zeros, and every kernel so far multiplies these zeros. Here a product
takes two pieces of the tile, of 128 and 64 columns. The scores are the sum of both products. The output has two
accumulators, and fewer registers hold it. What TMA brings, and where it lies, stays as it was.

``balanced_tail``, inside this step: blocks end together also where the last tiles of queries are long.

Heads are dealt in sections whose keys and values fit into a part of L2, the longest tiles of a section first. So the
last section's longest tiles begin late. Beyond head_dim 128 a section has few heads, and its tiles keep the blocks busy
for a shorter time than its longest tile takes: most blocks are done while a few still work on long tiles. Here the last
section has as many heads as it takes to keep all blocks busy for that long. Their keys and values may need more of L2
than a section should. Where blocks end together anyway, the lists are those of step split_head_dim. Below 2,048 queries
blocks do not come in pairs: there these were slower in a trial, which is not among the records.

``narrow_values``, inside this step: values that are narrower than keys, as in DeepSeek's latent attention, where q and
k have 192 columns and v has 128. Tiles of V and of the output are as wide as v. Tiles of Q and K have 192 columns, in
three panels of 64 (``steps.hopper.panels``), where those of split_head_dim lie in 256. So shared memory holds two tiles
of 128 keys and values beside the queries, as FlashAttention-3 has them, and not of 64. What is left of it takes half of
the output.

With other widths tiles of Q and K are powers of two as before, and the output has room as a whole.
"""

import dataclasses

from steps.core.order import DEALT
from steps.core.problems import FULL
from steps.hopper import step206_pv_wait_after_max
from steps.hopper.conditions import in_panels
from steps.hopper.products import TO_ITS_OWN
from steps.hopper.softmax import SUM_AT_END, wait_behind_correction
from tutorial_lib.problem import Problem

STEP = step206_pv_wait_after_max.STEP.evolve(
    number=207,
    name="kv_multicast",
    title="TMA multicast of K and V",
    change="Blocks come in clusters of two, and one copy by TMA brings a tile of keys or values to both.",
    fork=True,
    default_problem=FULL,
    pairs=True,
)

SPLIT_HEAD_DIM = STEP.evolve(
    name="split_head_dim",
    title="Two pieces of head_dim",
    change="A head_dim between powers of two is multiplied in two pieces, without the columns that are zeros.",
    inside="kv_multicast",
    default_problem=Problem(batch=4, heads=16, seq_len_q=4096, seq_len_kv=4096, head_dim=192, causal=True),
    in_pieces=True,
)


def short(problem: Problem) -> bool:
    """Below 2,048 queries pairs were slower at head_dim 72 and 80, in a trial which is not among the records."""
    return problem.seq_len_q < 2048


ALONE = SPLIT_HEAD_DIM.evolve(only_for=short, pairs=False)

BALANCED_TAIL = ALONE.evolve(
    previous=SPLIT_HEAD_DIM,
    name="balanced_tail",
    title="A balanced tail",
    change="The last group of heads is larger where its long tiles begin too late; short sequences have no pairs.",
    inside="kv_multicast",
    default_problem=Problem(batch=4, heads=16, seq_len_q=4096, seq_len_kv=4096, head_dim=256, causal=True),
    order=dataclasses.replace(DEALT, balanced_tail=True),
)


def fewer_columns(problem: Problem) -> bool:
    """Tiles of values have half the columns of those of keys, or fewer."""
    return 2 * 2 ** (problem.value_dim - 1).bit_length() <= problem.head_dim


# Clusters of two blocks were not tried with values of another width. In panels the registers hold what they hold at
# head_dim 128, whose softmax this is.
PANELS = BALANCED_TAIL.evolve(only_for=in_panels, pairs=False, softmax=wait_behind_correction, sums=SUM_AT_END)
APART = PANELS.evolve(only_for=fewer_columns, pairs=False, output_to=TO_ITS_OWN)

NARROW_VALUES = APART.evolve(
    previous=BALANCED_TAIL,
    name="narrow_values",
    title="Values narrower than keys",
    change="Tiles are as wide as V, and as Q and K, which lie in panels: in latent attention 128 and 192 columns.",
    inside="kv_multicast",
    default_problem=Problem(
        batch=1, heads=128, seq_len_q=4096, seq_len_kv=4096, head_dim=192, head_dim_v=128, dtype="bfloat16", causal=True
    ),
    takes=("head_dim_v",),
)

INSIDE = (SPLIT_HEAD_DIM, BALANCED_TAIL, NARROW_VALUES)
