"""Every step computes attention, on the CPU, over the shapes it promises; what it cannot do it refuses in words."""

import dataclasses
import pickle
import re
import secrets

import pytest
import torch

from steps import MODULES, STEPS, get_step
from steps.cutile import CuTileStep, Latency, MaskLoop
from steps.gluon import GluonStep
from steps.hopper import ALWAYS, HopperStep
from steps.order import COUNTED, DEALT, NATURAL, SECTIONS
from steps.step import Unsupported
from tests.shapes import SHAPES, problem
from tutorial_lib.accuracy import Accuracy, measure_accuracy, rounding_step
from tutorial_lib.reference import attention_float64, sdpa_error

CUTILE = [step for step in STEPS if isinstance(step, CuTileStep)]
GLUON = [step for step in STEPS if isinstance(step, GluonStep)]
HOPPER = [step for step in STEPS if isinstance(step, HopperStep)]


def accuracy_of(step, a_problem, device="cpu") -> Accuracy:
    inputs = a_problem.inputs(secrets.randbits(32), device)
    causal, scale = a_problem.causal, a_problem.scale
    exact = attention_float64(*inputs, causal, scale)
    return measure_accuracy(step.attention, inputs, exact, sdpa_error(inputs, exact, causal, scale), causal, scale)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda p: p.slug)
@pytest.mark.parametrize("step", [s for s in STEPS[1:] if s.runs_on_cpu], ids=lambda s: s.name)
def test_step_is_correct(step, shape):
    accuracy = accuracy_of(step, shape)
    assert accuracy.correct, accuracy.explain()


@pytest.mark.parametrize("step", CUTILE, ids=lambda s: s.name)
def test_any_strides_will_do(step):
    shape = problem(seq_len_q=96, seq_len_kv=96)
    q, k, v = shape.inputs(secrets.randbits(32))
    expected = step.attention(q, k, v, True)
    transposed = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]  # heads behind the sequence
    assert torch.equal(step.attention(*transposed, True), expected)
    columns = [x.transpose(2, 3).contiguous().transpose(2, 3) for x in (q, k, v)]  # head_dim is not contiguous
    assert torch.equal(step.attention(*columns, True), expected)


def test_the_check_fails_a_wrong_result():
    """The rule is worth something: an error beyond it, a missing element and a NaN all fail."""
    shape = problem()
    inputs = shape.inputs(secrets.randbits(32))
    exact = attention_float64(*inputs, True)
    yardstick = sdpa_error(inputs, exact, True, None)
    limit = 2 * yardstick + rounding_step(exact, torch.float16)

    def wrong_by(amount):
        def attention(q, k, v, causal, scale, out):
            out.copy_(exact)
            out.view(-1)[17] += amount

        return measure_accuracy(attention, inputs, exact, yardstick, True, None)

    def leaves_one_out(q, k, v, causal, scale, out):
        out.view(-1)[1:] = exact.view(-1)[1:]

    assert wrong_by(0.0).correct
    assert not wrong_by(3 * limit).correct
    assert not wrong_by(float("nan")).correct
    assert not measure_accuracy(leaves_one_out, inputs, exact, yardstick, True, None).correct


def test_reference_agrees_with_a_direct_computation():
    shape = problem(heads=4, kv_heads=2, seq_len_q=50, seq_len_kv=70)
    q, k, v = (x.double() for x in shape.inputs(1))
    k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    hidden = torch.ones(50, 70, dtype=torch.bool).triu(1)
    scores = (q @ k.transpose(-2, -1) / 8).masked_fill(hidden, float("-inf"))
    torch.testing.assert_close(attention_float64(*shape.inputs(1), True), scores.softmax(-1) @ v)


def test_reference_in_chunks_is_the_same(monkeypatch):
    inputs = problem(seq_len_q=100, seq_len_kv=130).inputs(1)
    whole = attention_float64(*inputs, True)
    monkeypatch.setattr("tutorial_lib.reference.SCORE_BYTES", 8 * 130 * 7)  # seven rows at a time
    torch.testing.assert_close(attention_float64(*inputs, True), whole)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": lambda q: q[0]}, "q must have 4 dimensions"),
        ({"q": lambda q: q.float()}, "q must be float16 or bfloat16"),
        ({"k": lambda k: k.bfloat16()}, "k must have q's dtype"),
        ({"k": lambda k: k[..., :32]}, "k must be"),
        ({"v": lambda v: v[:, :, :5]}, "v must have k's shape"),
        ({"k": lambda k: k[:, :3], "v": lambda v: v[:, :3]}, "kv_heads must divide heads"),
        ({"k": lambda k: k[:, :, :0], "v": lambda v: v[:, :, :0]}, "seq_len_kv must be a whole number of at least 1"),
        ({"q": lambda q: "tensor"}, "q must be a torch.Tensor"),
    ],
)
@pytest.mark.parametrize("step", [STEPS[0], STEPS[-1]], ids=lambda s: s.name)
def test_bad_arguments_are_named(step, change, message):
    q, k, v = problem().inputs(0)
    arguments = {"q": q, "k": k, "v": v}
    arguments |= {name: spoil(arguments[name]) for name, spoil in change.items()}
    with pytest.raises(ValueError, match=message):
        step.attention(**arguments)


