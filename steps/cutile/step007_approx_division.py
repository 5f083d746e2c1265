"""Step 7: an approximate division at the end.

IEEE division takes a reciprocal, steps that refine it, and a slow path for extreme operands, for every element of the
output. One approximate reciprocal and a multiplication err by at most 2 units in float32's last place for ordinary
divisors (PTX ISA, div.approx), which the rounding to 16 bits afterwards swallows.
"""

import cuda.tile as ct

from steps.cutile import step006_occupancy


def divide_approximately(accumulator, row_sum):
    """Output rows [query, head_dim], divided within about 2 units in the last place of float32."""
    return ct.truediv(accumulator, row_sum, flush_to_zero=True, rounding_mode=ct.RoundingMode.APPROX)


STEP = step006_occupancy.STEP.evolve(
    number=7,
    name="approx_division",
    title="Approximate division",
    change="The final division is approximate.",
    divide=divide_approximately,
)
