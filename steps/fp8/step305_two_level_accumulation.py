"""Step 305: sums in two levels.

In fp8 the tensor cores of Hopper do not add in float32. They align the products and the sum to the largest exponent,
and cut off what is more than 13 bits below it (``tutorial_lib.tensor_cores`` has the rule and its sources). A long row
of small products is added to a sum that is large already, and each product loses its last bits.

Here the tensor cores add up the PV product of one tile of keys alone, from zero. The sum over tiles is in registers, in
float32. That takes no more instructions: the total was multiplied by the correction of the maxima before, and a fused
multiply-add does that and adds. It takes the registers of a second output, and so it is for head_dim up to 128.

The step is not there for speed, either. It buys digits where a row has many tiles of keys.
"""

from steps.fp8 import step304_p_offset
from steps.fp8.products import IN_TWO_LEVELS
from steps.hopper.conditions import up_to_128

STEP = step304_p_offset.STEP.evolve(
    only_for=up_to_128,
    number=305,
    name="two_level_accumulation",
    title="Two-level accumulation",
    change="The tensor cores add up one tile of keys; the sum over tiles is in float32, in registers.",
    product_sums=IN_TWO_LEVELS,
)
