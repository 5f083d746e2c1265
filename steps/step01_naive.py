"""Step 1: attention as the formula reads, one PyTorch call a line, nothing fused.

Every intermediate ``[query, key]`` matrix is written to device memory and read back: the scores, the masked scores,
the softmax. That is quadratic memory, and at long sequences the time goes into moving it.
"""

from steps import step00_sdpa
from steps.step import TorchStep


def naive(q, k, v, causal, scale):
    """softmax(q k^T) v, unfused; shapes as in ``Step.attention``."""
    import torch

    group_size = q.shape[1] // k.shape[1]
    if group_size > 1:
        k = k.repeat_interleave(group_size, dim=1)
        v = v.repeat_interleave(group_size, dim=1)
    scores = (q * scale) @ k.transpose(-2, -1)  # [batch, heads, query, key]
    if causal:
        visible = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
        scores = scores.masked_fill(~visible, float("-inf"))
    return torch.softmax(scores, dim=-1) @ v


def quadratic_bytes(problem):
    """The scores, and beside them the masked scores or the weights: two 16-bit matrices at once, plus the mask."""
    pairs = problem.seq_len_q * problem.seq_len_kv
    return 2 * 2 * problem.batch * problem.heads * pairs + (2 * pairs if problem.causal else 0)


STEP = TorchStep(
    number=1,
    name="naive",
    title="Naive, unfused",
    change="Attention written out in PyTorch: every intermediate matrix goes through device memory.",
    previous=step00_sdpa.STEP,
    function=naive,
    scratch=quadratic_bytes,
)
