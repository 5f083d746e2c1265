"""Step 40: the gradients that a PyTorch user gets, and the baseline of every backward step.

PyTorch's backward pass needs what its own forward pass kept, which may be laid out as no other forward pass would. So
this step runs that once for a set of inputs, and keeps what it left behind for the calls that follow on the same
tensors: timed is the backward pass alone.
"""

from dataclasses import dataclass
from typing import ClassVar

from steps.core.gradients import GradientStep
from steps.core.problems import HEADLINE
from tutorial_lib import reference

KEPT = 8  # sets of inputs whose forward pass is remembered; a measurement lets so many take turns


@dataclass(frozen=True, kw_only=True)
class SdpaGradients(GradientStep):
    """Asks autograd. It holds on to the last ``KEPT`` sets of inputs."""

    backend: ClassVar[str] = "torch"

    def make_ready(self, problem, tensors, out):
        import torch

        kept: dict[tuple, tuple] = {}

        def launch(q, k, v, o, lse, do, out):
            seen = tuple((x.data_ptr(), x._version) for x in (q, k, v))
            if seen not in kept:
                if len(kept) == KEPT:
                    kept.pop(next(iter(kept)))
                kept[seen] = reference.sdpa_with_graph(q, k, v, problem.causal, problem.scale)
            made = torch.autograd.grad(*kept[seen], do, retain_graph=True)
            return made if out is None else tuple(place.copy_(x) for place, x in zip(out, made, strict=True))

        return launch


STEP = SdpaGradients(
    number=40,
    name="sdpa_gradients",
    title="SDPA's gradients",
    change="PyTorch's own backward pass of scaled_dot_product_attention.",
    default_problem=HEADLINE,
)
