"""Gradients under a sliding window and a soft cap: right, and not computed where nobody sees a key."""

import secrets
from dataclasses import replace

import pytest
import torch

import steps
from steps import GRADIENTS, get_step
from steps.backward_cutile.skeleton import CuTileGradients
from steps.backward_hopper.lib import NOBODY
from steps.backward_hopper.skeleton import HopperGradients
from steps.core import attention as front
from steps.core import rules
from steps.core.gradients import tiles_visited
from steps.core.problems import standard
from steps.core.step import Unsupported
from steps.core.tiles import Tile
from steps.everyday.step908_attention_sinks import GPT_OSS
from steps.reference.autograd import AutogradGradients
from steps.reference.peers import peers_of
from tests.checking import assert_right, faults
from tests.distinct import named
from tests.everyday.test_masks import packed
from tests.results.made_up import run_of
from tests.shapes import problem
from tutorial_lib.passes import BACKWARD, FORWARD
from tutorial_lib.problem import Problem
from tutorial_lib.reference import unfused

TAKING = [step for step in GRADIENTS if isinstance(step, CuTileGradients | HopperGradients)]
BEST = [get_step(name) for name in ("two_blocks", "deferred_reduce_add", "fast_deterministic")]
SHAPES = [
    problem(head_dim=64, batch=1, heads=2, seq_len_q=200, seq_len_kv=200, window=70),
    problem(head_dim=64, batch=1, heads=4, kv_heads=2, seq_len_q=257, seq_len_kv=257, window=1, dtype="bfloat16"),
    problem(head_dim=64, batch=1, heads=2, kv_heads=1, seq_len_q=150, seq_len_kv=300, window=128, sinks=True),
    problem(head_dim=128, batch=1, heads=2, seq_len_q=130, seq_len_kv=70, window=65, scale=-0.2),
    problem(head_dim=64, batch=1, heads=2, seq_len_q=200, seq_len_kv=200, window=100, softcap=5.0),
    problem(head_dim=128, batch=1, heads=2, causal=False, seq_len_q=70, seq_len_kv=130, softcap=2.0, dtype="bfloat16"),
    problem(head_dim=256, batch=1, heads=2, kv_heads=1, seq_len_q=130, seq_len_kv=130, softcap=50.0),
    problem(head_dim=64, batch=1, heads=2, seq_len_q=1, seq_len_kv=1, window=1, softcap=1.0, sinks=True),
    # several tiles between those that the window cuts, lengths that no tile divides, and windows past the last query
    problem(head_dim=64, batch=1, heads=8, kv_heads=1, seq_len_q=700, seq_len_kv=500, window=300, dtype="bfloat16"),
    problem(head_dim=128, batch=1, heads=2, seq_len_q=333, seq_len_kv=250, window=192, sinks=True),
    problem(head_dim=256, batch=1, heads=2, kv_heads=1, seq_len_q=400, seq_len_kv=400, window=130, dtype="bfloat16"),
    problem(head_dim=80, batch=1, heads=2, seq_len_q=200, seq_len_kv=130, window=100),
    problem(head_dim=32, batch=1, heads=1, seq_len_q=300, seq_len_kv=300, window=64),
    problem(head_dim=64, batch=1, heads=2, seq_len_q=200, seq_len_kv=200, window=2**31 - 1),
    # soft caps: scores near the cap, and so large a cap that a tanh of few digits would show; masks that cut tiles
    problem(head_dim=128, batch=1, heads=2, kv_heads=1, seq_len_q=150, seq_len_kv=270, softcap=0.5, scale=-0.2),
    problem(head_dim=128, batch=1, heads=2, seq_len_q=130, seq_len_kv=200, causal=False, softcap=1e6),
    problem(head_dim=256, batch=1, heads=2, seq_len_q=200, seq_len_kv=200, window=90, softcap=1e5, dtype="bfloat16"),
    problem(head_dim=80, batch=1, heads=2, seq_len_q=1, seq_len_kv=150, softcap=3.0, sinks=True, causal=False),
]
ASKED = [(step, SHAPES if step in BEST else [SHAPES[2], SHAPES[4], SHAPES[10]]) for step in TAKING]
CASES = [(step, shape) for step, shapes in ASKED for shape in shapes if not step.unsupported(shape, "cpu")]


@pytest.mark.parametrize(("step", "shape"), CASES, ids=named)
def test_a_step_is_right(step, shape):
    assert_right(step, shape)


