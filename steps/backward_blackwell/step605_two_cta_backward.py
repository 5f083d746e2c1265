"""Step 605: the backward pass at head_dim 256, with 2-CTA MMA.

The backward pass has five products. On Hopper one kernel does them all (steps transposed_scores and after). At head_dim
256 a Blackwell CTA with 128 keys would need 256 columns of tensor memory for dK, as many for dV, and has 512: none is
left for scores. So there are two kernels, as in FlashAttention's code for this head_dim on SM100
(https://github.com/Dao-AILab/flash-attention, ``flash_attn/cute/sm100_hd256_2cta_fmha_backward.py``):

- clusters of two CTAs that own 128 keys compute dK and dV, and tiles of 128 queries pass by (``keys.py``);
- clusters that own 256 queries compute dQ, and tiles of 64 keys pass by (``queries.py``).

Every product is one of two CTAs, as in step two_cta_mma. In the first kernel a CTA has 64 of its 128 rows. Such a sum
takes half as many columns of tensor memory as it has, on all lanes, and dK and dV take 256 together.

The price: both kernels compute the scores and the gradients of weights, seven products in place of five. In return no
gradient is added up by several blocks, so dQ needs neither sums in float32 nor atomics, and the same inputs give the
same bits every time.

Of a tile that passes by, a product that adds to a gradient needs other halves than the scores do: of its columns, and
not of its rows. TMA brings both.

All warps do the same, for the reason told in step two_cta_mma. A small kernel in front computes D, as on Hopper.
"""

from steps.backward_blackwell.skeleton import BlackwellGradients
from steps.backward_hopper import step500_transposed_scores
from steps.core.problems import standard

STEP = BlackwellGradients(
    number=605,
    name="two_cta_backward",
    title="Backward pass with 2-CTA MMA",
    change="Two kernels in Gluon for sm_100 at head_dim 256, one for dK and dV and one for dQ: 2-CTA MMA in both.",
    previous=step500_transposed_scores.STEP,
    default_problem=standard(head_dim=256, causal=True, dtype="bfloat16"),
)
