"""Gradients of packed sequences: each is by itself, and a launch serves whatever lengths there are."""

import secrets
from dataclasses import replace

import pytest
import torch

import steps
from steps import GRADIENTS, get_step
from steps.core import attention as front
from steps.core.gradients import tiles_visited
from steps.core.step import Unsupported
from steps.core.tiles import Tile
from steps.reference.autograd import AutogradGradients
from tests.checking import assert_right, faults
from tests.distinct import named, some_of
from tests.everyday.test_masks import packed
from tests.shapes import always_apart, few_at_once, problem
from tutorial_lib import packing
from tutorial_lib.passes import BACKWARD, FORWARD
from tutorial_lib.reference import sdpa_masked
from tutorial_lib.simulator import overtaken
from tutorial_lib.simulator.run import watched

LAST = get_step("two_blocks")
HOPPERS = [get_step(name) for name in ("deferred_reduce_add", "fast_deterministic")]
BEST = [LAST, *HOPPERS]
SHAPES = [
    packed((100, 3, 277, 1, 128)),
    packed((100, 3, 70), (20, 130, 80), head_dim=128, dtype="bfloat16"),
    packed((100, 3, 70), (20, 130, 80), heads=6, kv_heads=2, causal=False, scale=-0.2),
    packed((100, 3, 277), window=70, softcap=9.0, sinks=True),
    packed((1, 1, 1, 1), head_dim=256, sinks=True),
    packed((64,), kv_heads=4),
    packed((130, 1, 300), (1, 270, 300), head_dim=256, kv_heads=1, dtype="bfloat16", softcap=2.0),
    packed((64, 192, 65), (400, 3, 128), head_dim=80, kv_heads=4, causal=False),
]
TAKING = [step for step in GRADIENTS if "lengths" in step.takes and not step.unsupported(SHAPES[0], "cpu")]


@pytest.mark.parametrize("step", BEST, ids=named)
@pytest.mark.parametrize("shape", SHAPES, ids=named)
def test_a_step_is_right(step, shape):
    assert_right(step, shape)


@pytest.mark.parametrize("step", TAKING, ids=named)
def test_so_are_the_steps_before(step):
    assert_right(step, SHAPES[3])


def test_a_step_in_cutile_that_adds_to_dq_refuses_them():
    names = {step.name for step in TAKING if step.backend == "cutile"}
    assert names == {"two_kernels", "longest_first", "two_blocks"}
    inputs = BACKWARD.inputs(SHAPES[0], 1)
    for name, told in (
        ("relaxed_atomics", "where dQ has a kernel of its own"),
        ("two_cta_backward", "takes no packed sequences"),
    ):
        with pytest.raises(Unsupported, match=told):
            BACKWARD.call(get_step(name), SHAPES[0], inputs)


@pytest.mark.parametrize("step", BEST, ids=named)
def test_a_launch_serves_other_lengths(step):
    step = replace(step)
    for lengths in ((100, 3, 77), (1, 178, 1), (60, 60, 60)):
        assert_right(step, packed(lengths))
    assert len(step.launches) == 1


@pytest.mark.parametrize("lengths", [(0, 100, 0, 80), (180, 0, 0, 0), (0, 0, 0, 180)], ids=str)
@pytest.mark.parametrize("step", HOPPERS, ids=named)
def test_lengths_that_nobody_checked_may_be_zero(step, lengths):
    """As a GPU reads them: of the first call of a kind alone they are checked."""
    shape, there = packed((45,) * 4, sinks=True), packed(tuple(filter(None, lengths)), sinks=True)
    q, k, v, o, lse, do, *_, sinks = inputs = BACKWARD.inputs(there, secrets.randbits(32))
    given = *map(packing.as_batch, (q, k, v, o)), lse[None], packing.as_batch(do)
    made = *(torch.full_like(x, float("nan")) for x in (q, k, v)), torch.full_like(sinks, float("nan"))
    out = *map(packing.as_batch, made[:3]), made[3]
    launch = replace(step).make_ready(shape, (*given, sinks), out)
    launch(*given, out, sinks, *(packing.cu_seqlens(lengths),) * 2)
    for mine, true in zip(made, BACKWARD.reference(there, inputs), strict=True):
        assert (mine.double() - true).abs().max() < 0.02 * true.abs().max()


