"""Step 804: ranks exchange heads for tokens, so that each computes some heads of the whole sequence.

Heads do not need each other. An all-to-all turns "all heads of some tokens" into "some heads of all tokens", then the
kernel runs once, as it is, with its own mask, and another all-to-all brings the output back. Nothing is put together,
and the work is even by itself. But the heads of keys and values must be as many as the ranks or more, the queries and
the output travel, too, and nothing is computed meanwhile. Jacobs et al. 2023, "DeepSpeed Ulysses",
https://arxiv.org/abs/2309.14509.

``ulysses_gradients``, inside this step: the gradients of step ulysses: heads are exchanged for tokens, and gradients
back.

All that the backward kernel reads travels, and all that it writes: twice what the forward pass sends, and the output
besides.
"""

from steps.parallel import step800_gather


def ulysses(q, k, v, causal, ranks, parts):
    """(o, lse) of this rank's queries; shapes as in ``ParallelStep``."""
    q, k, v = (ranks.heads_for_tokens(x) for x in (q, k, v))
    o, lse = parts.attention(q, k, v, causal)
    return ranks.tokens_for_heads(o), ranks.tokens_for_heads(lse)


STEP = step800_gather.STEP.evolve(
    number=804,
    name="ulysses",
    title="Heads exchanged for tokens",
    change="Ranks exchange heads for tokens, and each computes some heads of the whole sequence with one kernel.",
    by_heads=True,
    fork=True,
    function=ulysses,
)


def ulysses_gradients(q, k, v, o, lse, do, causal, ranks, parts):
    """(dq, dk, dv) of this rank's tokens; shapes as in ``GradientStep.gradients``."""
    exchanged = [ranks.heads_for_tokens(x) for x in (q, k, v, o, lse, do)]
    return tuple(ranks.tokens_for_heads(x) for x in parts.gradients(*exchanged, causal))


ULYSSES_GRADIENTS = step800_gather.GATHER_GRADIENTS.evolve(
    name="ulysses_gradients",
    title="Gradients with heads exchanged for tokens",
    change="Ranks exchange heads for tokens, and the gradients back.",
    inside="ulysses",
    by_heads=True,
    forward=STEP,
    function=ulysses_gradients,
)

INSIDE = (ULYSSES_GRADIENTS,)
