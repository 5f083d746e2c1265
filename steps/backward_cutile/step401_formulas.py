"""Step 401: the gradients as the formulas read, one PyTorch call a line, nothing fused.

The forward pass is S = scale Q K^T, P = softmax(S), O = P V. Going backwards (Dao et al. 2022,
https://arxiv.org/abs/2205.14135, appendix B):

- O = P V is a product, so each factor's gradient is dO times the other: dV = P^T dO and dP = dO V^T.
- A softmax mixes a row: dS = P (dP - D), where D is the sum of P dP over the row. With O = P V that sum is also the sum
  of dO O over head_dim, which is much less to add.
- S is a product again: dQ = scale dS K and dK = scale dS^T Q.

That makes five products. The first, Q K^T, is the forward pass's own: P is not stored, as it would take S^2 numbers a
head. It is computed again from the log-sum-exp L of each row, P = exp(S - L), with no maximum and no sum.
"""

from steps.backward_cutile import step400_sdpa_gradients
from steps.core.gradients import TorchGradients
from steps.reference.step001_naive import product_in_float32


def formulas(q, k, v, o, lse, do, causal, scale):
    """(dq, dk, dv), unfused; shapes as in ``GradientStep.gradients``."""
    import torch

    kv_heads, group_size = k.shape[1], q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group_size, dim=1) for x in (k, v))
    scores = product_in_float32(q, k.transpose(-2, -1)).mul_(scale)  # [batch, heads, query, key]
    lse = lse.masked_fill(lse == float("-inf"), float("inf"))  # a row that sees no key: no weights, and no NaN
    weights = torch.exp(scores - lse[..., None])
    del scores
    if causal:
        weights = weights.tril_()
    row_sum = (do.float() * o.float()).sum(-1, keepdim=True)  # D
    d_value = product_in_float32(weights.to(q.dtype).transpose(-2, -1), do)
    d_weights = product_in_float32(do, v.transpose(-2, -1))
    d_scores = (weights * (d_weights - row_sum)).to(q.dtype)
    del weights, d_weights
    d_query = product_in_float32(d_scores, k).mul_(scale)
    d_key = product_in_float32(d_scores.transpose(-2, -1), q).mul_(scale)
    # The heads of a group share their keys and values, so that their gradients add up.
    d_key, d_value = (x.unflatten(1, (kv_heads, group_size)).sum(2) for x in (d_key, d_value))
    return d_query.to(q.dtype), d_key.to(q.dtype), d_value.to(q.dtype)


def quadratic_bytes(problem):
    """Four matrices of float32 at once, and the gradients of every head in float32."""
    pairs = problem.seq_len_q * problem.seq_len_kv
    rows = (problem.seq_len_q + 4 * problem.seq_len_kv) * problem.head_dim
    return problem.batch * problem.heads * (16 * pairs + 4 * rows)


STEP = TorchGradients(
    number=401,
    name="formulas",
    title="The formulas, unfused",
    change="The five products written out in PyTorch: every matrix goes through device memory.",
    previous=step400_sdpa_gradients.STEP,
    default_problem=step400_sdpa_gradients.STEP.default_problem,
    function=formulas,
    scratch=quadratic_bytes,
)
