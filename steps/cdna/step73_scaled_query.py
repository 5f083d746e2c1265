"""Step 73: Q scaled once, before the loop.

So far every score was multiplied by the scale, in every turn: a fused multiply-add that also subtracts the maximum. Q
is the same in all turns, and much smaller than all scores together. Multiplied by the scale before the loop, and
rounded to 16 bits again, it gives scores that are scaled already. The maximum of a row needs no multiplication then,
and the exponent only a subtraction.

What to expect: the subtraction takes as long as the multiply-add did. What is saved is little, the multiplication of
the maxima. The price is one more rounding of Q. Its effect grows with the scores, and with four times the usual scale
some outputs would be further off than the rule of correctness allows. So beyond twice the usual scale, 1 / sqrt(D), the
scores are multiplied as before. On Hopper the same was measured (``steps/trials/scaled_query.py``), and brings nothing.
"""

from steps.cdna import step72_direct

STEP = step72_direct.STEP.evolve(
    number=73,
    name="scaled_query",
    title="Q scaled once",
    change="Q is multiplied by the scale once, before the loop, instead of every score.",
    scale_query=True,
)
