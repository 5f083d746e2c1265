"""Step 11, a fork from step 7: two blocks share a larger tile.

The other way to a tile of 128 queries that does not spill (see step larger_tile). ``num_ctas=2`` makes a cluster of two
blocks on neighbouring SMs work on one tile: each keeps the 64 queries that its four warps have room for, fetches half
of K and V, and the TMA unit writes what it fetched into the shared memory of both (PTX ISA, cp.async.bulk.tensor,
".multicast::cluster"). Two blocks an SM still run side by side, so that one computes its softmax while the other
multiplies.

``l2_aware``, inside this step: long tiles first, in sections of heads.

The GPU hands out blocks by their numbers, so numbers are an order. Heads come in sections whose K and V fit in L2
together, and in each section the longest tiles come first, so that under a causal mask none begins late.

``autotuned``, inside this step: tile, warps and cluster as a search found them.

What steps larger_tile and cluster tried by hand at head_dim 128 has another answer at 64 and at 256. ``python -m
steps.search`` times every combination with ``cuda.tile.tune``. The launch rules (``steps/core/rules.toml``, table
``searched``) hold the fastest for an architecture and head_dim. Where they hold none, the step is the one before.
"""

import cuda.tile as ct

from steps.core.order import SECTIONS
from steps.core.problems import HEADLINE, standard
from steps.core.tiles import Tile
from steps.cutile import step007_approx_division
from steps.cutile.step003_exp2 import INVERSE_LN2

STEP = step007_approx_division.STEP.evolve(
    number=11,
    name="cluster",
    title="A cluster of two blocks",
    change="Two blocks share a tile of 128 queries and 128 keys, and each fetches half of K and V for both.",
    fork=True,
    default_problem=HEADLINE,
    tile=Tile(128, 128),
    cluster=2,
)

SECTIONS = STEP.evolve(
    name="l2_aware",
    title="L2-aware order of heads",
    change="Blocks are numbered so that the longest tiles begin first, in groups of heads that share L2.",
    inside="cluster",
    order=SECTIONS,
)

AUTOTUNED = SECTIONS.evolve(
    name="autotuned",
    title="Autotuned",
    change="Tile, warps, cluster and blocks per SM are those that a recorded search found fastest.",
    inside="cluster",
    default_problem=standard(head_dim=256),
    searched=True,
)


def softmax_in_halves(scores, row_max, scale):
    """As step 3's, with the weights in two halves of the keys, [query, key / 2] each.

    A PV product needs all its weights before it can begin. Of two products of half the size the first begins when half
    of the exponentials are done, and the rest are taken while it runs. The maximum is of the whole tile.
    """
    scale = scale * INVERSE_LN2
    new_max = ct.maximum(row_max, ct.max(scores, axis=1, keepdims=True) * scale)
    half = (scores.shape[0], scores.shape[1] // 2)
    left = ct.exp2(ct.extract(scores, (0, 0), half) * scale - new_max, flush_to_zero=True)
    right = ct.exp2(ct.extract(scores, (0, 1), half) * scale - new_max, flush_to_zero=True)
    correction = ct.exp2(row_max - new_max, flush_to_zero=True)
    return (left, right), correction, new_max


INTRA_TILE_OVERLAP = AUTOTUNED.evolve(
    name="intra_tile_overlap",
    title="Intra-tile overlap",
    change="The weights come in two halves, and the PV product of one runs under the exponentials of the other.",
    inside="cluster",
    default_problem=standard(16384),
    softmax=softmax_in_halves,
)

INSIDE = (SECTIONS, AUTOTUNED, INTRA_TILE_OVERLAP)
