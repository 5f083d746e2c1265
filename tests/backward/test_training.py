"""The front door with gradients: autograd, torch.compile, checkpointing, and a training that goes as with SDPA."""

import gc
import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import steps
from steps import get_step
from steps.core import attention as front
from steps.core import launch
from steps.core.problems import standard
from tests.backward.test_gradients import gives
from tests.shapes import problem
from tutorial_lib import reference
from tutorial_lib.passes import BACKWARD, FORWARD

PAIRS = [("pv_wait_after_max", "decoupled_warpgroups"), ("static_scheduler", "longest_first"), (None, None)]


@pytest.fixture(params=PAIRS, ids=lambda pair: pair[0] or "PyTorch's own")
def pair(request, monkeypatch):
    """The steps that the front door uses for both passes."""
    chosen = front.Training(*(name and get_step(name) for name in request.param))
    monkeypatch.setattr(front, "_launches", launch.Launches())
    monkeypatch.setattr(front, "_trains", lambda *_: chosen.forward is not None)
    monkeypatch.setattr(front, "training", lambda *_: chosen)
    return chosen


def leaves(shape, seed=0):
    return [x.requires_grad_() for x in FORWARD.inputs(shape, seed)]


def gradients_of(attention, inputs, do):
    return torch.autograd.grad(attention(*inputs), inputs, do)


def assert_right(found, shape, inputs, do):
    """By the rule of the backward steps."""
    with torch.no_grad():
        o, lse = reference.attention_and_lse_float64(*inputs, shape.causal, shape.scale)
        given = (*inputs, o.to(do.dtype), lse.float(), do)
        exact = BACKWARD.reference(shape, given)
        accuracy = BACKWARD.check(gives(*found), shape, given, exact, BACKWARD.yardstick(shape, given, exact))
    assert accuracy.correct, accuracy.explain()


@pytest.mark.parametrize("causal", [True, False])
def test_autograd_gets_the_gradients(pair, causal):
    shape = problem(seq_len_q=130, seq_len_kv=130, kv_heads=2, head_dim=64, causal=causal)
    inputs = leaves(shape)
    do = torch.randn_like(inputs[0])
    assert_right(gradients_of(lambda *x: steps.attention(*x, causal=causal), inputs, do), shape, inputs, do)


def test_a_gradient_that_is_the_same_everywhere(pair):
    """``sum`` hands back one number that is expanded: strides of 0."""
    shape = problem(seq_len_q=70, seq_len_kv=70, head_dim=64)
    inputs = leaves(shape)
    steps.attention(*inputs, causal=True).sum().backward()
    assert_right([x.grad for x in inputs], shape, inputs, torch.ones_like(inputs[0]))


@pytest.mark.parametrize("asked", [{}, {"window": 30}], ids=str)
def test_strides_that_a_step_does_not_take_are_no_matter(asked, monkeypatch):
    """Long ones along an axis of one, which PyTorch calls contiguous."""
    chosen = front.Training(get_step("approx_division"), get_step("two_blocks"))
    monkeypatch.setattr(front, "_launches", launch.Launches())
    monkeypatch.setattr(front, "_trains", lambda *_: True)
    monkeypatch.setattr(front, "training", lambda *_: chosen)
    monkeypatch.setattr(front, "_backward_step", lambda *_: chosen.backward)
    shape = problem(batch=1, seq_len_q=70, seq_len_kv=70, head_dim=64)
    inputs = [x.detach() for x in leaves(shape)]
    far = [inputs[0].as_strided(inputs[0].shape, (2**31, *inputs[0].stride()[1:])), *inputs[1:]]
    do, found = torch.randn_like(inputs[0]), []
    for given in (inputs, far):
        given = [x.requires_grad_() for x in given]
        found.append(gradients_of(lambda *x: steps.attention(*x, causal=True, **asked), given, do))
    assert all(map(torch.equal, *found))


def test_the_output_is_that_of_the_step(pair):
    shape = problem(seq_len_q=70, seq_len_kv=70, head_dim=64)
    inputs = leaves(shape)
    o = steps.attention(*inputs, causal=True)
    step = pair.forward or get_step("sdpa")
    assert o.is_contiguous() and torch.equal(o, step.attention(*(x.detach() for x in inputs), causal=True))


def test_one_input_alone_may_require_gradients(pair):
    q, k, v = FORWARD.inputs(problem(seq_len_q=70, seq_len_kv=70, head_dim=64), 0)
    steps.attention(q, k.requires_grad_(), v).sum().backward()
    assert k.grad is not None and q.grad is None


