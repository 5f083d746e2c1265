"""Step 11: the output does not leave through Q's place.

Behind the last tile of keys nobody reads Q any more, so tileiras lets the output leave through Q's place in shared
memory, and the warp that fetches must wait until it has left before it asks for the next Q. Whoever reads Q once more,
behind the loop, makes the compiler find the output a place of its own. The output goes in two halves, and Q is held
for the first only: under the second the next Q is on its way.
"""

from steps.core.problems import standard
from steps.cutile import step10_mask_loop

STEP = step10_mask_loop.STEP.evolve(
    number=11,
    name="apart",
    title="The output in a place of its own",
    change="Where shared memory has room for both, the output no longer leaves through Q's place, and goes in halves.",
    default_problem=standard(1024, head_dim=64, causal=True),
    apart=True,
)
