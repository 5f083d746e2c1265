"""Gradients as PyTorch's autograd computes them, of its own attention or of anybody's.

A backward pass needs what its own forward pass kept, which may be laid out as no other forward pass would. So that is
run once for a set of inputs, and what it left behind is kept for the calls that follow on the same tensors: timed is
the backward pass alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import ClassVar

from steps.core.gradients import GradientStep
from tutorial_lib import reference
from tutorial_lib.packing import Packing
from tutorial_lib.problem import BYTES_PER_ELEMENT, masks

KEPT = 8  # forward passes that are remembered; a measurement lets so many sets of inputs take turns


class ForwardPasses:
    """The last ``KEPT`` forward passes of one function, whose inputs stay alive."""

    def __init__(self, function: Callable):
        self._function = function
        self._made: dict[tuple, tuple] = {}
        self._one_at_a_time = threading.Lock()

    def __len__(self) -> int:
        return len(self._made)

    def find(self, q, k, v, problem, sinks=None, **more) -> tuple:
        """(output, inputs) for these tensors as they are now; computed again where one of them was written to.

        sinks: among the inputs where they are given. more: what ``function`` takes beside them, a window and a soft
        cap, which follow from the problem.
        """
        given = [x for x in (q, k, v, sinks) if x is not None]
        key = problem, tuple((x.data_ptr(), x.stride(), x._version) for x in given)
        with self._one_at_a_time:
            if (made := self._made.get(key)) is None:
                while len(self._made) >= KEPT:
                    del self._made[next(iter(self._made))]
                function = partial(self._function, **masks(problem), **more)
                made = reference.with_graph(function, q, k, v, problem.causal, problem.scale, sinks)
                self._made[key] = made
        return made


passes_of = cache(ForwardPasses)


@dataclass(frozen=True, kw_only=True)
class AutogradGradients(GradientStep):
    """Asks autograd for the gradients of the forward pass ``function(q, k, v, causal, scale)``.

    takes: windows, soft caps, packed sequences and sinks, where ``function`` takes these by name. Its weights are those
    of its own forward pass. work: as ``TorchStep`` has it.
    """

    function: Callable
    work: Callable | None = None
    takes: tuple[str, ...] = ()

    backend: ClassVar[str] = "torch"
    reads_lengths: ClassVar[bool] = True

    def scratch_bytes(self, problem):
        """The output and the log-sum-exp that the forward pass keeps for itself."""
        rows = problem.batch * problem.heads * problem.seq_len_q
        return rows * (problem.head_dim * BYTES_PER_ELEMENT + 4)

    def intermediate_bytes(self, problem):
        """None: what the forward pass has kept is an input of the backward pass."""
        return 0

    def make_ready(self, problem, tensors, out):
        import torch

        def launch(q, k, v, o, lse, do, out, *others):
            *sinks, begins = (*others, ()) if problem.lengths is None else (*others[:-2], others[-2:])
            more = dict(zip(("sinks",), sinks))
            more |= {"packing": Packing(*begins, problem.pairs_of_lengths)} if begins else {}
            made = torch.autograd.grad(*passes_of(self.function).find(q, k, v, problem, **more), do, retain_graph=True)
            return made if out is None else tuple(place.copy_(x) for place, x in zip(out, made, strict=True))

        return launch
