"""How backward kernels that TMA brings tiles to are launched: what Hopper's and Blackwell's steps share."""

from __future__ import annotations

from dataclasses import dataclass

from steps.backward_hopper.rows import SINK_WARPS, gradient_of_sinks
from steps.core.driver import places_like
from steps.core.fused import FusedStep
from steps.core.gradients import GradientStep
from steps.core.launch import gluon_launcher
from steps.gluon.tensors import contiguous_copy
from steps.hopper.launching import describable
from tutorial_lib.problem import Problem


@dataclass(frozen=True, kw_only=True)
class TmaGradients(GradientStep, FusedStep):
    """Backward kernels in Gluon that take tensors as TMA describes them.

    Its skeleton offers ``kernel``, ``variant`` and ``kernels_ready``.
    """

    def kernel(self, problem: Problem):
        """The function that is launched; of several the one whose blocks own keys."""
        raise NotImplementedError

    def kernels_ready(self, kernel, constants: tuple, problem: Problem, tensors: tuple):
        """``run(q, k, v, o, lse, do, dq, dk, dv)`` launches the kernels; tensors: those of the first call.

        Where the problem has sinks, (dsinks, sinks) stand behind these, and then where packed sequences begin.
        """
        raise NotImplementedError

    def make_ready(self, problem, tensors, out):
        return self.make_kernel_ready(self.kernel(problem), problem, tensors, out, self.variant(problem))

    def make_kernel_ready(self, kernel, problem: Problem, tensors, out, *constants):
        """As ``make_ready``, for a kernel that is given, and takes ``constants`` behind what all of them take."""
        import torch

        fits, sinks = [describable(x) for x in (*tensors[:4], tensors[5])], tensors[6:]
        into = [x.is_contiguous() if x.ndim == 1 else describable(x) for x in out or ()] or [False] * 4

        def fitted(q, k, v, o, do):
            """The tensors as TMA takes them, or copies."""
            return [x if fit else contiguous_copy(x) for x, fit in zip((q, k, v, o, do), fits, strict=True)]

        place_q, place_k, place_v, *more = own = [places_like(x) for x in (*tensors[:3], *sinks)]

        def places(out):
            """Where dQ, dK and dV are written, and dsinks."""
            return [out[n] if into[n] else place() for n, place in enumerate(own)]

        q, k, v, o, do = fitted(*tensors[:4], tensors[5])
        begins = ()
        if problem.lengths:
            begins = (torch.zeros(len(problem.lengths) + 1, dtype=torch.int32, device=q.device),) * 2
        given = q, k, v, o, tensors[4], do, *places(out), *sinks, *begins
        run = self.kernels_ready(kernel, constants, problem, given)
        as_they_are = all(fits)

        def launch(q, k, v, o, lse, do, out, *others):
            if not as_they_are:
                q, k, v, o, do = fitted(q, k, v, o, do)
            if out is None:
                made = place_q(), place_k(), place_v(), *[place() for place in more]
                run(q, k, v, o, lse, do, *made, *others)
                return made
            made = places(out)
            run(q, k, v, o, lse, do, *made, *others)
            return tuple(given if given is x else given.copy_(x) for given, x in zip(out, made, strict=True))

        return launch


def of_sinks(sinks: tuple, numbers, problem: Problem, padded: int, **how) -> list[tuple]:
    """The launch of the kernel for the sinks' gradient, with the names of its tensors; none without sinks.

    sinks: (dsinks, sinks) or (). numbers: as ``rows.prepare`` makes them. how: as ``gluon_launcher``.
    """
    if not sinks:
        return []
    passed = (*sinks, numbers, problem.heads, problem.batch, padded)
    run = gluon_launcher(gradient_of_sinks, (problem.heads, 1, 1), passed, SINK_WARPS, numbers.device, range(3), **how)
    return [(run, ["dsinks", "sinks", "numbers"])]
