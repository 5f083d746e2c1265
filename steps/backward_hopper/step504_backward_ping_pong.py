"""Step 504: ping-pong. The warpgroups compute weights one at a time.

The two warpgroups exchange dS in every iteration. Nothing keeps them from computing weights at the same time, and from
waiting for their products at the same time. Here a warpgroup computes weights and dS only when the other has computed
its own, and is at its products. So the tensor cores have products of one, while the other takes exponentials.

Only at head_dim 128. At 64 a trial on an H100, which is not recorded, found it slower; at 256 one warpgroup has all
weights.

``l2_aware_lpt``, inside this step: the longest blocks begin first.

Under a causal mask the block with the first keys has as many iterations as there are tiles of queries, and that with
the last keys one or two. A GPU starts blocks in the order of their numbers, head after head so far: near the end of the
kernel long blocks begin, while other SMs have nothing left to do. The fewer blocks there are, as with short sequences,
the more this counts. Here the kv heads are cut into sections, and of a section the longest begin. A section has about
264 blocks, two for each SM: 132 SMs take as long for all of them as for the longest. It is no larger, so that several
blocks of a head run at a time and find the same Q and dO in L2. Only few blocks may have larger sections, such that the
last one is nearly whole (``skeleton.section_for``): else its longest blocks begin when others end.

Without a mask all blocks are as long, and nothing changes. Nor with grouped heads: a trial on an H100, which is not
recorded, found sections slower there. A hypothesis why: L2 does not hold Q, dO and dQ of so many heads.

``conflict_free_layout``, inside this step: dQ goes to shared memory without bank conflicts.

A warpgroup hands its dQ to TMA through shared memory, in float32. TMA's swizzle changes the places of 16-byte chunks
within a row. wgmma leaves a lane pairs of columns, and the pairs of a row's four lanes are two chunks. Two neighbouring
rows have the same two chunks, in another order: their lanes meet in the same banks, and the store takes twice the
wavefronts.

Here a lane has four columns side by side, as in step vectorized_atomics. It stores whole chunks, and in odd rows the
halves of every 128 bytes change places: two rows then fill all 32 banks. Nobody but the last small kernel reads the
sums, and it knows. At head_dim 256 dQ does not go through shared memory, and nothing changes.

To expect, as a hypothesis: two warpgroups store 32 KB an iteration at head_dim 128, which took 512 cycles of shared
memory and takes 256 now. The products of an iteration take the tensor cores 2560 cycles, and shared memory is busy for
most of them.
"""

from steps.backward_hopper import adding, step502_decoupled_warpgroups
from steps.core.problems import HEADLINE
from steps.hopper.lib import IN_TURN

L2_AWARE_LPT = step502_decoupled_warpgroups.STEP.evolve(
    name="l2_aware_lpt",
    title="L2-aware LPT scheduler",
    change="Under a causal mask the longest blocks of several heads begin before their shorter ones.",
    inside="backward_ping_pong",
    sections=True,
)

STEP = L2_AWARE_LPT.evolve(
    number=504,
    name="backward_ping_pong",
    previous=step502_decoupled_warpgroups.STEP,
    title="Ping-pong of the warpgroups",
    change="Long blocks begin first, and the two warpgroups take turns at computing weights and dS.",
    turns=IN_TURN,
)

CONFLICT_FREE_LAYOUT = STEP.evolve(
    name="conflict_free_layout",
    title="dQ without bank conflicts",
    change="dQ goes to shared memory in chunks of four columns of a lane, so that every store meets every bank once.",
    inside="backward_ping_pong",
    adding=adding.FOURS_BY_TMA,
    default_problem=HEADLINE,
)

INSIDE = (L2_AWARE_LPT, CONFLICT_FREE_LAYOUT)
