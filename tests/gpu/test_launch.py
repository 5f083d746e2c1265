"""On a GPU: launches that are ready answer no other kind of call, and programs of all sorts may call."""

import gc
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import pytest
import torch

import steps
from steps.core import attention as front
from steps.core import launch
from steps.reference.step000_sdpa import STEP as SDPA
from steps.reference.step000_sdpa import sdpa
from tests.core.test_launch import fresh, of_many_kinds
from tests.shapes import problem
from tutorial_lib.clock import Stopwatch
from tutorial_lib.passes import FORWARD

pytestmark = pytest.mark.gpu

NAMES = [
    "mma",
    "mask_loop",
    "static_scheduler",
    "gluon_larger_tile",
    "q_registers",
    "wgmma",
    "epilogue_overlap",
    "pv_wait_after_max",
]


def inputs(seed=0, **changes):
    shape = {"batch": 1, "heads": 4, "seq_len_q": 200, "seq_len_kv": 200, "head_dim": 128, **changes}
    return FORWARD.inputs(problem(**shape), seed, "cuda")


@pytest.mark.parametrize("name", NAMES)
def test_a_call_of_another_kind_is_never_answered_with_what_was_ready(name):
    """Each answer, twice and with other tensors of the same kind, is that of a step which has seen nothing before."""
    q, k, v = inputs()
    aligned = tuple(torch.cat([x.flatten()[:8], x.flatten()])[8:].view(x.shape) for x in (q, k, v))
    step = fresh(name)
    for given, causal, scale in product([*of_many_kinds(q, k, v).values(), aligned], (False, True), (None, -0.3)):
        expected = fresh(name).attention(*given, causal, scale)
        for x in (given, tuple(x.clone() for x in given)):
            assert torch.equal(step.attention(*x, causal, scale), expected)
        wide = torch.full((*q.shape[:2], given[0].shape[2], 136), float("nan"), dtype=given[0].dtype, device="cuda")
        for out in (torch.full_like(given[0], float("nan")), wide[..., :128]):
            assert step.attention(*given, causal, scale, out=out) is out and torch.equal(out, expected)
        assert wide[..., 128:].isnan().all()


@pytest.mark.parametrize("name", ["gluon_larger_tile", "q_registers", "wgmma", "epilogue_overlap", "pv_wait_after_max"])
def test_a_gluon_kernel_is_launched_by_the_driver(name, monkeypatch):
    """And not, slower, by Triton, as where the kernel's parameters are not the expected ones."""
    monkeypatch.setattr(launch, "descriptions", lambda like: pytest.fail("launched by Triton"))
    fresh(name).attention(*inputs(), True)


@pytest.mark.parametrize("name", ["exp2", "static_scheduler", "intra_tile_overlap"])
def test_a_cutile_kernel_is_launched_by_the_driver(name, monkeypatch):
    """cuTile launches it once, for us to see how."""
    import cuda.tile as ct

    launched, by_cutile = [], ct.launch
    monkeypatch.setattr(ct, "launch", lambda stream, *more: launched.append(stream) or by_cutile(stream, *more))
    step = fresh(name)
    for _ in range(3):
        step.attention(*inputs(), True)
    assert len(launched) == 1 and launched[0] != torch.cuda.current_stream().cuda_stream


@pytest.mark.parametrize("name", ["gluon_larger_tile", "wgmma", "pv_wait_after_max"])
def test_code_stays_loaded_when_triton_forgets_it(name):
    step, (q, k, v) = fresh(name), inputs()
    expected = step.attention(q, k, v, True)
    step.kernel(problem(head_dim=128)).device_caches.clear()
    gc.collect()
    torch.cuda.synchronize()
    assert torch.equal(step.attention(q, k, v, True), expected)


@pytest.mark.parametrize("name", NAMES)
def test_it_runs_in_the_stream_of_its_caller(name):
    """On a stream of its own, behind work of that stream that fills the inputs late."""
    step, (q, k, v) = fresh(name), inputs()
    expected = step.attention(q, k, v, True)
    late = [torch.full_like(x, float("nan")) for x in (q, k, v)]
    step.attention(*late, True)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        for x, given in zip(late, (q, k, v)):
            x.copy_(given)
        o = step.attention(*late, True)
    stream.synchronize()
    assert torch.equal(o, expected)


@pytest.mark.parametrize("name", NAMES)
def test_several_threads_may_call_each_in_a_stream(name):
    step, given = fresh(name), [inputs(seed, seq_len_q=n) for seed, n in enumerate((64, 200, 333))]
    expected = [fresh(name).attention(*x, True) for x in given]
    torch.cuda.synchronize()
    wrong = []

    def work(n):
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(50):
                if not torch.equal(step.attention(*given[n], True), expected[n]):
                    wrong.append(n)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, [0, 1, 2, 0, 1, 2]))  # raises what a thread raised
    assert not wrong


@pytest.mark.parametrize("name", NAMES)
def test_a_cuda_graph_captures_a_call(name):
    step, (q, k, v) = fresh(name), inputs()
    step.attention(q, k, v, True)  # compiled and loaded before the capture, as everything is
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = step.attention(q, k, v, True)
    for seed in (5, 6):
        for x, new in zip((q, k, v), inputs(seed)):
            x.copy_(new)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(o, fresh(name).attention(q, k, v, True))


def test_the_front_door_runs_the_best_step_eagerly_captured_and_compiled():
    q, k, v = inputs(batch=4, heads=32, seq_len_q=1024, seq_len_kv=1024)
    step = front.chosen(problem(batch=4, heads=32, seq_len_q=1024, seq_len_kv=1024, head_dim=128), "sm_90")
    assert step is not SDPA
    expected = step.attention(q, k, v, True)
    assert torch.equal(steps.attention(q, k, v, causal=True), expected)
    torch.testing.assert_close(expected, sdpa(q, k, v, True, None), atol=2e-3, rtol=1e-2)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = steps.attention(q, k, v, causal=True)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(o, expected)


@pytest.mark.filterwarnings("error")
def test_torch_compile_takes_the_front_door_whole():
    given = inputs(batch=4, heads=32, seq_len_q=1024, seq_len_kv=1024)

    def program(q, k, v):
        return steps.attention(q, k, v, causal=True)

    expected = program(*given)
    for backend in ("eager", "aot_eager"):
        assert torch.equal(torch.compile(program, fullgraph=True, backend=backend)(*given), expected)


def test_the_clock_of_a_load_is_read_on_every_sm():
    stopwatch = Stopwatch()
    before = stopwatch.read()
    torch.cuda._sleep(20_000_000)
    clock = stopwatch.between(before, stopwatch.read())
    assert 0.2 < clock.low <= clock.ghz <= clock.high < 3
    assert clock.high - clock.low < 0.05 * clock.ghz
