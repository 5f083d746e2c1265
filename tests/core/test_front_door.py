"""What callers bring: tensors of every kind, modes, transformations. Right as float64 has it, or refused by name.

A case says how the inputs come, and what must become of them: None where the output must be right, else words of the
ValueError. Every case goes in by every way (``WAYS``), on the CPU and, by ``make test-gpu``, on a GPU.
"""

import contextlib

import numpy
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.two_tensor import TwoTensor

import steps
from steps import get_step
from steps.core import attention as front
from steps.core import launch
from steps.core.tensors import tell_autograd
from tutorial_lib import packing, reference

SHAPE = (1, 2, 40, 64)


@pytest.fixture(autouse=True, params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request, monkeypatch):
    monkeypatch.setattr(random, "device", request.param, raising=False)
    return request.param


def random(dtype=torch.float16, shape=SHAPE):
    return torch.randn(shape, dtype=dtype, device=random.device)


def negated(x):
    return torch._neg_view(-x)


def imaginary(x):
    return torch.complex(x.float(), -x.float()).to(torch.complex32).conj().imag


class Named(torch.Tensor):
    """A subclass that changes nothing."""


def with_long_strides(x):
    """Along an axis of one, where no step is ever taken."""
    return x.contiguous().as_strided(x.shape, (2**31, *x.stride()[1:]))


def by_step(name):
    return lambda q, k, v, **asked: get_step(name).attention(q, k, v, **asked)


def packed(q, k, v, **asked):
    begins = torch.tensor([0, q.shape[2]], dtype=torch.int32, device=q.device)
    o = get_step("sdpa").attention(*(x[0].transpose(0, 1) for x in (q, k, v)), cu_seqlens_q=begins, **asked)
    return o.transpose(0, 1)[None]


def compiled(q, k, v, **asked):
    torch.compiler.reset()
    return torch.compile(lambda q, k, v: steps.attention(q, k, v, **asked), backend="eager")(q, k, v)


WAYS = {
    "the front door": steps.attention,
    "the operator": lambda q, k, v, causal=False, scale=None: front.operator(q, k, v, causal, scale),
    "compiled": compiled,
    "sdpa": by_step("sdpa"),
    "naive": by_step("naive"),
    "packed": packed,
    "a step in cuTile": by_step("exp2"),
    "a step in Gluon": by_step("swizzle"),
    "a step for Hopper": by_step("wgmma"),
}

SCALES = [-0.3, 0.0, -0.0, 1e-30, 3.0]


def assert_right(o, q, k, v, causal=False, scale=None):
    """By the steps' rule: at most twice the error of PyTorch's own attention, and one step of rounding."""
    q, k, v = (torch.zeros_like(x) if x._is_zerotensor() else x for x in (q, k, v))  # which cuDNN would read
    q, k, v = (x.as_subclass(torch.Tensor).resolve_neg() for x in (q, k, v))
    exact = reference.attention_float64(q, k, v, causal, scale)
    own = reference.sdpa_error((q, k, v), exact, causal, scale)
    assert o.dtype == q.dtype and o.shape == q.shape
    rounding = torch.finfo(q.dtype).eps * exact.abs().max().item()
    assert (o.double() - exact).abs().max().item() <= 2 * own + rounding


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_any_finite_scale(way, causal, scale):
    q, k, v = random(), random(), random()
    assert_right(WAYS[way](q, k, v, causal=causal, scale=scale), q, k, v, causal, scale)


WRITTEN_OUT = {
    "negated": lambda q, k, v: (negated(q), k, v),
    "keys and values negated": lambda q, k, v: (q, negated(k), negated(v)),
    "an imaginary part": lambda q, k, v: (imaginary(q), k, imaginary(v)),
    "a subclass": lambda q, k, v: (q.as_subclass(Named), k.as_subclass(Named), v),
    "a parameter": lambda q, k, v: (torch.nn.Parameter(q, requires_grad=False), k, v),
    "zeros that are nowhere": lambda q, k, v: (
        q,
        torch._efficientzerotensor(k.shape, dtype=k.dtype, device=k.device),
        v,
    ),
    "long strides of one": lambda q, k, v: (with_long_strides(q), k, v),
    "one value for all": lambda q, k, v: (q, k, v[:, :, :1].expand(v.shape)),
    "turned": lambda q, k, v: (q.transpose(1, 2).contiguous().transpose(1, 2), k.flip(2), v),
}


