"""What a launch needs is made ready once a kind of call, and a call of another kind never gets it."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import product

import pytest
import torch

import steps
from steps import Unsupported, get_step
from steps.core import attention as front
from steps.core import launch
from steps.core.step import TorchStep
from steps.reference.step000_sdpa import STEP as SDPA
from steps.reference.step000_sdpa import sdpa
from tests.shapes import problem
from tutorial_lib.passes import FORWARD


def inputs(**changes):
    return FORWARD.inputs(problem(**{"batch": 1, "heads": 2, "seq_len_q": 70, "seq_len_kv": 70, **changes}), 0)


def fresh(name: str):
    """A step that has launched nothing yet."""
    return replace(get_step(name))


@pytest.fixture
def made_ready(monkeypatch):
    """Counts how often a launch is made ready."""
    times = []
    real = TorchStep.make_ready
    monkeypatch.setattr(TorchStep, "make_ready", lambda self, *a: times.append(self.name) or real(self, *a))
    return times


def test_a_call_of_the_same_kind_is_made_ready_once(made_ready):
    step = fresh("naive")
    for seed in range(3):
        q, k, v = FORWARD.inputs(problem(seq_len_q=70), seed)
        torch.testing.assert_close(step.attention(q, k, v, True), sdpa(q, k, v, True, None), atol=2e-3, rtol=1e-2)
    assert made_ready == ["naive"]


def of_many_kinds(q, k, v):
    """Tensors (q, k, v) that are other than these in one way each."""
    return {
        "as they are": (q, k, v),
        "other contents": tuple(x.flip(2) for x in (q, k, v)),
        "other strides": tuple(x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)),
        "queries of other strides": (q.transpose(2, 3).contiguous().transpose(2, 3), k, v),
        "keys of other strides": (q, k.transpose(2, 3).contiguous().transpose(2, 3), v),
        "values of other strides": (q, k, v.transpose(2, 3).contiguous().transpose(2, 3)),
        "other dtype": tuple(x.bfloat16() for x in (q, k, v)),
        "shorter queries": (q[:, :, :50], k, v),
        "shorter keys": (q, k[:, :, :50], v[:, :, :50]),
        "fewer heads of keys": (q, k[:, : k.shape[1] // 2], v[:, : k.shape[1] // 2]),
        "elsewhere in memory": tuple(torch.cat([x.flatten()[:3], x.flatten()])[3:].view(x.shape) for x in (q, k, v)),
    }


@pytest.mark.parametrize("name", ["naive", "static_scheduler", "gluon_larger_tile", "epilogue_overlap"])
def test_a_call_of_another_kind_is_never_answered_with_what_was_ready(name):
    """Everything that may differ, in every order: each answer is that of a step which has seen nothing before."""
    tensors = of_many_kinds(*inputs())
    step = fresh(name)
    for (_, given), causal, scale in product(tensors.items(), (False, True), (None, 0.3, -0.3, 0.0)):
        expected = fresh(name).attention(*given, causal, scale)
        assert torch.equal(step.attention(*given, causal, scale), expected)
        out = torch.full_like(given[0], float("nan")).transpose(2, 3).contiguous().transpose(2, 3)
        assert step.attention(*given, causal, scale, out=out) is out and torch.equal(out, expected)


def test_what_is_wrong_is_told_again_and_again():
    step = fresh("exp2")
    q, k, v = inputs()
    step.attention(q, k, v)
    for _ in range(2):
        with pytest.raises(ValueError, match="v must have k's shape"):
            step.attention(q, k, v[:, :, :5])
        with pytest.raises(ValueError, match=r"k must be a torch\.Tensor, got list"):
            step.attention(q, [1], v)
        with pytest.raises(ValueError, match="out must be a tensor with shape"):
            step.attention(q, k, v, out=q[:, :, :5])
        with pytest.raises(ValueError, match="scale must be a finite number"):
            step.attention(q, k, v, scale=float("nan"))
        with pytest.raises(Unsupported, match="head_dim must be a multiple of 8"):
            step.attention(*(x[..., :20] for x in (q, k, v)))
    assert len(step.launches) == 1  # nothing that failed is kept


def test_a_scale_that_changes_in_place_is_seen():
    step, (q, k, v) = fresh("exp2"), inputs()
    scale, causal = torch.tensor(0.1), torch.tensor(True)
    before = step.attention(q, k, v, causal, scale)
    scale.fill_(0.9)
    causal.fill_(False)
    assert torch.equal(step.attention(q, k, v, causal, scale), step.attention(q, k, v, False, float(scale)))
    assert not torch.equal(step.attention(q, k, v, causal, scale), before)


def test_no_more_is_kept_than_is_of_use(monkeypatch):
    monkeypatch.setattr(launch, "KEPT", 3)
    step, (q, k, v) = fresh("naive"), inputs()
    for n in range(1, 9):
        step.attention(q[:, :, :n], k, v)
        assert len(step.launches) <= 3


def test_what_a_cuda_graph_captured_stays(monkeypatch):
    """Its replay reads what the launch holds, whenever that is; what was not captured may go."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(launch, "CAPTURED", set())
    for capturing, kept in ((False, 0), (True, 1)):
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda capturing=capturing: capturing)
        there = launch.on_its_device(lambda q, k, v, out: q, torch.device("cuda", 0))
        assert there(1, 2, 3, None) == 1 and len(launch.CAPTURED) == kept


