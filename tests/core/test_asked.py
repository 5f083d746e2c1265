"""What the front door takes beside q, k, v, causal and scale: right as a formula in float64 has it, with gradients.

The formula stands here (``exact``), for one dense mask, so that it is no part of what is tested.
"""

import sys
import weakref
from dataclasses import replace
from itertools import accumulate, pairwise

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import steps
from steps import get_step
from steps.core import attention as front
from steps.core import launch
from steps.core.asked import asked_of
from tests.selection import sampled
from tutorial_lib import blockwise
from tutorial_lib.packing import cu_seqlens
from tutorial_lib.problem import Problem

NAMES = ("q", "k", "v", "sinks")


@pytest.fixture(autouse=True, params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request, monkeypatch):
    monkeypatch.setattr(random, "device", request.param, raising=False)
    monkeypatch.setattr(front, "_launches", launch.Launches())
    return request.param


def random(*shape, dtype=torch.float16, mean=0.0):
    return torch.randn(shape, device=random.device).add_(mean).to(dtype)


def seen(queries, keys, causal, window):
    """Which keys a query sees, bool [query, key], by the docstring's words."""
    i, j = torch.arange(queries)[:, None], torch.arange(keys)[None]
    hidden = (j > i) & causal
    if isinstance(window, int):
        hidden = hidden | (j <= i - window)
    elif window is not None:
        left, right = window
        hidden = hidden | ((j < i - left) & (left != -1)) | ((j > i + right) & (right != -1))
    return ~hidden


def exact(q, k, v, causal=False, scale=None, window=None, softcap=None, lengths=None, lengths_kv=None, sinks=None):
    """(o, lse) in float64, of tensors of float64; packed ones are [1, heads, tokens, width], too."""
    queries, keys = q.shape[2], k.shape[2]
    shown = torch.zeros(queries, keys, dtype=torch.bool)
    begins = [[*accumulate(each, initial=0)] for each in (lengths or [queries], lengths_kv or lengths or [keys])]
    for (a, b), (c, d) in zip(*map(pairwise, begins), strict=True):
        shown[a:b, c:d] = seen(b - a, d - c, causal, window)
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~shown.to(q.device), float("-inf"))
    if sinks is not None:
        scores = torch.cat([scores, sinks[None, :, None, None].expand(*scores.shape[:3], 1)], dim=-1)
    return torch.softmax(scores, -1)[..., :keys] @ v, torch.logsumexp(scores, -1)


def call(given, asked, **more):
    """The front door's (o, lse) of a case, as batches."""
    q, k, v, *sinks = given
    asked = dict(asked)
    for name, other in (("lengths", "cu_seqlens_q"), ("lengths_kv", "cu_seqlens_k")):
        if name in asked:
            asked[other] = cu_seqlens(asked.pop(name), q.device)
    packed = "cu_seqlens_q" in asked
    if packed:
        q, k, v = (x[0].transpose(0, 1) for x in (q, k, v))
    o, lse = steps.attention(q, k, v, **asked, **({"sinks": sinks[0]} if sinks else {}), return_lse=True, **more)
    assert o.is_contiguous() and o.dtype == q.dtype and lse.dtype == torch.float32
    return (o.transpose(0, 1)[None], lse[None]) if packed else (o, lse)


def inputs(shape, dtype, sinks):
    batch, heads, kv_heads, queries, keys, width, width_v = shape
    made = [
        random(batch, heads, queries, width, dtype=dtype),
        random(batch, kv_heads, keys, width, dtype=dtype),
        random(batch, kv_heads, keys, width_v, dtype=dtype, mean=0.5),
    ]
    return made + ([random(heads, dtype=sinks, mean=2.0)] if sinks else [])


def assert_near(mine, true, dtype, words):
    """As near as a few roundings of the largest numbers to the inputs' type, and one to their own."""
    error = (mine.double() - true).abs().max().item()
    allowed = (4 * torch.finfo(dtype).eps + torch.finfo(mine.dtype).eps / 2) * max(1.0, true.abs().max().item())
    assert error <= allowed, f"{words}: {error:.2g}, allowed {allowed:.2g}"


MASKS = {
    "full": {},
    "causal": {"causal": True},
    "window": {"causal": True, "window": 9},
    "both sides": {"window": (5, 3)},
    "left": {"window": (7, -1)},
    "right": {"window": (-1, 2)},
    "causal pair": {"window": (7, 0)},
}
SHAPES = {
    "plain": ((1, 2, 2, 40, 40, 32, 32), {}),
    "groups": ((2, 4, 2, 37, 41, 32, 32), {}),
    "narrow": ((1, 2, 2, 33, 35, 48, 32), {}),
    "one token": ((1, 2, 1, 1, 1, 16, 16), {}),
    "packed": ((1, 4, 1, 50, 50, 32, 16), {"lengths": (20, 1, 29)}),
    "packed apart": ((1, 2, 2, 30, 44, 32, 32), {"lengths": (3, 27), "lengths_kv": (10, 34)}),
}


