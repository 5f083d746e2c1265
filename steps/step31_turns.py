"""Step 31: three warp groups take turns.

Step 24 leaves it to chance which of three warp groups multiplies while another takes exponentials. In turn it is
certain: a group issues its products, hands the turn on, and computes its softmax while the others multiply. It is the
schedule of step 20, now with the overlap of step 21. Two groups gained nothing from turns there, so these are
for three.
"""

from steps import step24_third_group

STEP = step24_third_group.STEP.evolve(
    number=31,
    name="turns",
    title="Three groups in turn",
    change="Where three warp groups compute, they issue their products in turn.",
    turns=True,
)
