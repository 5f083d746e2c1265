"""Where scores, weights and outputs lie in tensor memory, and the products that go there.

With roles and head_dim 128 all 512 columns are taken:

    scores of warpgroup 0 | scores of warpgroup 1 | output of warpgroup 0 | output of warpgroup 1
    128 columns      | 128              | 128              | 128

Weights have 16 bits, so that those of a warpgroup need half as many columns as its scores. They lie in the first 64 of
these, from when the softmax stores them until the PV product has read them. Then the next scores come there. The
outputs stay from the first tile of keys to the last.

The instructions are in the PTX ISA under "tcgen05".
"""

from __future__ import annotations

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import blackwell


class Columns(NamedTuple):
    """Columns of tensor memory, for each warpgroup: scores and outputs in float32, weights in Q's dtype."""

    scores: object
    weights: object
    output: object


@gluon.jit
def scores_and_output(variant: gl.constexpr):
    """Columns for the scores and outputs of all warpgroups."""
    WARPGROUPS: gl.constexpr = variant.warpgroups
    KEYS: gl.constexpr = variant.tile.key
    scores = blackwell.allocate_tensor_memory(gl.float32, [WARPGROUPS, variant.rows, KEYS], variant.scores)
    output = blackwell.allocate_tensor_memory(gl.float32, [WARPGROUPS, variant.rows, variant.head_dim], variant.sums)
    return scores, output


@gluon.jit
def columns_apart(dtype: gl.constexpr, variant: gl.constexpr):
    """All the columns that a block needs; weights have their own."""
    scores, output = scores_and_output(variant)
    WEIGHTS: gl.constexpr = [variant.warpgroups, variant.rows, variant.tile.key]
    return Columns(scores, blackwell.allocate_tensor_memory(dtype, WEIGHTS, variant.scores), output)


@gluon.jit
def columns_in_common(variant: gl.constexpr):
    """All the columns that a block needs; weights take the first half of those of the scores."""
    scores, output = scores_and_output(variant)
    return Columns(scores, scores, output)


@gluon.jit
def weights_over_scores(columns, warpgroup, dtype: gl.constexpr, variant: gl.constexpr):
    """A warpgroup's weights [query, key], where its scores were."""
    scores = columns.weights.index(warpgroup)
    return scores.reinterpret(dtype, [variant.rows, variant.tile.key], variant.scores)


@gluon.jit
def issue_scores(tiles, columns, barriers, warpgroup, iteration, variant: gl.constexpr):
    """Begin a QK product [query, key]. ``scores_full`` completes when it, and all that was begun before, has ended."""
    query = tiles.query.index(warpgroup).reshape([variant.rows, variant.head_dim])
    key = tiles.key.index(iteration % variant.stages).reshape([variant.tile.key, variant.head_dim]).permute((1, 0))
    into, done = columns.scores.index(warpgroup), barriers.scores_full.index(warpgroup)
    variant.sharing.multiply(query, key, into, False, done)


@gluon.jit
def issue_output(weights, tiles, columns, barriers, warpgroup, iteration, add, variant: gl.constexpr):
    """Begin a PV product. ``output_full`` tells of its end.

    add: whether it is added to the output.
    """
    value = tiles.value.index(iteration % variant.stages).reshape([variant.tile.key, variant.head_dim])
    into, done = columns.output.index(warpgroup), barriers.output_full.index(warpgroup)
    variant.sharing.multiply(weights, value, into, add, done)


@gluon.jit
def beside(output, factor, variant: gl.constexpr):
    """A factor [query] as [query, 1], to multiply as many columns of the output as are in registers at once."""
    some = output.slice(0, variant.at_once)
    return gl.convert_layout(factor, gl.SliceLayout(1, some.get_reg_layout()))[:, None]


@gluon.jit
def rescale(output, factor, variant: gl.constexpr):
    """Multiply the rows of an output [query, head_dim] by a factor [query], some columns at a time."""
    AT_ONCE: gl.constexpr = variant.at_once
    HEAD_DIM: gl.constexpr = variant.head_dim
    by = beside(output, factor, variant)
    for column in gl.static_range(0, HEAD_DIM, AT_ONCE):
        some = output.slice(column, AT_ONCE)
        some.store(some.load() * by)


@gluon.jit
def to_panels(output, by, panels, variant: gl.constexpr):
    """Multiply an output by a number, or numbers [query, 1], and store it in shared memory, from which TMA takes it.

    There is a panel for every AT_ONCE columns [panel, ..., query, column].
    """
    AT_ONCE: gl.constexpr = variant.at_once
    HEAD_DIM: gl.constexpr = variant.head_dim
    for n in gl.static_range(HEAD_DIM // AT_ONCE):
        some = output.slice(n * AT_ONCE, AT_ONCE).load() * by
        panels.index(n).reshape([variant.rows, AT_ONCE]).store(some.to(panels.dtype))
