"""The front door on a GPU: FlashAttention's own list of shapes, and calls that come first in a graph being captured."""

import dataclasses
from itertools import product

import pytest
import torch

import steps
from steps import get_step
from steps.core import attention as front
from steps.core import launch
from tests.shapes import problem
from tutorial_lib import accuracy
from tutorial_lib.passes import BACKWARD, FORWARD

pytestmark = pytest.mark.gpu

# Of hopper/test_flash_attn.py and tests/test_flash_attn.py in Dao-AILab/flash-attention.
LENGTHS = [
    *((1, 1), (64, 128), (128, 192), (256, 256), (239, 1), (799, 3), (113, 203), (113, 128), (128, 217), (113, 211)),
    *((108, 256), (256, 512), (384, 256), (640, 128), (512, 256), (1024, 1024), (1023, 1024), (1024, 1023)),
    *((4096, 4096), (4224, 4224)),
]
HEAD_DIMS = [32, 40, 59, 64, 80, 96, 111, 128, 160, 192, 224, 256]


def shapes(head_dim, kv_heads, dtype):
    for (seq_len_q, seq_len_kv), causal in product(LENGTHS, (False, True)):
        lengths = {"seq_len_q": seq_len_q, "seq_len_kv": seq_len_kv, "causal": causal}
        batch = 1 if seq_len_q > 2048 else 2
        yield problem(batch=batch, heads=6, kv_heads=kv_heads, head_dim=head_dim, dtype=dtype, **lengths)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("kv_heads", [6, 2, 1])
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_flash_attentions_shapes(head_dim, kv_heads, dtype):
    """Outputs and gradients by what the front door chooses, steps or PyTorch."""
    wrong = []
    for shape in shapes(head_dim, kv_heads, dtype):
        q, k, v, o, lse, do = BACKWARD.inputs(shape, 0, "cuda")
        found = [(steps.attention(q, k, v, shape.causal),)]
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        found.append(torch.autograd.grad(steps.attention(*leaves, shape.causal), leaves, do))
        for way, inputs, outputs in zip((FORWARD, BACKWARD), ((q, k, v), (q, k, v, o, lse, do)), found):
            exact = way.reference(shape, inputs)
            compared = zip(outputs, exact, way.yardstick(shape, inputs, exact), strict=True)
            each = accuracy.worst(accuracy.compare(*one) for one in compared)
            wrong += [] if each.correct else [f"{way.name}, {shape.describe()}: {each.explain()}"]
    assert not wrong, "\n".join(wrong)


STEPS = ["exp2", "static_scheduler", "swizzle", "gluon_larger_tile", "wgmma", "pv_wait_after_max", "next_softmax_first"]


@pytest.fixture(params=STEPS)
def step(request, monkeypatch):
    """A step that nothing was made ready for, chosen by the front door."""
    fresh = dataclasses.replace(get_step(request.param))
    monkeypatch.setattr(front, "_launches", launch.Launches())
    monkeypatch.setattr(front, "chosen", lambda *_: fresh)
    return fresh


@pytest.mark.parametrize("way", ["the front door", "a step"])
def test_what_was_captured_first_changes_no_later_call(step, way):
    """The first call ever may be one that a graph captures; the next ones are eager, captured, and in other modes."""
    attention = {"the front door": steps.attention, "a step": step.attention}[way]
    q, k, v = FORWARD.inputs(problem(seq_len_q=300, seq_len_kv=300, head_dim=128), 0, "cuda")
    expected = dataclasses.replace(step).attention(q, k, v, True)
    torch.cuda.synchronize()
    graphs = [torch.cuda.CUDAGraph() for _ in range(2)]
    with torch.cuda.graph(graphs[0]):
        first = attention(q, k, v, True)
    assert torch.equal(attention(q, k, v, True), expected)
    with torch.inference_mode():
        assert torch.equal(attention(q, k, v, True), expected)
    with torch.cuda.graph(graphs[1]):
        second = attention(q, k, v, True)
    for graph, o in zip(graphs, (first, second)):
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(o, expected)
    del graphs, first, second  # and their memory with them
    junk = [torch.full_like(q, float("nan")) for _ in range(8)]
    assert torch.equal(attention(q, k, v, True), expected) and len(junk) == 8


@pytest.mark.parametrize("causal", [False, True])
def test_where_bits_must_repeat_they_do(causal):
    shape = problem(batch=2, heads=8, seq_len_q=2048, seq_len_kv=2048, head_dim=128, dtype="bfloat16", causal=causal)
    *inputs, _, _, do = BACKWARD.inputs(shape, 0, "cuda")
    leaves = [x.requires_grad_() for x in inputs]
    torch.use_deterministic_algorithms(True)
    try:
        found = [torch.autograd.grad(steps.attention(*leaves, causal), leaves, do) for _ in range(20)]
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(mine, its) for each in found for mine, its in zip(each, found[0], strict=True))
