"""Sliding windows, soft caps and packed sequences: who takes them is right, everybody else refuses by name."""

import itertools
import json
import secrets
from dataclasses import replace

import numpy as np
import pytest
import torch

import steps
from steps import get_step
from steps.core import attention as front
from steps.core import order
from steps.core.fused import grid, tiles_seen, tiles_visited
from steps.core.ladder import kernels_of
from steps.core.launch import Launches
from steps.core.order import deal, tiles_a_head
from steps.core.step import Unsupported
from steps.hopper import launching
from steps.reference import peers
from steps.run import make_parser, make_problems
from tests.checking import assert_right
from tests.distinct import core, distinct, named
from tests.selection import sampled
from tests.shapes import problem
from tutorial_lib import interpreter, packing, reference
from tutorial_lib.passes import FORWARD
from tutorial_lib.problem import Problem

BAND = problem(batch=1, heads=2, seq_len_q=300, seq_len_kv=300)
WINDOWS = [
    *(replace(BAND, window=window, head_dim=dim) for window in (1, 33, 128, 200, 1000) for dim in (64, 128)),
    replace(BAND, window=70, kv_heads=1, head_dim=256, dtype="bfloat16"),
    replace(BAND, window=70, head_dim=96, scale=-0.4),
    replace(BAND, window=33, seq_len_kv=280, head_dim=128),  # the last queries see nothing but the end
    replace(BAND, window=130, seq_len_q=400, seq_len_kv=280, dtype="bfloat16"),
    replace(BAND, window=33, seq_len_q=100, seq_len_kv=280, head_dim=32),
    replace(BAND, window=5, seq_len_q=1, seq_len_kv=1),
]
CAPS = [
    replace(BAND, softcap=3.0),
    replace(BAND, softcap=3.0, causal=False, head_dim=128, seq_len_kv=250, dtype="bfloat16"),
    replace(BAND, softcap=20.0, window=50, kv_heads=1, scale=-0.4),
]


def packed(lengths, lengths_kv=None, **changes) -> Problem:
    fields = {"heads": 4, "kv_heads": 2, "head_dim": 64, "causal": True}
    return Problem.packed(lengths, lengths_kv, **fields | changes)


PACKED = [
    *(packed((100, 3, 277, 1, 128), head_dim=dim, causal=causal) for dim in (64, 128) for causal in (True, False)),
    packed((100, 3, 277, 1, 128), (20, 300, 277, 5, 130), dtype="bfloat16"),
    packed((100, 3, 277), window=70, softcap=9.0, head_dim=128),
    packed((5,), kv_heads=4, causal=False),
]
GROUPS = [
    problem(heads=12, kv_heads=2, seq_len_q=300, seq_len_kv=300, batch=1),  # no power of two
    problem(heads=8, kv_heads=1, seq_len_q=5, seq_len_kv=300, causal=False, head_dim=128, dtype="bfloat16"),
    problem(heads=8, kv_heads=2, seq_len_q=1, seq_len_kv=200, causal=False),
    problem(heads=64, kv_heads=1, seq_len_q=7, seq_len_kv=90, batch=1),
    replace(BAND, heads=8, kv_heads=2, window=33, head_dim=128),
    packed((100, 3, 277, 1), heads=12, window=90),
]
MASKED = [*WINDOWS, *CAPS, *PACKED, *GROUPS]


def takers(shape) -> list:
    return [step for step in kernels_of("forward") if set(shape.features) <= set(step.takes)]


PAIRS = [
    (step, shape)
    for step, shape in distinct((s for s in kernels_of("forward") if s.takes or s.name == "pack_gqa"), MASKED)
    if step in takers(shape)
]


@sampled(core=core(PAIRS))
@pytest.mark.parametrize(("step", "shape"), PAIRS, ids=named)
def test_who_takes_a_mask_is_right(step, shape):
    if shape.softcap and step.name == "sdpa":
        pytest.fail("PyTorch's attention has no soft cap")
    assert_right(step, shape)


def test_every_kind_is_taken_by_a_kernel():
    for shapes, names in (
        (WINDOWS, {"window", "hopper_window"}),
        (CAPS, {"soft_cap", "hopper_soft_cap"}),
        (PACKED, {"varlen", "hopper_varlen"}),
    ):
        for shape in shapes:
            assert {step.name for step in takers(shape)} & names


