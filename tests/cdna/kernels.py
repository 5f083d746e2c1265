"""Small kernels for CDNA, each with one mistake or none, for the tests of the simulator."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language import amd
from triton.experimental.gluon.language.amd import cdna3
from triton.experimental.gluon.language.amd.cdna4 import async_copy

COPY = gl.constexpr(gl.BlockedLayout([1, 8], [8, 8], [8, 1], [1, 0]))
LDS = gl.constexpr(gl.SwizzledSharedLayout(vec=1, per_phase=1, max_phase=1, order=[1, 0]))
MFMA = gl.constexpr(amd.AMDMFMALayout(version=4, instr_shape=[32, 32, 16], transposed=True, warps_per_cta=[4, 1]))


@gluon.jit
def places():
    """Offsets of a tile of 64 rows of 64 elements."""
    row = gl.arange(0, 64, gl.SliceLayout(1, COPY))
    column = gl.arange(0, 64, gl.SliceLayout(0, COPY))
    return row[:, None] * 64 + column[None, :]


@gluon.jit
def copy(Source, Target, waits: gl.constexpr, relaxed: gl.constexpr, again: gl.constexpr, meets: gl.constexpr):
    """A tile by way of LDS; again: its place is filled once more, after it was read; meets: all have read it then."""
    at = places()
    place = gl.allocate_shared_memory(gl.float16, [64, 64], LDS)
    async_copy.buffer_load_to_shared(place, Source, at)
    async_copy.commit_group()
    if waits:
        async_copy.wait_group(0)
    tile = async_copy.load_shared_relaxed(place, COPY) if relaxed else place.load(COPY)
    cdna3.buffer_store(tile, Target, at)
    if not waits:
        async_copy.wait_group(0)
    if again:
        if meets:
            gl.barrier()
        async_copy.buffer_load_to_shared(place, Source, at)
        async_copy.commit_group()
        async_copy.wait_group(0)


@gluon.jit
def not_waited_for(Source):
    """The block ends while its LDS is written."""
    place = gl.allocate_shared_memory(gl.float16, [64, 64], LDS)
    async_copy.buffer_load_to_shared(place, Source, places())
    async_copy.commit_group()


@gluon.jit
def in_stages(Source, Target, early: gl.constexpr):
    """Eight waves, of which half are a stage behind. early: the wait is one more barrier in front of the read."""
    at = places()
    place = gl.allocate_shared_memory(gl.float16, [64, 64], LDS)
    async_copy.buffer_load_to_shared(place, Source, at)
    async_copy.commit_group()
    for _ in range(1):
        with amd.warp_pipeline_stage("first", priority=0):
            if early:
                async_copy.wait_group(0)
        with amd.warp_pipeline_stage("second", priority=1):
            if not early:
                async_copy.wait_group(0)
        with amd.warp_pipeline_stage("third", priority=0):
            pass
    cdna3.buffer_store(async_copy.load_shared_relaxed(place, COPY), Target, at)


@gluon.jit
def wait_between_stages(Source, Target, late: gl.constexpr):
    """The wait is the barrier between two stages, and the read comes behind one more. late: the wait is that one."""
    at = places()
    place = gl.allocate_shared_memory(gl.float16, [64, 64], LDS)
    async_copy.buffer_load_to_shared(place, Source, at)
    async_copy.commit_group()
    for _ in range(1):
        with amd.warp_pipeline_stage("first", priority=0):
            pass
        if not late:
            async_copy.wait_group(0)
        with amd.warp_pipeline_stage("second", priority=1):
            pass
        if late:
            async_copy.wait_group(0)
        with amd.warp_pipeline_stage("third", priority=0):
            cdna3.buffer_store(async_copy.load_shared_relaxed(place, COPY), Target, at)


@gluon.jit
def read_without_a_stage_between(Source, Target):
    """As ``in_stages``, and read right behind the wait: the other half has not waited yet."""
    at = places()
    place = gl.allocate_shared_memory(gl.float16, [64, 64], LDS)
    async_copy.buffer_load_to_shared(place, Source, at)
    async_copy.commit_group()
    for _ in range(1):
        with amd.warp_pipeline_stage("first", priority=0):
            async_copy.wait_group(0)
            tile = async_copy.load_shared_relaxed(place, COPY)
        with amd.warp_pipeline_stage("second", priority=1):
            cdna3.buffer_store(tile, Target, at)


@gluon.jit
def multiply(A, layout: gl.constexpr):
    """The first factor in a layout that MFMA takes, or does not."""
    zeros = gl.full([128, 32], 0.0, gl.float32, MFMA)
    a = gl.full([128, 16], 1.0, gl.float16, layout)
    b = gl.full([16, 32], 1.0, gl.float16, gl.DotOperandLayout(1, MFMA, 8))
    cdna3.mfma(a, b, zeros)


@gluon.jit
def copy_from_anywhere(Source):
    """A copy into LDS whose lanes hold a product's elements."""
    row = gl.arange(0, 128, gl.SliceLayout(1, MFMA))
    column = gl.arange(0, 32, gl.SliceLayout(0, MFMA))
    place = gl.allocate_shared_memory(gl.float16, [128, 32], LDS)
    async_copy.buffer_load_to_shared(place, Source, row[:, None] * 32 + column[None, :])


@gluon.jit
def too_much(Source):
    gl.allocate_shared_memory(gl.float16, [4, 256, 128], LDS)
