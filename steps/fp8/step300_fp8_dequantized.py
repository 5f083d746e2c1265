"""Step 300: what a PyTorch user does about fp8, and the baseline of this part.

``scaled_dot_product_attention`` takes no fp8. So Q, K and V are brought back to bfloat16, times their scales, and
PyTorch's attention reads these. The inputs take half of the memory between calls. The time is that of 16 bits, and that
of the copies beside it, which is a part of the step's. So it is where K and V alone are in fp8.
"""

from dataclasses import replace

from steps.core.problems import HEADLINE
from steps.core.quantized import TorchQuantized
from tutorial_lib.problem import FP8
from tutorial_lib.quantize import dequantized
from tutorial_lib.reference import sdpa

HEADLINE_FP8 = replace(HEADLINE, dtype=FP8)


def sdpa_of_dequantized(q, k, v, causal, scale, scales, dtype):
    """o ``[B, Hq, Sq, D]``: Q, K and V in ``dtype``, then PyTorch's attention."""
    return sdpa(*dequantized((q, k, v), scales, dtype), causal, scale)


STEP = TorchQuantized(
    number=300,
    name="fp8_dequantized",
    title="fp8 to bf16, then SDPA",
    change="Q, K and V are brought back to bfloat16, and PyTorch's attention reads the copies.",
    default_problem=HEADLINE_FP8,
    function=sdpa_of_dequantized,
)