def test_bad_scale_and_out_are_named():
    q, k, v = problem().inputs(0)
    with pytest.raises(ValueError, match="scale must be a finite number, got nan"):
        STEPS[2].attention(q, k, v, scale=float("nan"))
    with pytest.raises(ValueError, match="out must have q's shape"):
        STEPS[2].attention(q, k, v, out=torch.empty(3))


@pytest.mark.parametrize("step", CUTILE, ids=lambda s: s.name)
def test_unsupported_head_dim_is_refused(step):
    q, k, v = problem(head_dim=48).inputs(0)
    with pytest.raises(Unsupported, match="head_dim must be one of 32, 64, 128, 256, got 48"):
        step.attention(q, k, v)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (problem(batch=70000), "batch and heads must be at most 65535"),
        (problem(seq_len_q=2**24, seq_len_kv=1, heads=2), "must be below 2\\^31"),
    ],
)
def test_what_the_hardware_cannot_index_is_refused(shape, message):
    assert re.search(message, CUTILE[0].unsupported(shape, "sm_90"))
    assert CUTILE[0].unsupported(problem(), "sm_90") is None


@pytest.mark.parametrize(
    ("name", "holes", "message"),
    [
        ("wgmma", {"ping_pong": True}, "ping_pong takes warps with roles"),
        ("wgmma", {"overlap": True}, "overlap takes warps with roles"),
        ("wgmma", {"order": DEALT}, "order takes warps with roles"),
        ("registers", {"registers": 248}, "registers must be a multiple of 8 from 24 to 240, got 248"),
        ("registers", {"registers": 100}, "registers must be a multiple of 8"),
        ("overlap", {"ping_pong": True}, "no overlap, no third_group"),
        ("overlap", {"linked": True}, "linked takes overlap=True and blocks that stay"),
        ("linked", {"overlap": False}, "linked takes overlap=True and blocks that stay"),
        ("turns", {"third_group": False}, "turns are for three warp groups"),
        ("own_end", {"overlap": False, "linked": False}, "own_end and lean_sum are written for overlap=True"),
        ("half_output", {"order": NATURAL, "linked": False}, "half_output is for blocks that stay"),
        ("overlap", {"order": SECTIONS}, "order must be NATURAL or DEALT"),
        ("overlap", {"order": COUNTED}, "order must be NATURAL or DEALT"),
        ("registers", {"polynomial": 1}, "polynomial, lazy and late_wait are written for overlap=True"),
        ("registers", {"late_wait": ALWAYS}, "polynomial, lazy and late_wait are written for overlap=True"),
        ("own_end", {"half_query": True}, "half_query and early_query are written for overlap=True, half_output=True"),
        ("own_end", {"early_query": True}, "half_query and early_query are written for overlap=True, half_output=True"),
        ("early_query", {"late_wait": "sometimes"}, "late_wait must be None, .* got 'sometimes'"),
        ("turns", {"diagonal_first": True}, "diagonal_first is written for own_end=True and blocks that stay"),
        ("eight_warps", {"one_loop": True}, "one_loop is for blocks that stay"),
        ("one_loop", {"ahead": True}, "ahead, alternating and mask_loop are written for a loop for every tile"),
        (
            "one_loop",
            {"mask_loop": MaskLoop(64, Latency())},
            "ahead, alternating and mask_loop are written for a loop for every tile",
        ),
        ("one_loop", {"order": COUNTED}, "one_loop and alternating are written for blocks with lists"),
        ("counted", {"alternating": True}, "one_loop and alternating are written for blocks with lists"),
        ("mask_loop", {"mask_loop": MaskLoop(256, Latency())}, "mask_loop takes a tile whose keys its key divides"),
        ("mask_loop", {"mask_loop": MaskLoop(0, Latency())}, "mask_loop takes a tile whose keys its key divides"),
        ("exp2", {"mask_loop": MaskLoop(64, Latency())}, "mask_loop takes a tile whose keys its key divides"),
        ("mask_loop", {"ahead": True}, "ahead and alternating are written for one loop over whole tiles"),
        ("lean_sum", {"polynomial": 9}, "polynomial must be from 0 to 8, got 9"),
        ("lean_sum", {"lazy": 16.0}, "lazy must be from 0 to 15, for 16-bit weights to hold 2\\^lazy, got 16"),
    ],
)
def test_holes_that_would_hang_together_are_refused(name, holes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(get_step(name), **holes)


def test_steps_are_numbered_named_and_found():
    assert [step.number for step in STEPS] == list(range(len(MODULES)))
    for step, module in zip(STEPS, MODULES):
        assert module == f"step{step.number:02}_{step.name}"
        assert get_step(step.number) is get_step(step.name) is get_step(str(step.number)) is step
    with pytest.raises(ValueError, match=r"step must be one of: 0 sdpa, .*; got 'warp'"):
        get_step("warp")


@pytest.mark.parametrize("step", STEPS, ids=lambda s: s.name)
def test_a_step_can_be_sent_to_another_process(step):
    """The worker process that runs a step gets it pickled; it is the same step on the other side."""
    arrived = pickle.loads(pickle.dumps(step))
    assert arrived.name == step.name and arrived.key_changes() == step.key_changes()
    if isinstance(step, (GluonStep, HopperStep)):
        assert arrived.holes() == step.holes()