LADDER = pytest.mark.parametrize("pair", PAIRS[:-1], indirect=True, ids=lambda pair: pair[0])


@LADDER
def test_pytorchs_own_test_of_operators(pair):
    inputs = leaves(problem(batch=1, heads=2, seq_len_q=70, seq_len_kv=70, head_dim=64))
    checks = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_static")
    torch.library.opcheck(front.attention_with_lse, (*inputs, True, None), test_utils=checks)


@pytest.mark.filterwarnings("error")
def test_torch_compile_takes_a_training_step_whole(pair):
    def loss(q, k, v):
        return (steps.attention(2 * q, k, v, causal=True) ** 2).mean()

    torch.compiler.reset()  # of the same loss with other steps
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for length in (70, 33, 50):
        inputs = leaves(problem(seq_len_q=length, seq_len_kv=length, head_dim=64))
        expected = torch.autograd.grad(loss(*inputs), inputs)
        for mine, its in zip(torch.autograd.grad(compiled(*inputs), inputs), expected, strict=True):
            torch.testing.assert_close(mine, its, rtol=1e-2, atol=1e-3)


def test_a_forward_pass_may_be_computed_again(pair):
    """Activation checkpointing."""
    inputs = leaves(problem(seq_len_q=70, seq_len_kv=70, head_dim=64))
    do = torch.randn_like(inputs[0])
    plain = gradients_of(steps.attention, inputs, do)
    again = gradients_of(lambda *x: checkpoint(steps.attention, *x, use_reentrant=False), inputs, do)
    for mine, its in zip(again, plain, strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-2, atol=1e-3)


# --- eagerly, past the operators ---


@pytest.fixture
def asked(monkeypatch):
    """The names of the operators that were called, in their order."""
    names = []
    for name in ("attention_with_lse", "gradients"):
        real = getattr(front, name)
        noted = lambda *given, name=name, real=real: names.append(name) or real(*given)
        monkeypatch.setattr(front, name, noted)
    return names


class Anybody(TorchDispatchMode):
    """Looks on, and changes nothing."""

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        return function(*arguments, **(named or {}))


SHORT = problem(batch=2, heads=2, seq_len_q=70, seq_len_kv=70, head_dim=64)


@LADDER
def test_an_eager_training_call_goes_past_the_operators_and_finds_the_same(pair, asked):
    inputs = leaves(SHORT)
    do = torch.randn_like(inputs[0])
    o = steps.attention(*inputs, causal=True)
    found = torch.autograd.grad(o, inputs, do)
    assert not asked
    with Anybody():
        watched = steps.attention(*inputs, causal=True)
        expected = torch.autograd.grad(watched, inputs, do)
    assert asked == ["attention_with_lse", "gradients"] and torch.equal(o, watched)
    for mine, its in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-2, atol=1e-3)


@LADDER
def test_the_steps_of_a_kind_of_call_are_chosen_once(pair, monkeypatch):
    times = []
    monkeypatch.setattr(front, "training", lambda *_: times.append(1) or pair)
    for seed in range(3):
        inputs = leaves(SHORT, seed)
        steps.attention(*inputs).sum().backward()
        assert len(times) == 1
    steps.attention(*inputs, causal=True)
    assert len(times) == 2


@LADDER
def test_a_training_call_as_the_last_goes_straight_to_both_launches(pair, monkeypatch):
    inputs = leaves(SHORT)
    do = torch.randn_like(inputs[0])
    expected = gradients_of(steps.attention, inputs, do)
    for owner, name in ((front, "kind_of"), (type(pair.backward), "ready")):
        monkeypatch.setattr(owner, name, lambda *_: pytest.fail("looked up"))
    for mine, its in zip(gradients_of(steps.attention, inputs, do), expected, strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-2, atol=1e-3)
    less_aligned = torch.randn(do.numel() + 1, dtype=do.dtype)[1:].view_as(do)
    with pytest.raises(pytest.fail.Exception, match="looked up"):
        gradients_of(steps.attention, inputs, less_aligned)


