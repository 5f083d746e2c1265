"""cuDNN's attention by its own package: what graphs are told, what is said of what it lacks, and what is right."""

import secrets
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from steps.core.quantized import TorchQuantized
from steps.core.step import Unsupported
from steps.reference import cudnn_graph
from steps.reference.peers import OneScalePeer, peers_of
from tests.fp8.test_steps import problem
from tutorial_lib import passes, reference

PASS = passes.QUANTIZED


class Tensor(SimpleNamespace):
    """A tensor of a graph, which keeps what it is told."""

    def __getattr__(self, name):
        return lambda given: (setattr(self, name.removeprefix("set_"), given), self)[1]


class Graph:
    def __init__(self, **_):
        self.asked = {}

    def tensor(self, **told):
        return Tensor(**told)

    def sdpa(self, **asked):
        self.asked = asked
        return Tensor(), None

    def sdpa_fp8(self, **asked):
        self.asked = asked
        return Tensor(), None, Tensor(), Tensor()


@pytest.fixture
def package(monkeypatch):
    """Stands in for the package, which is none of the requirements."""
    types = SimpleNamespace(HALF="half", BFLOAT16="bfloat16", FP8_E4M3="e4m3", FLOAT="float")
    fake = SimpleNamespace(pygraph=Graph, data_type=types, backend_version=lambda: 91900, __version__="1.0")
    monkeypatch.setitem(sys.modules, "cudnn", fake)
    cudnn_graph._built.cache_clear()
    return fake


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn])
def test_a_graph_is_told_what_a_call_is(package, dtype):
    q, k, v = (torch.zeros(2, heads, n, 64).to(dtype) for heads, n in ((4, 100), (2, 300), (2, 300)))
    k = k.transpose(1, 2).contiguous().transpose(1, 2)
    graph, inputs, outputs = cudnn_graph.describe(*map(cudnn_graph._kind, (q, k, v)), True, 0.25)
    assert [x.dim for x in inputs[:3]] == [x.shape for x in (q, k, v)]
    assert [x.stride for x in inputs[:3]] == [x.stride() for x in (q, k, v)]
    assert graph.asked["use_causal_mask"] is True and graph.asked["attn_scale"] == 0.25
    o = outputs[0]
    assert o.output and o.dim == q.shape and o.stride == q.stride() and o.data_type == inputs[0].data_type
    assert len(inputs) == len(outputs) * 3, "in fp8 with six factors, and two largest numbers"
    assert all(graph.asked[x.name] is x for x in inputs)


def test_a_graph_is_told_of_a_window_and_of_sinks(package):
    q = cudnn_graph._kind(torch.zeros(2, 4, 100, 64, dtype=torch.bfloat16))
    graph, inputs, _ = cudnn_graph.describe(q, q, q, True, 0.25, None, 30, True)
    assert graph.asked["diagonal_band_left_bound"] == 30 and graph.asked["sink_token"] is inputs[3]
    assert inputs[3].dim == (1, 4, 1, 1) and inputs[3].data_type == "float"


@pytest.mark.parametrize("lacks", ["pygraph", "data_type"])
def test_what_the_package_lacks_is_told_in_one_line(package, lacks, monkeypatch):
    """Whatever goes wrong while a graph is built is told, and is no crash."""
    monkeypatch.setattr(cudnn_graph, "_handle", lambda device: None)
    if hasattr(package, lacks):
        delattr(package, lacks)
    q = torch.zeros(1, 2, 64, 64, dtype=torch.float16)
    told = f"nvidia-cudnn-frontend 1.0 with cuDNN 91900 does not build it: .*{lacks}"
    with pytest.raises(Unsupported, match=told) as error:
        cudnn_graph.attention(q, q, q, True, 0.125)
    assert "\n" not in str(error.value)


def test_it_is_refused_by_name_where_it_is_not_there():
    [peer] = [peer for peer in peers_of("fp8") if peer.name == "cudnn"]
    assert peer.unsupported(problem(), "cpu") == "peers are timed on a GPU only"
    assert peer.unsupported(problem(), "sm_100") == "made for sm_90, not for sm_100"
    assert peer.unsupported(problem(), "sm_90") == "not installed (pip install nvidia-cudnn-frontend)"
    assert "float8_e4m3fn" in peer.unsupported(replace(problem(), dtype="float8_e5m2"), "sm_90")


class OneScale(TorchQuantized):
    """As a ``OneScalePeer``, on the CPU."""

    one_scale, writes = OneScalePeer.one_scale, OneScalePeer.writes


def with_one_scale(q, k, v, causal, scale, scales, dtype):
    ones = tuple(x[:1, :1].expand_as(x) for x in scales)
    return reference.fp8_attention(q, k, v, ones, causal, scale).to(torch.float8_e4m3fn)


def test_a_peer_with_one_scale_is_compared_with_attention_with_that():
    """And its output may be in e4m3; anybody else's may not, and must have the scale of each head."""
    shape = problem(batch=2, heads=4, kv_heads=2, seq_len_q=100, seq_len_kv=200, causal=False)
    inputs = PASS.inputs(shape, secrets.randbits(32))
    inputs[4][1] *= 1.5  # K's scales of the second sequence
    exact = PASS.reference(shape, inputs)
    allowed = PASS.yardstick(shape, inputs, exact)
    other = TorchQuantized(name="other", title="", change="", function=with_one_scale)
    own = OneScale(name="own", title="", change="", function=with_one_scale)
    assert PASS.check(own, shape, inputs, exact, allowed).correct
    assert not PASS.check(other, shape, inputs, exact, allowed).correct

    def forgets_a_key(q, k, v, *more):
        return with_one_scale(q, k[:, :, 1:], v[:, :, 1:], *more)

    assert not PASS.check(replace(own, function=forgets_a_key), shape, inputs, exact, allowed).correct
