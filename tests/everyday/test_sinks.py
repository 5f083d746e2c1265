"""Attention sinks: one logit a query head that takes part in each softmax's sum and has no value."""

import json
import math
import secrets
from dataclasses import replace

import pytest
import torch

from steps import get_step
from steps.core.step import Unsupported
from steps.hopper import ahead
from steps.reference.autograd import AutogradGradients
from steps.reference.peers import GradientPeer
from steps.writing.written import write_step
from tests.checking import assert_right
from tests.distinct import named
from tests.everyday.test_masks import packed
from tests.shapes import problem
from tutorial_lib import packing, reference
from tutorial_lib.accuracy import compare
from tutorial_lib.packing import split
from tutorial_lib.passes import BACKWARD, FORWARD
from tutorial_lib.problem import Problem
from tutorial_lib.simulator.run import watched

SINKS = problem(batch=2, heads=4, kv_heads=2, seq_len_q=150, seq_len_kv=150, sinks=True)
SHAPES = [
    SINKS,
    replace(SINKS, causal=False, seq_len_kv=201, head_dim=128, dtype="bfloat16"),
    replace(SINKS, window=33, softcap=5.0, scale=-0.4),
    replace(SINKS, seq_len_q=1, seq_len_kv=1),
]


def written_out(q, k, v, sinks, shape):
    """Attention in float64 as the formula reads: the sink is one more column of the scores, with a value of 0."""
    k, v = (x.repeat_interleave(shape.group_size, 1) for x in (k, v))
    scores = q @ k.mT * shape.effective_scale
    if shape.softcap:
        scores = shape.softcap * torch.tanh(scores / shape.softcap)
    if shape.causal:
        seen = reference.visible(shape.seq_len_q, shape.seq_len_kv, shape.window or shape.seq_len_q, q.device)
        scores = scores.masked_fill(~seen, -math.inf)
    column = sinks[None, :, None, None].expand(*scores.shape[:-1], 1)
    weights = torch.cat([scores, column], -1).softmax(-1)[..., :-1]
    return weights @ v, torch.cat([scores, column], -1).logsumexp(-1)


def test_sinks_between_multiples_of_16_bytes_are_of_another_kind():
    """Compilers count on where tensors begin."""
    step = replace(get_step("cutile_sinks"))
    shape = replace(SINKS, seq_len_q=5, seq_len_kv=5)
    q, k, v, sinks = FORWARD.inputs(shape, 1)
    elsewhere = torch.cat([sinks[:1], sinks])[1:]
    expected = step.attention(q, k, v, True, sinks=sinks)
    assert torch.equal(step.attention(q, k, v, True, sinks=sinks.clone()), expected) and len(step.launches) == 1
    assert torch.equal(step.attention(q, k, v, True, sinks=elsewhere), expected) and len(step.launches) == 2


@pytest.mark.parametrize("shape", SHAPES, ids=lambda p: p.slug)
def test_the_reference_is_the_formula(shape):
    q, k, v, sinks = inputs = FORWARD.inputs(shape, 1)
    assert sinks.shape == (shape.heads,) and sinks.dtype == torch.float32
    more = {"window": shape.window, "softcap": shape.softcap, "sinks": sinks}
    leaves = [x.double().requires_grad_() for x in inputs]
    o, lse = written_out(*leaves, shape)
    asked = (shape.causal, shape.scale)
    torch.testing.assert_close(reference.attention_and_lse_float64(q, k, v, *asked, **more), (o, lse))
    if shape.effective_scale > 0:
        torch.testing.assert_close(reference.log_sum_exp(q, k, *asked, **more), lse.float())
    do = torch.randn_like(o)
    made = reference.gradients_float64(q, k, v, do, *asked, **more)
    torch.testing.assert_close(made, torch.autograd.grad(o, leaves, do))