@pytest.mark.parametrize("shape", [WINDOWS[0], CAPS[0], PACKED[0], PACKED[-2]], ids=lambda p: p.slug)
def test_everybody_else_refuses_by_name(shape):
    for step in (*kernels_of("forward"), *kernels_of("backward")):
        lacking = [name for name in shape.features if name not in step.takes]
        if lacking:
            assert step.unsupported(shape, "sm_90").startswith("takes no ")
    q, k, v = FORWARD.inputs(BAND, 0)
    with pytest.raises(Unsupported, match="step static_scheduler: takes no sliding window and no soft cap"):
        get_step("static_scheduler").attention(q, k, v, True, window=5, softcap=2.0)


# --- the problem ---


def test_a_window_sees_what_its_definition_says():
    """And the customary half of a square where it is cut off: the area of the band, not its points."""
    for queries, keys, window in ((50, 50, 7), (50, 30, 30), (30, 50, 7), (50, 50, 99), (9, 9, 1)):
        shape = replace(BAND, seq_len_q=queries, seq_len_kv=keys, window=window)
        pairs = [(i, j) for i in range(queries) for j in range(keys) if i - window < j <= i]
        seen = reference.visible(queries, keys, window, torch.device("cpu"))
        assert torch.equal(seen.nonzero(), torch.tensor(pairs))
        assert abs(shape.visible_pairs - len(pairs)) <= max(queries, keys) / 2


def test_the_reference_is_the_formula():
    shape = replace(BAND, window=33, softcap=2.0, seq_len_q=40, seq_len_kv=50)
    q, k, v = (x.double() for x in FORWARD.inputs(shape, 1))
    scores = 2 * torch.tanh(q @ k.mT / 8 / 2)
    scores = scores.masked_fill(~reference.visible(40, 50, 33, torch.device("cpu")), float("-inf"))
    [exact] = FORWARD.reference(shape, FORWARD.inputs(shape, 1))
    torch.testing.assert_close(exact, scores.softmax(-1) @ v)


def test_packed_sequences_are_each_by_itself():
    shape = packed((40, 7), (9, 50))
    q, k, v, begins_q, begins_k = FORWARD.inputs(shape, 1)
    assert begins_q.tolist() == [0, 40, 47] and begins_k.tolist() == [0, 9, 59]
    [exact] = FORWARD.reference(shape, (q, k, v, begins_q, begins_k))
    assert exact.shape == q.shape == (47, 4, 64)
    alone = [x[a:b].transpose(0, 1)[None] for x, a, b in ((q, 40, 47), (k, 9, 59), (v, 9, 59))]
    torch.testing.assert_close(exact[40:].transpose(0, 1)[None], reference.attention_float64(*alone, True))
    assert shape.visible_pairs == sum(one.visible_pairs for one in shape.sequences)