@pytest.mark.parametrize("step", [step for step in TAKING if "window" in step.takes], ids=named)
def test_queries_behind_the_window_are_not_read(step):
    """Gradients of keys, and of queries before them, are numbers whatever those hold that do not see them."""
    shape = problem(head_dim=64, batch=1, heads=1, seq_len_q=640, seq_len_kv=640, window=128)
    inputs = BACKWARD.inputs(shape, secrets.randbits(32))
    exact = BACKWARD.reference(shape, inputs)
    for x in (inputs[0], *inputs[3:]):
        x[:, :, 512:] = float("nan")
    for made, true in zip(BACKWARD.call(step, shape, inputs), exact, strict=True):
        assert (made[:, :, :384].double() - true[:, :, :384]).abs().max() < 0.02 * true.abs().max()


@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[4]], ids=named)
def test_a_peers_own_gradients_know_the_mask(shape):
    """Soft caps beside a window, too; and a call without them is another."""
    peer = AutogradGradients(name="peer", title="", change="", function=unfused, takes=("window", "softcap"))
    for asked in (shape, replace(shape, window=None, softcap=None)):
        assert_right(peer, asked)
    told = {peer.name: peer.takes for peer in peers_of("backward")}
    assert told["flash_attn_4"] == ("window", "softcap", "lengths", "sinks") and told["sdpa_flash"] == ("lengths",)


def test_tiles_outside_the_window_are_not_counted():
    shape, tile = problem(head_dim=64, batch=1, heads=1, kv_heads=1, seq_len_q=1024, seq_len_kv=1024), Tile(64, 64)
    assert tiles_visited(shape, tile) == 16 * 17 // 2
    assert tiles_visited(replace(shape, window=64), tile) == 2 * 16 - 1
    assert tiles_visited(replace(shape, window=65), tile) == 2 * 16 - 1
    assert tiles_visited(replace(shape, window=66), tile) == 3 * 16 - 3


def test_steps_for_other_gpus_refuse_them_by_name():
    q, k, v, o, lse, do, *_ = BACKWARD.inputs(SHAPES[0], 1)
    for name in ("formulas", "sdpa_gradients"):
        with pytest.raises(Unsupported, match="takes no sliding window"):
            get_step(name).gradients(q, k, v, o, lse, do, True, window=70)
    for name in ("formulas", "sdpa_gradients", "two_cta_backward"):
        with pytest.raises(Unsupported, match="takes no soft cap"):
            get_step(name).gradients(q, k, v, o, lse, do, True, softcap=5.0)
    with pytest.raises(ValueError, match="window must be"):
        BEST[0].gradients(q, k, v, o, lse, do, True, window=0)
    with pytest.raises(ValueError, match="softcap must be"):
        BEST[0].gradients(q, k, v, o, lse, do, True, softcap=-1.0)


@pytest.mark.parametrize("shape", [SHAPES[2], SHAPES[4]], ids=lambda p: p.slug)
def test_the_front_door_takes_its_gradients_from_the_step(shape, monkeypatch):
    """As it does on a GPU; on the CPU it is the interpreter that computes them here."""
    q, k, v, _, _, do, *sinks = BACKWARD.inputs(shape, secrets.randbits(32))
    more = FORWARD.asked(shape, sinks)
    asked = []
    monkeypatch.setattr(front, "_backward_of_more", lambda *given: asked.append(given) or BEST[0])
    leaves = [x.requires_grad_() for x in (q, k, v, *sinks)]
    o = steps.attention(q, k, v, True, **more)
    made = torch.autograd.grad(o, leaves, do)
    exact = BACKWARD.reference(shape, (*(x.detach() for x in (q, k, v)), None, None, do, *sinks))
    for mine, true in zip(made, exact, strict=True):
        assert (mine.double() - true).abs().max() < 0.02 * true.abs().max()
    assert asked == [(shape, "cpu", False)]


def test_nobody_computes_a_gradient_of_sinks_that_nobody_wants(monkeypatch):
    """The step is that for sinks all the same, and the other gradients have the same bits."""
    shape, found, step = SHAPES[2], [], replace(BEST[0])  # with nothing made ready
    q, k, v, _, _, do, sinks = BACKWARD.inputs(shape, secrets.randbits(32))
    monkeypatch.setattr(front, "_backward_of_more", lambda *given: found.append(given) or step)
    make = CuTileGradients.make_ready
    monkeypatch.setattr(CuTileGradients, "make_ready", lambda *given: found.append(given[1].sinks) or make(*given))
    made = []
    for wanted in (True, False):
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        o = steps.attention(*leaves, True, window=shape.window, sinks=sinks.detach().requires_grad_(wanted))
        made.append(torch.autograd.grad(o, leaves, do))
    assert all(torch.equal(*pair) for pair in zip(*made))
    assert found == [(shape, "cpu", False), True, (shape, "cpu", False), False]


