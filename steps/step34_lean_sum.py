"""Step 34: row sums are put together at the end.

The change of step 15. Four lanes share a row of scores. Each sums what it holds, and only when all keys are done do
they add theirs together: that takes two shuffles a row off every turn. Not at head_dim 256, where a
short trial on an H100, not recorded, had it slower.
"""

from steps import step33_half_output

STEP = step33_half_output.STEP.evolve(
    number=34,
    name="lean_sum",
    title="Row sums at the end",
    change="Up to head_dim 128 every lane sums its own weights, and the sums meet after the last tile.",
    lean_sum=True,
)