@pytest.mark.parametrize("kind", WRITTEN_OUT)
@pytest.mark.parametrize("way", [way for way in WAYS if way != "compiled"])
def test_numbers_that_are_not_in_memory_as_they_are(way, kind):
    q, k, v = WRITTEN_OUT[kind](random(), random(), random())
    if kind == "long strides of one" and way == "a step in cuTile":
        with pytest.raises(ValueError, match="q must have strides below 2"):
            WAYS[way](q, k, v)
        return
    assert_right(WAYS[way](q, k, v, causal=True), q, k, v, causal=True)


@pytest.mark.parametrize("kind", WRITTEN_OUT)
@pytest.mark.parametrize("way", ["the front door", "the operator", "a step"])
def test_what_a_launch_gets_lies_in_memory(way, kind, monkeypatch):
    """On the CPU kernels are computed by PyTorch, which knows its tensors; a GPU reads memory."""
    given = []
    step = get_step("exp2").evolve(name="which looks")
    monkeypatch.setattr(type(step), "make_ready", lambda *_: lambda *x: given.extend(x[:3]) or x[0].clone())
    monkeypatch.setattr(type(step), "takes_long_strides", True)
    monkeypatch.setattr(front, "_launches", launch.Launches())
    monkeypatch.setattr(front, "chosen", lambda *_: step)
    ways = {"the front door": steps.attention, "the operator": front.operator, "a step": step.attention}
    for _ in range(2):  # made ready, and found
        ways[way](random(), random(), random())
        ways[way](*WRITTEN_OUT[kind](random(), random(), random()))
    assert len(given) == 12 and not any(x.is_neg() for x in given) and all(x.data_ptr() for x in given)


@pytest.mark.parametrize("name", ["formulas", "relaxed_atomics", "transposed_scores"])
def test_gradients_of_numbers_that_are_not_in_memory_as_they_are(name):
    q, k, v, do = random(), random(), random(), random()
    o, lse = reference.attention_and_lse_float64(q, k, v)
    given = (q, k, v, o.half(), lse.float(), do)
    expected = get_step(name).gradients(*given)
    for n in (0, 2, 3, 5):
        there = [negated(x) if m == n else x for m, x in enumerate(given)]
        assert all(map(torch.equal, get_step(name).gradients(*there), expected))


def given_back(x):
    """As sharded training does with parameters that are not in use."""
    x.untyped_storage().resize_(0)
    return x


