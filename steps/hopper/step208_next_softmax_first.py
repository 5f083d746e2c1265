"""Step 208: small gains that count together; the last one takes the next maxima under the last product.

Each of them alone gains less than what counts as a difference. They stand inside this step, in the order in which they
were found: ``row_max_ilp``, ``row_max_ilp_multicast``, ``no_redundant_barriers``, ``quarter_q_registers``, and then the
step itself.

In the loop a group takes the maxima of its scores while the PV product is under way. At the end of a tile of queries it
does not. There it begins the last PV product for these queries, and the first QK product for the next. It waits for the
PV product, divides, and stores the output. The scores come after that. Here the QK product is begun in front of the PV
product, and the maxima of its scores are taken under that, as in the loop (``steps.hopper.ahead``). The output is
written to shared memory behind the exponentials. TMA is asked to send it at the end of the next tile of queries, when
products are under way again.

This needs a kernel whose two groups have as many tiles of keys, so no pairs of blocks. It runs under a
causal mask from 2,048 to 8,191 queries, as pairs begin at 8,192. In trials, which are not among the records, it was
slower without a mask, and not faster with 1,024 queries. Elsewhere the kernel is that of step quarter_q_registers.

``row_max_ilp``, inside this step: the maximum of a row in four chains of comparisons, not in one.

Of a tile of scores a lane has 32 of each of two rows (at head_dim 256, where tiles have 64 keys, 16). It compares the
first with the second, the larger with the third, and so on. Every comparison waits for the one before: that is a chain.
An SM needs a few clocks from one comparison of a chain to the next. Meanwhile it can begin others, if there are any.
There are those of the other row. At head_dim 128, and at 64 without a mask, ptxas puts the two rows' comparisons in
turn. Elsewhere it does one row after the other.

So it was with Triton 3.6.0, of which the records are. Triton 3.9 compares the scores of a row in pairs, and then their
maxima: it has several chains a row by itself, and leaves less to gain.

Here a lane has four chains for each row: for each half of its columns, and in each pair of neighbours for the left and
the right. Three more comparisons put them together. The number of comparisons stays the same.

At head_dim 256 without a mask the kernel stays as it was: with four chains it was slower in a trial, which is not
among the records.

``row_max_ilp_multicast``, inside this step: steps reverse_kv_order, kv_multicast, row_max_ilp and balanced_tail
together.

Step reverse_kv_order visits the tiles of keys from the diagonal at head_dim 256 with a mask. Step kv_multicast has two
SMs share what TMA brings. Step row_max_ilp takes maxima in four chains. Step balanced_tail deals the tiles so that
blocks end together. None of them needs another. Blocks come in pairs at head_dim 128 alone, from 2,048 queries on, and
under a causal mask from 8,192 on. Elsewhere step kv_multicast is slower than step pv_wait_after_max on most problems,
or no faster. (Among the exceptions is head_dim 160 under a mask, where it is much faster.)

At head_dim 256 with a mask the lanes of a row also add their sums after the loop, as in step hopper_deferred_sum. That
step leaves head_dim 256 out, because it was slower there. With the diagonal first it was faster in a trial, which is
not among the records. Why was not looked into.

``no_redundant_barriers``, inside this step: the warps of a group do not meet where nothing needs it.

Triton lets the four warps of a group meet before one of them arrives at an mbarrier. A meeting is a barrier, which
holds up each warp until the last has come. Triton 3.6.0, of which the records are, let them meet in front of waits,
too: four times for every tile of keys. Triton 3.9 leaves out those two by itself.

The product that has read a tile is one operation of all four warps. Once it is complete none of them needs the tile any
more, and one warp can say so without a meeting. In front of a wait there is nothing to protect either. Gluon has no
word for a meeting that is not wanted, so they are taken out of the PTX (``tutorial_lib.meetings``).

Then a warp may run ahead of the others. Step pv_wait_after_max waits for a tile of values a second time, to keep
instructions in their places. A warp that comes late to this wait could find that another one has already given the
slot of the values back, and TMA has filled it anew: the mbarrier is a phase further, and the warp would wait for good.
So the second wait is one for an mbarrier where nobody arrives.

At other head_dims the meetings stay: at 64 and 256 the kernel was slower or no faster without them in a trial, which is
not among the records.

``quarter_q_registers``, inside this step: a quarter of the queries' columns stays in registers.

For a QK product a warpgroup reads its queries from shared memory, again for every tile of keys. In the loop shared
memory is busy for most of the time: with both factors of the QK product, with V, and with the tiles that TMA writes.
Here a warp keeps the first 32 of 128 columns of its queries in registers, and wgmma reads these from there.

Why not more of them? With a half or all of Q in registers the kernel was slower under a causal mask, and without one
no faster than with a quarter (a trial, which is not among the records). All queries stay in shared memory where blocks
come in pairs under a causal mask, and below 2,048 queries: by the same trial the kernel was slower there, or no faster.

A warp's own loads from shared memory need care where warps do not meet (step no_redundant_barriers):
``tutorial_lib.meetings`` lets a meeting stay where a warp may still be loading.

``two_warpgroups``, inside this step: at head_dim 64 a block has two warpgroups that compute, as before step
split_epilogue, and takes 128 queries, not 192.

Three warpgroups keep the units of an SM busier. But a launch takes as long as the SM that has most rows, and larger
tiles are dealt less evenly. With 1,024 queries of 160 heads some SM has eight tiles of 192 queries or ten of 128, 1,536
rows or 1,280. There two warpgroups are faster. Where the rows are about as many, three are. Both are
among what ``steps.sweep --steps`` recorded on an H200.
"""