def test_nothing_keeps_the_tensors_alive():
    import gc
    import weakref

    for step in (fresh("naive"), fresh("mma"), fresh("static_scheduler")):
        q, k, v = inputs()
        gone = [weakref.ref(x) for x in (q, k, v)]
        step.attention(q, k, v)
        del q, k, v
        gc.collect()
        assert [x() for x in gone] == [None] * 3


def test_a_step_goes_to_another_process_without_its_launches():
    step = fresh("static_scheduler")
    step.attention(*inputs())
    again = pickle.loads(pickle.dumps(step))
    assert again == step and len(again.launches) == 0 and len(step.launches) == 1


def test_several_threads_may_call():
    step, given = fresh("static_scheduler"), [inputs(seq_len_q=n) for n in (10, 20, 70)]
    expected = [fresh("static_scheduler").attention(*x, True) for x in given]
    wrong = []

    def work(n):
        for _ in range(3):
            if not torch.equal(step.attention(*given[n], True), expected[n]):
                wrong.append(n)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, [0, 1, 2, 0, 1, 2]))  # raises what a thread raised
    assert not wrong


# --- the front door ---


@pytest.fixture
def uses(monkeypatch):
    """uses(name): the front door chooses this step; a list of the problems that it was asked for."""
    monkeypatch.setattr(front, "_launches", launch.Launches())
    asked = []

    def choose(name):
        monkeypatch.setattr(front, "chosen", lambda problem, target: asked.append(problem) or get_step(name))
        return asked

    return choose


@pytest.mark.parametrize("name", ["sdpa", "approx_division"])
def test_the_front_door_chooses_once_a_kind(uses, name):
    asked = uses(name)
    for seed in range(3):
        q, k, v = FORWARD.inputs(problem(seq_len_q=70, heads=2), seed)
        for causal in (True, False):
            o = steps.attention(q, k, v, causal=causal, scale=0.2)
            torch.testing.assert_close(o, sdpa(q, k, v, causal, 0.2), atol=2e-3, rtol=1e-2)
            assert o.is_contiguous()
    assert [p.causal for p in asked] == [True, False]


