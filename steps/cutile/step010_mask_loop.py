"""Step 10: a loop of its own for what the mask cuts.

Without a mask tileiras lays the softmax of one tile under the products of the next (step persistent). With one it finds
two loops, over whole tiles of keys and over those that the mask cuts, and does not; what seems to be in its way is room
in shared memory for the tiles of both. With half tiles in the second loop, and hints for the first, it does so again.
"""

from steps.core.order import COUNTED
from steps.core.problems import HEADLINE, standard
from steps.cutile import step009_persistent
from steps.cutile.kernel import store_halves
from steps.cutile.variant import Latency, MaskLoop
from tutorial_lib.problem import Problem


def at_128(problem: Problem) -> bool:
    """There it pays, and shared memory has no room for the output beside Q.

    The record is nvidia-h100-80gb-hbm3/b4_h32_s4096_d128_fp16_causal.
    """
    return problem.head_dim == 128


STEP = step009_persistent.STEP.evolve(
    only_for=at_128,
    number=10,
    name="mask_loop",
    title="A loop for the mask",
    change="At head_dim 128, tiles of keys that the mask cuts run in a second loop, as half tiles.",
    default_problem=HEADLINE,
    mask_loop=MaskLoop(key=64, latency=Latency(key=4, value=8)),
)

# Behind the last tile of keys nobody reads Q any more, so tileiras lets the output leave through Q's buffer in shared
# memory, and the warp that fetches must wait until it has left before it asks for the next Q. A second read of Q behind
# the loop makes the compiler find the output a buffer of its own. The output goes in two halves, and Q is held for the
# first only: under the second the next Q is on its way.
OUTPUT_BUFFER = STEP.evolve(
    name="output_buffer",
    title="An output buffer of its own",
    change="Where shared memory has room beside Q's buffer, the output has a buffer of its own, and leaves in halves.",
    inside="mask_loop",
    default_problem=standard(1024, head_dim=64, causal=True),
    store=store_halves,
)

# A list of tiles (step persistent) is worth its price where tiles differ in length. Without a mask they do not: every
# n-th tile is as fair a deal as any, and the number of the next one is an addition, not a load that Q must wait for.
COUNTED_TILES = OUTPUT_BUFFER.evolve(
    name="static_scheduler",
    title="Static scheduler",
    change="Without a mask, each of n blocks takes every n-th tile of queries, and reads no list.",
    inside="mask_loop",
    default_problem=standard(2048),
    order=COUNTED,
)

INSIDE = (OUTPUT_BUFFER, COUNTED_TILES)
