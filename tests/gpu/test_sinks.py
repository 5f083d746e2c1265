"""Attention sinks on a GPU: forward and backward steps are right, and so are peers; sinks are read at every launch."""

import secrets
from dataclasses import replace

import pytest
import torch

from steps import get_step
from steps.core.ladder import kernels_of
from steps.everyday.step908_attention_sinks import GPT_OSS
from steps.reference.peers import PEERS
from tests.checking import assert_right
from tests.everyday.test_masks import packed
from tests.everyday.test_sinks import GRADIENTS, KERNELS, STEPS
from tests.everyday.test_sinks import takers as all_takers
from tests.shapes import problem
from tutorial_lib import reference
from tutorial_lib.hardware import describe_machine
from tutorial_lib.passes import FORWARD

pytestmark = pytest.mark.gpu

LARGE = [
    replace(GPT_OSS, batch=1),
    replace(GPT_OSS, batch=1, window=None),
    problem(batch=2, heads=8, kv_heads=2, seq_len_q=3001, seq_len_kv=3001, head_dim=128, sinks=True),
    problem(batch=1, heads=4, seq_len_q=2048, seq_len_kv=5000, head_dim=256, causal=False, sinks=True),
    packed((3000, 1, 129, 777, 2048), heads=64, kv_heads=8, window=128, dtype="bfloat16", sinks=True),
]


def takers(shape) -> list:
    return [step for step in all_takers(shape) if not step.unsupported(shape, describe_machine("cuda")["arch"])]


@pytest.mark.parametrize("shape", KERNELS + LARGE, ids=lambda p: p.slug)
def test_a_kernel_is_right_on_the_gpu(shape):
    assert takers(shape)
    for step in takers(shape):
        assert_right(step, shape, "cuda")


@pytest.mark.parametrize("shape", [KERNELS[0], KERNELS[2], *LARGE[:2]], ids=lambda p: p.slug)
def test_the_log_sum_exp_holds_the_sink(shape):
    q, k, v, sinks = FORWARD.inputs(shape, secrets.randbits(32), "cuda")
    asked = FORWARD.asked(shape, (sinks,))
    _, exact = reference.attention_and_lse_float64(q, k, v, shape.causal, shape.scale, **asked)
    for step in takers(shape):
        _, lse = step.attention(q, k, v, shape.causal, shape.scale, return_lse=True, **asked)
        torch.testing.assert_close(lse.double(), exact, rtol=1e-5, atol=2e-4)


@pytest.mark.parametrize("shape", [*GRADIENTS, *LARGE[:2]], ids=lambda p: p.slug)
@pytest.mark.parametrize("step", [s for s in kernels_of("backward") if s.takes], ids=lambda s: s.name)
def test_gradients_are_right_on_the_gpu(step, shape):
    assert_right(step, shape, "cuda")


@pytest.mark.parametrize("shape", [KERNELS[0], KERNELS[2], LARGE[0], LARGE[-1]], ids=lambda p: p.slug)
@pytest.mark.parametrize("peer", [peer for peer in PEERS if "sinks" in peer.takes], ids=lambda p: p.name)
def test_peers_take_them(peer, shape):
    if reason := peer.unsupported(shape, describe_machine("cuda")["arch"]):
        pytest.skip(reason)
    assert_right(peer, shape, "cuda")


@pytest.mark.parametrize("name", STEPS)
def test_a_cuda_graph_reads_sinks_when_it_is_replayed(name):
    step, shape = get_step(name), LARGE[2]
    q, k, v, sinks = FORWARD.inputs(shape, secrets.randbits(32), "cuda")
    out = torch.empty_like(q)
    step.attention(q, k, v, True, out=out, sinks=sinks)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step.attention(q, k, v, True, out=out, sinks=sinks)
    for _ in range(2):
        sinks.add_(1.0)
        graph.replay()
        exact = reference.attention_float64(q, k, v, True, sinks=sinks)
        torch.testing.assert_close(out.double(), exact, atol=4e-3, rtol=4e-3)
