"""Step 80: every rank collects the keys and values of all, and computes its own queries.

The simplest that is right: an all-gather, and then the kernel as it is. Keys before a rank's own tokens need no mask,
its own need one, and later ones are not read. So that the kernel's mask fits, these are two calls, whose results are
put together by their log-sum-exp. Every rank has room for all keys, and nobody computes before they are there.
With grouped heads, keys and values have fewer heads than queries, and only those travel.
"""

from steps.core.problems import LONG
from steps.parallel.merging import merge
from steps.parallel.skeleton import ParallelStep


def gather(q, k, v, causal, ranks, parts):
    """(o, lse) of this rank's queries; shapes as in ``ParallelStep``."""
    everybodys = ranks.gather(k, v)
    if not causal:
        return parts.attention(q, *everybodys, causal=False)
    o, lse = parts.attention(q, k, v, causal=True)
    if before := ranks.own * k.shape[2]:
        merge(o, lse, *parts.attention(q, *(x[:, :, :before] for x in everybodys), causal=False))
    return o, lse


STEP = ParallelStep(
    number=80,
    name="gather",
    title="Keys and values gathered",
    change="Every rank collects all keys and values, and computes the attention of its own queries.",
    default_problem=LONG,
    function=gather,
)
