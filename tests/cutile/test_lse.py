"""The kernels that store the log-sum-exp, too, compile: on a GPU alone they are launched, and no record has them."""

import dataclasses

import cuda.tile as ct
import pytest
from cuda.tile.compilation import CallingConvention, KernelSignature, TupleConstraint

from steps import get_step
from steps.core.problems import FULL
from steps.cutile.skeleton import array, signature
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