def is_core(shape, mask, softcap, sinks, dtype):
    """Every mask and every shape, plain and with all."""
    few = mask == "window" or shape == "groups"
    return few and (softcap is None, sinks, dtype) in (
        (True, None, torch.float16),
        (False, torch.float32, torch.bfloat16),
    )


@sampled(core=is_core)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
@pytest.mark.parametrize("sinks", [None, torch.float32, torch.bfloat16], ids=["no sinks", "sinks", "short sinks"])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("shape", SHAPES)
def test_outputs_and_gradients_are_those_of_the_formula(shape, mask, softcap, sinks, dtype, monkeypatch):
    """A tile of queries at a time, several of each sequence."""
    monkeypatch.setattr(blockwise, "SCORES", 1)
    sizes, asked = SHAPES[shape]
    asked = MASKS[mask] | asked | ({"softcap": softcap} if softcap else {})
    given = [x.requires_grad_() for x in inputs(sizes, dtype, sinks)]
    o, lse = call(given, asked)
    do, dlse = random(*o.shape, dtype=dtype), random(*lse.shape, dtype=torch.float32)
    found = torch.autograd.grad((o, lse), given, (do, dlse))
    alone = torch.autograd.grad(call(given, asked)[0], given, do)
    leaves = [x.detach().double().requires_grad_() for x in given]
    true = exact(*leaves[:3], **asked, sinks=leaves[3] if sinks else None)
    assert_near(o, true[0], dtype, "o")
    assert_near(lse, true[1], dtype, "lse")
    expected = torch.autograd.grad(true, leaves, (do.double(), dlse.double()), retain_graph=True)
    for mine, its, name, x in zip(found, expected, NAMES, given):
        assert mine.dtype == x.dtype
        assert_near(mine, its, dtype, f"d{name} with that of lse")
    for mine, its, name in zip(alone, torch.autograd.grad(true[0], leaves, do.double()), NAMES):
        assert_near(mine, its, dtype, f"d{name}")
    with torch.no_grad():
        assert_near(call(given, asked)[0], true[0], dtype, "o without a graph")


def as_on_a_gpu(a, b):
    """A product of factors that are rounded to 16 bits."""
    return a.to(b.dtype).float() @ b.float()


@pytest.mark.parametrize("size", [1e-8, 1e-6, 1.0, 1e6])
def test_small_and_large_gradients_lose_no_digits_in_16_bits(size, monkeypatch):
    monkeypatch.setattr(blockwise, "_product", as_on_a_gpu)
    q, k, v = inputs((2, 4, 2, 40, 40, 32, 32), torch.float16, None)
    scoring = blockwise.Scoring(32**-0.5)
    o, lse = blockwise.forward(q, k, v, scoring)
    dlse = size * random(*lse.shape, dtype=torch.float32)
    dlse[0] = 0  # what is nothing stays nothing
    slopes = (torch.softmax(q.float() @ k.repeat_interleave(2, 1).float().mT * 32**-0.5, -1) * dlse[..., None]).double()
    sums = []
    monkeypatch.setattr(blockwise, "_product", lambda a, b: sums.append(as_on_a_gpu(a, b)) or sums[-1])
    blockwise.gradients(q, k, v, o, lse, torch.zeros_like(o), scoring, dlse=dlse)
    *_, dk, dq = sums  # before they are rounded to the type of q and k
    rows = q.double().unflatten(1, (2, -1)).flatten(2, 3)
    slopes = slopes.unflatten(1, (2, -1)).flatten(2, 3)
    for mine, its, name in ((dk, slopes.mT @ rows, "dk"), (dq, slopes @ k.double() * 32**-0.5, "dq")):
        assert not mine[0].any()
        error = (mine[1].double() - its[1]).norm() / its[1].norm()
        assert error < 2e-3, f"{name}: {error:.2g}"


def test_where_sequences_begin_is_read_once_for_both_tensors_at_every_call(monkeypatch):
    """The first call of a kind reads it once more, to choose who computes it. What is written there since counts."""
    reads = []
    tolist = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda x: reads.append(x) or tolist(x))
    q, k, v = (random(40, 2, 32) for _ in range(3))
    begins = torch.tensor([0, 10, 40], dtype=torch.int32, device=q.device)
    for lengths, count in (((10, 30), 2), ((10, 30), 1), ((25, 15), 1)):
        if lengths[0] == 25:
            begins[1] = 25
        reads.clear()
        o = steps.attention(q, k, v, cu_seqlens_q=begins, window=(5, 3))
        given = (x.transpose(0, 1)[None].double() for x in (q, k, v))
        assert_near(o.transpose(0, 1)[None], exact(*given, window=(5, 3), lengths=lengths)[0], o.dtype, "o")
        assert len([x for x in reads if x is begins]) == count