@pytest.mark.parametrize("shape", [WINDOWS[0], CAPS[-1], PACKED[-3]], ids=lambda p: p.slug)
def test_a_record_holds_it_and_its_name_tells_it(shape):
    kept = json.loads(json.dumps(shape.as_dict()))
    assert Problem(**kept) == shape
    plain = {name: value for name, value in problem().as_dict().items() if name not in ("window", "softcap", "lengths")}
    assert Problem(**plain) == problem()  # as older records have it
    others = [replace(shape, window=99), replace(shape, softcap=1.25), packed((100, 3, 278))]
    assert len({one.slug for one in (shape, *others)}) == 4


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"window": 0}, "window must be a whole number of at least 1, got 0"),
        ({"window": 2.0}, "window must be a whole number"),
        ({"window": 9, "causal": False}, "window takes a causal mask"),
        ({"window": 9, "seq_len_q": 200}, "with 200 queries and 128 keys at least 73, got 9"),
        ({"softcap": 0.0}, "softcap must be a finite number above 0, got 0.0"),
        ({"softcap": 1e39}, "softcap must be between"),
        ({"softcap": "50"}, "softcap must be a number, got '50'"),
        ({"scale": "0.5"}, "scale must be a number, got '0.5'"),
        ({"scale": 10**400}, "scale must be a finite number, got inf"),
        ({"causal": "no"}, "causal must be True or False, got 'no'"),
        ({"causal": None}, "causal must be True or False, got NoneType"),
        ({"lengths": 128}, "lengths must be whole numbers of at least 1, got 128"),
        ({"lengths": torch.tensor([64, 64])}, "lengths must be whole numbers of at least 1, got tensor"),
        ({"lengths": (True, 127)}, "lengths must be whole numbers of at least 1"),
        ({"lengths_kv": (128,)}, "lengths must be whole numbers of at least 1, got None"),
        ({"lengths": (100, 30)}, "lengths must add up to the tensor's 128 tokens, got 130"),
        ({"lengths": (128, 0)}, "lengths must be whole numbers of at least 1"),
        ({"lengths": (128,), "lengths_kv": (64, 64)}, r"lengths_kv must be as many as lengths \(1\), got 2"),
        ({"lengths": (128,), "batch": 2}, "batch must be 1 where sequences are packed"),
    ],
)
def test_what_makes_no_sense_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        problem(**{"batch": 1, **fields})


# --- the kernels ---


def counted_products(step, shape, monkeypatch) -> int:
    counted, real = [], interpreter.OPERATIONS["mma"]
    with monkeypatch.context() as patch:
        patch.setitem(interpreter.OPERATIONS, "mma", lambda *x, **more: counted.append(1) or real(*x, **more))
        FORWARD.call(step, shape, FORWARD.inputs(shape, 0))
    return len(counted)


def test_tiles_that_nobody_sees_are_skipped(monkeypatch):
    """Two products for every tile that somebody sees; at head_dim 64 all tiles are of one size."""
    step, shape = get_step("window"), replace(BAND, seq_len_q=1000, seq_len_kv=1000, heads=1, kv_heads=1)
    found = []
    for window in (None, 500, 128, 1):
        one = replace(shape, window=window)
        found.append(counted_products(step, one, monkeypatch))
        assert found[-1] == 2 * tiles_visited(one, step.tile)
    assert found == sorted(found, reverse=True) and len(set(found)) == len(found)


def test_a_group_in_a_tile_takes_fewer_products(monkeypatch):
    shape = GROUPS[1]
    one, all_of_them = (counted_products(get_step(name), shape, monkeypatch) for name in ("varlen", "pack_gqa"))
    assert one == shape.group_size * all_of_them


