"""Step 0: what a PyTorch user gets without asking, and the baseline of every comparison.

``scaled_dot_product_attention`` picks one of several fused kernels (cuDNN, FlashAttention-2, memory-efficient) by
shape, dtype and hardware. We leave the choice to it and record which kernel it chose.
"""

from steps.core.problems import HEADLINE
from steps.core.step import TorchStep


def sdpa(q, k, v, causal, scale):
    """PyTorch's own attention, its choice of backend; shapes as in ``Step.attention``."""
    from torch.nn.functional import scaled_dot_product_attention

    grouped = q.shape[1] != k.shape[1]
    return scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale, enable_gqa=grouped)


STEP = TorchStep(
    number=0,
    name="sdpa",
    title="SDPA",
    change="PyTorch's scaled_dot_product_attention, with the backend that it chooses itself.",
    default_problem=HEADLINE,
    function=sdpa,
)
