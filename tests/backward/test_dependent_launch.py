"""Step dependent_launch: kernels that begin before the one before has ended."""

import dataclasses
import re

import pytest
import torch

from steps import get_step
from steps.backward_hopper import skeleton
from steps.core.problems import standard
from steps.writing.written import write_step
from tests.backward.schedules import right
from tests.distinct import some_of
from tests.selection import sampled
from tests.shapes import always_apart, few_at_once, problem, zeros_alone
from tutorial_lib.passes import BACKWARD
from tutorial_lib.simulator import language, overtaken, state
from tutorial_lib.simulator.block import Deadlock, KernelError
from tutorial_lib.simulator.run import watched

LATER = {"batch": 1, "heads": 6, "seq_len_q": 200, "seq_len_kv": 200}
SHAPES = {
    "spare": problem(**LATER, head_dim=128),
    "spare, 256": problem(**LATER, head_dim=256, dtype="bfloat16"),
    "spare, grouped": problem(**LATER, kv_heads=2, head_dim=64),
    "spare, keys unseen": problem(**LATER | {"seq_len_kv": 500}, head_dim=128),
    "spare, keys unseen, 256": problem(**LATER | {"seq_len_kv": 500}, head_dim=256),
    "spare, keys unseen, grouped": problem(**LATER | {"seq_len_kv": 500}, kv_heads=2, head_dim=64, dtype="bfloat16"),
    "alone": problem(batch=1, heads=1, seq_len_q=77, seq_len_kv=150, head_dim=64, causal=False),
    "alone, grouped": problem(batch=1, heads=2, kv_heads=1, seq_len_q=130, seq_len_kv=70, head_dim=128),
}


@pytest.fixture
def seeds(pytestconfig):
    """Of latencies on the simulator; None: as they are."""
    return some_of((None, 1), 1, pytestconfig)