@pytest.mark.parametrize(("heads", "window", "blocks"), [(1, 2000, 16), (2, 2000, 16), (3, 1000, 10)])
def test_tiles_are_dealt_by_what_they_cost_under_a_window(heads, window, blocks, monkeypatch):
    """No other deal has a shorter longest block. That is not so where all tiles count as equally long."""
    tile = get_step("window").tile
    shape = replace(BAND, heads=heads, kv_heads=1, seq_len_q=3000, seq_len_kv=3000, window=window)
    a_head = tiles_a_head(shape, tile)
    seen = [tiles_seen(shape, tile, i) for i in range(a_head)]
    least = max(max(seen), -(-heads * sum(seen) // blocks))

    def longest() -> int:
        dealt = deal(shape, tile, blocks)
        assert sorted(itertools.chain(*dealt)) == list(range(a_head * heads))
        return max(sum(seen[number % a_head] for number in numbers) for numbers in dealt)

    assert longest() == least
    monkeypatch.setattr(order, "tiles_seen", lambda *_: 1)
    assert longest() >= least + 4


def test_packed_sequences_have_blocks_enough():
    tile = get_step("varlen").tile
    for lengths in ((1,) * 9, (128, 128), (129, 127, 1), (1000, 3)):
        shape = packed(lengths)
        needed = sum(-(-length // tile.query) for length in lengths)
        assert needed <= grid(shape, tile)[0] <= needed + len(lengths)


def test_a_launch_does_not_depend_on_what_cu_seqlens_holds():
    """The kernel reads it: other sequences, as many with as many tokens, are computed by what was ready."""
    for name in ("varlen", "pack_gqa", "hopper_varlen", "sdpa"):
        step = replace(get_step(name))
        for lengths in ((100, 3, 77), (1, 178, 1), (60, 60, 60)):
            assert_right(step, packed(lengths))
        assert len(step.launches) == (3 if step.reads_lengths else 1)


@pytest.mark.parametrize("name", ["varlen", "hopper_varlen"])
def test_nothing_of_a_sequence_comes_to_another(name):
    """Behind the end of a sequence stands the next: not a number there must not become one here, even times zero."""
    shape = packed((100, 30, 77))
    q, k, v, begins, _ = FORWARD.inputs(shape, secrets.randbits(32))
    for x in (q, k, v):
        x[100:130] = float("nan")
    o = get_step(name).attention(q, k, v, True, cu_seqlens_q=begins)
    assert o[100:130].isnan().all()
    [exact] = FORWARD.reference(shape, (q, k, v, begins, begins))
    for a, b in ((0, 100), (130, 207)):
        torch.testing.assert_close(o[a:b].double(), exact[a:b], atol=4e-3, rtol=4e-3)


def test_the_count_of_tiles_is_as_before_behind_every_launch(monkeypatch):
    """So the next launch in a stream may count in the same place, whatever its lengths."""
    kept = []
    monkeypatch.setattr(launching, "each_stream", lambda make, device: lambda: kept.append(make()) or kept[0])
    step = replace(get_step("hopper_varlen"))
    for lengths in ((100, 3, 277), (1, 378, 1)):
        assert_right(step, packed(lengths))
        assert all(torch.equal(kept[0], fresh) for fresh in kept[1:]) and kept[0][0] == 0
    assert len(kept) > 1


@pytest.mark.parametrize("head_dim", [64, 256])
def test_what_leaves_a_tile_no_key_hangs_nothing(head_dim):
    """On a GPU nobody checks the lengths at a later call: o is not defined then, but the kernel ends."""
    q, k, v, begins, _ = FORWARD.inputs(packed((100, 300), head_dim=head_dim), 0)
    tensors = [packing.as_batch(x) for x in (q, k, v, torch.empty_like(q))]
    launch = get_step("hopper_varlen").ready(*tensors[:3], True, out=tensors[3], window=32, begins=(begins, begins))
    others = [torch.tensor(begins, dtype=torch.int32) for begins in ([0, 350, 400], [0, 50, 400], [0, 0, 400])]
    for begins_q, begins_k in itertools.permutations(others, 2):
        launch(*tensors, begins_q, begins_k)


def test_a_soft_cap_costs_an_exponential_and_a_reciprocal_for_every_score():
    """In machine code: and a turn of the loop is still one tile of keys."""
    step, shape = get_step("hopper_soft_cap"), problem(head_dim=128, seq_len_q=1024, seq_len_kv=1024)
    without, capped = (step.compile(replace(shape, softcap=cap), "sm_90") for cap in (None, 50.0))
    scores = capped.scores_per_tile / capped.compute_threads  # of a thread
    assert capped.hot_loop["MUFU"] == without.hot_loop["MUFU"] + 2 * scores
    assert capped.hot_loop["tensor core"] == without.hot_loop["tensor core"]


@pytest.mark.parametrize("cap", [1e5, 1e6, 1e20])
@pytest.mark.parametrize("name", ["soft_cap", "hopper_soft_cap"])
def test_a_large_soft_cap_keeps_the_digits_of_scores(name, cap):
    """Also where scores are so large that the cap is felt: the series ends at a quarter of it."""
    for scale in (None, 100.0, cap / 50 if cap < 1e7 else 1e7):
        assert_right(get_step(name), replace(BAND, softcap=cap, scale=scale))


def test_only_a_large_soft_cap_pays_for_its_digits():
    """In machine code: no exponential more, and up to a cap of 1,000 what there was before."""
    step, shape = get_step("hopper_soft_cap"), problem(head_dim=128, seq_len_q=1024, seq_len_kv=1024)
    small, large = (step.compile(replace(shape, softcap=cap), "sm_90").hot_loop for cap in (50.0, 1e5))
    assert small["MUFU"] == large["MUFU"] and small["FP32"] < large["FP32"]


def test_cu_seqlens_that_make_no_sense_are_named():
    step = get_step("varlen")
    q, k, v, begins, _ = FORWARD.inputs(packed((40, 60)), 0)

    def told(message, q=q, **given):
        with pytest.raises(ValueError, match=message):
            step.attention(q, k, v, True, **given)

    told("cu_seqlens_q must be an int32 tensor", cu_seqlens_q=begins.long())
    told("cu_seqlens_k must be an int32 tensor", cu_seqlens_q=begins, cu_seqlens_k=[0, 100])
    told("cu_seqlens_q must be an int32 tensor", cu_seqlens_k=begins)
    told("hold two numbers at least, got 1", cu_seqlens_q=begins[:1])
    told("must rise from 0 to the number of tokens, 100, got 0, 40, 99", cu_seqlens_q=torch.tensor([0, 40, 99]).int())
    told("must rise from 0", cu_seqlens_q=torch.tensor([0, 40, 40, 100]).int())
    told(r"with cu_seqlens_q q must be a tensor \[tokens, heads, head_dim\]", q=q[None], cu_seqlens_q=begins)


def test_lengths_are_read_at_every_call():
    """Also where nobody counts who writes: into memory that is shared, or in inference mode."""
    shared = np.array([0, 40, 100], dtype=np.int32)
    begins = torch.from_numpy(shared)
    q = torch.randn(100, 2, 64).half()
    step, first = get_step("sdpa"), get_step("sdpa").attention(q, q, q, causal=True, cu_seqlens_q=begins)
    shared[1] = 70
    second = step.attention(q, q, q, causal=True, cu_seqlens_q=begins)
    assert torch.equal(second, step.attention(q, q, q, causal=True, cu_seqlens_q=begins.clone()))
    assert not torch.equal(first, second)
    with torch.inference_mode():
        for name in ("sdpa", "varlen"):
            get_step(name).attention(q, q, q, causal=True, cu_seqlens_q=packing.cu_seqlens((40, 60)))


@pytest.mark.parametrize("name", ["sdpa", "varlen", "hopper_soft_cap"])
def test_lengths_are_checked_whatever_came_before(name):
    """On the CPU; a GPU would have to be waited for."""
    q = torch.randn(30, 2, 64).half()
    for _ in range(2):
        get_step(name).attention(q, q, q, cu_seqlens_q=packing.cu_seqlens((12, 18)))
        with pytest.raises(
            ValueError, match="cu_seqlens_q must rise from 0 to the number of tokens, 30, got 0, 12, 31"
        ):
            get_step(name).attention(q, q, q, cu_seqlens_q=packing.cu_seqlens((12, 19)))
    known = len(get_step(name).launches)
    get_step(name).attention(q, q, q, cu_seqlens_q=packing.cu_seqlens((11, 19)))
    assert (len(get_step(name).launches) == known) is not get_step(name).reads_lengths


def test_who_never_writes_may_have_lengths_remembered():
    begins = packing.remembered((40, 60), "cpu")
    assert packing.read_lengths("cu", begins, 100) == (40, 60)


def test_a_bad_out_of_packed_sequences_is_named():
    q, begins = torch.randn(100, 2, 64).half(), packing.cu_seqlens((40, 60))
    for out, came in ((torch.empty(3), r"\(3,\)"), ([1], "list")):
        with pytest.raises(ValueError, match=rf"out must be a tensor with shape \(100, 2, 64\), .*got {came}"):
            get_step("varlen").attention(q, q, q, causal=True, cu_seqlens_q=begins, out=out)


def test_a_window_that_is_none_is_refused_whoever_traces():
    """Where gradients are wanted and torch.compile traces, nothing else would look at it."""
    q = torch.randn(1, 2, 16, 64).half().requires_grad_()
    for causal, window in ((False, 4), (True, 0), (True, 4.0), (True, True)):
        for call in (steps.attention, torch.compile(steps.attention, backend="eager")):
            with pytest.raises(Exception, match=r"window (must be|takes a causal)"):
                call(q, q, q, causal, window=window)


def test_no_mask_is_kept_beyond_a_launch():
    """A mask that tracing made is none for a call."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    q = torch.randn(1, 2, 24, 64).half()
    with FakeTensorMode() as fake:
        steps.attention(fake.from_tensor(q).requires_grad_(), *[fake.from_tensor(q)] * 2, True, window=5)
    assert steps.attention(q.clone().requires_grad_(), q, q, True, window=5).isfinite().all()


SEEN = [
    *(("pack_gqa", shape) for shape in (WINDOWS[3], CAPS[-1], PACKED[0], GROUPS[-1])),
    *(("hopper_window", shape) for shape in (WINDOWS[3], WINDOWS[6])),
    *(("hopper_varlen", shape) for shape in (PACKED[0], PACKED[4])),
    ("hopper_soft_cap", CAPS[-1]),
]


@pytest.mark.parametrize(("name", "shape"), SEEN, ids=lambda x: getattr(x, "slug", x))
def test_the_log_sum_exp_is_of_what_a_query_sees(name, shape):
    inputs = FORWARD.inputs(shape, secrets.randbits(32))
    more = {"window": shape.window, "softcap": shape.softcap}
    if shape.lengths:
        more |= {"cu_seqlens_q": inputs[3], "cu_seqlens_k": inputs[4]}
    o, lse = get_step(name).attention(*inputs[:3], shape.causal, shape.scale, return_lse=True, **more)
    q, k, v = map(packing.as_batch, inputs[:3]) if shape.lengths else inputs
    kind = shape.causal, shape.scale, shape.window, shape.softcap
    each = packing.split(q, k, v, shape.pairs_of_lengths)
    exact = torch.cat([reference.attention_and_lse_float64(*one, *kind)[1] for one in each], dim=2)
    torch.testing.assert_close(lse.double(), exact.squeeze(0) if shape.lengths else exact, rtol=1e-5, atol=2e-4)
    assert torch.isfinite(o).all()


# --- the front door ---


@pytest.mark.parametrize("name", ["sdpa", "window"])
def test_the_front_door_takes_a_window(name, monkeypatch):
    monkeypatch.setattr(front, "_launches", Launches())
    monkeypatch.setattr(front, "chosen", lambda problem, target: get_step(name))
    q, k, v = FORWARD.inputs(BAND, secrets.randbits(32))
    for window in (20, None, 50):
        exact = reference.attention_float64(q, k, v, True, window=window)
        torch.testing.assert_close(steps.attention(q, k, v, True, window=window).double(), exact, atol=5e-3, rtol=1e-2)
    with pytest.raises(ValueError, match="window takes a causal mask"):
        steps.attention(q, k, v, window=5)
    torch.library.opcheck(front.operator, (q, k, v, True, None, 20))


# --- peers, and the command ---


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(
    "shape", [WINDOWS[2], CAPS[0], PACKED[4], PACKED[5], replace(WINDOWS[2], sinks=True)], ids=lambda p: p.slug
)
def test_flex_attention_is_told_the_mask(shape, monkeypatch):
    from torch.nn.attention.flex_attention import flex_attention

    torch.compiler.reset()  # it compiles itself, and a soft cap behind another one as a variable, which then fails
    monkeypatch.setattr(peers, "_compiled_flex", lambda: flex_attention)
    [peer] = [peer for peer in peers.PEERS if peer.name == "flex"]
    monkeypatch.setattr(type(peer), "unsupported", lambda *_: None)  # it is timed on a GPU only
    assert_right(peer, shape)


def asked(*words):
    return [here for here, _ in make_problems(make_parser().parse_args(words), "cuda")]


def test_the_command_asks_for_masks():
    [band] = asked("--seq-len", "4096", "--window", "1024", "--softcap", "30")
    assert (band.window, band.softcap, band.seq_len_q) == (1024, 30.0, 4096)
    assert not band.sinks and all(one.sinks for one in asked("--sinks", "--direction", "backward"))
    [some] = asked("--lengths", "1000,3001,17", "--heads", "8", "--kv-heads", "2")
    assert some.lengths == (1000, 3001, 17) and some.seq_len_kv == 4018 and some.batch == 1
    [named] = asked("--lengths", "ragged")
    assert len(named.lengths) == 16 and sum(named.lengths) == 32768
