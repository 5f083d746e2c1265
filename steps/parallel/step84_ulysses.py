"""Step 84: ranks exchange heads for tokens, so that each computes some heads of the whole sequence.

Heads do not need each other. An all-to-all turns "all heads of some tokens" into "some heads of all tokens", then the
kernel runs once, as it is, with its own mask, and another all-to-all brings the output back. Nothing is put together,
and the work is even by itself. But the heads of keys and values must be as many as the ranks or more, the queries and
the output travel, too, and nothing is computed meanwhile. Jacobs et al. 2023, "DeepSpeed Ulysses",
https://arxiv.org/abs/2309.14509.
"""

from steps.parallel import step80_gather


def ulysses(q, k, v, causal, ranks, parts):
    """(o, lse) of this rank's queries; shapes as in ``ParallelStep``."""
    q, k, v = (ranks.heads_for_tokens(x) for x in (q, k, v))
    o, lse = parts.attention(q, k, v, causal)
    return ranks.tokens_for_heads(o), ranks.tokens_for_heads(lse)


STEP = step80_gather.STEP.evolve(
    number=84,
    name="ulysses",
    title="Heads exchanged for tokens",
    change="Ranks exchange heads for tokens, and each computes some heads of the whole sequence with one kernel.",
    by_heads=True,
    fork=True,
    function=ulysses,
)