def test_without_sinks_the_gradients_of_masks_are_those_of_the_formula():
    shape = replace(SHAPES[2], sinks=False)
    q, k, v = inputs = FORWARD.inputs(shape, 1)
    leaves = [x.double().requires_grad_() for x in inputs]
    o, _ = written_out(*leaves, torch.full((4,), -math.inf, dtype=torch.float64), shape)
    do = torch.randn_like(o)
    made = reference.gradients_float64(q, k, v, do, True, shape.scale, shape.window, shape.softcap)
    torch.testing.assert_close(made, torch.autograd.grad(o, leaves, do))


@pytest.mark.parametrize("shape", SHAPES, ids=lambda p: p.slug)
def test_the_yardsticks_are_near_the_reference(shape):
    """And far nearer than attention without sinks: a step that forgets them is wrong."""
    inputs = FORWARD.inputs(shape, 2)
    exact = FORWARD.reference(shape, inputs)
    [error] = FORWARD.yardstick(shape, inputs, exact)
    [without] = FORWARD.reference(replace(shape, sinks=False), inputs[:3])
    assert 0 < error < 0.03 and (without - exact[0]).abs().max() > 10 * error
    if not (shape.window or shape.softcap):
        inputs = BACKWARD.inputs(shape, 2)
        exact = BACKWARD.reference(shape, inputs)
        errors = BACKWARD.yardstick(shape, inputs, exact)
        assert len(exact) == len(errors) == len(BACKWARD.poisoned(inputs)) == 4
        assert all(e <= 0.02 * x.abs().max() for e, x in zip(errors, exact))


def test_packed_sequences_share_the_sinks():
    shape = packed((40, 7), (9, 50), sinks=True)
    q, k, v, begins_q, _, sinks = inputs = FORWARD.inputs(shape, 1)
    assert begins_q.tolist() == [0, 40, 47] and sinks.shape == (4,)
    [exact] = FORWARD.reference(shape, inputs)
    alone = [x[a:b].transpose(0, 1)[None] for x, a, b in ((q, 40, 47), (k, 9, 59), (v, 9, 59))]
    [expected] = reference.attention_float64(*alone, True, sinks=sinks)
    torch.testing.assert_close(exact[40:].transpose(0, 1), expected)
    assert FORWARD.yardstick(shape, inputs, (exact,))[0] < 0.01


def test_the_reference_of_a_row_without_a_finite_score_is_zero():
    q, k, v, sinks = FORWARD.inputs(replace(SINKS, causal=False), 1)
    k, q = k.clone(), torch.ones_like(q)
    k[..., 0] = -math.inf
    o, lse = reference.attention_and_lse_float64(q, k, v, sinks=sinks)
    assert not o.any() and torch.equal(lse, sinks.double()[None, :, None].expand_as(lse))


def test_a_record_holds_them_and_names_tell_them():
    assert Problem(**json.loads(json.dumps(SINKS.as_dict()))) == SINKS
    without = replace(SINKS, sinks=False)
    assert "sinks" not in without.as_dict() and without.as_dict()["causal"] is True
    assert replace(without, causal=False).as_dict()["causal"] is False
    assert SINKS.features == ("sinks",) and SINKS.slug == without.slug + "_sinks"
    assert SINKS.family == without.family + "_sinks" and SINKS.describe() == without.describe() + " sinks"
    assert SINKS.order != without.order


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sinks": None}, "sinks must be True or False, got None"),
        ({"page_size": 16}, "page_size goes with no other feature, got sinks, too"),
    ],
)
def test_what_makes_no_sense_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        replace(SINKS, **fields)


# --- the kernels ---

STEPS = ("attention_sinks", "cutile_sinks", "sinks_next_softmax_first")


def takers(shape) -> list:
    return [step for step in map(get_step, STEPS) if set(shape.features) <= set(step.takes)]