@pytest.mark.parametrize("kind", SHAPES)
def test_gradients_are_right_where_kernels_before_run_as_late_as_they_may(kind, nothing_is_zero, monkeypatch, seeds):
    few_at_once(monkeypatch)
    shape = SHAPES[kind]
    variant = get_step("dependent_launch").variant(shape)
    assert variant.spare == kind.startswith("spare") and variant.unseen == ("unseen" in kind)
    assert all(right("dependent_launch", shape, seed) for seed in seeds)


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("queries", [1, 64, 100, 128, 190, 300])
def test_which_problems_have_keys_that_no_query_sees(head_dim, queries):
    """A block of them has no iteration."""
    for keys in range(64, 600, 32):
        shape = problem(seq_len_q=queries, seq_len_kv=keys, head_dim=head_dim)
        variant = get_step("dependent_launch").variant(shape)
        tiles = -(-queries // variant.tile.query)
        starts = range(0, keys, variant.tile.key)
        assert variant.unseen == any(start // variant.tile.query >= tiles for start in starts)
        assert not get_step("dependent_launch").variant(dataclasses.replace(shape, causal=False)).unseen
        assert not get_step("coalesced_atomics").variant(shape).unseen  # there it is all one


def test_where_a_warp_clears_sums(nothing_is_zero, monkeypatch, seeds):
    zeros_alone(monkeypatch)
    shape = problem(**LATER, head_dim=64)
    assert get_step("dependent_launch").variant(shape).helpers.zeros
    assert all(right("dependent_launch", shape, seed) for seed in seeds)


WAITS = re.compile(r"^    await_kernels_before\(\).*\n", re.MULTILINE)


def without(step, number: int | None):
    """A written step, without one of its waits for the kernels before."""
    found = list(WAITS.finditer(step.text))
    assert len(found) == 3  # the producer, those who prepare, and the one that scales
    if number is None:
        return step
    begin, end = found[number].span()
    return dataclasses.replace(step, text=step.text[:begin] + step.text[end:])


@pytest.mark.parametrize("taken_out", [None, 0, 1, 2])
def test_every_role_waits_that_would_not_find_what_it_needs(taken_out, monkeypatch):
    """Numbers that blocks count are what an earlier call may have left: all that the warp that scales waits for."""
    few_at_once(monkeypatch)
    shape = SHAPES["spare"]
    variant, empty = get_step("dependent_launch").variant(shape), torch.empty
    every = variant.warpgroups * -(-shape.seq_len_kv // variant.tile.key)

    def as_left(*size, dtype=None, **how):
        made = empty(*size, dtype=dtype, **how)
        return made.fill_(every if dtype == torch.int32 else 3.0)

    step = without(write_step(get_step("dependent_launch"), shape), taken_out)
    inputs = BACKWARD.inputs(shape, 0)
    exact = BACKWARD.reference(shape, inputs)
    allowed = BACKWARD.yardstick(shape, inputs, exact)
    monkeypatch.setattr(torch, "empty", as_left)
    assert (taken_out is None) == all(is_right(step, shape, inputs, exact, allowed, seed) for seed in (None, 1, 2))


def is_right(step, shape, inputs, exact, allowed, seed, at_once=8) -> bool:
    try:
        with watched(seed, at_once=at_once) as watch:
            accuracy = BACKWARD.check(dataclasses.replace(step), shape, inputs, exact, allowed)
    except (Deadlock, KernelError):
        return False
    return accuracy.correct and not any(run.found for run in watch.runs)


@pytest.mark.parametrize("kind", ["spare", "alone, grouped"])
def test_gradients_are_right_with_the_last_head_first(kind, nothing_is_zero, monkeypatch, seeds):
    few_at_once(monkeypatch)
    assert all(right("newest_first", SHAPES[kind], seed) for seed in seeds)


def test_the_last_head_first_is_not_the_same_code():
    """The large kernel is, and the small ones are not."""
    before, now = (get_step(name).compile(standard(1024)) for name in ("dependent_launch", "newest_first"))
    assert before.sass == now.sass and not now.same_code(before)


SECTIONS = {(True, 64), (False, 128), (False, 256)}  # (causal, head_dim): no section, of four heads and of two


@sampled(core=lambda name, causal, head_dim: name == "fast_deterministic" and (causal, head_dim) in SECTIONS)
@pytest.mark.parametrize("name", ["deterministic_l2_aware", "two_dq_writers", "fast_deterministic"])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("causal", [True, False])
def test_blocks_in_turn_begin_in_sections_without_a_mask(head_dim, causal, name, nothing_is_zero, monkeypatch, seeds):
    """And still wait for blocks alone that have begun: with room for one at a time, too."""
    few_at_once(monkeypatch)
    monkeypatch.setattr("steps.backward_hopper.skeleton.SECTION", 12)
    shape = problem(**LATER | {"seq_len_kv": 300}, head_dim=head_dim, causal=causal)
    step = get_step(name)
    heads = step.variant(shape).section // -(-shape.seq_len_kv // step.variant(shape).tile.key)
    assert heads == (0 if causal else 2 if head_dim == 256 else 4) and step.deterministic
    assert all(right(name, shape, seed) for seed in seeds)
    inputs = BACKWARD.inputs(shape, 0)
    exact = BACKWARD.reference(shape, inputs)
    assert is_right(step, shape, inputs, exact, BACKWARD.yardstick(shape, inputs, exact), None, at_once=1)


@pytest.mark.parametrize("kind", ["spare", "alone, grouped"])
def test_the_last_kernel_waits_too(kind, monkeypatch):
    """It scales dQ, or dV. On the simulator it begins first, as all others are put off."""
    few_at_once(monkeypatch)
    first, wait = [], language.SEQUENCES[overtaken.AWAIT]

    def unless_last(found):
        first.append(state.run)
        return 0 if state.run is first[0] else wait(found)

    monkeypatch.setitem(language.SEQUENCES, overtaken.AWAIT, unless_last)
    assert not right("dependent_launch", SHAPES[kind])


def test_simulated_clocks_count_no_time_for_kernels_before(monkeypatch):
    """The simulator puts them off by many clocks, which are none of the kernel's."""
    inputs = BACKWARD.inputs(SHAPES["alone"], 0)
    with watched() as watch:
        BACKWARD.call(
            dataclasses.replace(get_step("dependent_launch")), SHAPES["alone"], inputs, BACKWARD.poisoned(inputs)
        )
    assert len(watch.runs) == 3
    assert max(clocks for run in watch.runs for clocks in run.clocks.values()) < overtaken.LATE / 10


def test_early_kernels_are_launched_so_and_the_first_is_not(monkeypatch):
    launched, real = [], skeleton.gluon_launcher

    def noted(kernel, *rest, early=False, overtaken=False, **asked):
        launched.append((kernel.fn.__name__, early, overtaken))
        return real(kernel, *rest, early=early, overtaken=overtaken, **asked)

    monkeypatch.setattr(skeleton, "gluon_launcher", noted)
    always_apart(monkeypatch)
    shape = SHAPES["alone, grouped"]
    inputs = BACKWARD.inputs(shape, 0)
    step = dataclasses.replace(get_step("dependent_launch"))
    assert step.variant(shape).sharing == 2
    BACKWARD.call(step, shape, inputs, BACKWARD.poisoned(inputs))
    names = ["prepare", "fmha_backward", "scaled", "scaled", "scaled"]
    assert launched == [(name, n > 0, n < 4) for n, name in enumerate(names)]