REFUSED = {
    "meta": (lambda x: x.to("meta"), "q must be on a CUDA device or the CPU, got a tensor on meta"),
    "sparse": (lambda x: x.to_sparse(), "q must be a dense tensor, got layout torch.sparse_coo"),
    "nested": (lambda x: torch.nested.nested_tensor([x[0], x[0]]), "q must be a dense tensor, got a nested tensor"),
    "float32": (lambda x: x.float(), "q must be float16 or bfloat16, got torch.float32"),
    "three axes": (lambda x: x[0], r"q must (have 4 dimensions|be a tensor)"),
    "nothing": (lambda x: None, "q must be a torch.Tensor, got NoneType"),
    "no queries": (lambda x: x[:, :, :0], "seq_len_q must be a whole number of at least 1, got 0"),
    "an array": (lambda x: x.cpu().numpy(), "q must be a torch.Tensor, got ndarray"),
    "given back": (given_back, "q must be a tensor with memory of its own, got one whose memory was given back"),
    "masked": (
        lambda x: torch.masked.masked_tensor(x, x > 0),
        "q must be a tensor (that takes new operators|with memory of its own), got a MaskedTensor",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("way", ["the front door", "sdpa", "a step in cuTile", "a step for Hopper"])
def test_what_cannot_be_taken_is_refused_by_name(way, kind):
    make, words = REFUSED[kind]
    for _ in range(2):  # nothing is kept of the first call
        with pytest.raises(ValueError, match=words):
            WAYS[way](make(random()), random(), random())


@pytest.mark.parametrize("name", ["o", "lse", "do"])
def test_gradients_of_what_is_elsewhere_are_refused_by_name(name):
    given = {n: random() for n in ("q", "k", "v", "o", "lse", "do")} | {"lse": random().float()[..., 0]}
    q = given["q"]
    given[name] = given[name].to("meta")
    with pytest.raises(ValueError, match=rf"{name} must be on q's device \({q.device}\), got meta"):
        torch.ops.fmha_tutorial.gradients(*given.values(), False, None)


def overlapping(q):
    return q[:, :, :1].expand(q.shape)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda q: [1.0], "out must be a tensor with shape .* got list"),
        (lambda q: q[:, :1].contiguous(), "out must be a tensor with shape"),
        (lambda q: q.to("meta"), "out must be a tensor with shape .* on meta"),
        (overlapping, "each number in memory of its own"),
        (lambda q: random(shape=(1, 2, 103)).unfold(2, 64, 1), "each number in memory of its own"),
        (lambda q: negated(q), "each number in memory of its own"),
    ],
)
@pytest.mark.parametrize("name", ["sdpa", "exp2", "wgmma"])
def test_a_place_for_the_output_that_is_none(name, make, words):
    q, k, v = random(), random(), random()
    with pytest.raises(ValueError, match=words):
        get_step(name).attention(q, k, v, out=make(torch.empty_like(q)))


OF_SDPA = [
    ({"attn_mask": torch.ones(40, 40, dtype=torch.bool)}, "attn_mask is an argument of scaled_dot_product_attention"),
    ({"dropout_p": 0.1}, "no weights are dropped here"),
    ({"is_causal": True}, "say causal=True"),
    ({"enable_gqa": True}, "k and v may have fewer heads without it"),
    ({"causal": torch.ones(40, 40, dtype=torch.bool)}, "causal must be True or False, got a tensor"),
    ({"causal": "no"}, "causal must be True or False, got 'no'"),
    ({"scale": "a half"}, "scale must be a number, got 'a half'"),
    ({"scale": "0.5"}, "scale must be a number, got '0.5'"),  # which float() would read
    ({"scale": float("nan")}, "scale must be a finite number, got nan"),
    ({"scale": 10**400}, "scale must be a finite number, got inf"),
    ({"scale": 2.4e38}, "scale must be between -2.3e"),
    ({"scale": torch.tensor(1.0, device="meta")}, "scale must be a number, got tensor"),
    ({"causal": numpy.ones((40, 40))}, "causal must be True or False, got ndarray"),
    ({"attn_mask": numpy.ones((40, 40))}, "attn_mask is an argument of scaled_dot_product_attention, got a ndarray"),
    ({"attn_mask": 0}, "attn_mask is an argument of scaled_dot_product_attention, got 0"),
    ({"causal": True, "window": 2**70}, r"window must be less than 2\^31"),
]


@pytest.mark.parametrize(("asked", "words"), OF_SDPA)
def test_what_is_no_argument_is_told(asked, words):
    with pytest.raises(ValueError, match=words):
        steps.attention(random(), random(), random(), **asked)


def test_what_sdpa_has_by_default_does_no_harm():
    q, k, v = random(), random(), random()
    assert torch.equal(
        steps.attention(q, k, v, attn_mask=None, dropout_p=0.0, enable_gqa=False), steps.attention(q, k, v)
    )
    with pytest.raises(TypeError, match="dropout"):
        steps.attention(q, k, v, dropout=0.0)


