"""Step 51: products under way while others are waited for.

The five products of a turn depend on each other only in part. The weights' gradient is begun with the scores, and runs
under the exponentials. dS is computed under dV. And dQ is added while dK is computed.
"""

from steps.backward_hopper import step50_on_its_side, together

STEP = step50_on_its_side.STEP.evolve(
    number=51,
    name="under_way",
    title="Products under way",
    change="Products are begun as early as their factors allow, and waited for only where they are needed.",
    compute=together.under_way,
)
