"""Step 100: a group's queries in one tile, for decoding.

A model that generates text computes one query a head against all keys so far. A kernel whose block owns a tile of
queries of one head then has one row of real work, and each of the heads that share a kv head fetches the same keys and
values. Here the rows of a tile are the queries of all heads of a group: K and V are fetched once.

There is a block for each kv head of each sequence, and no other: with 8 sequences and 8 kv heads 64 blocks, fewer than
a large GPU has SMs.
"""

import cuda.tile as ct

from steps.core.problems import DECODING
from steps.cutile import step07_approx_division
from steps.cutile.step03_exp2 import softmax_exp2
from steps.cutile.step04_load_order import load_key_transposed
from steps.cutile.variant import Latency
from steps.everyday.decoding import DecodeStep


def load_key(K, batch, kv_head, j, variant):
    """The j-th tile of keys, its axes swapped by the load: [head_dim, key]."""
    return load_key_transposed(K, batch, kv_head, j, variant.tile, variant.head_dim, variant.latency.key)


def load_value(V, batch, kv_head, j, variant):
    """The j-th tile of values [key, head_dim], zero behind the end."""
    shape = (1, 1, variant.tile.key, variant.head_dim)
    v = ct.load(V, (batch, kv_head, j, 0), shape, padding_mode=ct.PaddingMode.ZERO, latency=variant.latency.value)
    return ct.reshape(v, (variant.tile.key, variant.head_dim))


STEP = DecodeStep(
    number=100,
    name="group_rows",
    title="A group's queries in one tile",
    change="The rows of a tile are the queries of all heads that share a kv head: K and V are fetched once for them.",
    previous=step07_approx_division.STEP,
    default_problem=DECODING,
    load_key=load_key,
    load_value=load_value,
    softmax=softmax_exp2,
    latency=Latency(key=8, value=8),
    occupancy=2,
)
