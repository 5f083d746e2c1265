"""Steps joint_release to coalesced_atomics: TMA that clears sums, K in registers, and dQ by whole lines."""

import re
from dataclasses import replace

import pytest

from steps import get_step
from steps.backward_hopper import skeleton
from steps.backward_hopper.adding import FOURS, FOURS_BY_TMA, LINES
from steps.core.problems import standard
from steps.hopper.lib import IN_TURN
from tests.backward.schedules import right
from tests.distinct import some_of
from tests.shapes import problem, zeros_alone
from tutorial_lib.simulator import language

SHAPES = [
    problem(batch=2, heads=4, seq_len_q=200, seq_len_kv=200, head_dim=128),
    problem(batch=1, heads=5, seq_len_q=130, seq_len_kv=300, head_dim=128, causal=False),
    problem(batch=1, heads=6, seq_len_q=300, seq_len_kv=200, head_dim=64, dtype="bfloat16"),
    problem(batch=1, heads=6, kv_heads=2, seq_len_q=100, seq_len_kv=600, head_dim=64),  # keys that no query sees
    problem(batch=1, heads=6, seq_len_q=1, seq_len_kv=70, head_dim=32, causal=False),
]


@pytest.fixture(autouse=True)
def small_problems(monkeypatch):
    zeros_alone(monkeypatch)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda p: p.slug)
def test_gradients_are_right_under_any_schedule(shape, nothing_is_zero, pytestconfig):
    variant = get_step("tma_zero_fill").variant(shape)
    assert variant.helpers.zeros and not variant.spare
    assert all(right("tma_zero_fill", shape, seed) for seed in some_of((None, 1, 2), 1, pytestconfig))


def test_blocks_of_later_heads_wait_for_their_zeros(monkeypatch, nothing_is_zero):
    """All of them, for all pieces of their head."""
    [pattern] = [p for p, does in language.SEQUENCES.items() if does.__name__ == "await_number"]
    real, awaited = language.SEQUENCES[pattern], []

    def noted(found, pointer, number):
        awaited.append(number)
        return real(found, pointer, number)

    monkeypatch.setitem(language.SEQUENCES, pattern, noted)
    shape = SHAPES[0]
    assert right("tma_zero_fill", shape)
    step = get_step("tma_zero_fill")
    variant = step.variant(shape)
    tiles, heads, batch = skeleton.own_blocks(shape, variant)
    assert len(awaited) == tiles * (heads * batch - skeleton.heads_ahead(variant.ahead, tiles))
    assert set(awaited) == {step.padded(shape) // variant.query_rows}


def test_the_kernel_before_clears_the_first_heads_alone(monkeypatch, nothing_is_zero):
    """And prepares the rows of all."""
    launched, real = {}, skeleton._launcher

    def noted(kernel, blocks, passed, *rest, **how):
        launched[kernel.fn.__name__] = blocks, passed
        return real(kernel, blocks, passed, *rest, **how)

    monkeypatch.setattr(skeleton, "_launcher", noted)
    shape = SHAPES[0]
    assert right("tma_zero_fill", shape)
    variant = get_step("tma_zero_fill").variant(shape)
    blocks, passed = launched["prepare"]
    ahead = skeleton.heads_ahead(variant.ahead, -(-shape.seq_len_kv // variant.tile.key))
    assert blocks[1:] == (shape.heads, shape.batch) and passed[-2] == ahead < shape.batch * shape.heads
    assert launched["scaled"][0][1:] == (shape.heads, shape.batch)


@pytest.mark.parametrize("head_dim", [64, 128])
def test_zeros_are_written_before_they_are_counted(head_dim, monkeypatch):
    """The simulator's TMA is too fast to show it: the machine's code must wait until memory is written, not read."""
    monkeypatch.undo()
    step, shape = get_step("tma_zero_fill"), standard(1024, head_dim, causal=True)
    variant, compiled = step.variant(shape), step.compile(shape)
    assert variant.helpers.zeros and variant.workers == [4, 1, 1] and compiled.threads == 32 * 12
    assert compiled.ptx.count("fence.proxy.async.global") == 1  # the producer awaits the zeros
    [before] = compiled.ptx.split("red.global.gpu.release.add.u32")[:-1]
    waits = re.findall(r"cp\.async\.bulk\.(?:wait_group|commit_group|tensor\.\w+\.global)[^;]*;", before)
    assert waits[-1] == "cp.async.bulk.wait_group 0;"


def test_only_where_spare_warps_would_do_nothing(monkeypatch):
    monkeypatch.undo()
    step, before = get_step("tma_zero_fill"), get_step("k_registers")
    clears = {
        (seq_len, head_dim, causal): step.variant(standard(seq_len, head_dim, causal)).helpers.zeros
        for seq_len in (1024, 2048)
        for head_dim in (64, 128, 256)
        for causal in (True, False)
    }
    assert [which for which, does in clears.items() if does] == [(1024, 64, True), (1024, 128, True)]
    assert step.variant(standard(4096)) == before.variant(standard(4096))
    assert not before.variant(standard(1024, causal=True)).ahead


@pytest.mark.parametrize(
    ("head_dim", "causal", "kept"), [(64, True, 64), (64, False, 64), (128, True, 0), (128, False, 64), (256, True, 0)]
)
def test_as_much_of_k_is_kept_as_costs_few_spills(head_dim, causal, kept, monkeypatch):
    monkeypatch.undo()
    step, before = get_step("k_registers"), get_step("joint_release")
    shape = standard(4096, head_dim, causal)
    assert step.variant(shape).kept == kept
    assert (step.compile(shape).code != before.compile(shape).code) == (kept > 0)
    assert step.compile(shape).spilled_bytes <= before.compile(shape).spilled_bytes + 72


def test_whole_lines_touch_half_as_many():
    """An instruction's lanes, each with 16 bytes: so many lines of 128 bytes."""
    variant = get_step("coalesced_atomics").variant(standard(4096, 256))

    def lines(layout) -> int:
        found = set()
        for lane in range(32):
            bases = [base for bit, base in enumerate(layout.lane_bases) if lane >> bit & 1]
            row, column = (sum(base[axis] for base in bases) for axis in (0, 1))
            found.add((row, column // 32))
        return len(found)

    assert variant.adding is LINES and (lines(variant.query_fours), lines(variant.query_lines)) == (8, 4)
    assert get_step("coalesced_atomics").variant(standard(4096, 128)).adding is FOURS_BY_TMA


@pytest.mark.parametrize(
    ("name", "changes", "told"),
    [
        ("vectorized_atomics", {"turns": IN_TURN}, "warpgroups that are apart"),
        ("decoupled_warpgroups", {"adding": FOURS}, "adding by TMA"),
    ],
)
def test_what_does_not_go_together_is_refused(name, changes, told):
    with pytest.raises(ValueError, match=told):
        replace(get_step(name), **changes)
