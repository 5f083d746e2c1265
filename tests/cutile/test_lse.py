"""The kernels that store the log-sum-exp, too, compile: on a GPU alone they are launched, and no record has them."""

import dataclasses

import cuda.tile as ct
import pytest
import torch
from cuda.tile.compilation import CallingConvention, KernelSignature, TupleConstraint

from steps import get_step
from steps.core.problems import FULL
from steps.cutile.skeleton import CuTileStep, array, signature
from tutorial_lib import compiler


@pytest.mark.parametrize("name", ["mma", "exp2"])  # in base e, in base 2
def test_a_kernel_that_stores_the_log_sum_exp_compiles(name):
    step = get_step(name)
    function = step.kernel_function(dataclasses.replace(step.variant(FULL, "sm_90"), lse=True))
    q, k, v, o, scale = signature(FULL).parameters
    lse = array((FULL.batch, FULL.heads, FULL.seq_len_q), ct.float32)
    parameters = [q, k, v, TupleConstraint((o, lse)), scale]
    compiled = compiler.compile_cutile(
        step.compiled_when_launched(function),
        KernelSignature(parameters, CallingConvention.cutile_python_v2(), symbol="fmha"),
        "sm_90",
        step.variant(FULL, "sm_90").tile.scores,
    )
    assert compiled.code != step.compile(FULL).code


def test_with_the_log_sum_exp_a_block_has_a_loop_for_every_tile_of_queries(monkeypatch):
    """The kernel with one loop that stores it, too, did not end on a GPU; on the CPU nothing would show it."""
    made, make = [], CuTileStep.kernel_function
    monkeypatch.setattr(
        CuTileStep, "kernel_function", lambda self, v: made.append((v.lse, v.one_loop)) or make(self, v)
    )
    step = dataclasses.replace(get_step("one_loop"))  # without launches that were made ready before
    q, k, v = (torch.randn(1, 2, 200, 64, dtype=torch.float16) for _ in range(3))
    o, _ = step.attention(q, k, v, causal=True, return_lse=True)
    torch.testing.assert_close(o, step.attention(q, k, v, causal=True), rtol=1e-3, atol=1e-3)
    assert made == [(True, False), (False, True)]
