"""Step 206: the wait for the PV product stands between the maxima and the exponentials.

Step intra_warpgroup_overlap wrote the wait for the PV product behind the softmax, and ptxas moved it to before the
exponentials. Over a loop it moves nothing, and the wait for a barrier is one: a second wait for the tile of values,
which has long arrived, holds the order as it was written. Held behind all of the softmax (``pv_wait_after_softmax``,
inside this step), the wait leaves the rescaling of the old output to the very end, where nothing hides it. Between
maxima and exponentials the maxima run under the product, and the exponentials, which have the MUFU, mix with the
rescaling, which has the FMA pipe. At head_dim 256 without a mask ptxas does that by itself. Up to head_dim 128 the
lanes of a row also add their sums after the loop, which alone brings nothing (``hopper_deferred_sum``, inside step
split_epilogue).

The first tile of keys is computed in front of the loop. Visited downwards that is the one on the diagonal, and none in
the loop needs the mask or the branch around it (``reverse_kv_order``, inside this step). FlashAttention walks this way.

``hopper_static_scheduler``, inside this step: blocks of short sequences compute which tiles of queries are theirs.

A block of step pv_wait_after_max loads where its list begins and ends, and then its first number, before it can ask TMA
for
anything: three loads, of which the last waits for the others. A head of a short sequence has few tiles of queries, and
the block needs few iterations for each. The loads are a part of its time that counts.

Here the n-th of b blocks computes the tiles n, n + b, n + 2 b and so on, of an order that a formula gives: head after
head. So blocks that need the same keys and values run at the same time, and L2 holds these. Under a causal mask tiles
differ in length, and with 132 blocks and four tiles a head a block would always get, say, the first tile of a head. So
the tiles of a head change places from round to round. That comes out even where the blocks are a multiple of a head's
tiles. On an H100 they are, up to four tiles; on other GPUs a few SMs get no block. Beyond four tiles blocks read lists
as before. With 512 tokens under the mask the step is not faster than pv_wait_after_max, and once slower (chapter 120).
"""

import dataclasses

from steps.core.order import DEALT
from steps.core.problems import HEADLINE, standard
from steps.hopper import step205_split_epilogue
from steps.hopper.conditions import up_to_128, wide_and_masked
from steps.hopper.softmax import DOWNWARDS, wait_behind_correction, wait_behind_maxima, wait_behind_softmax

PV_WAIT_AFTER_SOFTMAX = step205_split_epilogue.HOPPER_DEFERRED_SUM.evolve(
    name="pv_wait_after_softmax",
    previous=step205_split_epilogue.STEP,
    title="PV wait after the softmax",
    change="The wait for the PV product stays after the exponentials; up to head_dim 128 lanes add their sums last.",
    inside="pv_wait_after_max",
    default_problem=HEADLINE,
    softmax=wait_behind_softmax,
)

# Up to head_dim 128 the wait stands behind the correction, too: what is between the maxima and the exponentials. At
# head_dim 256 without a mask nothing holds it.
UP_TO_128 = step205_split_epilogue.HOPPER_DEFERRED_SUM.evolve(only_for=up_to_128, softmax=wait_behind_correction)

STEP = UP_TO_128.evolve(
    only_for=wide_and_masked,
    number=206,
    name="pv_wait_after_max",
    previous=step205_split_epilogue.STEP,
    title="PV wait after the row max",
    change="The wait for the PV product moves to after the row maxima; row sums are added across lanes at the end.",
    default_problem=HEADLINE,
    softmax=wait_behind_maxima,
)

REVERSE_KV_ORDER = STEP.evolve(
    only_for=wide_and_masked,
    name="reverse_kv_order",
    title="Reverse KV order",
    change="At head_dim 256 with a causal mask the keys are visited from the diagonal back to the first.",
    inside="pv_wait_after_max",
    default_problem=standard(head_dim=256, causal=True),
    walk=DOWNWARDS,
)

HOPPER_STATIC_SCHEDULER = STEP.evolve(
    name="hopper_static_scheduler",
    title="Static scheduler, for Hopper",
    change="Where a head has up to four tiles of queries, blocks compute which are theirs, and read no lists.",
    inside="pv_wait_after_max",
    default_problem=dataclasses.replace(standard(256), batch=32),
    order=dataclasses.replace(DEALT, computed=True),
)

INSIDE = (PV_WAIT_AFTER_SOFTMAX, REVERSE_KV_ORDER, HOPPER_STATIC_SCHEDULER)