KERNELS = [
    problem(batch=1, heads=4, kv_heads=2, seq_len_q=300, seq_len_kv=300, sinks=True),
    problem(batch=2, heads=2, seq_len_q=200, seq_len_kv=333, sinks=True, causal=False, head_dim=128, dtype="bfloat16"),
    problem(
        batch=1,
        heads=8,
        kv_heads=1,
        seq_len_q=300,
        seq_len_kv=300,
        sinks=True,
        window=70,
        head_dim=64,
        dtype="bfloat16",
    ),
    problem(batch=1, heads=6, kv_heads=2, seq_len_q=130, seq_len_kv=130, sinks=True, softcap=3.0, scale=-0.4),
    problem(batch=1, heads=2, seq_len_q=1, seq_len_kv=1, sinks=True, head_dim=128),
    problem(batch=1, heads=2, seq_len_q=200, seq_len_kv=150, sinks=True, head_dim=256),
    packed((100, 3, 277, 1), sinks=True),
    packed((100, 3, 277), (20, 300, 280), sinks=True, window=90, heads=12, head_dim=128, dtype="bfloat16"),
]
PAIRS = [(step, shape) for shape in KERNELS for step in takers(shape)]


@pytest.mark.parametrize(("step", "shape"), PAIRS, ids=named)
def test_a_kernel_is_right(step, shape):
    assert_right(step, shape)


@pytest.mark.parametrize("changes", [{}, {"kv_heads": 1, "dtype": "bfloat16", "scale": -0.3}])
def test_the_next_softmax_begins_with_the_next_heads_sink(changes):
    """At a tile's end the maxima are those of the next tile, which may be of another head: three blocks share two."""
    step = get_step("sinks_next_softmax_first")
    shape = problem(
        **{"batch": 1, "heads": 2, "seq_len_q": 2050, "seq_len_kv": 200, "head_dim": 128, "sinks": True} | changes
    )
    assert step.variant(shape).consume is ahead.consume
    inputs = FORWARD.inputs(shape, secrets.randbits(32))
    inputs[-1].copy_(torch.tensor([-3.0, 9.0]))
    assert_right_and_in_order(step, shape, inputs)


def assert_right_and_in_order(step, shape, inputs):
    """Output and log-sum-exp, and the simulator finds no race."""
    exact = FORWARD.reference(shape, inputs)
    [out] = FORWARD.poisoned(inputs)
    asked = FORWARD.asked(shape, inputs)
    more = dict(zip(("cu_seqlens_q", "cu_seqlens_k"), inputs[3:5])) if shape.lengths else {}
    with watched(secrets.randbits(16)) as watch:
        _, lse = step.attention(*inputs[:3], shape.causal, shape.scale, out=out, return_lse=True, **asked, **more)
    assert not any(run.found for run in watch.runs)
    accuracy = compare(out, *exact, *FORWARD.yardstick(shape, inputs, exact))
    assert accuracy.correct, accuracy.explain()
    q, k, v = map(packing.as_batch, inputs[:3]) if shape.lengths else inputs[:3]
    each = packing.split(q, k, v, shape.pairs_of_lengths)
    right = torch.cat([reference.attention_and_lse_float64(*x, shape.causal, shape.scale, **asked)[1] for x in each], 2)
    torch.testing.assert_close(lse.double(), right.squeeze(0) if shape.lengths else right, rtol=1e-5, atol=2e-4)


@pytest.mark.parametrize(("step", "shape"), PAIRS, ids=named)
def test_so_is_one_that_also_gives_the_log_sum_exp(step, shape):
    assert_right_and_in_order(step, shape, FORWARD.inputs(shape, secrets.randbits(32)))


@pytest.mark.parametrize("name", STEPS)
def test_a_sink_may_be_large_or_none(name):
    """So large that the keys have no weight, so small that it has none itself, and minus infinity, which is none."""
    shape = replace(KERNELS[0], causal=False)
    inputs = FORWARD.inputs(shape, secrets.randbits(32))
    inputs[-1].copy_(torch.tensor([300.0, -1000.0, -math.inf, 1.0]))
    assert_right_and_in_order(get_step(name), shape, inputs)


