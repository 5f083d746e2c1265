"""The backward steps on a GPU: right on every shape, the same bits where they promise it, on any stream."""

import dataclasses

import pytest
import torch

from steps import get_step
from steps.core.ladder import kernels_of
from steps.core.problems import standard
from tests.backward.test_gradients import CUTILE
from tests.backward.test_spare import APART, SPARE, ZEROS
from tests.checking import assert_right, skip_unless_taken
from tests.shapes import SHAPES, few_at_once, problem, zeros_alone
from tutorial_lib.passes import BACKWARD

pytestmark = pytest.mark.gpu
LONGER = [
    problem(seq_len_q=1000, seq_len_kv=1000, head_dim=128),
    problem(seq_len_q=900, seq_len_kv=1500, kv_heads=2, dtype="bfloat16", causal=False),
    problem(batch=1, seq_len_q=2000, seq_len_kv=700, head_dim=256),
]
AT_LENGTH = [standard(2048), *(standard(2048, head_dim, causal=False) for head_dim in (64, 128, 256))]


@pytest.mark.parametrize("shape", [*SHAPES, *LONGER], ids=lambda p: p.slug)
@pytest.mark.parametrize("step", kernels_of("backward"), ids=lambda s: s.name)
def test_a_step_is_correct(step, shape):
    assert_right(step, shape, "cuda")


@pytest.mark.parametrize("shape", [*LONGER, *AT_LENGTH], ids=lambda p: p.slug)
@pytest.mark.parametrize("step", [s for s in kernels_of("backward") if s.deterministic], ids=lambda s: s.name)
def test_a_step_that_says_so_gives_the_same_bits_every_time(step, shape):
    skip_unless_taken(step, shape)
    inputs = BACKWARD.inputs(shape, 0, "cuda")
    assert BACKWARD.repeat_difference(step, shape, inputs, 100) == 0


def test_the_difference_between_calls_is_found():
    """Where blocks add in any order, on a problem with many blocks."""
    inputs = BACKWARD.inputs(standard(2048), 0, "cuda")
    assert BACKWARD.repeat_difference(get_step("decoupled_warpgroups"), standard(2048), inputs, 20) > 0


@pytest.mark.parametrize("name", ["fused_pre_post", "cta_per_query_head", "tma_zero_fill", "dependent_launch"])
def test_dq_is_scaled_in_every_call(name):
    """Captured, replayed on other numbers, and into an output that lies in memory in another way."""
    step, shape = dataclasses.replace(get_step(name)), standard(2048, causal=True)
    if name in ("cta_per_query_head", "dependent_launch"):  # and dK and dV are cleared, added up and rounded
        shape = dataclasses.replace(shape, kv_heads=8)
        assert step.variant(shape).sharing > 1 and step.variant(shape).spare
    if name == "tma_zero_fill":
        shape = standard(1024, causal=True)
        assert step.variant(shape).helpers.zeros
    inputs = BACKWARD.inputs(shape, 0, "cuda")
    step.gradients(*inputs, causal=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = step.gradients(*inputs, causal=True)
    for seed in range(1, 6):
        for x, other in zip(inputs, BACKWARD.inputs(shape, seed, "cuda"), strict=True):
            x.copy_(other)
        graph.replay()
        expected = get_step("conflict_free_layout").gradients(*inputs, causal=True)
        out = tuple(torch.full_like(x.transpose(1, 2), float("nan")).transpose(1, 2) for x in inputs[:3])
        for found in (made, step.gradients(*inputs, causal=True, out=out)):
            for mine, its in zip(found, expected, strict=True):
                torch.testing.assert_close(mine, its, rtol=1e-2, atol=1e-3)


OF_SPARE = [
    *SPARE,
    problem(batch=4, heads=16, seq_len_q=1000, seq_len_kv=1500, head_dim=128, dtype="bfloat16"),
    problem(batch=2, heads=40, seq_len_q=777, seq_len_kv=777, head_dim=64),
    problem(batch=2, heads=24, seq_len_q=900, seq_len_kv=500, head_dim=256, causal=False),
    problem(batch=2, heads=24, seq_len_q=300, seq_len_kv=1500, head_dim=256),  # keys that no query sees
]


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        *(("fused_pre_post", shape) for shape in OF_SPARE),
        *(("cta_per_query_head", shape) for shape in APART),
        *(("dependent_launch", shape) for shape in (*OF_SPARE, *APART)),
    ],
    ids=lambda x: getattr(x, "slug", x),
)
def test_spare_warps_are_right_in_short_sections(name, shape, monkeypatch):
    """Short sections have most heads prepared and scaled by spare warps, and leave little time for it."""
    few_at_once(monkeypatch)
    step = dataclasses.replace(get_step(name))
    assert step.variant(shape).spare and step.variant(shape).sharing == shape.group_size
    for _ in range(3):
        assert_right(step, shape, "cuda")


@pytest.mark.parametrize("name", ["tma_zero_fill", "dependent_launch"])
@pytest.mark.parametrize("shape", [*ZEROS, *OF_SPARE[-4:-2]], ids=lambda p: p.slug)
def test_sums_are_cleared_in_short_sections(name, shape, monkeypatch):
    zeros_alone(monkeypatch)
    step = dataclasses.replace(get_step(name))
    assert step.variant(shape).helpers.zeros
    for _ in range(3):
        assert_right(step, shape, "cuda")


def test_calls_in_two_streams_do_not_wait_for_each_other():
    """Each waits for blocks of its own alone, of which those with lower numbers have begun. Their ends overlap."""
    step = dataclasses.replace(get_step("fused_pre_post"))
    shape = standard(1024, causal=False)
    assert step.variant(shape).spare
    given = [BACKWARD.inputs(shape, seed, "cuda") for seed in (0, 1)]
    expected = [get_step("conflict_free_layout").gradients(*inputs) for inputs in given]
    streams = [torch.cuda.Stream() for _ in given]
    torch.cuda.synchronize()
    for _ in range(20):
        made = []
        for stream, inputs in zip(streams, given, strict=True):
            with torch.cuda.stream(stream):
                made.append(step.gradients(*inputs))
        torch.cuda.synchronize()
        for its, wanted in zip(made, expected, strict=True):
            for mine, right in zip(its, wanted, strict=True):
                torch.testing.assert_close(mine, right, rtol=1e-2, atol=1e-3)


NAMES = ["fused_pre_post", "cta_per_query_head", "coalesced_atomics", "dependent_launch", "dq_writer_warp"]
ON_STREAMS = [*CUTILE, *map(get_step, NAMES)]


@pytest.mark.parametrize("step", ON_STREAMS, ids=lambda s: s.name)
def test_a_step_runs_on_the_current_stream(step, monkeypatch):
    few_at_once(monkeypatch)
    step = dataclasses.replace(step)  # without launches that were made ready before
    assert step.name != "fused_pre_post" or step.variant(LONGER[0]).spare
    inputs = BACKWARD.inputs(LONGER[0], 0, "cuda")
    expected = step.gradients(*inputs, causal=True)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10**8)  # what runs elsewhere would not wait for this
        late = [x.clone() for x in inputs]
        found = step.gradients(*late, causal=True)
    stream.synchronize()
    for mine, its in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-2, atol=1e-3)
