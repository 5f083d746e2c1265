"""The backward steps for Blackwell: right, no race under any schedule, and every synchronisation is missed."""

import dataclasses

import pytest

from steps import Unsupported, get_step
from steps.backward_blackwell import keys, queries
from steps.backward_blackwell.skeleton import BlackwellGradients
from steps.core.ladder import kernels_of
from steps.writing.written import write_step
from tests.checking import faults
from tests.distinct import some_of
from tests.selection import sampled
from tests.shapes import problem
from tests.simulator.places import check_that_all_is_missed

STEPS = [step for step in kernels_of("backward") if step.backend == "blackwell"]


class OfQueries(BlackwellGradients):
    """A step of which the kernel for dQ is given, and written out, and not the one for dK and dV."""

    def kernel(self, shape):
        return queries.fmha_backward_dq

    def variant(self, shape, arch="sm_100"):
        return self.query_variant(shape)

    def kernels_ready(self, kernel, constants, shape, tensors):
        of_keys = keys.fmha_backward_dkdv, (self.key_variant(shape),)
        return self.both_ready(of_keys, (kernel, constants), shape, tensors)
