"""Step 77: a kernel for the shape.

The stages of step priorities want full blocks of 256 queries, and enough turns that their begin and end do not matter.
Direct copies want gfx950. Q scaled before the loop wants registers, and at head_dim 256 gfx942 has none left for it. A
program that calls attention has all kinds of shapes on either GPU. So the last step chooses: by the architecture, by
head_dim, and by the lengths. What is chosen is how the holes of the same skeleton are filled, so that every choice is a
kernel that the steps before have explained.

What to expect: each shape gets the kernel that was made for it. Where the border lies is a guess until somebody
measures it: `python -m steps.run --steps cdna` on such a GPU does.
"""

from steps.cdna import step71_mfma, step76_heads_first
from tutorial_lib.problem import Problem

WIDE = 256  # head_dim at which gfx942 does not scale Q
STAGED_LENGTH = 384  # of queries and of keys, at least
STAGED_MULTIPLE = 256  # of them: the queries of a block, which are whole tiles of keys, too


def by_shape(problem: Problem, arch: str) -> dict:
    """What the holes are filled with otherwise, for a problem on "gfx942" or "gfx950"."""
    lengths = problem.seq_len_q, problem.seq_len_kv
    if arch == "gfx942":
        scaled = problem.head_dim < WIDE  # there, what is computed before the loop takes more registers than there are
        return {"transfer": step71_mfma.STEP.transfer, "stages": None, "scale_query": scaled}
    if problem.head_dim == 128 and all(n >= STAGED_LENGTH and n % STAGED_MULTIPLE == 0 for n in lengths):
        return {}
    return {"stages": None}


STEP = step76_heads_first.STEP.evolve(
    number=77,
    name="by_shape",
    title="By shape",
    change="The kernel is chosen by architecture, head_dim and lengths: in stages, in order, or through registers.",
    choose=by_shape,
)
