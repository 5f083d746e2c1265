"""Step 40: the gradients that a PyTorch user gets, and the baseline of every backward step.

PyTorch's backward pass needs what its own forward pass kept, which may be laid out as no other forward pass would. So
this step runs that once for a set of inputs, and keeps what it left behind for the calls that follow on the same
tensors: timed is the backward pass alone.
"""

import threading
from dataclasses import dataclass
from typing import ClassVar

from steps.core.gradients import GradientStep
from steps.core.problems import HEADLINE
from tutorial_lib import reference
from tutorial_lib.problem import BYTES_PER_ELEMENT

KEPT = 8  # forward passes that are remembered; a measurement lets so many sets of inputs take turns
_forward_passes: dict[tuple, tuple] = {}
_one_at_a_time = threading.Lock()


@dataclass(frozen=True, kw_only=True)
class SdpaGradients(GradientStep):
    """Asks autograd. The inputs of the last ``KEPT`` calls stay alive, whatever their shapes."""

    backend: ClassVar[str] = "torch"

    def scratch_bytes(self, problem):
        """The output and the log-sum-exp that PyTorch's forward pass keeps for itself."""
        rows = problem.batch * problem.heads * problem.seq_len_q
        return rows * (problem.head_dim * BYTES_PER_ELEMENT + 4)

    def make_ready(self, problem, tensors, out):
        import torch

        def launch(q, k, v, o, lse, do, out):
            made = torch.autograd.grad(*_forward_pass(q, k, v, problem), do, retain_graph=True)
            return made if out is None else tuple(place.copy_(x) for place, x in zip(out, made, strict=True))

        return launch


def _forward_pass(q, k, v, problem) -> tuple:
    """PyTorch's (output, inputs) for these tensors as they are now; computed again where one of them was written to."""
    places = tuple((x.data_ptr(), x.stride(), x._version) for x in (q, k, v))
    with _one_at_a_time:
        if (kept := _forward_passes.get((problem, places))) is None:
            while len(_forward_passes) >= KEPT:
                del _forward_passes[next(iter(_forward_passes))]
            kept = _forward_passes[problem, places] = reference.sdpa_with_graph(q, k, v, problem.causal, problem.scale)
    return kept


STEP = SdpaGradients(
    number=40,
    name="sdpa_gradients",
    title="SDPA's gradients",
    change="PyTorch's own backward pass of scaled_dot_product_attention.",
    default_problem=HEADLINE,
)
