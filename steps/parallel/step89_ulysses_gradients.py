"""Step 89: the gradients of step ulysses: heads are exchanged for tokens, and gradients back.

All that the backward kernel reads travels, and all that it writes: twice what the forward pass sends, and the output
besides.
"""

from steps.parallel import step84_ulysses, step85_gather_gradients


def ulysses_gradients(q, k, v, o, lse, do, causal, ranks, parts):
    """(dq, dk, dv) of this rank's tokens; shapes as in ``GradientStep.gradients``."""
    exchanged = [ranks.heads_for_tokens(x) for x in (q, k, v, o, lse, do)]
    return tuple(ranks.tokens_for_heads(x) for x in parts.gradients(*exchanged, causal))


STEP = step85_gather_gradients.STEP.evolve(
    number=89,
    name="ulysses_gradients",
    title="Gradients with heads exchanged for tokens",
    change="Ranks exchange heads for tokens, and the gradients back.",
    by_heads=True,
    fork=True,
    forward=step84_ulysses.STEP,
    function=ulysses_gradients,
)
