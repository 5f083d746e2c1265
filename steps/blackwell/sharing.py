"""Tiles that TMA brings and takes: for a block alone, and for two that share keys and values in a cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import blackwell, hopper
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from steps.blackwell.columns import beside, to_panels
from steps.core.fused import Pieces
from steps.gluon.softmax import store_lse
from steps.hopper.lib import QueryTile, Tiles, barrier_ring, position


class Barriers(NamedTuple):
    """mbarriers: of each warpgroup, and for key and value of each slot. full: it is there; empty: nobody reads it."""

    query_full: object
    key_full: object
    value_full: object
    scores_full: object
    output_full: object  # the PV product has ended
    key_empty: object = None
    value_empty: object = None
    weights_full: object = None  # the weights are there, and the output is rescaled
    query_empty: object = None  # the output has left from there
    factors_full: object = None
    factors_empty: object = None


@gluon.jit
def rooms(dtype: gl.constexpr, variant: gl.constexpr):
    """Tiles in shared memory; the output leaves from where Q was."""
    QUERIES: gl.constexpr = [variant.warpgroups, 1, 1, variant.rows, variant.head_dim]
    KEYS: gl.constexpr = [variant.stages, 1, 1, variant.tile.key, variant.head_dim]
    queries = gl.allocate_shared_memory(dtype, QUERIES, variant.shared)
    keys = gl.allocate_shared_memory(dtype, KEYS, variant.shared_key)
    values = gl.allocate_shared_memory(dtype, KEYS, variant.shared_value)
    return Tiles(queries, keys, values, queries)


@gluon.jit
def rings(variant: gl.constexpr):
    """mbarriers of tiles that TMA brings, and of products."""
    WARPGROUPS: gl.constexpr = variant.warpgroups
    STAGES: gl.constexpr = variant.stages
    query_full, key_full = variant.sharing.full(WARPGROUPS), variant.sharing.full(STAGES)
    value_full, scores_full = variant.sharing.full(STAGES), variant.sharing.done(WARPGROUPS)
    output_full = variant.sharing.done(WARPGROUPS)
    return query_full, key_full, value_full, scores_full, output_full


@gluon.jit
def query_tile_of(n, work, variant: gl.constexpr):
    """The n-th tile of queries in the order: (its ``QueryTile``, head)."""
    head, batch, i = position(variant.schedule.number(work, n, variant), work)
    return QueryTile(i * variant.tile.query, head // variant.group_size, batch, work.seq_len_kv), head


@gluon.jit
def fetch_query(arrays, tiles, barriers, query_tile, head, warpgroup: gl.constexpr, variant: gl.constexpr):
    """Ask TMA for a warpgroup's queries."""
    full = barriers.query_full.index(warpgroup)
    mbarrier.expect(full, arrays.query.nbytes_per_cta)
    at = [query_tile.batch, head, query_tile.row + warpgroup * variant.rows, 0]
    tma.async_load(arrays.query, at, full, tiles.query.index(warpgroup))


@gluon.jit
def fetch_tile(array, ring, full, query_tile, j, iteration, variant: gl.constexpr):
    """Ask TMA for the j-th tile of keys or values, into the slot of tile ``iteration``."""
    stage = iteration % variant.stages
    mbarrier.expect(full.index(stage), array.nbytes_per_cta)
    at = [query_tile.batch, query_tile.kv_head, j * variant.tile.key, 0]
    variant.sharing.bring(array, at, full, ring, stage)


@gluon.jit
def store_sums(LSE, row_max, row_sum, query_tile, head, work, arrays, warpgroup: gl.constexpr, variant: gl.constexpr):
    """Store the log-sum-exp of a warpgroup's queries, where it is asked for."""
    if variant.lse:
        line = query_tile.batch.to(gl.int64) * work.heads + head
        store_lse(LSE, row_max, row_sum, line, query_tile.row + warpgroup * variant.rows, arrays.query.shape[2])


# --- what blocks share ---


@dataclass(frozen=True)
class Sharing(Pieces):
    """How the blocks of a cluster, its CTAs, share tiles of keys and values.

    full(length): mbarriers of tiles that TMA brings; done(length): of products. see(): all see the mbarriers.
    bring(array, at, full, ring, stage): ask TMA for a tile. multiply(first, second, into, add, done): begin a product.
    meet(): what comes before a PV product. store(arrays, tiles, columns, query_tile, head, factor, warpgroup, variant):
    multiply a warpgroup's output by a factor [query], and let TMA store it; it leaves from where its Q was.
    ctas: of a cluster. joint: whether they compute every product together, and each holds half of keys and values.
    """

    full: Callable
    done: Callable
    see: Callable
    bring: Callable
    multiply: Callable
    meet: Callable
    store: Callable
    ctas: int = 1
    joint: bool = False


@gluon.jit
def own_ring(length: gl.constexpr):
    """A ring of mbarriers."""
    return barrier_ring(length, 1)


