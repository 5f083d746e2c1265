"""Step 602: lazy rescaling. The output is rescaled only when a maximum has grown enough.

Weights are relative to a maximum so that none of them overflows. They need not be relative to the last one: with a
maximum that is too small by up to 8, in base 2, weights are up to 256, which float16 holds as precisely as 1, and the
sum in float32, too. So a row keeps its old maximum until a new one exceeds it by more than 8, and its correction is 1
until then. Output and sum are relative to the same maximum, whichever it is, and their quotient is the same.

The warpgroup that rescales looks at all 128 corrections of a softmax warpgroup. Where each of them is 1 it leaves the
output where it is, and neither fetches nor stores it. The threshold is FlashAttention-4's
(https://github.com/Dao-AILab/flash-attention).

To expect, as a hypothesis: on inputs like ours a row's maximum is nearly there after the first tiles of keys, and
hardly any later tile is rescaled. Inputs whose scores grow along the keys force the other branch.

``correction_warpgroup``, inside this step: a warpgroup of its own rescales the output.

The softmax knows its correction as soon as it knows the maxima, before any exponential. It stores the correction in
shared memory, one number a query, and goes on with the exponentials. A third warpgroup reads it, waits for the PV
product before, and rescales the output in tensor memory. It also stores the output at the end. The next PV product
waits for both: for the weights, and for the rescaled output.

To expect, as a hypothesis: rescaling runs beside the exponentials, and no longer behind them. The block has 128 threads
more, and registers must suffice for all of them: the warps that only begin products or copies give theirs up.

``exp2_emulation``, inside this step: some exponentials are a polynomial.

A Blackwell SM does 16 exponentials and 8192 operations of a product a clock (``tutorial_lib.architectures``). A tile of
128 by 128 scores at head_dim 128 takes 1024 clocks of either. Exponentials are no longer hidden by being fewer.

The pipe for additions and multiplications does 128 a clock. 2^x is 2^n times 2^rest, with an integer n and a rest from
-1/2 to 1/2. The first factor is an addition to the exponent's bits, the second a polynomial of degree 3, whose
relative error is below 1e-4. A weight is rounded to 16 bits afterwards, which errs by 5e-4 in float16. Of every 16
columns of scores the last 4 are computed so: those whose key k has k % 16 >= 16 - 4. FlashAttention-4 has the same
rule (https://github.com/Dao-AILab/flash-attention), and leaves out the last columns of a row.

To expect, as a hypothesis: a quarter of the exponentials leaves the unit for exponentials, and takes about nine
instructions each of the other pipe. It can pay only where that unit decides, and where the other pipe has time: then
the best share is somewhere between none and a half.
"""

from steps.blackwell import step601_warp_roles
from steps.blackwell.skeleton import CORRECTION
from steps.blackwell.softmax import LAZY, a_quarter_by_polynomial

CORRECTION_WARPGROUP = step601_warp_roles.STEP.evolve(
    name="correction_warpgroup",
    title="A correction warpgroup",
    change="A third warpgroup rescales the output, while the softmax goes on with its exponentials.",
    inside="lazy_rescaling",
    generation=CORRECTION,
)

STEP = CORRECTION_WARPGROUP.evolve(
    number=602,
    name="lazy_rescaling",
    previous=step601_warp_roles.STEP,
    title="Lazy rescaling",
    change="A correction warpgroup rescales the output, only if some maximum has grown by more than a factor of 2^8.",
    rescaling=LAZY,
)

EXP2_EMULATION = STEP.evolve(
    name="exp2_emulation",
    title="exp2 emulation",
    change="A quarter of the exponentials are a polynomial of degree 3, on the pipe for additions and multiplications.",
    inside="lazy_rescaling",
    exponential=a_quarter_by_polynomial,
)

INSIDE = (CORRECTION_WARPGROUP, EXP2_EMULATION)
