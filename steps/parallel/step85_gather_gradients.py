"""Step 85: the gradients of step gather: every rank adds to the gradients of all keys, and the sums go home.

Every query adds to the gradients of the keys that it saw. A rank has those keys of others in its copy, so it computes
what its queries add to them, in float32, and each rank then collects what all have added to its own.
"""

from steps.parallel import step80_gather
from steps.parallel.skeleton import ParallelGradients


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


STEP = ParallelGradients(
    number=85,
    name="gather_gradients",
    title="Gradients with keys and values gathered",
    change="Every rank computes what its queries add to the gradients of all keys, and the sums are exchanged.",
    default_problem=step80_gather.STEP.default_problem,
    forward=step80_gather.STEP,
    function=gather_gradients,
)
