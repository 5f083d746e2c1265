"""Step 800: every rank collects the keys and values of all, and computes its own queries.

The simplest that is right: an all-gather, and then the kernel as it is. Keys before a rank's own tokens need no mask,
its own need one, and later ones are not read. So that the kernel's mask fits, these are two calls, whose results are
put together by their log-sum-exp. Every rank has room for all keys, and nobody computes before they are there.
With grouped heads, keys and values have fewer heads than queries, and only those travel.

``gather_gradients``, inside this step: the gradients of step gather: every rank adds to the gradients of all keys, and
the sums go home.

Every query adds to the gradients of the keys that it saw. A rank has those keys of others in its copy, so it computes
what its queries add to them, in float32, and each rank then collects what all have added to its own.
"""

from steps.core.problems import LONG
from steps.parallel.merging import merge
from steps.parallel.skeleton import ParallelGradients, ParallelStep


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
    number=800,
    name="gather",
    title="Keys and values gathered",
    change="Every rank collects all keys and values, and computes the attention of its own queries.",
    default_problem=LONG,
    function=gather,
)


def gather_gradients(q, k, v, o, lse, do, causal, ranks, parts):
    """(dq, dk, dv) of this rank's tokens, in float32; shapes as in ``GradientStep.gradients``."""
    import torch

    everybodys = ranks.gather(k, v)
    if not causal:
        dq, *sums = parts.gradients(q, *everybodys, o, lse, do, causal=False)
        return dq, *ranks.add_up(*(x.float() for x in sums))
    before, tokens = ranks.own * k.shape[2], k.shape[2]
    sums = [torch.zeros(x.shape, dtype=torch.float32, device=x.device) for x in everybodys]
    dq, *part = (x.float() for x in parts.gradients(q, k, v, o, lse, do, causal=True))
    for total, mine in zip(sums, part):
        total[:, :, before : before + tokens] = mine
    if before:
        earlier = (x[:, :, :before] for x in everybodys)
        dq_earlier, *part = parts.gradients(q, *earlier, o, lse, do, causal=False)
        dq += dq_earlier
        for total, mine in zip(sums, part):
            total[:, :, :before] = mine
    return dq, *ranks.add_up(*sums)


GATHER_GRADIENTS = ParallelGradients(
    name="gather_gradients",
    title="Gradients with keys and values gathered",
    change="Every rank computes what its queries add to the gradients of all keys, and the sums are exchanged.",
    inside="gather",
    default_problem=STEP.default_problem,
    forward=STEP,
    function=gather_gradients,
)

INSIDE = (GATHER_GRADIENTS,)
