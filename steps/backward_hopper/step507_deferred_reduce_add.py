"""Step 507: waits that are not needed go, one after the other; the last change adds dQ under the next scores.

They stand inside this step in the order in which they were found: ``dependent_launch``, ``newest_first``,
``deferred_fence``, ``unordered_softmax``, ``delta_accumulator``, and then the step itself.

At the end of an iteration a warpgroup stores its dQ of the iteration before in shared memory, executes a fence, and
asks TMA to add it. Until the fence is passed it asks for no product. The product for dK is under way meanwhile, but the
fence can take longer than what is left of that.

Here the warpgroup stores dQ, and goes on. It asks for the next iteration's scores, and for the gradient of their
weights. Then it executes the fence, and asks TMA. It would wait for the scores there anyway.

Only at head_dim 64 without a mask. With a mask, and at head_dim 128, registers are short: what tells TMA where to add
must be kept for longer, and the compiler moved more numbers to memory. Trials on an H100, which are not recorded, found
it slower there.

To expect, as a hypothesis: an iteration takes less time by what warps waited at this fence.

The step also has tiles of its own for short sequences (``hopper_short`` in steps/core/rules.toml). Where blocks are
few, tiles of 64 keys make twice as many, and warpgroups have roles as at head_dim 256. Where up to 640 queries leave
the last tile of 128 at least half empty, tiles of 64 have fewer rows.

Where one block has all keys of a head, nobody else adds to its dQ. It stores dQ, scaled and rounded. No sums are
cleared, none are added, and no kernel scales them. This is so with up to 128 keys. Where such blocks are few, as in
cross attention to a text, several share a head's queries, and what is added up is dK and dV. With up to 256 queries and
keys at head_dim 64, a block takes both tiles of keys, one after the other, and collects dQ in shared memory. All by
trials on an H200, which are not recorded.

``dependent_launch``, inside this step: a kernel begins before the one before it has ended.

A call launches three kernels, and each waits until all of the one before has ended, and what it has written is there.
When its last blocks end, SM after SM falls idle. Then comes the next kernel, with barriers to set up and the first
tiles to fetch, before it multiplies.

A kernel can be launched such that it begins early: when the one before lets it, its blocks take SMs that are free. They
do what depends on nobody, here barriers, K and V. Then they wait until all of the kernel before has ended
[PTX ISA: griddepcontrol; the CUDA guide calls it programmatic dependent launch].

The first kernel of a call waits at once, as what it reads may come from anybody, and only then lets the next one begin.
But it has been launched by then.

``newest_first``, inside this step: small kernels begin with the last head.

The large kernel ends with the last heads. Their sums for dQ are what L2 was given last. The kernel that scales sums
began with the first head, whose sums are the oldest: where L2 holds less than all, it has probably written them to
device memory. And what the kernel read then took the place of sums that L2 still had.

Here it begins with the last head. So does the kernel that prepares rows: the large kernel needs those of the first head
first, and finds them, and dO, in L2.

To expect, as a hypothesis: as many bytes, of which more come from L2, where the small kernels have much to do.

``deferred_fence``, inside this step: products are asked for before the fence, not after.

A warpgroup stores dS of an iteration in shared memory, where the other reads it by wgmma. Before it tells the other, it
executes a fence: stores of a thread and reads of wgmma take different ways to shared memory, and the fence puts them in
order [PTX ISA: fence.proxy.async]. The machine code of the fence waits until all stores of the thread are done. Until
now the warpgroup waited there first, and asked for its next products then.

But these products need nothing of what was stored. dQ is of the iteration before, and dK takes dS from registers. Here
a warpgroup asks for both before the fence. While it waits at the fence, the tensor cores have work. It also passes on
its turn at the weights (step backward_ping_pong) before the fence.

This depends on the compiler: Triton 3.6.0, of which the records are, leaves the order as it is. Triton 3.7.1 and 3.9.0
add a fence of their own before dQ's product. To ask for dQ before dS is stored kept 3.7.1 from that, and was slower:
chapter deferred_fence has what was tried.

At head_dim 256 one warpgroup has all of dS, and asks for dK before the fence already. Nothing changes.

To expect, as a hypothesis: an iteration takes less time by a part of the wait at the fence, most at head_dim 128. There
an iteration is shorter, so that the wait is a larger part of it.

``unordered_softmax``, inside this step: warpgroups compute weights when they can.

Since step backward_ping_pong one warpgroup at a time computes weights and dS at head_dim 128. While one takes
exponentials, the other is at its products, so that the tensor cores have some. The price: a warpgroup that is ready may
have to wait for the other. Step deferred_fence moves products to where a warpgroup waited before, and tensor cores have
work there, too.

Here nobody waits for the other's weights. Only at head_dim 128; at others there were no turns.

To expect, as a hypothesis: what the turns kept in order keeps itself in order, and what warps waited for turns is won.

``delta_accumulator``, inside this step: the product for the weights' gradient begins with minus the row sums.

dS is the weights times what is left of their gradient when the row sum of dO * O is taken off. Until now the gradient
began with zero, and when the product was done a warp loaded the row sums from shared memory, waited for them, and took
them off: 32 subtractions of a thread, between two products.

wgmma adds to what is in the registers. So here it finds minus the row sums there, and not zeros. They are loaded before
the product begins, while that for the scores is under way. Between the products nothing is left to load or to subtract.

The price: in one of the two warpgroups ptxas waits for the scores before it sets these registers. Then that warpgroup
has no product under way for a moment.

Only at head_dim 128. At 64 a trial on an H100, which is not recorded, found it slower.

To expect, as a hypothesis: the chain from dO to dS gets shorter, and an iteration with it.
"""

