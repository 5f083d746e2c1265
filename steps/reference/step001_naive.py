"""Step 1: attention as the formula reads, one PyTorch call a line, nothing fused.

Every intermediate ``[query, key]`` matrix is written to device memory and read back: the scores, the masked scores,
the softmax. That is quadratic memory, and at long sequences the time goes into moving it. The scores are float32:
rounded to 16 bits they would cost more accuracy than the rule of ``tutorial_lib.accuracy`` allows.
"""

from steps.core.step import TorchStep
from steps.reference import step000_sdpa


def naive(q, k, v, causal, scale):
    """softmax(q k^T) v, unfused; shapes as in ``Step.attention``."""
    import torch

    group_size = q.shape[1] // k.shape[1]
    if group_size > 1:
        k = k.repeat_interleave(group_size, dim=1)
        v = v.repeat_interleave(group_size, dim=1)
    scores = product_in_float32(q, k.transpose(-2, -1)).mul_(scale)  # [batch, heads, query, key]
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu_(1)
        scores.masked_fill_(hidden, float("-inf"))
    weights = torch.softmax(scores, dim=-1)
    del scores  # before the 16-bit copy of the weights is made
    return weights.to(q.dtype) @ v


def product_in_float32(a, b):
    """The matrix product of two 16-bit tensors [batch, heads, m, k] and [batch, heads, k, n], in float32."""
    import torch

    if a.device.type == "cpu":
        return a.float() @ b.float()
    return torch.bmm(a.flatten(0, 1), b.flatten(0, 1), out_dtype=torch.float32).unflatten(0, a.shape[:2])


def quadratic_bytes(problem):
    """The float32 scores and weights at once, and the mask."""
    pairs = problem.seq_len_q * problem.seq_len_kv
    return 8 * problem.batch * problem.heads * pairs + (pairs if problem.causal else 0)


STEP = TorchStep(
    number=1,
    name="naive",
    title="Naive, unfused",
    change="Attention written out in PyTorch: every intermediate matrix goes through device memory.",
    previous=step000_sdpa.STEP,
    default_problem=step000_sdpa.STEP.default_problem,
    function=naive,
    scratch=quadratic_bytes,
)
