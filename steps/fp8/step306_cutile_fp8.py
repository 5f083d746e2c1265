"""Step 306, a fork from step 300: the same computation in cuTile.

``ct.mma`` takes e4m3. So the kernel of the cuTile steps (``steps.cutile.kernel``) needs little more: the scales of the
heads, and a softmax with the offset of step 304. Weights are rounded to V's dtype, so the PV product is in fp8, too.

Nothing in the kernel says how V becomes K-major: tileiras transposes each tile itself, in every block that reads it. A
thread reads 16 bytes at once from shared memory, and at head_dim 64 and 128 it stores each byte alone.

Nothing says how sums are kept, either. By default tileiras does what step 305 does: the tensor cores add up the PV
product of one tile, and float32 instructions the tiles. Beyond head_dim 128 there are no registers for that, and the
tensor cores add up all tiles (``use_fast_acc=True``), as in step 304. The QK product is a sum of one tile. There
``use_fast_acc=True`` saves additions to zero, which the compiler makes otherwise.

A variant inside this step leaves all sums to the tensor cores: ``cutile_fast_acc``.
"""

import cuda.tile as ct

from steps.core.fused import OnlyFor
from steps.core.order import DEALT
from steps.core.tiles import Tile
from steps.cutile.step003_exp2 import INVERSE_LN2
from steps.cutile.step004_load_order import load_key_transposed
from steps.cutile.step007_approx_division import divide_approximately
from steps.fp8 import step300_fp8_dequantized
from steps.fp8.cutile import Fp8CuTileStep
from steps.hopper.conditions import up_to_128

OFFSET = 8  # of the weights, in base 2, as step 304's


def softmax_with_offset(scores, row_max, scale):
    """As step 3's softmax, with a maximum that is less by the offset: the largest weight of a row is 2^8."""
    scale = scale * INVERSE_LN2
    new_max = ct.maximum(row_max, ct.max(scores, axis=1, keepdims=True) * scale - OFFSET)
    weights = ct.exp2(scores * scale - new_max, flush_to_zero=True)
    correction = ct.exp2(row_max - new_max, flush_to_zero=True)
    return weights, correction, new_max


softmax_with_offset.offset = OFFSET


STEP = Fp8CuTileStep(
    number=306,
    name="cutile_fp8",
    title="fp8 in cuTile",
    change="The kernel of the cuTile steps takes fp8: ct.mma multiplies e4m3, and the compiler transposes V.",
    previous=step300_fp8_dequantized.STEP,
    fork=True,
    default_problem=step300_fp8_dequantized.HEADLINE_FP8,
    load_key=load_key_transposed,
    softmax=softmax_with_offset,
    divide=divide_approximately,
    tile=Tile(128, 128),
    warps=8,
    order=DEALT,
    fast_acc=OnlyFor(up_to_128, False, otherwise=True),
)

FAST_ACC = STEP.evolve(
    name="cutile_fast_acc",
    title="fp8 in cuTile, fast sums",
    change="The tensor cores add up the PV products of all tiles of keys at every head_dim.",
    inside="cutile_fp8",
    fast_acc=True,
)

INSIDE = (FAST_ACC,)