from steps.backward_hopper import adding, lib, products, rows, step506_coalesced_atomics
from steps.core.problems import standard
from steps.hopper import lib as pieces

DEPENDENT_LAUNCH = step506_coalesced_atomics.STEP.evolve(
    name="dependent_launch",
    title="Programmatic dependent launch",
    change="The kernels of a call begin before the one before has ended; they wait where they need its results.",
    inside="deferred_reduce_add",
    begin=lib.EARLY,
    default_problem=standard(1024, causal=True),
)

NEWEST_FIRST = DEPENDENT_LAUNCH.evolve(
    name="newest_first",
    title="The newest rows first",
    change="Small kernels begin with the last head, whose sums L2 still holds.",
    inside="deferred_reduce_add",
    line_of_block=rows.last_head_first,
    default_problem=standard(1024, causal=True),
)

DEFERRED_FENCE = NEWEST_FIRST.evolve(
    name="deferred_fence",
    title="Deferred fence",
    change="A warpgroup issues dQ's and dK's products before the fence that follows its dS, not after.",
    inside="deferred_reduce_add",
    fence=products.FENCE_BEHIND,
    default_problem=standard(4096, causal=False),
)

UNORDERED_SOFTMAX = DEFERRED_FENCE.evolve(
    name="unordered_softmax",
    title="Softmax in any order",
    change="A warpgroup computes weights as soon as its scores are there, whatever the other does.",
    inside="deferred_reduce_add",
    turns=pieces.NO_TURNS,
    default_problem=standard(4096, causal=True),
)

DELTA_ACCUMULATOR = UNORDERED_SOFTMAX.evolve(
    name="delta_accumulator",
    title="Accumulator starts at -delta",
    change="The product for the weights' gradient starts from -delta in its accumulator instead of zero.",
    inside="deferred_reduce_add",
    gradient=products.FROM_ROW_SUMS,
    default_problem=standard(4096, causal=False),
)

STEP = DELTA_ACCUMULATOR.evolve(
    number=507,
    name="deferred_reduce_add",
    previous=step506_coalesced_atomics.STEP,
    title="dQ added a tile later",
    change="Kernels launch early, fences follow products, no ping-pong; at head_dim 64 dQ is added an iteration later.",
    adding_unmasked=adding.FOURS_LATER,
    short_rules=True,
    complete=True,
    default_problem=standard(4096, 64, causal=False),
)

INSIDE = (DEPENDENT_LAUNCH, NEWEST_FIRST, DEFERRED_FENCE, UNORDERED_SOFTMAX, DELTA_ACCUMULATOR)
