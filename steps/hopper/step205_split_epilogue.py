"""Step 205: a split epilogue, which makes room in shared memory where head_dim is 256.

Persistent blocks want shared memory for the output, so that the next queries can arrive while the last output leaves
(step lpt_scheduler). At head_dim 256 there is not enough; but there is for half of it, if the halves leave one after
the other (``half_output``, inside this step).

A wgmma of 64 queries by 64 keys reads as many bytes of Q as of K, and with both in shared memory it takes all that
shared memory can deliver while the tensor cores compute. The first factor may come from registers. All of Q would take
64 of a thread's; half of it takes 32 and leaves shared memory a quarter of its time (``half_query``, inside this step).

And the slot of Q, of which there is one, is given back behind the last QK product, which is the last that reads it,
and no longer behind the last softmax: the next queries arrive under that softmax and the last PV product.

``three_warpgroups``, inside this step: three warpgroups where head_dim is 64, and they take turns.

At head_dim 64 a tile of scores costs as much time in exponentials as in matrix products, and two groups do not keep
both busy. The outputs of 64 rows take only 32 registers a thread there, so three groups fit, with 160 registers each
(``three_warpgroups_unordered``, inside this step). Left to chance, it is open which of them multiplies while another
takes exponentials. In turn it is certain: a group issues its products, hands the turn on, and computes its softmax
while the others multiply. Beyond head_dim 64 three groups do not fit, and the kernel stays as it was. So it does under
a mask for short sequences, by the launch rules: there two groups are faster, and spill nothing.

``warpgroup_causal_bound``, inside this step: every warpgroup ends at its own last key.

A block walks the keys that the last of its queries sees. Under a causal mask its first warpgroup, with earlier
queries, sees fewer: where a tile of keys lies wholly past them, the group lets it go by. It also begins to mask later.
"""

from steps.core.problems import FULL, standard
from steps.hopper import step204_epilogue_overlap
from steps.hopper.conditions import launched, up_to_128, wide
from steps.hopper.lib import BEHIND_PRODUCT, BEHIND_SOFTMAX, IN_TURN, OWN_END
from steps.hopper.products import HALF_HELD, IN_HALVES
from steps.hopper.softmax import SUM_AT_END
from steps.hopper.variant import ROWS
from tutorial_lib.problem import Problem


def in_three_groups(problem: Problem) -> bool:
    """At head_dim 64, by the launch rule, which names the records: its tile is as high as three groups."""
    return launched(problem).query == 3 * ROWS


THREE_WARPGROUPS_UNORDERED = step204_epilogue_overlap.STEP.evolve(
    only_for=in_three_groups,
    name="three_warpgroups_unordered",
    title="Three warpgroups, unordered",
    change="At head_dim 64 three consumer warpgroups of 64 queries compute instead of two.",
    inside="split_epilogue",
    default_problem=standard(head_dim=64),
    groups=3,
)

THREE_WARPGROUPS = step204_epilogue_overlap.STEP.evolve(
    only_for=in_three_groups,
    name="three_warpgroups",
    title="Three consumer warpgroups",
    change="At head_dim 64 three consumer warpgroups compute instead of two, and issue their products in order.",
    inside="split_epilogue",
    default_problem=standard(head_dim=64),
    groups=3,
    turns=IN_TURN,
)

OWN_END = THREE_WARPGROUPS.evolve(
    name="warpgroup_causal_bound",
    title="Per-warpgroup causal bound",
    change="Under a causal mask a warpgroup skips tiles of keys that none of its own queries sees.",
    inside="split_epilogue",
    default_problem=standard(2048, head_dim=64, causal=True),
    ends=OWN_END,
)

HALF_OUTPUT = OWN_END.evolve(
    only_for=wide,
    name="half_output",
    title="The output in halves",
    change="At head_dim 256 the output has shared memory of its own for one half at a time.",
    inside="split_epilogue",
    default_problem=standard(head_dim=256),
    output_to=IN_HALVES,
    free=BEHIND_SOFTMAX,
)

HALF_QUERY = HALF_OUTPUT.evolve(
    only_for=wide,
    name="half_query",
    title="Half of Q in registers",
    change="At head_dim 256 the first half of every query stays in registers, and is not read again for every tile.",
    inside="split_epilogue",
    queries=HALF_HELD,
)

STEP = OWN_END.evolve(
    only_for=wide,
    number=205,
    name="split_epilogue",
    previous=step204_epilogue_overlap.STEP,
    title="Split epilogue",
    change="At head_dim 64 three warpgroups, each with its own causal bound; at 256 the output leaves in halves.",
    default_problem=standard(head_dim=256, causal=True),
    output_to=IN_HALVES,
    queries=HALF_HELD,
    free=BEHIND_PRODUCT,
)

# The change of deferred_sum. Not at head_dim 256, where a short trial on an H100, not recorded, had it slower.
HOPPER_DEFERRED_SUM = STEP.evolve(
    only_for=up_to_128,
    name="hopper_deferred_sum",
    title="Deferred row sum, for Hopper",
    change="Up to head_dim 128 every lane sums its own weights; sums are added across lanes after the last tile.",
    inside="split_epilogue",
    default_problem=FULL,
    sums=SUM_AT_END,
)

INSIDE = (THREE_WARPGROUPS, THREE_WARPGROUPS_UNORDERED, OWN_END, HALF_OUTPUT, HALF_QUERY, HOPPER_DEFERRED_SUM)
