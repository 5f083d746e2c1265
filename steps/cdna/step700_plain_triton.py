"""Step 700: plain Triton on an AMD GPU.

This part is for AMD's CDNA GPUs: MI300 (gfx942) and MI350 (gfx950). None was at hand. Its steps are compiled, and run
on the simulator; nothing is timed, so what is said of speed is a hypothesis.

The language of this step is Triton's own. The kernel says what is computed, tile by tile, and the compiler decides the
rest, for NVIDIA's and AMD's GPUs alike: which matrix instruction multiplies (MFMA here), which lane holds what, what
goes through LDS, AMD's name for shared memory, and when a tile is loaded. ``python -m steps.inspect plain_triton
--arch gfx950,gfx942`` shows what it decided. The steps after it take these decisions back, one at a time.

What to expect: the compiler brings the next tile while this one is used, and it does so in two ways. For gfx942 it
loads it into registers, and LDS holds one tile, swizzled. Those registers are missing elsewhere. For gfx950 Triton 3.9
copies it straight into LDS, which holds two tiles, padded. Before, it did for gfx950 as for gfx942.
"""

from steps.cdna.plain import TritonStep
from steps.core.problems import HEADLINE
from steps.core.tiles import Tile
from steps.reference import step001_naive

STEP = TritonStep(
    number=700,
    name="plain_triton",
    title="Plain Triton",
    change="A new kernel in Triton, for AMD's CDNA: layouts, LDS and copies are left to the compiler.",
    previous=step001_naive.STEP,
    default_problem=HEADLINE,
    tile=Tile(128, 64),
    waves=4,
)
