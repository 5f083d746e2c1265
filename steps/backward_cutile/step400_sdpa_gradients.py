"""Step 400: the gradients that a PyTorch user gets, and the baseline of every backward step.

PyTorch picks the backend of the forward pass, and with it that of the backward pass. Timed is the backward pass alone.
"""

from steps.core.problems import HEADLINE
from steps.core.work import Work
from steps.reference.autograd import AutogradGradients
from tutorial_lib.reference import sdpa

STEP = AutogradGradients(
    number=400,
    name="sdpa_gradients",
    title="SDPA's gradients",
    change="PyTorch's own backward pass of scaled_dot_product_attention.",
    default_problem=HEADLINE,
    function=sdpa,
    work=Work.of_sdpa_gradients,
)
