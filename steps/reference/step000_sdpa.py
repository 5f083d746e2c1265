"""Step 0: what a PyTorch user gets without asking, and the baseline of every comparison.

``scaled_dot_product_attention`` picks one of several fused kernels (cuDNN, FlashAttention-2, memory-efficient) by
shape, dtype and hardware. We leave the choice to it and record which kernel it chose.
"""

from steps.core.problems import HEADLINE
from steps.core.step import TorchStep
from steps.core.work import Work
from tutorial_lib.reference import sdpa, sdpa_masked

STEP = TorchStep(
    number=0,
    name="sdpa",
    title="SDPA",
    change="PyTorch's scaled_dot_product_attention, with the backend that it chooses itself.",
    default_problem=HEADLINE,
    function=sdpa,
    work=Work.of_sdpa,
    masked=sdpa_masked,
    keeps_mask=True,
    takes=("window", "lengths", "head_dim_v"),
)
