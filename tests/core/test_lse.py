"""The log-sum-exp beside the output: every step gives it on request, and the output stays what it is without."""

import secrets

import pytest
import torch

from steps import STEPS, Unsupported, get_step
from steps.writing.written import write_step
from tests.shapes import SHAPES, problem
from tutorial_lib import reference
from tutorial_lib.passes import FORWARD


@pytest.mark.parametrize("shape", SHAPES[::3], ids=lambda p: p.slug)
@pytest.mark.parametrize("step", STEPS, ids=lambda s: s.name)
def test_a_step_gives_the_log_sum_exp(step, shape):
    if reason := step.unsupported(shape, "cpu"):
        pytest.skip(reason)
    q, k, v = FORWARD.inputs(shape, secrets.randbits(32))
    plain = step.attention(q, k, v, causal=shape.causal, scale=shape.scale)
    o, lse = step.attention(q, k, v, causal=shape.causal, scale=shape.scale, return_lse=True)
    torch.testing.assert_close(o, plain, rtol=0, atol=0, equal_nan=True)  # PyTorch's own is NaN where the scale is 0
    assert lse.shape == q.shape[:-1] and lse.dtype == torch.float32
    _, exact = reference.attention_and_lse_float64(q, k, v, shape.causal, shape.scale)
    rounded_again = getattr(step, "scale_query", False)  # Q, which is of 16 bits
    atol = 8 * torch.finfo(q.dtype).eps if rounded_again else 2e-4
    torch.testing.assert_close(lse.double(), exact, rtol=1e-5, atol=atol)


def test_it_comes_behind_the_output_that_is_given():
    shape = problem(head_dim=64)
    q, k, v = FORWARD.inputs(shape, 0)
    for name in ("sdpa", "counted", "wide_block", "at_maxima"):
        out = torch.empty(q.shape[0], q.shape[2], q.shape[1], q.shape[3], dtype=q.dtype).transpose(1, 2)
        o, lse = get_step(name).attention(q, k, v, causal=True, out=out, return_lse=True)
        assert o is out and torch.isfinite(lse).all()


def test_a_kernel_from_a_text_has_none():
    shape = problem(head_dim=64)
    with pytest.raises(Unsupported, match="without the log-sum-exp"):
        write_step(get_step("counted"), shape, "cpu").attention(*FORWARD.inputs(shape, 0), causal=True, return_lse=True)
