"""Blocks in pairs: two CTAs of a cluster share what TMA brings of keys and values.

The CTAs compute two tiles of queries that see the same keys, one below the other. The producer of the first asks for
the keys and that of the second for the values, each for both. A slot is empty when both CTAs have read it. So the
producer that does not ask for a tile tells the other one that its own slot is empty (``tutorial_lib.multicast``).
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from tutorial_lib import multicast

TO_BOTH = gl.constexpr(f"{multicast.BEGIN}\n mov.b32 $0, 0;")
TO_THIS = gl.constexpr(f"{multicast.END}\n mov.b32 $0, 0;")
MEETING = gl.constexpr(
    f"{multicast.MEET}\n fence.mbarrier_init.release.cluster; barrier.cluster.arrive.release.aligned;"
    " barrier.cluster.wait.acquire.aligned; mov.b32 $0, 0;"
)


@gluon.jit
def meet():
    """Both CTAs have initialised their mbarriers: from now on each may use the other's."""
    gl.inline_asm_elementwise(MEETING, "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def fetch_for_both(array, at, full, slot):
    """Ask TMA for a tile for both CTAs: for this slot of both, and this mbarrier."""
    gl.inline_asm_elementwise(TO_BOTH, "=r", [], dtype=gl.int32, is_pure=False, pack=1)
    tma.async_load(array, at, full, slot)
    gl.inline_asm_elementwise(TO_THIS, "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def tell_the_other(empty):
    """Arrive at an mbarrier of the other CTA."""
    gl.inline_asm_elementwise(TO_BOTH, "=r", [], dtype=gl.int32, is_pure=False, pack=1)
    mbarrier.arrive(empty, count=1)
    gl.inline_asm_elementwise(TO_THIS, "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def announce(full, ring, stage, variant: gl.constexpr):
    """Tell this CTA's mbarrier of a slot how many bytes will come."""
    mbarrier.expect(full.index(stage), variant.tile.key * variant.head_dim * ring.dtype.primitive_bitwidth // 8)


@gluon.jit
def fetch_or_free(asks, array, at, ring, full, empty, there, iteration, variant: gl.constexpr):
    """Tile ``iteration`` of a ring of both CTAs: who ``asks`` fetches it, the other says that its slot is empty."""
    STAGES: gl.constexpr = variant.stages
    stage = iteration % STAGES
    mbarrier.wait(empty.index(stage), iteration // STAGES & 1 ^ 1)
    announce(full, ring, stage, variant)
    if asks:
        mbarrier.wait(there.index(stage), iteration // STAGES & 1)
        fetch_for_both(array, at, full.index(stage), ring.index(stage))
    else:
        tell_the_other(there.index(stage))


@gluon.jit
def fetch_as_pair(arrays, tiles, barriers, at, iteration, variant: gl.constexpr):
    """Tile ``iteration`` of the keys and of the values, for both CTAs. at: where they begin in their arrays."""
    second = gl.program_id(0) % 2
    fetch_or_free(
        second == 0,
        arrays.key,
        at,
        tiles.key,
        barriers.key_full,
        barriers.key_empty,
        barriers.there,
        iteration,
        variant,
    )
    fetch_or_free(
        second == 1, arrays.value, at, tiles.value, barriers.value_full, barriers.value_empty, barriers.there,
        iteration, variant,
    )  # fmt: skip
