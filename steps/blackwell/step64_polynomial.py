"""Step 64: some exponentials are a polynomial.

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

from steps.blackwell import step63_threshold
from steps.blackwell.variant import Emulated

STEP = step63_threshold.STEP.evolve(
    number=64,
    name="polynomial",
    title="A polynomial for some exponentials",
    change="A quarter of the exponentials are a polynomial of degree 3, on the pipe for additions and multiplications.",
    emulated=Emulated(frequency=16, remainder=4),
)
