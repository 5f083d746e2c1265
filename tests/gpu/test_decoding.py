"""On a GPU: decoding and pages are right, in a CUDA graph and on two streams, too, and told in bytes a second."""

import dataclasses

import pytest
import torch

from steps import PAGED, get_step
from steps.core.problems import DECODING, PAGED_DECODING
from steps.measuring.measure import Settings, measure
from tutorial_lib import passes, reference
from tutorial_lib.passes import FORWARD
from tutorial_lib.problem import FP8

pytestmark = pytest.mark.gpu
NAMES = ("group_rows", "split_kv", "last_block_merges")
SHAPES = [
    dataclasses.replace(DECODING, batch=batch, kv_heads=kv_heads, seq_len_q=queries, seq_len_kv=keys, dtype=dtype)
    for batch, kv_heads, queries, keys, dtype in (
        (8, 8, 1, 32768, "bfloat16"),
        (1, 8, 1, 131072, "float16"),
        (1, 1, 16, 8192, "bfloat16"),
        (3, 64, 2, 5003, "float16"),
        (64, 8, 1, 1000, "float16"),
    )
] + [dataclasses.replace(DECODING, batch=2, head_dim=head_dim, seq_len_kv=9001) for head_dim in (32, 64, 256)]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda p: p.slug)
@pytest.mark.parametrize("name", NAMES)
def test_a_step_is_right(name, shape):
    step, inputs = get_step(name), FORWARD.inputs(shape, 1, "cuda")
    exact = FORWARD.reference(shape, inputs)
    found = FORWARD.check(step, shape, inputs, exact, FORWARD.yardstick(shape, inputs, exact))
    assert found.correct, found.explain()
    assert FORWARD.repeat_difference(step, shape, inputs, 20) == 0
    _, lse = step.attention(*inputs, return_lse=True)
    expected = reference.log_sum_exp(inputs[0], inputs[1], False, shape.effective_scale)
    torch.testing.assert_close(lse, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("kv_dtype", [None, FP8])
@pytest.mark.parametrize("page_size", [8, 16, 64, 256])
@pytest.mark.parametrize("queries", [1, 5, 16])
@pytest.mark.parametrize("step", PAGED, ids=lambda s: s.name)
def test_pages_are_read_and_nothing_else(step, queries, page_size, kv_dtype):
    kind = dataclasses.replace(PAGED_DECODING, seq_len_q=queries, page_size=page_size, kv_dtype=kv_dtype)
    for head_dim in (64, 128, 256):
        shape = dataclasses.replace(kind, seq_len_kv=9001, head_dim=head_dim)
        inputs = passes.PAGED.inputs(shape, 1, "cuda")
        exact = passes.PAGED.reference(shape, inputs)
        found = passes.PAGED.check(step, shape, inputs, exact, passes.PAGED.yardstick(shape, inputs, exact))
        assert found.correct, found.explain()


@pytest.mark.parametrize("name", NAMES)
def test_a_step_is_captured_in_a_graph_beside_calls_outside(name):
    step, shape = get_step(name), dataclasses.replace(DECODING, batch=1, seq_len_kv=8192)
    inputs = FORWARD.inputs(shape, 1, "cuda")
    expected = step.attention(*inputs).clone()
    out, graph = torch.full_like(expected, float("nan")), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step.attention(*inputs, out=out)
    other = torch.cuda.Stream()
    for _ in range(50):
        out.fill_(float("nan"))
        other.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(other):
            beside = step.attention(*inputs)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, expected) and torch.equal(beside, expected)


def test_speed_is_told_in_bytes_a_second_of_a_cold_cache():
    """A problem that fits in L2 is not read from there: no step is faster than memory, with room for reading alone."""
    shape = dataclasses.replace(DECODING, batch=1, kv_heads=1, heads=8, seq_len_kv=32768)
    steps = [get_step(name) for name in ("sdpa", *NAMES)]
    run, _, _ = measure(shape, steps, [], Settings(device="cuda", seed=1, rounds=3))
    assert run.ceiling.gigabytes_per_s > 100 and run.settings["input_sets"] > 1
    for m in run.steps:
        assert m.status == "measured" and 0 < m.percent_of_ceiling < 130, (m.name, m.reason, m.percent_of_ceiling)


@pytest.mark.parametrize("kv_dtype", [None, FP8])
def test_pages_are_measured(kv_dtype):
    shape = dataclasses.replace(PAGED_DECODING, batch=2, seq_len_kv=8192, kv_dtype=kv_dtype)
    run, _, _ = measure(shape, list(PAGED), [], Settings(device="cuda", seed=1, rounds=2))
    assert run.direction == "paged" and [m.status for m in run.steps] == ["measured"] * len(PAGED)
    assert run.measurement("paged").gigabytes_per_s and run.measurement("paged").speedup_vs_baseline
