"""On a GPU: the log-sum-exp of every step, and gradients through the front door, in a CUDA graph, too."""

import dataclasses

import pytest
import torch

import steps
from steps import get_step
from steps.core import attention as front
from steps.core import launch
from steps.core.ladder import kernels_of
from tests.shapes import problem
from tutorial_lib import reference
from tutorial_lib.passes import FORWARD

pytestmark = pytest.mark.gpu
SHAPES = [
    problem(seq_len_q=1000, seq_len_kv=1000, head_dim=128),
    problem(seq_len_q=300, seq_len_kv=700, kv_heads=2, head_dim=64, dtype="bfloat16", causal=False),
    problem(batch=1, seq_len_q=500, seq_len_kv=500, head_dim=256),
]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda p: p.slug)
@pytest.mark.parametrize("step", kernels_of("forward"), ids=lambda s: s.name)
def test_a_step_gives_the_log_sum_exp(step, shape):
    if reason := step.unsupported(shape, "sm_90"):
        pytest.skip(reason)
    q, k, v = FORWARD.inputs(shape, 0, "cuda")
    o, lse = step.attention(q, k, v, causal=shape.causal, return_lse=True)
    torch.testing.assert_close(o, step.attention(q, k, v, causal=shape.causal))
    _, exact = reference.attention_and_lse_float64(q, k, v, shape.causal, shape.scale)
    torch.testing.assert_close(lse.double(), exact, rtol=1e-4, atol=1e-3)


@pytest.fixture(params=["decoupled_warpgroups", "delta_accumulator", "fast_deterministic"])
def pair(monkeypatch, request):
    monkeypatch.setattr(front, "_launches", launch.Launches())
    monkeypatch.setattr(front, "_trains", lambda *_: True)
    backward = dataclasses.replace(get_step(request.param))  # without launches that were made ready before
    chosen = front.Training(get_step("pv_wait_after_max"), backward)
    monkeypatch.setattr(front, "training", lambda *_: chosen)


def gradients(inputs, do):
    return torch.autograd.grad(steps.attention(*inputs, causal=True), inputs, do)


def test_gradients_are_pytorchs_up_to_rounding(pair):
    inputs = [x.requires_grad_() for x in FORWARD.inputs(SHAPES[0], 0, "cuda")]
    do = torch.randn_like(inputs[0])
    expected = reference.sdpa_gradients(*(x.detach() for x in inputs), do, True, None)
    for mine, its in zip(gradients(inputs, do), expected, strict=True):
        torch.testing.assert_close(mine, its, rtol=2e-2, atol=1e-2)


def test_a_training_step_is_captured_in_a_graph(pair):
    inputs = [x.requires_grad_() for x in FORWARD.inputs(SHAPES[0], 0, "cuda")]
    do = torch.randn_like(inputs[0])
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        gradients(inputs, do)  # makes ready
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = gradients(inputs, do)
    with torch.no_grad():
        for x in (*inputs, do):
            x.copy_(torch.randn_like(x))
    graph.replay()
    torch.cuda.synchronize()
    for mine, its in zip(captured, gradients(inputs, do), strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-2, atol=1e-3)


def test_a_training_call_goes_past_the_operators_and_each_backward_call_has_memory_of_its_own(pair, monkeypatch):
    """Several calls wait on the GPU at once; their scratch memory is handed out again when the host is done with it."""
    given = [[x.requires_grad_() for x in FORWARD.inputs(SHAPES[0], seed, "cuda")] for seed in range(6)]
    do = torch.randn_like(given[0][0])
    expected = [gradients(inputs, do) for inputs in given]
    for name in ("attention_with_lse", "gradients"):
        monkeypatch.setattr(front, name, lambda *_: pytest.fail("by an operator"))
    torch.cuda.synchronize()
    torch.cuda._sleep(50_000_000)
    found = [gradients(inputs, do) for inputs in given]
    for mine, its in zip(found, expected, strict=True):
        for x, y in zip(mine, its, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-2, atol=1e-3)


def test_a_training_call_runs_in_the_stream_of_its_caller(pair):
    """On a stream of its own, behind work of that stream that fills the inputs late."""
    inputs = [x.requires_grad_() for x in FORWARD.inputs(SHAPES[0], 0, "cuda")]
    do = torch.randn_like(inputs[0])
    expected = gradients(inputs, do)
    late = [torch.full_like(x, float("nan")).requires_grad_() for x in inputs]
    gradients(late, do)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        with torch.no_grad():
            for x, given in zip(late, inputs):
                x.copy_(given)
        found = gradients(late, do)
    stream.synchronize()
    for mine, its in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-2, atol=1e-3)
