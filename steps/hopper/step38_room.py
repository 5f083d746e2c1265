"""Step 38: room in shared memory where head_dim is 256.

Blocks that stay want shared memory for the output, so that the next queries can arrive while the last output leaves
(step dealt). At head_dim 256 there is not enough; but there is for half of it, if the halves leave one after the other
(``half_output``, inside this step).

A wgmma of 64 queries by 64 keys reads as many bytes of Q as of K, and with both in shared memory it takes all that
shared memory can deliver while the tensor cores compute. The first factor may come from registers. All of Q would take
64 of a thread's; half of it takes 32 and leaves shared memory a quarter of its time (``half_query``, inside this step).

And the place of Q, of which there is one, is given back behind the last QK product, which is the last that reads it,
and no longer behind the last softmax: the next queries arrive under that softmax and the last PV product.
"""

from steps.core.problems import FULL, standard
from steps.hopper import step37_own_end
from steps.hopper.lib import BEHIND_PRODUCT
from steps.hopper.products import HALF_HELD, IN_HALVES
from steps.hopper.softmax import SUM_AT_END

HALF_OUTPUT = step37_own_end.STEP.evolve(
    name="half_output",
    title="The output in halves",
    change="At head_dim 256 the output has shared memory of its own for one half at a time.",
    inside="room",
    default_problem=standard(head_dim=256),
    wide_output=IN_HALVES,
)

HALF_QUERY = HALF_OUTPUT.evolve(
    name="half_query",
    title="and half of Q in registers",
    change="At head_dim 256 the first half of every query stays in registers, and is not read again for every tile.",
    inside="room",
    wide_queries=HALF_HELD,
)

STEP = step37_own_end.STEP.evolve(
    number=38,
    name="room",
    title="Room at head_dim 256",
    change="At head_dim 256 the output leaves in halves, half of Q stays in registers, and Q's place is free early.",
    default_problem=standard(head_dim=256),
    wide_output=IN_HALVES,
    wide_queries=HALF_HELD,
    wide_free=BEHIND_PRODUCT,
)

# The change of deferred_sum. Not at head_dim 256, where a short trial on an H100, not recorded, had it slower.
LEAN_SUM = STEP.evolve(
    name="lean_sum",
    title="Row sums at the end",
    change="Up to head_dim 128 every lane sums its own weights, and the sums meet after the last tile.",
    inside="room",
    default_problem=FULL,
    sums=SUM_AT_END,
)

INSIDE = (HALF_OUTPUT, HALF_QUERY, LEAN_SUM)