@pytest.mark.parametrize("way", ["the front door", "sdpa", "a step in cuTile", "a step in Gluon", "a step for Hopper"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_changes_nothing(way, dtype, device):
    q, k, v = (random(dtype) for _ in range(3))
    expected = WAYS[way](q, k, v, causal=True)
    for other in (torch.bfloat16, torch.float16):
        with torch.autocast(device, dtype=other):
            assert torch.equal(WAYS[way](q, k, v, causal=True), expected)


@pytest.mark.parametrize("name", ["formulas", "relaxed_atomics", "transposed_scores"])
def test_autocast_changes_no_gradients(name, device):
    q, k, v, do = random(), random(), random(), random()
    o, lse = reference.attention_and_lse_float64(q, k, v)
    given = (q, k, v, o.half(), lse.float(), do)
    expected = get_step(name).gradients(*given)
    with torch.autocast(device, dtype=torch.bfloat16):
        assert all(map(torch.equal, get_step(name).gradients(*given), expected))


@pytest.mark.parametrize("head_dim", [8, 16])
@pytest.mark.parametrize("name", ["static_scheduler", "window", "varlen"])
def test_a_tile_half_of_which_is_behind_the_tensors_end(name, head_dim):
    q, k, v = (random(shape=(1, 2, 40, head_dim)) for _ in range(3))
    assert_right(get_step(name).attention(q, k, v, causal=True), q, k, v, causal=True)


@pytest.mark.parametrize("way", ["the front door", "a step in cuTile"])
def test_a_subclass_comes_out_as_a_tensor_whatever_came_before(way):
    q, k, v = random(), random(), random()
    for given in (q, q.as_subclass(Named), q.as_subclass(Named), q):
        assert type(WAYS[way](given, k, v)) is torch.Tensor


def test_rows_that_lie_inside_others_are_taken_apart():
    """PyTorch's own attention is wrong with them on the CPU."""
    q, k, v = random(shape=(1, 1, 103)).unfold(2, 64, 1).expand(SHAPE), random(), random()
    assert torch.equal(steps.attention(q, k, v), steps.attention(q.contiguous(), k, v))


@pytest.mark.parametrize("name", ["sdpa", "exp2", "swizzle", "wgmma"])
def test_the_default_device_is_the_programs_own(name):
    q, k, v = random(), random(), random()
    expected = get_step(name).attention(q, k, v)
    with torch.device("meta"):
        assert torch.equal(get_step(name).evolve(name=f"{name} anew").attention(q, k, v), expected)


def test_where_sequences_begin_is_read_from_memory(monkeypatch):
    q, k, v = (random()[0].transpose(0, 1).contiguous() for _ in range(3))
    begins = torch.tensor([0, 10, 40], dtype=torch.int32, device=q.device)
    expected = get_step("varlen").attention(q, k, v, cu_seqlens_q=begins)
    seen, check = [], packing.check
    monkeypatch.setattr(packing, "check", lambda *given: seen.append(given[1]) or check(*given))
    assert torch.equal(get_step("varlen").attention(q, k, v, cu_seqlens_q=negated(begins)), expected)
    assert len(seen) == 2 and not any(x.is_neg() for x in seen)  # a GPU reads memory


# --- derivatives ---


@pytest.fixture(
    params=[("pv_wait_after_max", "decoupled_warpgroups"), ("static_scheduler", "longest_first"), None], ids=str
)
def pair(request, monkeypatch):
    """The steps that the front door trains by; None: PyTorch."""
    found = request.param and front.Training(*map(get_step, request.param))
    monkeypatch.setattr(front, "_launches", launch.Launches())
    monkeypatch.setattr(front, "_trains", lambda *_: found is not None)
    monkeypatch.setattr(front, "training", lambda *_: found)


def test_derivatives_in_forward_mode_are_refused_by_name(pair):
    q, k, v = random(), random(), random()
    with pytest.raises(ValueError, match="k must have no derivative in forward mode"):
        torch.func.jvp(lambda k: steps.attention(q, k, v), (k,), (k,))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(v, v)
        with pytest.raises(ValueError, match="v must have no derivative in forward mode"):
            steps.attention(q, k, dual)
        with pytest.raises(ValueError, match="v must have no derivative in forward mode"):
            front.operator(q, k, dual)
        steps.attention(q, k, v)
    for hides, given in ((torch.vmap, q[None]), (torch.func.functionalize, q)):
        with pytest.raises(ValueError, match="q must have no derivative in forward mode"):
            torch.func.jvp(hides(lambda q: steps.attention(q, k, v)), (given,), (given,))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_no_derivative_in_forward_mode_is_lost_inside_of_a_compiled_program(backend):
    """Where the operators would drop it: what is traced shows no tangents."""
    q, k, v = random(), random(), random()
    for f in (
        lambda q: torch.func.jvp(lambda q: steps.attention(q, k, v), (q,), (q,)),
        torch.func.jacfwd(lambda q: steps.attention(q, k, v).sum()),
    ):
        torch.compiler.reset()
        with pytest.raises(ValueError, match="q must have no derivative in forward mode"):
            torch.compile(f, backend=backend)(q)
    torch.compiler.reset()
    beside = torch.compile(
        lambda x: torch.func.jvp(lambda x: (x * steps.attention(q, k, v)).sum(), (x,), (x,)), backend=backend
    )
    value, tangent = beside(k)
    assert torch.equal(value, tangent)


WITHIN = {
    "vjp": lambda f, q: torch.func.vjp(f, q),
    "vmap": lambda f, q: torch.vmap(f)(q[None]),
    "make_fx": lambda f, q: make_fx(f)(q),
    "autograd": lambda f, q: f(q.clone().requires_grad_()),
}


@pytest.mark.parametrize(
    ("change", "asked", "words"),
    [
        (lambda k, v: (k, v[:, :, :20]), {}, "v must have k's shape"),
        (lambda k, v: (k[:, :, :5], v[:, :, :5]), {"causal": True, "window": 3}, "window must leave every query a key"),
        (lambda k, v: (None, v), {}, "k must be a torch.Tensor, got NoneType"),
        (lambda k, v: (k.float(), v.float()), {}, "k must (be|have)"),
        (lambda k, v: (k[:, :, :0], v[:, :, :0]), {}, "seq_len_kv must be a whole number of at least 1"),
    ],
)
@pytest.mark.parametrize("way", WITHIN)
def test_what_is_wrong_is_told_whoever_looks_on(way, change, asked, words):
    q = random()
    k, v = change(random(), random())
    with pytest.raises(ValueError, match=words):
        WITHIN[way](lambda q: steps.attention(q, k, v, **asked), q)


def test_gradients_of_gradients_are_refused_by_name(monkeypatch):
    found = front.Training(get_step("static_scheduler"), get_step("longest_first"))
    monkeypatch.setattr(front, "_launches", launch.Launches())
    monkeypatch.setattr(front, "_trains", lambda *_: True)
    monkeypatch.setattr(front, "training", lambda *_: found)
    q, k, v = random(), random(), random()

    def loss(q):
        return steps.attention(q, k, v).float().sin().sum()

    leaf = q.clone().requires_grad_()
    for twice in (
        lambda: torch.func.grad(lambda q: torch.func.grad(loss)(q).float().pow(2).sum())(q),
        lambda: torch.func.grad(loss)(leaf).float().sum().backward(),
        lambda: torch.autograd.grad(loss(leaf), leaf, create_graph=True)[0].float().sum().backward(),
    ):
        with pytest.raises(ValueError, match="those of attention have no gradients of their own"):
            twice()


def test_gradients_go_through_vmap(pair):
    q, k, v = torch.stack([random(), random()]), random(), random()

    def mapped(q):
        return torch.vmap(lambda q: steps.attention(q, k, v).float().sin().sum())(q).sum()

    leaf = q.clone().requires_grad_()
    mapped(leaf).backward()
    each = torch.stack([torch.func.grad(lambda q: steps.attention(q, k, v).float().sin().sum())(x) for x in q])
    for found in (leaf.grad, torch.func.grad(mapped)(q)):  # by another of PyTorch's kernels, perhaps
        torch.testing.assert_close(found, each, rtol=1e-2, atol=5e-3)


def test_windows_may_be_variables_of_a_compiled_program():
    torch.compiler.reset()
    q, k, v = random(), random(), random()
    compiled = torch.compile(lambda q, n: steps.attention(q, k, v, causal=True, window=n), backend="aot_eager")
    for n in (3, 4, 9):
        torch.testing.assert_close(compiled(q, n), steps.attention(q, k, v, causal=True, window=n))


@pytest.mark.parametrize("name", ["exp2", "swizzle", "wgmma"])
def test_a_kernel_by_itself_says_that_it_has_no_graph(name):
    q, k, v = random(), random().requires_grad_(), random()
    with pytest.raises(ValueError, match=r"k must require no gradients.*steps\.attention"):
        get_step(name).attention(q, k, v)
    with torch.no_grad():
        assert not get_step(name).attention(q, k, v).requires_grad
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(q, q)
        with pytest.raises(ValueError, match="q must have no derivative in forward mode"):
            get_step(name).attention(dual, k.detach(), v)


@pytest.mark.parametrize("name", ["sdpa", "exp2", "swizzle", "wgmma"])
def test_autograd_sees_that_a_place_for_the_output_was_written_to(name):
    """On the CPU a kernel writes by PyTorch's own functions, which tell it; so ``tell_autograd`` by itself as well."""
    held = random()
    version = held._version
    tell_autograd(held)
    assert held._version > version
    q, k, v, out = random(), random(), random(), random()
    product = random().requires_grad_() * out  # whose backward pass needs what out held
    get_step(name).attention(q, k, v, out=out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


def test_gradients_by_torch_func_are_those_of_autograd(pair):
    q, k, v = random(), random(), random()
    leaf = q.clone().requires_grad_()
    [expected] = torch.autograd.grad(steps.attention(leaf, k, v, causal=True).float().sum(), leaf)
    assert torch.equal(torch.func.grad(lambda q: steps.attention(q, k, v, causal=True).float().sum())(q), expected)


@pytest.mark.parametrize("axes", [(0, 0, 0), (0, None, None), (1, 0, None)])
def test_vmap_is_a_larger_batch(axes):
    shape = (3, *SHAPE)
    given = [random(shape=shape).movedim(0, axis) if axis is not None else random() for axis in axes]
    mapped = torch.vmap(lambda q, k, v: steps.attention(q, k, v, causal=True), in_dims=axes)(*given)
    for n in range(3):
        each = [x.select(axis, n) if axis is not None else x for x, axis in zip(given, axes)]
        torch.testing.assert_close(mapped[n], steps.attention(*each, causal=True), rtol=2e-3, atol=2e-3)


def test_where_bits_must_repeat_the_gradients_step_is_one_that_repeats(monkeypatch):
    asked = []
    runs = front._recorded
    monkeypatch.setattr(front, "_recorded", lambda direction: asked.append(direction) or runs(direction))
    shape = steps.core.problems.HEADLINE
    front._trainings = launch.Launches()
    assert not front.training(shape, "sm_90").backward.deterministic
    assert front.training(shape, "sm_90", repeats=True).backward.deterministic
    with contextlib.ExitStack() as stack:
        torch.use_deterministic_algorithms(True)
        stack.callback(torch.use_deterministic_algorithms, False)
        assert front._must_repeat()
    assert not front._must_repeat() and set(asked) == {"forward", "backward"}


# --- who looks on ---


def test_fake_tensors_first_and_real_ones_after(monkeypatch):
    monkeypatch.setattr(front, "_launches", launch.Launches())
    q, k, v = random(), random(), random()
    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(x) for x in (q, k, v)]
        o = steps.attention(*fake, causal=True)
        assert isinstance(o, torch._subclasses.FakeTensor) and o.shape == q.shape
        for name in ("exp2", "wgmma"):
            with pytest.raises(ValueError, match="q must be a tensor with memory of its own, got a FakeTensor"):
                get_step(name).attention(*fake)
    assert_right(steps.attention(q, k, v, causal=True), q, k, v, causal=True)


def test_fake_tensors_of_a_gpu_that_is_not_there_have_gradients():
    with FakeTensorMode():
        q = torch.empty(SHAPE, dtype=torch.float16, device="cuda", requires_grad=True)
        o = steps.attention(q, q, q)
        assert o.requires_grad and o.device.type == "cuda" and o.shape == q.shape


def test_tensors_with_a_dispatch_of_their_own_have_gradients_too(pair):
    """Outside of a mode; here each holds two tensors, and every operator goes to both."""
    halves = [[random() for _ in "qkv"] for _ in range(2)]
    leaves = [TwoTensor(*both).requires_grad_() for both in zip(*halves)]
    o = steps.attention(*leaves, causal=True)
    found = torch.autograd.grad(o, leaves, torch.ones_like(o))
    for half, name in zip(halves, "ab"):
        alone = [x.clone().requires_grad_() for x in half]
        expected = torch.autograd.grad(steps.attention(*alone, causal=True).sum(), alone)
        for mine, its in zip(found, expected, strict=True):
            torch.testing.assert_close(getattr(mine, name), its, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_a_tracer_sees_one_operator(mode):
    q, k, v = random(), random(), random()
    graph = make_fx(lambda q, k, v: steps.attention(q, k, v, causal=True), tracing_mode=mode)(q, k, v)
    called = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
    assert called.count("fmha_tutorial.attention.default") == 1
    assert_right(graph(q, k, v), q, k, v, causal=True)


def test_export_takes_it_whole():
    class Model(torch.nn.Module):
        def forward(self, q, k, v):
            return steps.attention(q, k, v, causal=True)

    q, k, v = random(), random(), random()
    length = torch.export.Dim("length", min=2, max=4096)
    program = torch.export.export(Model(), (q, k, v), dynamic_shapes={name: {2: length} for name in "qkv"})
    longer = [random(shape=(1, 2, 55, 64)) for _ in range(3)]
    assert_right(program.module()(*longer), *longer, causal=True)


def test_one_graph_serves_all_lengths_batches_and_heads(pair):
    """And head_dim may have a graph of its own."""
    torch.compiler.reset()
    seen = []

    def backend(graph, _):
        seen.append(graph)
        return graph

    compiled = torch.compile(
        lambda q, k, v: steps.attention(2 * q, k, v, causal=True), fullgraph=True, dynamic=True, backend=backend
    )
    for shape in ((2, 4, 40, 64), (2, 4, 33, 64), (3, 6, 50, 64)):
        q, k, v = (random(shape=shape).requires_grad_() for _ in range(3))
        o = compiled(q, k, v)
        assert_right(o.detach(), 2 * q.detach(), k.detach(), v.detach(), causal=True)
        o.float().sum().backward()
        assert q.grad is not None and q.grad.isfinite().all()
    assert len(seen) == 1
    q, k, v = (random(shape=(2, 4, 40, 128)).requires_grad_() for _ in range(3))
    compiled(q, k, v).float().sum().backward()
    assert len(seen) == 2


MODES = {
    "inference": lambda device: torch.inference_mode(),
    "no gradients": lambda device: torch.no_grad(),
    "autocast": lambda device: torch.autocast(device, dtype=torch.bfloat16),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["static_scheduler", "pv_wait_after_max", "sdpa"])
def test_what_one_mode_made_ready_serves_the_others(name, mode, device):
    """What a step keeps (lists of tiles, counts) was made in the mode of its first call."""
    step = steps.get_step(name).evolve(name=f"{name} once more")
    q, k, v = random(), random(), random()
    with MODES[mode](device):
        first = step.attention(q, k, v, True)
    assert len(step.launches) == 1
    assert torch.equal(step.attention(q, k, v, True), first)
