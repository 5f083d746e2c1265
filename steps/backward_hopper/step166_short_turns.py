"""Step 166: in turn, with what steps fence_behind to from_row_sums found.

Step two_adders adds to dQ always in the same order. Its blocks compute as those of step newest_first do, and adders add beside that. So
what makes a turn shorter in steps fence_behind to from_row_sums helps it, too. Step added_later does not go together with turns: there a warp of
its own asks TMA already.

To expect, as a hypothesis: as much as those steps gained, unless blocks wait for each other. What a block gains is lost
if it then waits for the one before it.
"""

from steps.backward_hopper import products, step161_two_adders
from steps.core.problems import standard
from steps.hopper.lib import NO_TURNS

STEP = step161_two_adders.STEP.evolve(
    number=166,
    name="short_turns",
    title="Short turns, in turn",
    change="In turn, with the fence behind the products, weights without turns, and gradients from the row sums.",
    fork=True,
    turns=NO_TURNS,
    fence=products.FENCE_BEHIND,
    gradient=products.FROM_ROW_SUMS,
    default_problem=standard(4096, causal=False),
)
