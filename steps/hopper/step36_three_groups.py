"""Step 36: three warp groups where head_dim is 64, and they take turns.

At head_dim 64 a tile of scores costs as much time in exponentials as in matrix products, and two groups do not keep
both busy. The outputs of 64 rows take only 32 registers a thread there, so three groups fit, with 160 registers each
(``third_group``, inside this step). Left to chance, it is open which of them multiplies while another takes
exponentials. In turn it is certain: a group issues its products, hands the turn on, and computes its softmax while the
others multiply. Beyond head_dim 64 three groups do not fit, and the kernel stays as it was. So it does under a mask for
short sequences, by the launch rules: there two groups are faster, and spill nothing.
"""

from steps.core.problems import standard
from steps.hopper import step35_linked
from steps.hopper.lib import IN_TURN, NO_TURNS

THIRD_GROUP = step35_linked.STEP.evolve(
    name="third_group",
    title="Three groups, without turns",
    change="At head_dim 64 three warp groups of 64 queries compute in place of two.",
    inside="three_groups",
    default_problem=standard(head_dim=64),
    third_group=NO_TURNS,
)

STEP = step35_linked.STEP.evolve(
    number=36,
    name="three_groups",
    title="Three groups in turn",
    change="At head_dim 64 three warp groups compute in place of two, and issue their products in turn.",
    default_problem=standard(head_dim=64),
    third_group=IN_TURN,
)

INSIDE = (THIRD_GROUP,)