from dataclasses import replace

from steps.core.order import DEALT
from steps.core.problems import FULL, HEADLINE, standard
from steps.hopper import ahead, step206_pv_wait_after_max
from steps.hopper.conditions import at_128, up_to_128, wide_and_masked
from steps.hopper.lib import NO_TURNS, WITHOUT_MEETINGS
from steps.hopper.products import QUARTER_HELD
from steps.hopper.softmax import DOWNWARDS, SUM_AT_END, in_four_chains
from steps.hopper.step205_split_epilogue import in_three_groups
from tutorial_lib.problem import Problem


def masked_or_up_to_128(problem: Problem) -> bool:
    """At head_dim 256 without a mask four chains were slower in a trial, which is not among the records."""
    return problem.causal or up_to_128(problem)


def long_at_128(problem: Problem) -> bool:
    """From 2,048 queries on without a mask, and from 8,192 on with one: there pairs of blocks pay.

    Records: nvidia-h100-80gb-hbm3/b4_h32_s4096_d128_fp16_full and nvidia-h100-80gb-hbm3/b4_h32_s8192_d128_fp16_causal.
    """
    return at_128(problem) and problem.seq_len_q >= (8192 if problem.causal else 2048)


def masked_at_128(problem: Problem) -> bool:
    """With a mask, where blocks do not come in pairs, and no shorter than 2,048 queries.

    The record is nvidia-h100-80gb-hbm3/b4_h32_s4096_d128_fp16_causal. In trials, which are not among the records,
    neither a quarter of Q in registers nor the softmax ahead was faster with 1,024 queries, and the softmax ahead was
    slower without a mask.
    """
    return at_128(problem) and problem.causal and problem.seq_len_q >= 2048 and not long_at_128(problem)


def quarter_pays(problem: Problem) -> bool:
    """From 2,048 queries on, but where blocks come in pairs under a mask: there it was slower in the same trial.

    Records: nvidia-h100-80gb-hbm3/b4_h32_s4096_d128_fp16_full and nvidia-h100-80gb-hbm3/b4_h32_s4096_d128_fp16_causal.
    """
    return masked_at_128(problem) or (long_at_128(problem) and not problem.causal)


ROW_MAX_ILP = step206_pv_wait_after_max.STEP.evolve(
    only_for=masked_or_up_to_128,
    name="row_max_ilp",
    title="Row-max ILP",
    change="A lane finds the maximum of a row in four chains of comparisons instead of one.",
    inside="next_softmax_first",
    default_problem=standard(16384, head_dim=64, causal=True),
    highest=in_four_chains,
)

PAIRS = ROW_MAX_ILP.evolve(only_for=long_at_128, pairs=True)
DIAGONAL = PAIRS.evolve(only_for=wide_and_masked, walk=DOWNWARDS, sums=SUM_AT_END)

ROW_MAX_ILP_MULTICAST = DIAGONAL.evolve(
    previous=ROW_MAX_ILP,
    name="row_max_ilp_multicast",
    title="Row-max ILP, multicast, reverse order",
    change="Multicast where it pays, a balanced tail; at head_dim 256 reverse KV order and deferred row sums.",
    inside="next_softmax_first",
    default_problem=FULL,
    order=replace(DEALT, balanced_tail=True),
)

# With fewer than 2,048 queries the kernel is no slower without meetings, by a trial, which is not among the records.
NO_REDUNDANT_BARRIERS = ROW_MAX_ILP_MULTICAST.evolve(
    only_for=at_128,
    name="no_redundant_barriers",
    title="No redundant bar.sync",
    change="Warps of a warpgroup no longer synchronize before waits, nor before arrivals after a complete product.",
    inside="next_softmax_first",
    default_problem=HEADLINE,
    hold=WITHOUT_MEETINGS,
)

QUARTER_Q_REGISTERS = NO_REDUNDANT_BARRIERS.evolve(
    only_for=quarter_pays,
    name="quarter_q_registers",
    title="A quarter of Q in registers",
    change="A quarter of the columns of Q stays in registers, and the QK product reads it from there.",
    inside="next_softmax_first",
    default_problem=FULL,
    queries=QUARTER_HELD,
)

STEP = QUARTER_Q_REGISTERS.evolve(
    only_for=masked_at_128,
    number=208,
    name="next_softmax_first",
    previous=step206_pv_wait_after_max.STEP,
    title="The next tile's softmax first",
    change="Row maxima in four chains, fewer barriers, a quarter of Q in registers, the next softmax first.",
    fork=True,
    default_problem=HEADLINE,
    generation=ahead.consume,
)

TWO_WARPGROUPS = STEP.evolve(
    only_for=in_three_groups,
    name="two_warpgroups",
    title="Two consumer warpgroups again",
    change="At head_dim 64 a block has two consumer warpgroups, and takes 128 queries, not 192.",
    inside="next_softmax_first",
    default_problem=replace(standard(1024, head_dim=64, dtype="bfloat16"), batch=8, heads=12, kv_heads=12),
    groups=2,
    turns=NO_TURNS,
)

INSIDE = (ROW_MAX_ILP, ROW_MAX_ILP_MULTICAST, NO_REDUNDANT_BARRIERS, QUARTER_Q_REGISTERS, TWO_WARPGROUPS)