@pytest.mark.parametrize("step", BEST, ids=named)
def test_a_sequence_knows_nothing_of_its_neighbours(step):
    shape = packed((100, 30, 77), kv_heads=4)
    inputs = BACKWARD.inputs(shape, secrets.randbits(32))
    right = BACKWARD.call(step, shape, inputs)
    for x in (*inputs[:4], inputs[5]):
        x[100:130] = float("nan")
    for x, y in zip(BACKWARD.call(step, shape, inputs), right, strict=True):
        assert torch.equal(x[:100], y[:100]) and torch.equal(x[130:], y[130:]) and x[100:130].isnan().all()


@pytest.mark.parametrize("shape", [SHAPES[1], SHAPES[2]], ids=named)
def test_query_heads_of_packed_sequences_have_blocks_of_their_own_where_that_pays(shape, monkeypatch):
    """And add to dK and dV of their own sequence."""
    always_apart(monkeypatch)
    step = replace(HOPPERS[0])
    assert step.variant(shape).sharing == shape.group_size
    assert_right(step, shape)


@pytest.mark.parametrize("shape", [packed((100, 3), (140, 20), head_dim=128), packed((3, 70), causal=False)], ids=named)
def test_so_they_have_in_tiles_of_128_keys(shape, monkeypatch):
    """Both warpgroups then add what they have of their own keys."""
    few_at_once(monkeypatch)
    step = replace(HOPPERS[0])
    variant = step.variant(shape)
    assert (variant.sharing, variant.tile.key) == (shape.group_size, 128)
    assert not faults(step, shape)


@pytest.mark.parametrize("causal", [True, False])
def test_which_blocks_a_head_has_is_the_same_for_all_lengths_of_a_kind(causal):
    """Where one and where several are left to a query head, as launches are kept without lengths."""
    step, shared = HOPPERS[0], set()
    for tokens in (300, 1800, 8100, 24000, 60000):
        kind = [(tokens // 3,) * 3, (1, 1, tokens - 2), (tokens - 2, 1, 1), (tokens // 2, tokens // 2 - 1, 1)]
        variants = {step.variant(packed(lengths, heads=64, kv_heads=8, causal=causal)) for lengths in kind}
        assert len(variants) == 1
        shared.add(variants.pop().sharing)
    assert shared == {1, 8}


@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[3], SHAPES[6]], ids=named)
@pytest.mark.parametrize("step", HOPPERS, ids=named)
def test_no_schedule_brings_a_mistake_to_light(step, shape, pytestconfig):
    for seed in some_of((None, *range(1, 8)), 2, pytestconfig):
        assert not faults(step, shape, seed)


def test_what_is_wrong_is_named():
    q, k, v, o, lse, do, begins, _ = BACKWARD.inputs(SHAPES[0], 1)
    out = tuple(map(torch.empty_like, (q, k, v)))

    def told(message, *tensors, **more):
        with pytest.raises(ValueError, match=message):
            LAST.gradients(*tensors, True, **{"cu_seqlens_q": begins} | more)

    told(r"do must be a tensor \[tokens, heads, head_dim\]", q, k, v, o, lse, do[None])
    told("cu_seqlens_q must be an int32 tensor", q, k, v, o, lse, do, cu_seqlens_q=begins.long())
    told("cu_seqlens_q must rise from 0 to the number of tokens", q, k, v, o, lse, do, cu_seqlens_q=begins[:-1])
    told(r"out must be 3 tensors \(dq, dk, dv\), got 2", q, k, v, o, lse, do, out=out[:2])
    told("lse must have shape", q, k, v, o, lse[:, 1:], do)


def test_tiles_are_those_of_each_sequence():
    assert tiles_visited(packed((128, 65), heads=1, kv_heads=1), Tile(64, 64)) == 3 + 3


