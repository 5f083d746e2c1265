"""Step 908: attention sinks. A learned logit of each query head takes part in the softmax, and has no value.

In gpt-oss (https://arxiv.org/abs/2508.10925) every query head has such a logit, its sink. It is one more column of the
scores, and its weight is dropped: what a query gives to the sink it gives to no key. The sink stands beside the scaled
scores. It is not scaled itself, and a soft cap does not touch it.

Online softmax makes this cheap. It keeps the largest score so far, and the sum of weights so far. The sink is a score
that was seen before the first key: the maximum begins with it in place of the least float32, and its weight is in the
sum before the loop. On Hopper it is added to the sum of the first tile, which is computed before the loop; in cuTile
the sum begins with it. The log-sum-exp holds the sink without a line for it. A query whose scores are all minus
infinity gets 0, because the weight of the sink is left in the sum.

The backward pass needs no kernel of its own either. With this log-sum-exp the weights exp(s - lse) are right, and so is
dS = P (dP - delta). The gradient of a sink is minus the sum of exp(sink - lse) * delta over all rows of its head
(``steps.core.gradients``).

``warpgroup_per_query_head``, inside this step, is for windows of up to 256 keys. Two warpgroups that take 64 queries
each, one behind the other, do not see the same keys: each computes or passes over a tile that is for the other. With
grouped heads there is a better way. Each takes the same 64 queries of another head of the group, and both see the same
tiles. The idea is that of FlashAttention-3's pack_gqa.

``cutile_sinks``, inside this step: the same in cuTile's kernel. ``sinks_next_softmax_first``: the same in the kernel of
step next_softmax_first, which is for problems without a window, a soft cap or packed sequences.
"""

from dataclasses import replace

from steps.core.problems import HEADLINE
from steps.core.rules import narrow_window
from steps.everyday import step905_pack_gqa, step907_hopper_soft_cap
from steps.hopper import step208_next_softmax_first
from tutorial_lib.problem import Problem

# A layer of gpt-oss with a sliding window; every other layer has none.
GPT_OSS = Problem(
    batch=4,
    heads=64,
    kv_heads=8,
    seq_len_q=4096,
    seq_len_kv=4096,
    head_dim=64,
    dtype="bfloat16",
    causal=True,
    window=128,
    sinks=True,
)


def narrow_window_of_pairs(problem: Problem) -> bool:
    """The window is narrow, by its launch rule at head_dim 64, and two heads or more of a group share keys."""
    return problem.head_dim == 64 and narrow_window(problem) and problem.group_size % 2 == 0


WARPGROUP_PER_QUERY_HEAD = step907_hopper_soft_cap.STEP.evolve(
    only_for=narrow_window_of_pairs,
    name="warpgroup_per_query_head",
    title="A warpgroup per query head",
    change="Under a narrow window warpgroups take the same queries of several heads, which see the same tiles of keys.",
    inside="attention_sinks",
    default_problem=replace(GPT_OSS, sinks=False),
    warpgroup_per_query_head=True,
)

STEP = WARPGROUP_PER_QUERY_HEAD.evolve(
    number=908,
    name="attention_sinks",
    previous=step907_hopper_soft_cap.STEP,
    title="Attention sinks",
    change="The running maximum begins with the sink of the head; the first tile's sum gets the sink's weight.",
    default_problem=GPT_OSS,
    takes=("window", "softcap", "lengths", "sinks"),
)

CUTILE_SINKS = step905_pack_gqa.STEP.evolve(
    name="cutile_sinks",
    title="Attention sinks, in cuTile",
    change="The running maximum begins with the sink of the head, and the sum with the sink's weight.",
    inside="attention_sinks",
    default_problem=GPT_OSS,
    takes=("window", "softcap", "lengths", "sinks"),
)

SINKS_NEXT_SOFTMAX_FIRST = step208_next_softmax_first.STEP.evolve(
    name="sinks_next_softmax_first",
    title="Attention sinks, the next tile's softmax first",
    change="The first maxima of every tile of queries begin with the sink, also where they are taken ahead.",
    inside="attention_sinks",
    default_problem=replace(HEADLINE, sinks=True),
    takes=("sinks",),
)

INSIDE = (WARPGROUP_PER_QUERY_HEAD, CUTILE_SINKS, SINKS_NEXT_SOFTMAX_FIRST)