@pytest.mark.parametrize("name", STEPS)
def test_a_row_without_a_finite_score_is_zero(name):
    """In all tiles, or in the first ones alone, where a head may also have no sink."""
    shape = replace(KERNELS[0], causal=False, seq_len_q=40)
    q, k, v, sinks = FORWARD.inputs(shape, secrets.randbits(32))
    q.fill_(1.0)
    for hidden, last in ((300, 1.0), (200, -math.inf)):
        keys = k.clone()
        sinks[-1] = last
        keys[:, :, :hidden, 0] = -math.inf
        inputs = q, keys, v, sinks
        assert_right_and_in_order(get_step(name), shape, inputs)
        assert hidden < 300 or not get_step(name).attention(q, keys, v, sinks=sinks).any()


@pytest.mark.parametrize("name", STEPS[:2])
def test_sinks_are_read_at_every_call(name):
    """Whatever their dtype and strides; and a call without them is one of another kind."""
    step, shape = replace(get_step(name)), KERNELS[0]
    q, k, v, sinks = FORWARD.inputs(shape, secrets.randbits(32))
    for given in (
        sinks,
        sinks + 2,
        sinks.half(),
        sinks.bfloat16(),
        sinks.repeat_interleave(2)[::2],
        sinks[:1].expand(4),
    ):
        exact = reference.attention_float64(q, k, v, True, sinks=given)
        torch.testing.assert_close(step.attention(q, k, v, True, sinks=given).double(), exact, atol=2e-3, rtol=2e-3)
    assert len(step.launches) == 1
    without = reference.attention_float64(q, k, v, True)
    torch.testing.assert_close(step.attention(q, k, v, True).double(), without, atol=2e-3, rtol=2e-3)
    assert len(step.launches) == 2


def test_sinks_that_make_no_sense_are_named():
    step, shape = get_step("cutile_sinks"), KERNELS[0]
    q, k, v, sinks = FORWARD.inputs(shape, 0)

    def told(message, sinks, error=ValueError, step=step, **more):
        with pytest.raises(error, match=message):
            step.attention(q, k, v, True, sinks=sinks, **more)

    told(r"sinks must be a tensor \[heads\] in float32, float16 or bfloat16, got float", 1.0)
    told("got torch.float64", sinks.double())
    told(r"sinks must be a tensor \[4\] on cpu, a number for each head of q, got \(3,\) on cpu", sinks[:3])
    told(r"got \(2, 2\) on cpu", sinks.view(2, 2))
    told("sinks must be on a CUDA device or the CPU, got a tensor on meta", sinks.to("meta"))
    told("sinks must require no gradients", sinks.clone().requires_grad_())
    told("window: takes no attention sinks", sinks, Unsupported, get_step("window"))
    told("sdpa: takes no attention sinks", sinks, Unsupported, get_step("sdpa"))


# --- gradients: any backward step that reads the log-sum-exp ---

GRADIENTS = [
    problem(batch=2, heads=4, kv_heads=2, seq_len_q=150, seq_len_kv=150, sinks=True),
    problem(batch=1, heads=2, seq_len_q=100, seq_len_kv=170, causal=False, head_dim=128, dtype="bfloat16", sinks=True),
    problem(batch=1, heads=2, seq_len_q=1, seq_len_kv=1, sinks=True),
]


def of_one_more_column(q, k, v, causal, scale, packing=None, sinks=None):
    """As a peer has it, which takes packed sequences and rounds sinks to bfloat16."""
    if packing:
        each = split(q, k, v, packing.pairs)
        return torch.cat([of_one_more_column(*one, causal, scale, None, sinks) for one in each], dim=2)
    shape = replace(Problem.of(q, k, v, causal, scale), sinks=True)
    o, _ = written_out(*(x.float() for x in (q, k, v)), sinks.bfloat16().float(), shape)
    return o.to(q.dtype)


class OfPeers(AutogradGradients):
    rounds_sinks = GradientPeer.rounds_sinks


@pytest.mark.parametrize("shape", [*GRADIENTS, packed((40, 7), sinks=True)], ids=lambda p: p.slug)
def test_a_peers_own_gradients_have_those_of_sinks(shape):
    peer = OfPeers(name="peer", title="", change="", function=of_one_more_column, takes=("lengths", "sinks"))
    for _ in range(2):  # other sinks each time
        assert_right(peer, shape)


