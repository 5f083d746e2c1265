"""Step 605"""

from steps.backward_blackwell.skeleton import BlackwellGradients
from steps.backward_hopper import step500_transposed_scores
from steps.core.problems import standard

STEP = BlackwellGradients(
    number=605,
    name="two_cta_backward",
    title="2-CTA backward",
    change="A new pair of kernels in Gluon for sm_100 at head_dim 256: every product is one of two CTAs.",
    previous=step500_transposed_scores.STEP,
    default_problem=standard(head_dim=256, causal=True, dtype="bfloat16"),
)