@gluon.jit
def fetch(array, at, full, ring, stage):
    """A tile, or in a cluster this CTA's half of it."""
    tma.async_load(array, at, full.index(stage), ring.index(stage))


@gluon.jit
def multiply(first, second, into, add, done):
    """A product of this block, or of both CTAs, which the first one begins."""
    blackwell.tcgen05_mma(first, second, into, use_acc=add, mbarriers=[done])


@gluon.jit
def see():
    """TMA and the tensor cores see the mbarriers."""
    fence_async_shared()


@gluon.jit
def nothing():
    """Nothing: in a cluster Triton lets both CTAs see the mbarriers; a product of one reads what is its own."""


@gluon.jit
def store_whole(arrays, tiles, columns, query_tile, head, factor, warpgroup: gl.constexpr, variant: gl.constexpr):
    """Multiply a warpgroup's output by a factor [query], and let TMA store it, from where its Q was."""
    AT_ONCE: gl.constexpr = variant.at_once
    HEAD_DIM: gl.constexpr = variant.head_dim
    output = columns.output.index(warpgroup)
    by = beside(output, factor, variant)
    slot = tiles.output.index(warpgroup).reshape([variant.rows, HEAD_DIM])
    for column in gl.static_range(0, HEAD_DIM, AT_ONCE):
        some = output.slice(column, AT_ONCE).load() * by
        slot.slice(column, AT_ONCE, 1).store(some.to(slot.dtype))
    fence_async_shared()
    at = [query_tile.batch, head, query_tile.row + warpgroup * variant.rows, 0]
    tma.async_store(arrays.output, at, tiles.output.index(warpgroup))
    tma.store_wait(0)


@gluon.jit
def store_panels(arrays, tiles, columns, query_tile, head, factor, warpgroup: gl.constexpr, variant: gl.constexpr):
    """Multiply a warpgroup's output by a factor [query], and let TMA store it, from where its Q was, in panels."""
    AT_ONCE: gl.constexpr = variant.at_once
    HEAD_DIM: gl.constexpr = variant.head_dim
    PANELS: gl.constexpr = [HEAD_DIM // AT_ONCE, 1, 1, variant.rows, AT_ONCE]
    output = columns.output.index(warpgroup)
    by = beside(output, factor, variant)
    panels = tiles.output.index(warpgroup).reinterpret(tiles.output.dtype, PANELS, variant.shared)
    to_panels(output, by, panels, variant)
    fence_async_shared()
    for n in gl.static_range(PANELS[0]):
        at = [query_tile.batch, head, query_tile.row + warpgroup * variant.rows, n * AT_ONCE]
        tma.async_store(arrays.output, at, panels.index(n))
    tma.store_wait(0)


@gluon.jit
def joint_ring(length: gl.constexpr):
    """A ring of mbarriers that both CTAs have together.

    TMA tells the first one what it brings to either, and only the first one waits.
    """
    barriers = gl.allocate_shared_memory(gl.int64, [length, 1], mbarrier.MBarrierLayout([[0]]))
    for n in gl.static_range(length):
        mbarrier.init(barriers.index(n), count=1)
    return barriers


@gluon.jit
def cluster_ring(length: gl.constexpr, arrivals: gl.constexpr):
    """A ring of mbarriers of each CTA; each completes after the given number of arrivals."""
    barriers = gl.allocate_shared_memory(gl.int64, [length, 2], mbarrier.MBarrierLayout([[1]]))
    for n in gl.static_range(length):
        mbarrier.init(barriers.index(n), count=arrivals)
    return barriers


@gluon.jit
def ring_of_each(length: gl.constexpr):
    """A ring of mbarriers of each CTA, which a product of both completes in both."""
    return cluster_ring(length, 1)


@gluon.jit
def ring_of_both(length: gl.constexpr):
    """A ring of mbarriers of each CTA, which wait for products of both: only then a tile may be overwritten."""
    return cluster_ring(length, 2)


@gluon.jit
def fetch_for_both(array, at, full, ring, stage):
    """A tile to both CTAs, for which the first one asks."""
    tma.async_load(array, at, full.index(stage), ring.index(stage), multicast=True)


@gluon.jit
def multiply_and_tell_both(first, second, into, add, done):
    """A product of this CTA; both are told of its end."""
    blackwell.tcgen05_mma(first, second, into, use_acc=add, multicast=True, mbarriers=[done])


@gluon.jit
def meet():
    """Both CTAs meet."""
    # The weights of both CTAs are there, their outputs are rescaled, and their scores are read:
    # a product of both reads and writes in both.
    hopper.cluster.barrier()


ALONE = Sharing(own_ring, own_ring, see, fetch, multiply, nothing, store_whole)
HALVES = Sharing(joint_ring, ring_of_each, nothing, fetch, multiply, meet, store_panels, ctas=2, joint=True)
COPIES = Sharing(
    ring_of_each, ring_of_both, nothing, fetch_for_both, multiply_and_tell_both, nothing, store_panels, ctas=2
)