@pytest.mark.parametrize("shape", [SHAPES[1], SHAPES[3]], ids=named)
def test_the_front_door_takes_them_from_the_step(shape, monkeypatch):
    """As it does on a GPU, where it reads the lengths of the first call of a kind alone."""
    asked = []
    monkeypatch.setattr(front, "_backward_of_more", lambda *given: asked.append(given) or LAST)
    monkeypatch.setattr(front, "_packed", type(front._packed)())
    for _ in range(2):
        q, k, v, _, _, do, *begins = BACKWARD.inputs(shape, secrets.randbits(32))
        sinks = begins[2:]
        leaves = [x.requires_grad_() for x in (q, k, v, *sinks)]
        more = FORWARD.asked(shape, sinks)
        o = steps.attention(q, k, v, shape.causal, cu_seqlens_q=begins[0], cu_seqlens_k=begins[1], **more)
        made = torch.autograd.grad(o, leaves, do)
        detached = (*(x.detach() for x in (q, k, v)), None, None, do, *begins)
        for mine, true in zip(made, BACKWARD.reference(shape, detached), strict=True):
            assert (mine.double() - true).abs().max() < 0.02 * true.abs().max()
    assert asked == [(replace(shape, scale=None), "cpu", False)]


def test_whose_gradients_are_a_steps():
    shape = packed((4000, 1000), heads=32, kv_heads=8, head_dim=128, dtype="bfloat16")
    assert front.with_gradients(shape, "sm_90").backward is get_step("deferred_reduce_add")
    assert front.with_gradients(shape, "sm_80") is None


def test_a_peers_own_gradients_know_the_sequences():
    """Whatever lengths came before."""
    peer = AutogradGradients(name="peer", title="", change="", function=sdpa_masked, takes=("lengths",))
    for lengths in ((40, 7), (7, 40)):
        assert_right(peer, packed(lengths))


def test_nobody_copies_packed_gradients():
    """They are written where they are wanted, contiguous."""
    shape = SHAPES[0]
    inputs = BACKWARD.inputs(shape, 1)
    made = BACKWARD.call(LAST, shape, inputs)
    assert all(x.is_contiguous() and x.shape == y.shape for x, y in zip(made, inputs))
    assert packing.as_batch(made[0]).shape == (1, shape.heads, shape.seq_len_q, shape.head_dim)


BEFORE_CLEARING = [
    packed((100, 3, 70), (140, 200, 80), heads=6, kv_heads=2),
    packed((3, 70), (200, 20), heads=4, kv_heads=2, head_dim=128, dtype="bfloat16"),
    packed((3, 70), (140, 20), heads=4, kv_heads=2, head_dim=256),
    problem(batch=1, heads=4, kv_heads=2, seq_len_q=70, seq_len_kv=500),
]


@pytest.mark.parametrize("shape", BEFORE_CLEARING, ids=named)
def test_a_block_without_queries_adds_nothing_to_sums_that_may_not_be_cleared(shape, monkeypatch):
    """The kernel that clears them runs when somebody waits for it. A zero added to -0.0 before that would leave 0.0."""
    few_at_once(monkeypatch)
    step, made, touched, real, catch_up = replace(HOPPERS[0]), [], [], torch.empty, overtaken.catch_up
    variant = step.variant(shape)
    assert variant.adds_keys and variant.unseen

    def negative_zeros(*size, dtype=None, **how):
        x = real(*size, dtype=dtype, **how)
        if dtype == torch.float32:
            made.append(x.fill_(-0.0))
        return x

    def nobody_was_there():
        touched.append(bool((made[-1].view(torch.int32) != -(2**31)).any()))
        catch_up()

    inputs = BACKWARD.inputs(shape, secrets.randbits(32))
    monkeypatch.setattr(torch, "empty", negative_zeros)
    monkeypatch.setattr(overtaken, "catch_up", nobody_was_there)
    with watched(at_once=64):
        BACKWARD.call(step, shape, inputs)
    assert touched[:2] == [False, False]
