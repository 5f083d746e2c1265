"""Step 505: fused pre- and postprocessing. Spare warps do what the small kernels did.

Around the large kernel of step conflict_free_layout two small ones read and write device memory, and the tensor cores
wait. ``prepare`` adds up dO times O, and clears the sums for dQ; ``scaled`` rounds the sums. Their bytes grow with the
length of a sequence, and the products with its square: the shorter sequences are, the more of the time is theirs.

The large kernel has three warps that do nothing. Registers are given to whole warpgroups of four warps, and the
producer is one warp. Here two of the others prepare rows of heads whose blocks begin later, and the third scales dQ of
heads whose blocks have ended. The tensor cores multiply meanwhile. Kernels of their own remain for the first heads and
the last ones. A second stream could not do that: a block takes all registers of its SM, and no other block fits beside
it. A thread of the producer's warpgroup has 24 registers, which is enough to wait for five loads at a time. At
head_dim 128 the warps that multiply can spare some of theirs, and it has 40, for nine loads.

Blocks wait for each other by numbers in global memory, and only for blocks that have begun before them.

Spare warps do nothing with few heads, with grouped heads, and where a tile of queries takes few iterations, as they
could not keep pace there: with a causal mask and 1,024 queries up to head_dim 128. The kernel is then that of step
conflict_free_layout.
"""

from steps.backward_hopper import spare, step504_backward_ping_pong
from steps.core.problems import standard

STEP = step504_backward_ping_pong.CONFLICT_FREE_LAYOUT.evolve(
    number=505,
    name="fused_pre_post",
    previous=step504_backward_ping_pong.STEP,
    title="Fused pre- and postprocessing",
    change="Idle warps prepare rows of later heads and scale dQ of earlier ones; no bank conflicts in dQ's stores.",
    default_problem=standard(causal=True, dtype="bfloat16"),
    generation=spare.fmha_backward,
    helpers=spare.SPARE,
    wide_helpers=spare.SPARE,
)
