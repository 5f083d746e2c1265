"""Step 65: blocks that stay.

As in step dealt: one block an SM stays, and computes a list of tiles of queries that was dealt to it before the launch.
Tensor memory is taken once, and the warps get their roles and registers once. Every role goes through the same list,
and counts on in its barriers from tile to tile. The output leaves from where the queries were, as shared memory has
no room for both at head_dim 128. So the next queries are asked for when the last output has left; the next keys and
values are asked for behind them.

To expect, as a hypothesis: under a causal mask blocks end together, since long and short tiles of queries are dealt
evenly. Without a mask little changes: a block that ends makes room for one that begins, and there is one an SM in
either case.
"""

from steps.blackwell import step64_polynomial
from steps.blackwell.variant import Correction, Roles
from steps.core.problems import HEADLINE

STEP = step64_polynomial.STEP.evolve(
    number=65,
    name="lasting_blocks",
    title="Blocks that stay",
    change="One block an SM stays, and computes a list of tiles of queries that was dealt before the launch.",
    default_problem=HEADLINE,
    roles=Roles(correction=Correction(threshold=8.0), stay="dealt"),
)
