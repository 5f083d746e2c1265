"""Step 51: products under way while others are waited for.

The five products of a turn depend on each other only in part. The scores of the next turn are begun at the end of this
one, and dK's product is waited for in the next: exponentials, dS and the additions to dQ each run under some product.
"""

from steps.backward_hopper import step50_on_its_side

STEP = step50_on_its_side.STEP.evolve(
    number=51,
    name="under_way",
    title="Products under way",
    change="The next turn's scores are begun in this one, and every product is waited for only where it is needed.",
    under_way=True,
)