BACKWARD_STEPS = ("formulas", "two_blocks", "deferred_reduce_add", "two_dq_writers")


@pytest.mark.parametrize("shape", GRADIENTS, ids=lambda p: p.slug)
@pytest.mark.parametrize("name", BACKWARD_STEPS)
def test_a_backward_step_that_reads_the_log_sum_exp_has_the_gradients_of_sinks(name, shape):
    inputs = BACKWARD.inputs(shape, secrets.randbits(32))
    exact = BACKWARD.reference(shape, inputs)
    accuracy = BACKWARD.check(get_step(name), shape, inputs, exact, BACKWARD.yardstick(shape, inputs, exact))
    assert accuracy.correct, accuracy.explain()


@pytest.mark.parametrize("name", ["two_blocks", "deferred_reduce_add"])
def test_a_kernel_for_dsinks_takes_sinks_as_they_are(name):
    """None, by minus infinity; a large one; every dtype; not at multiples of 16 bytes; not in a row; the same bits."""
    step, shape = get_step(name), replace(GRADIENTS[0], dtype="bfloat16", seq_len_q=700, seq_len_kv=90)
    q, k, v, _, _, do, sinks = BACKWARD.inputs(shape, secrets.randbits(32))
    sinks = sinks.index_fill(0, torch.tensor([1]), -math.inf).half().float()
    sinks[0] = 100.0  # exp of it is more than float32 holds
    o, lse = reference.attention_and_lse_float64(q, k, v, True, sinks=sinks)
    tensors = (q, k, v, o.to(q.dtype), lse.float(), do)
    exact = -((sinks.double()[:, None] - lse).exp() * (tensors[3].double() * do).sum(-1)).sum((0, 2))
    for given in (sinks, sinks.half(), torch.cat([sinks[:1], sinks])[1:], sinks.repeat_interleave(2)[::2]):
        *_, dsinks = step.gradients(*tensors, True, sinks=given)
        rounding = {"rtol": 1e-3 if given.dtype == torch.float16 else 1e-5, "atol": 1e-4}
        torch.testing.assert_close(dsinks.double(), exact, **rounding)
        assert dsinks.dtype == given.dtype and torch.equal(dsinks, step.gradients(*tensors, True, sinks=given)[3])


def test_dsinks_come_in_the_sinks_dtype_and_into_out():
    shape = GRADIENTS[0]
    *tensors, sinks = BACKWARD.inputs(shape, secrets.randbits(32))
    step, causal = get_step("formulas"), shape.causal
    *_, dsinks = step.gradients(*tensors, causal, sinks=sinks)
    assert step.gradients(*tensors, causal, sinks=sinks.half())[3].dtype == torch.float16
    out = tuple(map(torch.empty_like, (*tensors[:3], sinks)))
    made = step.gradients(*tensors, causal, sinks=sinks, out=out)
    assert all(x is y for x, y in zip(made, out)) and torch.equal(out[3], dsinks)
    with pytest.raises(ValueError, match=r"out must be 4 tensors \(dq, dk, dv, dsinks\), got 3"):
        step.gradients(*tensors, causal, sinks=sinks, out=out[:3])
    with pytest.raises(ValueError, match="sinks must be a tensor"):
        step.gradients(*tensors, causal, sinks=sinks[:2])
    with pytest.raises(Unsupported, match="sdpa_gradients: takes no attention sinks"):
        get_step("sdpa_gradients").gradients(*tensors, causal, sinks=sinks)


@pytest.mark.parametrize("name", STEPS[:2])
def test_a_kernel_that_is_written_out_takes_them(name):
    shape = KERNELS[2]
    step = get_step(name)
    written = write_step(step, shape, "cpu" if step.backend == "cutile" else "sm_90")
    assert "sink" in written.text.lower()
    assert_right(written, shape)
