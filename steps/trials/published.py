"""Trial: the polynomial exponential where it was published to help, over head dimensions, masks and dtypes.

FlashAttention-4 (Zadouri et al. 2026, https://arxiv.org/abs/2603.05451) computes some of the exponentials on the
multiply-add units. Which ones is given by a frequency and a remainder: here of every 8 exponentials the last 1, 2 or 3,
as in trial ``exp2_emulation``, which was made when the series had an earlier end, and on fewer problems.
"""

from itertools import product

from steps.core.grids import MASKS
from steps.core.problems import standard
from steps.trials.polynomial import Polynomial
from tutorial_lib.problem import DTYPES

HEAD_DIMS = (64, 128, 256)

TRIAL = Polynomial(
    name="published",
    question="Does a polynomial for some exponentials help step pv_wait_after_max, at any head_dim, mask and dtype?",
    base="pv_wait_after_max",
    values=tuple(12.5 * share for share in range(4)),
    problems=tuple(
        standard(4096, head_dim, causal, dtype) for head_dim, causal, dtype in product(HEAD_DIMS, MASKS, DTYPES)
    ),
    axis="exponentials computed as a polynomial, %",
)