def test_a_call_as_the_last_is_known_at_once_and_no_other_is_taken_for_it(uses, monkeypatch):
    uses("static_scheduler")
    step, given = fresh("static_scheduler"), inputs()
    expected = step.attention(*given)
    negated = torch._neg_view(-given[0]), *given[1:]
    for other in (*of_many_kinds(*given).values(), negated):
        for _ in range(2):
            assert torch.equal(steps.attention(*given), expected)
        assert torch.equal(steps.attention(*other), step.attention(*other))
        for asked in ({"causal": True}, {"scale": 0.3}):
            assert torch.equal(steps.attention(*given), expected)
            assert torch.equal(steps.attention(*given, **asked), step.attention(*given, **asked))
    steps.attention(*given)
    with monkeypatch.context() as patch:
        patch.setattr(front, "kind_of", lambda *_: pytest.fail("looked up"))
        assert torch.equal(steps.attention(*(x.clone() for x in given)), expected)
        with pytest.raises(pytest.fail.Exception, match="looked up"):
            steps.attention(*of_many_kinds(*given)["elsewhere in memory"])  # less aligned: the same in all else
    with pytest.raises(ValueError, match=r"k must be a torch\.Tensor"):
        steps.attention(given[0], None, given[2])


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, partial(torch.autocast, "cpu")])
def test_a_call_as_the_last_is_known_at_once_in_every_mode(mode, uses, monkeypatch):
    uses("static_scheduler")
    given = inputs()
    expected = steps.attention(*given)
    with mode():
        for _ in range(2):
            steps.attention(*given)
        with monkeypatch.context() as patch:
            patch.setattr(front, "kind_of", lambda *_: pytest.fail("looked up"))
            assert torch.equal(steps.attention(*given), expected)
    assert torch.equal(steps.attention(*given), expected)


def test_what_comes_twice_is_looked_up(uses):
    uses("static_scheduler")
    q, _, _ = inputs()
    for _ in range(3):
        assert torch.equal(steps.attention(q, q, q), fresh("static_scheduler").attention(q, q, q))


def test_gradients_are_seen_where_the_last_call_wanted_none(uses):
    uses("sdpa")
    given = inputs()
    for _ in range(2):
        assert not steps.attention(*given).requires_grad
    given[1].requires_grad_()
    assert steps.attention(*given).requires_grad
    with torch.no_grad():
        assert not steps.attention(*given).requires_grad
    assert steps.attention(*given).requires_grad


@pytest.mark.parametrize("before", [False, True])
def test_a_kernels_call_without_gradients_is_not_taken_for_one_with_them(before, uses):
    """Of tensors that require them: PyTorch's guard does not ask whether gradients are on."""
    uses("static_scheduler")
    given = inputs()
    if before:
        steps.attention(*given)
    leaves = [x.clone().requires_grad_() for x in given]
    with torch.no_grad():
        for _ in range(2):
            assert not steps.attention(*leaves).requires_grad
    assert steps.attention(*leaves).requires_grad


def test_the_best_recorded_step_is_chosen_and_else_pytorchs():
    shape = problem(batch=4, heads=32, seq_len_q=4096, seq_len_kv=4096, head_dim=128)
    assert front.chosen(shape, "sm_90").name == steps.best(shape, "sm_90").step.name
    assert front.chosen(shape, "cpu") is SDPA
    assert front.chosen(problem(head_dim=44), "sm_90") is SDPA
    assert front.chosen(shape, "sm_75") is SDPA


def test_the_front_door_is_an_operator(uses):
    """PyTorch's own test of operators: the schema, fake tensors, tracing."""
    uses("approx_division")
    q, k, v = inputs()
    torch.library.opcheck(front.operator, (q, k, v, True, None))
    torch.library.opcheck(front.operator, (q.transpose(1, 2).contiguous().transpose(1, 2), k, v, False, 0.3))


@pytest.mark.filterwarnings("error")
def test_torch_compile_takes_it_whole_and_without_a_warning(uses):
    uses("approx_division")
    compiled = torch.compile(
        lambda q, k, v: steps.attention(2 * q, k, v, causal=True) + 1, fullgraph=True, backend="eager"
    )
    for length in (70, 33):
        q, k, v = inputs(seq_len_q=length)
        assert torch.equal(compiled(q, k, v), steps.attention(2 * q, k, v, causal=True) + 1)