def test_which_gradients_are_a_steps():
    masked = replace(standard(causal=True, dtype="bfloat16"), window=128)
    for changes in (
        {},
        {"sinks": True},
        {"window": None, "sinks": True},
        {"window": None, "softcap": 50.0},
        {"softcap": 50.0},
    ):
        shape = replace(masked, **changes)
        assert front.with_gradients(shape, "sm_90").backward.backend == "hopper"
        assert front.with_gradients(shape, "sm_80") is None  # nothing is recorded there
    assert front.with_gradients(replace(masked, head_dim=71), "sm_90") is None


@pytest.mark.parametrize(
    "shape",
    [
        GPT_OSS,
        Problem(
            batch=4, heads=16, kv_heads=8, seq_len_q=8192, seq_len_kv=8192, head_dim=256, dtype="bfloat16", causal=True,
            window=1024,
        ),
    ],
    ids=named,
)  # fmt: skip
def test_layers_of_models_with_windows_are_trained_by_hoppers_kernels(shape):
    """Blocks of whole groups, one after the other, and no warps that work ahead: iterations are few and as many."""
    step = front.with_gradients(shape, "sm_90").backward
    variant = step.variant(shape)
    assert step.backend == "hopper" and variant.window == shape.window
    assert variant.sharing == 1 and variant.helpers == NOBODY and variant.section == 0
    whole = replace(shape, window=None)
    assert step.work(shape, "sm_90").iterations < step.work(whole, "sm_90").iterations / 2
    assert step.variant(whole).sharing == shape.group_size


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_a_window_spills_no_more_than_a_causal_mask(head_dim):
    step, causal = BEST[1], replace(GPT_OSS, head_dim=head_dim, window=None)
    masked, whole = (step.compile(shape) for shape in (replace(causal, window=128), causal))
    assert masked.spilled_bytes <= whole.spilled_bytes and masked.registers <= whole.registers


CAPPED = replace(GPT_OSS, window=None, sinks=False, softcap=50.0)
RAGGED = packed((4000, 1000), heads=32, kv_heads=8, head_dim=128, dtype="bfloat16")


@pytest.mark.parametrize("shape", [CAPPED, RAGGED], ids=named)
def test_a_record_without_a_feature_tells_nothing_of_what_it_costs_hoppers_kernels(shape, monkeypatch):
    """Soft caps and packed sequences: cuTile's steps take them until a record with them says who is faster."""
    times = {"sdpa_gradients": 4.0, "two_blocks": 2.0, "deferred_reduce_add": 1.0, "fast_deterministic": 1.5}
    made = run_of(times, problem=shape).model_copy(update={"direction": "backward"})
    known = [run for run in front._recorded("backward") if not (run.the_problem().softcap or run.the_problem().lengths)]
    for runs, backend in ((known, "cutile"), ((*known, made), "hopper")):
        monkeypatch.setattr(front, "_recorded", lambda direction, runs=runs: runs)
        for asked in (shape, replace(shape, sinks=True), replace(shape, head_dim=72)):
            for repeats in (True, False):
                step = front._backward_of_more.__wrapped__(asked, "sm_90", repeats)
                assert step.backend == backend and (step.deterministic or not repeats)


CAPPED_64 = [
    problem(head_dim=64, batch=1, heads=3, kv_heads=1, seq_len_q=150, seq_len_kv=270, softcap=2.0, dtype="bfloat16"),
    problem(head_dim=64, batch=2, heads=2, seq_len_q=70, seq_len_kv=1, softcap=2.0, causal=False),
]


@pytest.mark.parametrize("shape", CAPPED_64, ids=named)
@pytest.mark.parametrize("name", ["deferred_reduce_add", "fast_deterministic"])
def test_under_a_soft_cap_tiles_of_long_sequences_have_fewer_queries(name, shape, monkeypatch):
    """At head_dim 64. Short ones have rules of their own, which are left out here."""
    for where in set(rules.WHERE) - {"soft_cap"}:
        monkeypatch.setitem(rules.WHERE, where, lambda problem: False)
    step, without = replace(get_step(name)), replace(shape, softcap=None)
    assert step.variant(shape).tile == Tile(64, 128) and step.variant(without).tile == Tile(128, 128)
    assert not faults(step, shape)


@pytest.mark.parametrize("shape", [CAPPED, RAGGED], ids=named)
def test_what_cutiles_steps_refuse_hoppers_take_without_a_record(shape):
    """Strides that cuTile does not hold: a step that nobody has timed is faster than a tile at a time by PyTorch."""
    heads = 2**31 // (shape.seq_len_q * shape.head_dim) + 1
    large = replace(shape, heads=heads, kv_heads=heads)
    assert get_step("two_blocks").unsupported(large, "sm_90") is not None
    assert front._backward_of_more.__wrapped__(large, "sm_90", False).backend == "hopper"
