"""Step 900: split-KV. The keys of a sequence are split over blocks.

Nothing makes one block go through all keys: softmax over a range of them gives an output and a log-sum-exp, and two
such partial results are merged exactly by the weights that their log-sum-exp says. So as many blocks share the keys as
it takes to fill the GPU (``number_of_splits``), and a second, small kernel merges what they wrote, in float32.

``group_rows``, inside this step: a group's queries in one tile, for decoding.

A model that generates text computes one query a head against all keys so far. A kernel whose block owns a tile of
queries of one head then has one row of real work, and each of the heads that share a kv head fetches the same keys and
values. Here the rows of a tile are the queries of all heads of a group: K and V are fetched once.

There is a block for each kv head of each sequence, and no other: with 8 sequences and 8 kv heads 64 blocks, fewer than
a large GPU has SMs.

``last_block_merges``, inside this step: the block that comes last merges.

The second kernel of step split_kv costs a launch, and begins when the last block of the first has ended. Here each
block adds one to a count when it has stored its partial result. Who finds that all others have done so merges them.
The addition orders memory: whoever reads the count after another has added to it sees what that one had stored before.

There is a price, too: one block goes through all splits of its rows, where the second kernel has a block for each row.
"""

import cuda.tile as ct

from steps.core.fused import OnlyFor
from steps.core.problems import DECODING
from steps.cutile import step007_approx_division
from steps.cutile.skeleton import power_of_two
from steps.cutile.step003_exp2 import softmax_exp2
from steps.cutile.step004_load_order import load_key_transposed
from steps.cutile.variant import Latency
from steps.everyday import decode_kernel
from steps.everyday.decoding import DecodeStep
from tutorial_lib.problem import Problem


def load_key(K, batch, kv_head, j, variant):
    """The j-th tile of keys, its axes swapped by the load: [head_dim, key]."""
    return load_key_transposed(K, batch, kv_head, j, variant.tile, variant.head_dim, variant.latency.key)


def load_value(V, batch, kv_head, j, variant):
    """The j-th tile of values [key, head_dim], zero past the end."""
    shape = (1, 1, variant.tile.key, variant.columns)
    v = ct.load(V, (batch, kv_head, j, 0), shape, padding_mode=ct.PaddingMode.ZERO, latency=variant.latency.value)
    return ct.reshape(v, (variant.tile.key, variant.columns))


def few_keys(problem: Problem) -> bool:
    """Up to 4096 keys and 16 rows: a block has few tiles, and each of its iterations waits for several barriers.

    By trials on an H200 at head_dim 128 and 80, which are not recorded. With 15,000 keys and more the two are within
    2 %, either way.
    """
    rows = power_of_two(problem.group_size) * power_of_two(problem.seq_len_q)
    plain = problem.page_size is None and problem.kv_dtype is None
    return plain and problem.head_dim == 128 and rows <= 16 and problem.seq_len_kv <= 4096


GROUP_ROWS = DecodeStep(
    name="group_rows",
    title="A group's queries in one tile",
    change="The rows of a tile are the queries of all heads that share a kv head: K and V are fetched once for all.",
    inside="split_kv",
    previous=step007_approx_division.STEP,
    default_problem=DECODING,
    load_key=load_key,
    load_value=load_value,
    softmax=softmax_exp2,
    latency=Latency(key=8, value=8),
    occupancy=2,
    tile_key=OnlyFor(few_keys, 128, otherwise=None),
)

STEP = GROUP_ROWS.evolve(
    number=900,
    name="split_kv",
    previous=step007_approx_division.STEP,
    title="Split-KV",
    change="A tile holds the queries of a group of heads, and each of several blocks has a range of the keys.",
    splitting=decode_kernel.SPLIT_KV,
)

LAST_BLOCK_MERGES = STEP.evolve(
    name="last_block_merges",
    title="Last-block fixup",
    change="Blocks count who has stored its partial result; the last one merges them, and no second kernel runs.",
    inside="split_kv",
    splitting=decode_kernel.LAST_BLOCK_MERGES,
)

INSIDE = (GROUP_ROWS, LAST_BLOCK_MERGES)