@LADDER
@pytest.mark.parametrize("way", ["a mode", "vmap", "bits must repeat from here on"])
def test_who_looks_on_at_the_backward_pass_alone_sees_the_operator(pair, way, asked, monkeypatch):
    inputs = leaves(SHORT)
    o, do = steps.attention(*inputs), torch.randn_like(inputs[0])
    expected = torch.autograd.grad(o, inputs, do, retain_graph=True)
    assert not asked
    if way == "a mode":
        with Anybody():
            found = torch.autograd.grad(o, inputs, do)
    elif way == "vmap":
        each = torch.stack([do, 0 * do])
        found = [x[0] for x in torch.autograd.grad(o, inputs, each, is_grads_batched=True)]
    else:
        monkeypatch.setattr(front, "_must_repeat", lambda: True)
        found = torch.autograd.grad(o, inputs, do)
    assert "gradients" in asked
    for mine, its in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-2, atol=1e-3)


@LADDER
def test_whether_bits_must_repeat_is_part_of_the_kind(pair, monkeypatch):
    told = []
    monkeypatch.setattr(front, "training", lambda problem, target, repeats: told.append(repeats) or pair)
    for repeats in (False, True, False, True):
        monkeypatch.setattr(front, "_must_repeat", lambda repeats=repeats: repeats)
        steps.attention(*leaves(SHORT))
    assert told == [False, True]


@LADDER
def test_what_is_saved_may_come_back_from_elsewhere(pair):
    """As with ``save_on_cpu``; here with other strides, too."""
    inputs = leaves(SHORT)
    do = torch.randn_like(inputs[0])
    expected = gradients_of(steps.attention, inputs, do)
    packed = []

    def pack(x):
        packed.append(x.shape)
        return x.detach().clone()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x.transpose(1, 2).contiguous().transpose(1, 2)):
        found = gradients_of(steps.attention, inputs, do)
    assert packed == [do.shape] * 4 + [do.shape[:-1]]
    for mine, its in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-2, atol=1e-3)


def test_an_input_that_is_written_to_before_the_backward_pass_is_told(pair):
    inputs = leaves(SHORT)
    for written in range(4):
        given = [2 * x for x in inputs]
        o = steps.attention(*given)
        [*given, o][written].detach().zero_()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(o, inputs, torch.ones_like(o))


def test_a_graph_may_be_kept_and_is_else_gone(pair):
    inputs = leaves(SHORT)
    o, do = steps.attention(*inputs), torch.randn_like(inputs[0])
    first, second = (torch.autograd.grad(o, inputs, do, retain_graph=keep) for keep in (True, False))
    for mine, its in zip(second, first, strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-2, atol=1e-3)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(o, inputs, do)


def test_nothing_keeps_the_tensors_alive(pair):
    inputs = leaves(SHORT)
    gone = [weakref.ref(x) for x in inputs]
    for _ in range(2):
        steps.attention(*inputs).sum().backward()
    del inputs
    gc.collect()
    assert [x() for x in gone] == [None] * 3


@LADDER
def test_no_gradient_of_the_output_gives_none_of_the_inputs(pair):
    class Nothing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return None

    inputs = leaves(SHORT)
    Nothing.apply(steps.attention(*inputs)).sum().backward()
    assert all(x.grad is None for x in inputs)


def test_the_ladder_trains_where_both_passes_are_recorded_to_be_as_fast(monkeypatch):
    fast = {"forward": True, "backward": True}
    asked = []

    def best(problem, target, runs, direction, among):
        asked.append(problem)
        return type("Choice", (), {"beats_sdpa": lambda self, target: fast[direction]})()

    monkeypatch.setattr(front, "best", best)
    for backward in (True, False):
        fast["backward"] = backward
        front._trains.cache_clear()
        assert front.trains(64, "torch.bfloat16", torch.device("cpu"), True) is backward
    front._trains.cache_clear()
    assert asked[0].head_dim == 64 and asked[0].dtype == "bfloat16" and asked[0].causal


def test_elsewhere_pytorch_trains():
    assert not front.trains(128, "torch.float16", torch.device("cpu"), True)
    assert not front.trains(48, "torch.float16", torch.device("cpu"), True)


def test_what_trains_is_the_fastest_recorded():
    shape = problem(batch=4, heads=32, seq_len_q=4096, seq_len_kv=4096, head_dim=128)
    assert front.training(shape, "sm_90").forward is steps.best(shape, "sm_90").step
    assert front.training(shape, "sm_90").backward is steps.best(shape, "sm_90", direction="backward").step


@pytest.mark.parametrize("repeats", [True, False])
def test_a_gpu_trains_by_steps_which_may_have_to_repeat(repeats):
    """Forward steps do not say whether they are deterministic, and are not asked."""
    front._trains.cache_clear()
    shape = standard(causal=True)
    made = front.training(shape, "sm_90", repeats)
    assert made.backward.deterministic or not repeats
    assert front._trains(shape, "sm_90", repeats)