@pytest.mark.parametrize("shape", [(8, 32, 32, 8192), (64, 32, 8, 8192), (1, 32, 8, 131072)])
def test_a_tile_has_rows_enough_for_all_the_keys_that_it_reads(shape):
    """And each row of each head is in one tile."""
    batch, heads, kv_heads, length = shape
    q, k = (torch.empty(batch, n, length, 128, device="meta") for n in (heads, kv_heads))
    rows = 0
    for queries, keys, _ in blockwise._tiles(q, k, blockwise.Scoring(1.0, None, None, 0), None):
        sizes = [len(range(*x.indices(n))) for x, n in zip(queries, q.shape)]
        of_keys = [len(range(*x.indices(n))) for x, n in zip(keys, k.shape)]
        assert sizes[2] >= min(128, blockwise.SCORES // (length * heads // kv_heads))
        assert sizes[0] * sizes[1] * sizes[2] * length <= blockwise.SCORES
        assert of_keys[:2] == [sizes[0], sizes[1] * kv_heads // heads]
        rows += sizes[0] * sizes[1] * sizes[2]
    assert rows == batch * heads * length


# --- by steps, where one is chosen ---


BY_STEPS = [
    ("window", {"causal": True, "window": 20}),
    ("soft_cap", {"causal": True, "softcap": 2.0}),
    ("varlen", {"causal": True, "window": 30, "softcap": 2.0, "lengths": (33, 1, 40)}),
    ("varlen", {"lengths": (33, 1, 40), "lengths_kv": (30, 24, 20)}),
    ("hopper_window", {"causal": True, "window": (19, 0)}),
    ("hopper_soft_cap", {"softcap": 2.0}),
    ("static_scheduler", {"causal": True}),
]


@pytest.mark.parametrize(("name", "asked"), BY_STEPS, ids=lambda x: x if isinstance(x, str) else " ".join(x))
def test_the_step_that_is_chosen_computes_the_forward_pass(name, asked, monkeypatch):
    """And its output and log-sum-exp are what the gradients come from."""
    step = get_step(name).evolve(name=f"{name} as chosen")
    monkeypatch.setattr(front, "chosen", lambda *_: step)
    monkeypatch.setattr(front, "_trains", lambda *_: False)  # else a GPU takes the kernels of its records
    given = [x.requires_grad_() for x in inputs((1, 2, 1, 74, 74, 64, 64), torch.float16, None)]
    o, lse = call(given, asked)
    do = random(*o.shape)
    found = torch.autograd.grad(o, given, do)
    assert len(step.launches) == 1
    leaves = [x.detach().double().requires_grad_() for x in given]
    true = exact(*leaves, **asked)
    assert_near(o, true[0], o.dtype, "o")
    assert_near(lse, true[1], o.dtype, "lse")
    for mine, its, wanted in zip(found, torch.autograd.grad(true[0], leaves, do.double()), NAMES):
        assert_near(mine, its, o.dtype, f"d{wanted}")
    with torch.no_grad():
        for _ in range(2):
            assert_near(call(given, asked)[0], true[0], o.dtype, "o without a graph")


@pytest.mark.parametrize("window", [None, 9])
def test_a_call_like_the_last_goes_straight_to_its_launch(window):
    """Nothing but the launch is told apart from call to call: no Python beside it."""
    q, k, v = inputs((1, 2, 2, 40, 40, 32, 32), torch.float16, None)
    steps.attention(q, k, v, causal=True, window=window)
    ready = front._launches.last
    front._launches.last = ready._replace(launch=lambda q, k, v, out: q)
    calls = []
    sys.setprofile(lambda frame, event, _: event == "call" and calls.append(frame.f_code.co_name))
    try:
        assert steps.attention(q, k, v, causal=True, window=window) is q
    finally:
        sys.setprofile(None)
    assert ready.called[:3] == (True, None, window) and len(calls) <= 8, calls


def test_no_window_is_taken_for_another_or_for_none():
    given = inputs((1, 2, 2, 40, 40, 32, 32), torch.float16, None)
    for window in (9, None, 1, 9, (8, 0), 1):
        o = steps.attention(*given, causal=True, window=window)
        true = exact(*(x.double() for x in given), causal=True, window=window)[0]
        assert_near(o, true, o.dtype, f"o of window {window}")
        assert_near(
            steps.attention(given[0].clone().requires_grad_(), *given[1:], True, None, window), true, o.dtype, "o"
        )


def test_no_step_is_taken_for_a_mask_or_a_width_that_it_does_not_know(monkeypatch):
    monkeypatch.setattr(front, "chosen", lambda *_: pytest.fail("chosen"))
    given = inputs((1, 2, 2, 40, 40, 32, 32), torch.float16, None)
    for window in ((5, 3), (-1, 2), (7, -1)):
        assert_near(
            call(given, {"window": window})[0],
            exact(*(x.double() for x in given), window=window)[0],
            given[0].dtype,
            "o",
        )


def test_a_soft_cap_is_left_to_pytorch_only_where_nothing_is_recorded():
    """SDPA has none, so no record compares with it."""
    shape = Problem(batch=4, heads=32, seq_len_q=4096, seq_len_kv=4096, head_dim=128, causal=True, softcap=50.0)
    packed = Problem.packed((1000, 3096), heads=32, head_dim=128, causal=True, softcap=50.0)
    for one in (shape, replace(shape, window=1024), packed):
        assert front.chosen(one, "sm_90").name == "hopper_soft_cap"
        assert front.chosen(one, "sm_120").name == front.chosen(one, "cpu").name == "sdpa"


@pytest.mark.parametrize("window", [None, 1024])
def test_what_is_known_of_problems_without_sinks_says_nothing_of_them(window, monkeypatch):
    shape = Problem(batch=4, heads=32, seq_len_q=4096, seq_len_kv=4096, head_dim=128, causal=True, window=window)
    nearest = front.best(shape, "sm_90", front._recorded("forward"))
    monkeypatch.setattr(front, "best", lambda *_: nearest)
    assert front.chosen(shape, "sm_90") is nearest.step
    assert front.chosen(replace(shape, sinks=True), "sm_90").name == "sdpa"


# --- whoever looks on ---


WHOLE = [
    ({"causal": True, "window": 9}, False),
    ({"window": (5, 3), "softcap": 2.0}, True),
    ({"lengths": (20, 1, 19), "causal": True}, True),
    ({"causal": True}, False),
]
FEATURES = pytest.mark.parametrize(
    ("asked", "sinks"), WHOLE, ids=lambda x: " ".join(x) if isinstance(x, dict) else "sinks" if x else "none"
)


def case(asked, sinks, keys=40):
    """(given, asked with cu_seqlens, as the front door takes them)."""
    given = inputs((1, 2, 1, 40, keys, 32, 16), torch.float16, torch.float32 if sinks else None)
    asked = dict(asked)
    if "lengths" in asked:
        asked["cu_seqlens_q"] = cu_seqlens(asked.pop("lengths"), random.device)
        given[:3] = [x[0].transpose(0, 1).contiguous() for x in given[:3]]
    return given, asked


def attention(given, asked, **more):
    q, k, v, *sinks = given
    return steps.attention(q, k, v, **asked, **({"sinks": sinks[0]} if sinks else {}), **more)


def loss(given, asked):
    o, lse = attention([2 * given[0], *given[1:]], asked, return_lse=True)
    return (o.float() ** 2).mean() + lse.mean()


def assert_same(found, expected):
    for mine, its in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, its, rtol=2e-3, atol=2e-4)


@FEATURES
def test_a_program_is_compiled_whole(asked, sinks):
    torch.compiler.reset()
    given, asked = case(asked, sinks)
    given = [x.requires_grad_() for x in given]
    compiled = torch.compile(lambda *given: loss(given, asked), fullgraph=True, backend="aot_eager")
    assert_same(torch.autograd.grad(compiled(*given), given), torch.autograd.grad(loss(given, asked), given))
    with torch.no_grad():
        one = torch.compile(lambda *given: attention(given, asked), fullgraph=True, backend="aot_eager")
        assert torch.equal(one(*given), attention(given, asked))


def test_one_graph_serves_all_lengths():
    torch.compiler.reset()
    seen = []

    def backend(graph, _):
        seen.append(graph)
        return graph

    compiled = torch.compile(
        lambda *given: attention(given, {"causal": True, "window": 9}), fullgraph=True, dynamic=True, backend=backend
    )
    for shape in ((5, 4, 2, 40, 40, 32, 32), (5, 4, 2, 33, 33, 32, 32), (3, 6, 2, 50, 50, 32, 32)):
        given = [x.requires_grad_() for x in inputs(shape, torch.float16, torch.float32)]
        o = compiled(*given)
        assert torch.equal(o, attention(given, {"causal": True, "window": 9}))
        assert all(x.isfinite().all() for x in torch.autograd.grad(o.float().sum(), given))
    assert len(seen) == 1


@FEATURES
def test_pytorchs_own_test_of_operators(asked, sinks):
    given, asked = case(asked, sinks)
    asked = asked_of(
        *(asked.get(name, None) for name in ("causal", "scale", "window", "softcap", "cu_seqlens_q", "cu_seqlens_k")),
        None,
    )
    asked = asked._replace(causal=bool(asked.causal), sinks=given[3].requires_grad_() if sinks else None)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_static")
    torch.library.opcheck(front.operator, (*given[:3], *asked), test_utils=checks[:3])
    given = [x.requires_grad_() for x in given[:3]]
    torch.library.opcheck(front.attention_with_lse, (*given, *asked), test_utils=checks)


@FEATURES
@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_a_tracer_sees_one_operator(asked, sinks, mode):
    given, asked = case(asked, sinks)
    tensors = {name: asked.pop(name) for name in list(asked) if isinstance(asked[name], torch.Tensor)}

    def called(given, tensors):
        return attention(given, asked | tensors)

    graph = make_fx(called, tracing_mode=mode)(given, tensors)
    names = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
    assert [name for name in names if "fmha" in name] == ["fmha_tutorial.attention.default"]
    assert torch.equal(graph(given, tensors), called(given, tensors))


@FEATURES
def test_export_takes_it_whole(asked, sinks):
    class Model(torch.nn.Module):
        def forward(self, *given):
            return attention(given, asked)

    given, asked = case(asked, sinks)
    assert torch.equal(torch.export.export(Model(), tuple(given)).module()(*given), attention(given, asked))


@FEATURES
def test_fake_tensors_first_and_real_ones_after(asked, sinks):
    given, asked = case(asked, sinks)
    with FakeTensorMode() as mode:
        fake = {name: mode.from_tensor(x) if isinstance(x, torch.Tensor) else x for name, x in asked.items()}
        o, lse = attention([mode.from_tensor(x) for x in given], fake, return_lse=True)
    mine = attention(given, asked, return_lse=True)
    assert [x.shape for x in (o, lse)] == [x.shape for x in mine] and lse.dtype == torch.float32
    assert o.is_contiguous() and mine[0].isfinite().all()


@FEATURES
def test_torch_func_has_autograds_gradients(asked, sinks):
    given, asked = case(asked, sinks)
    leaves = [x.clone().requires_grad_() for x in given]
    expected = torch.autograd.grad(loss(leaves, asked), leaves)
    found = torch.func.grad(lambda given: loss(given, asked))(tuple(given))
    assert_same(found, expected)
    pulled = torch.func.vjp(lambda *given: loss(given, asked), *given)[1](torch.ones((), device=random.device))
    assert_same(pulled, expected)


@FEATURES
def test_eager_gradients_go_past_the_operators(asked, sinks, monkeypatch):
    given, asked = case(asked, sinks)
    leaves = [x.clone().requires_grad_() for x in given]
    expected = torch.autograd.grad(loss(leaves, asked), leaves)
    for name in ("attention_with_lse", "gradients"):
        monkeypatch.setattr(front, name, lambda *_: pytest.fail("an operator"))
    assert_same(torch.autograd.grad(loss(leaves, asked), leaves), expected)


@FEATURES
@pytest.mark.parametrize("over_sinks", [False, True])
def test_vmap_is_a_call_for_each(asked, sinks, over_sinks):
    if over_sinks and not sinks:
        pytest.skip("none")
    cases = [case(asked, sinks) for _ in range(3)]
    asked = cases[0][1]
    given = [torch.stack(each) for each in zip(*(given for given, _ in cases))]
    axes = [0, None, 0, *([0] if over_sinks else [None] * sinks)]
    shared = [x if axis == 0 else x[0] for x, axis in zip(given, axes)]
    each = [[x[n] if axis == 0 else x for x, axis in zip(shared, axes)] for n in range(3)]
    mapped = torch.vmap(lambda *given: attention(given, asked), in_dims=tuple(axes))(*shared)
    assert_same(mapped, [attention(one, asked) for one in each])
    inner = torch.vmap(torch.func.grad(lambda q, *others: loss((q, *others), asked)), in_dims=tuple(axes))(*shared)
    assert_same(inner, [torch.func.grad(lambda q, one=one: loss((q, *one[1:]), asked))(one[0]) for one in each])


def test_torch_func_inside_a_compiled_program_is_refused_by_name_or_right():
    """PyTorch 2.11 (``results/versions.md``) tells of an error of its own, also where it may give the program up."""
    q, k, v = inputs((1, 2, 1, 40, 40, 32, 16), torch.float16, None)
    gradient = torch.func.grad(lambda q: steps.attention(q, k, v, causal=True, window=9).float().sum())
    older = torch.__version__.startswith("2.11.")
    told = "autograd.Function with functorch transforms" if older else "sinks and return_lse must be left out where"
    for whole in (True, False) if older else (True,):
        torch.compiler.reset()
        with pytest.raises(Exception, match=told):
            torch.compile(gradient, backend="eager", fullgraph=whole)(q)
    if not older:
        torch.compiler.reset()
        torch.testing.assert_close(torch.compile(gradient, backend="eager")(q), gradient(q))  # which gives it up


def test_gradients_of_gradients_are_refused_by_name():
    given, asked = case({"causal": True}, True)
    leaf = given[3].requires_grad_()
    [once] = torch.autograd.grad(loss(given, asked), leaf, create_graph=True)
    with pytest.raises(ValueError, match="those of attention have no gradients of their own"):
        once.sum().backward()


def test_derivatives_in_forward_mode_are_refused_by_name():
    given, asked = case({"causal": True}, True)
    with pytest.raises(ValueError, match="sinks must have no derivative in forward mode"):
        torch.func.jvp(lambda sinks: attention([*given[:3], sinks], asked), (given[3],), (given[3],))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(given[3], given[3])
        with pytest.raises(ValueError, match="sinks must have no derivative in forward mode"):
            attention([*given[:3], dual], asked)
        with pytest.raises(ValueError, match="sinks must have no derivative in forward mode"):
            front.operator(*given[:3], sinks=dual)


@FEATURES
def test_autocast_changes_nothing(asked, sinks, device):
    given, asked = case(asked, sinks)
    given = [x.requires_grad_() for x in given]
    expected = attention(given, asked), *torch.autograd.grad(loss(given, asked), given)
    with torch.autocast(device, dtype=torch.bfloat16):
        found = attention(given, asked), *torch.autograd.grad(loss(given, asked), given)
    assert all(map(torch.equal, found, expected))


@FEATURES
def test_a_forward_pass_may_be_computed_again(asked, sinks):
    """Activation checkpointing; and the bits repeat."""
    given, asked = case(asked, sinks)
    given = [x.requires_grad_() for x in given]
    again = checkpoint(lambda *given: loss(given, asked), *given, use_reentrant=False)
    assert all(map(torch.equal, torch.autograd.grad(again, given), torch.autograd.grad(loss(given, asked), given)))


def test_one_input_alone_may_require_gradients():
    for n in range(4):
        given, asked = case({"causal": True}, True)
        given[n].requires_grad_()
        loss(given, asked).backward()
        assert [x.grad is not None for x in given] == [m == n for m in range(4)]


# --- what is refused ---


def begins(*numbers, dtype=torch.int32):
    return torch.tensor(numbers, dtype=dtype, device=random.device)


REFUSED = {
    "a soft cap of nothing": (lambda: {"softcap": 0.0}, "softcap must be a finite number above 0, got 0.0"),
    "a soft cap below it": (lambda: {"softcap": -2}, "softcap must be a finite number above 0, got -2.0"),
    "words for a soft cap": (lambda: {"softcap": "much"}, "softcap must be a number, got 'much'"),
    "a soft cap that learns": (
        lambda: {"softcap": torch.ones((), requires_grad=True)},
        "softcap must be a number, got a tensor that requires a gradient",
    ),
    "three windows": (lambda: {"window": (1, 2, 3)}, r"window must be a whole number, or a pair .* got \(1, 2, 3\)"),
    "a window of minus two": (lambda: {"window": (-2, 0)}, r"window must be a whole number, or a pair"),
    "half a window": (lambda: {"window": (0.5, 0)}, r"window must be a whole number, or a pair"),
    "a window that is long": (lambda: {"window": (2**31, 0)}, r"window must be less than 2\^31"),
    "a window that is long to the right": (lambda: {"window": (2, 2**70)}, r"window must be less than 2\^31"),
    "a window without a mask": (lambda: {"window": 5}, "window takes a causal mask"),
    "a tensor for a window": (lambda: {"window": torch.ones(2)}, "window must be a whole number"),
    "sinks as numbers": (lambda: {"sinks": [0.0, 0.0]}, r"sinks must be a tensor \[heads\] .*, got list"),
    "a number for sinks": (lambda: {"sinks": 1.0}, r"sinks must be a tensor \[heads\] .*, got float"),
    "too many sinks": (lambda: {"sinks": random(3)}, r"sinks must be a tensor \[2\] on .* got \(3,\) on"),
    "sinks of each query": (
        lambda: {"sinks": random(2, 40)},
        r"sinks must be a tensor \[2\] on .* got \(2, 40\) on",
    ),
    "sinks elsewhere": (
        lambda: {"sinks": random(2).to("meta")},
        "sinks must be (on a CUDA device or the CPU, got a tensor on meta|a tensor .* on meta)",
    ),
    "whole sinks": (
        lambda: {"sinks": random(2).int()},
        "sinks must be .* in float32, float16 or bfloat16, got torch.int32",
    ),
    "sparse sinks": (lambda: {"sinks": random(2).to_sparse()}, "sinks must be a dense tensor"),
    "words for a flag": (lambda: {"return_lse": "yes"}, "return_lse must be True or False, got 'yes'"),
    "keys packed alone": (lambda: {"cu_seqlens_k": begins(0, 40)}, "with cu_seqlens_q q must be a tensor"),
    "packed, with a batch": (
        lambda: {"cu_seqlens_q": begins(0, 40)},
        r"with cu_seqlens_q q must be a tensor \[tokens, heads",
    ),
    "queries without a batch": (lambda: {"q": random(2, 40, 64), "return_lse": True}, "q must have 4 dimensions"),
    "a number for values": (lambda: {"v": 3, "return_lse": True}, "v must be .* got int"),
    "a number for keys": (lambda: {"k": 3, "window": (1, 1)}, "k must be .* got int"),
}
PACKED = {
    "long numbers": (
        lambda: {"cu_seqlens_q": begins(0, 40, dtype=torch.int64)},
        "cu_seqlens_q must be an int32 tensor",
    ),
    "a list": (lambda: {"cu_seqlens_q": [0, 40]}, r"cu_seqlens_q must be an int32 tensor \[sequences \+ 1\], got list"),
    "elsewhere": (
        lambda: {"cu_seqlens_q": begins(0, 40).to("meta")},
        "cu_seqlens_q must be (on a CUDA device or the CPU|an int32 tensor .* on meta)",
    ),
    "one number": (
        lambda: {"cu_seqlens_q": begins(0)},
        "cu_seqlens_q must be contiguous and hold two numbers at least",
    ),
    "too few tokens": (
        lambda: {"cu_seqlens_q": begins(0, 39)},
        "cu_seqlens_q must rise from 0 to the number of tokens, 40",
    ),
    "none in a sequence": (
        lambda: {"cu_seqlens_q": begins(0, 20, 20, 40)},
        "got 0, 20, 20, 40; every sequence must hold a token",
    ),
    "keys alone": (lambda: {"cu_seqlens_k": begins(0, 40)}, "cu_seqlens_q must be an int32 tensor .* got NoneType"),
    "other keys": (
        lambda: {"cu_seqlens_q": begins(0, 40), "cu_seqlens_k": begins(0, 20, 40)},
        "lengths_kv must be as many",
    ),
    "too narrow": (
        lambda: {"cu_seqlens_q": begins(0, 30, 40), "cu_seqlens_k": begins(0, 10, 40), "causal": True, "window": 5},
        "window must leave every query a key: with 30 queries and 10 keys at least 21, got 5",
    ),
    "sinks of tokens": (lambda: {"cu_seqlens_q": begins(0, 40), "sinks": random(40)}, r"sinks must be a tensor \[2\]"),
}
WAYS = {
    "eagerly": lambda given, asked: steps.attention(*given, **asked),
    "with gradients": lambda given, asked: steps.attention(given[0].requires_grad_(), *given[1:], **asked),
    "under torch.func": lambda given, asked: torch.func.vjp(
        lambda q: steps.attention(q, *given[1:], **asked), given[0]
    ),
    "compiled": lambda given, asked: torch.compile(
        lambda *given: steps.attention(*given, **asked), backend="eager", fullgraph=True
    )(*given),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", [*REFUSED, *PACKED])
def test_what_cannot_be_taken_is_refused_by_name(kind, way):
    if way == "compiled" and kind in ("sparse sinks", "a number for values", "a number for keys"):
        pytest.skip("torch.compile itself refuses sparse tensors, and what is none")
    torch.compiler.reset()
    shape = (1, 2, 40, 64) if kind in REFUSED else (40, 2, 64)
    make, words = (REFUSED | PACKED)[kind]
    for _ in range(2):  # nothing is kept of the first call
        asked = make()
        given = [asked.pop(name, random(*shape)) for name in NAMES[:3]]
        with pytest.raises(ValueError if way != "compiled" else Exception, match=words):
            WAYS[way](given, asked)


def test_what_is_written_out_first():
    given, asked = case({"causal": True}, True)
    expected = attention(given, asked, return_lse=True)
    negated = [torch._neg_view(-x) for x in given]
    parameters = [torch.nn.Parameter(x) for x in given]
    far = [given[0].as_strided(given[0].shape, (2**31, *given[0].stride()[1:])), *given[1:]]
    expanded = [given[0].mT.contiguous().mT, *(x.repeat(1, 2, 1, 1)[:, :1] for x in given[1:3]), given[3].repeat(2)[:2]]
    for other in (negated, parameters, far, expanded):
        assert all(map(torch.equal, attention(other, asked, return_lse=True), expected))


def test_numbers_of_every_kind_are_numbers():
    given, _ = case({"causal": True}, False)
    expected = attention(given, {"causal": True, "window": 9, "softcap": 2.0})
    others = (
        {"causal": 1, "window": [8, -1], "softcap": torch.tensor(2.0)},
        {"window": (8, 0), "softcap": 2},
    )
    for other in others:
        torch.testing.assert_close(attention(given, other), expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("scale", [-0.3, 0.0, 3.0])
@pytest.mark.parametrize("window", [None, 9, (5, 3)])
def test_any_finite_scale(scale, window):
    given = inputs((1, 2, 1, 40, 40, 32, 32), torch.bfloat16, torch.float32)
    asked = {"causal": isinstance(window, int), "window": window, "scale": scale}
    o, lse = call(given, asked)
    true = exact(*(x.double() for x in given[:3]), **asked, sinks=given[3].double())
    assert_near(o, true[0], o.dtype, "o")
    assert_near(lse, true[1], o.dtype, "lse")


@pytest.mark.parametrize("softcap", [1e-3, 1e5, 1e6])
def test_large_and_small_soft_caps_lose_no_digits(softcap):
    given = [x.requires_grad_() for x in inputs((1, 2, 2, 40, 40, 32, 32), torch.float16, None)]
    o, _ = call(given, {"softcap": softcap})
    leaves = [x.detach().double().requires_grad_() for x in given]
    true, _ = exact(*leaves, softcap=softcap)
    assert_near(o, true, o.dtype, "o")
    for mine, its, name in zip(torch.autograd.grad(o.sum(), given), torch.autograd.grad(true.sum(), leaves), NAMES):
        assert_near(mine, its, o.dtype, f"d{name}")


def test_keys_of_minus_infinity_are_hidden_and_a_sink_saves_a_row_of_them():
    """The log-sum-exp of such a row is its sink, but for a few roundings: kernels take it to base 2 and back."""
    q, k, v, sinks = inputs((1, 2, 2, 40, 40, 32, 32), torch.bfloat16, torch.float32)
    q = torch.ones_like(q)
    k[:, :, :20, 0] = float("-inf")
    given, asked = [x.double() for x in (q, k, v)], {"causal": True, "return_lse": True}
    assert_near(steps.attention(q, k, v, sinks=sinks), exact(*given, sinks=sinks.double())[0], q.dtype, "o")
    o, lse = steps.attention(q, k, v, sinks=sinks, **asked)
    assert_near(o[:, :, :20], torch.zeros_like(given[0][:, :, :20]), torch.float32, "o of rows that see nothing")
    assert_near(lse[:, :, :20], sinks.double()[:, None].expand(1, 2, 20), torch.float32, "lse of the same")
    for off in (None, torch.full_like(sinks, float("-inf"))):
        assert_near(steps.attention(q, k, v, sinks=off), exact(*given)[0], q.dtype, f"o with sinks {off}")


@pytest.mark.parametrize("sums", [False, True], ids=["", "lse"])
@pytest.mark.parametrize("more", [{}, {"window": 9}, {"narrow": True}, {"packed": True}], ids=str)
def test_a_query_whose_scores_are_all_minus_infinity_gets_nothing(more, sums):
    """On the CPU 0, as from SDPA, and no NaN in the gradients of keys and values; from a kernel NaN."""
    q, k, v = inputs((1, 2, 2, 40, 40, 32, 16 if "narrow" in more else 32), torch.bfloat16, None)
    q = torch.ones_like(q)
    k[:, :, :20, 0] = float("-inf")
    asked = {"causal": True, "return_lse": sums, **{name: more[name] for name in more if name == "window"}}
    given = [(x[0].transpose(0, 1) if "packed" in more else x).requires_grad_() for x in (q, k, v)]
    if "packed" in more:
        asked["cu_seqlens_q"] = cu_seqlens([40], q.device)
    for wanted in (False, True):
        with torch.set_grad_enabled(wanted):
            made = steps.attention(*given, **asked)
        o, lse = made if sums else (made, None)
        if wanted:
            grads = torch.autograd.grad(o.sum(), given)
        if "packed" in more:
            o = o.transpose(0, 1)[None]
        dead = o[:, :, :20]
        assert dead.isnan().all() if q.is_cuda and dead.isnan().any() else not dead.any()
        assert o[:, :, 20:].isfinite().all()
        assert lse is None or (lse[..., :20].isneginf().all() and lse[..., 20:].isfinite().all())
    if not q.is_cuda:
        assert all(x.isfinite().all() for x in grads[1:])  # of q it is 0 times minus infinity, as PyTorch's


# --- memory ---


class Memory(TorchDispatchMode):
    """Counts bytes of tensors that are alive, and the most at once."""

    def __init__(self):
        super().__init__()
        self.alive = self.most = 0
        self.known = set()

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        made = function(*arguments, **(named or {}))
        for x in made if isinstance(made, (tuple, list)) else (made,):
            if isinstance(x, torch.Tensor) and (place := x.untyped_storage())._cdata not in self.known:
                self._begins(place._cdata, place.nbytes())
                weakref.finalize(place, self._ends, place._cdata, place.nbytes())
        return made

    def _begins(self, which, size):
        self.known.add(which)
        self.alive += size
        self.most = max(self.most, self.alive)

    def _ends(self, which, size):
        self.known.discard(which)
        self.alive -= size


def forward_and_gradients(seq_len, asked):
    """By tiles, without the operators, into which no mode looks; (most bytes at once, bytes of what is given)."""
    q, k, v = inputs((1, 2, 1, seq_len, seq_len, 16, 16), torch.float16, None)
    sinks = random(2, dtype=torch.float32)
    with Memory() as memory:
        o, lse = blockwise.forward(q, k, v, asked, sinks)
        blockwise.gradients(q, k, v, o, lse, torch.ones_like(o), asked, sinks)
    return memory.most, sum(x.nbytes for x in (q, k, v, o, lse))


@pytest.mark.parametrize(
    "asked", [blockwise.Scoring(0.25, 2.0, None, 0), blockwise.Scoring(0.25, None, 100, 50)], ids=["causal", "window"]
)
def test_memory_grows_with_the_length(asked, monkeypatch):
    """With short tiles, so that what grows is seen beside them."""
    monkeypatch.setattr(blockwise, "SCORES", 1)
    (short, given), (long, twice) = (forward_and_gradients(length, asked) for length in (1024, 2048))
    assert twice == 2 * given and long <= 2.1 * short
