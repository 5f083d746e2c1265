"""Step fused_pre_post: rows of later heads are prepared, and dQ of earlier ones scaled, while blocks multiply."""

import secrets
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from steps import get_step
from steps.backward_hopper import skeleton, spare
from steps.backward_hopper.adding import BY_TMA, IN_ORDER
from steps.backward_hopper.lib import Work
from steps.core.problems import standard
from tests.distinct import some_of
from tests.shapes import few_at_once, problem
from tutorial_lib.passes import BACKWARD
from tutorial_lib.simulator import hopper, language
from tutorial_lib.simulator.run import launch, watched

# With few blocks at once: heads enough that most are prepared and scaled by spare warps.
SHAPES = [
    problem(batch=2, heads=4, seq_len_q=200, seq_len_kv=200, head_dim=128),
    problem(batch=1, heads=5, seq_len_q=130, seq_len_kv=300, head_dim=128, causal=False),
    problem(batch=1, heads=6, seq_len_q=300, seq_len_kv=200, head_dim=64, dtype="bfloat16"),
    problem(batch=1, heads=6, seq_len_q=100, seq_len_kv=600, head_dim=64),  # keys that no query sees
    problem(batch=3, heads=2, seq_len_q=100, seq_len_kv=150, head_dim=256),
    problem(batch=1, heads=6, seq_len_q=1, seq_len_kv=70, head_dim=32, causal=False),
    problem(batch=1, heads=6, seq_len_q=130, seq_len_kv=300, head_dim=80, causal=False, dtype="bfloat16"),
    problem(batch=1, heads=6, seq_len_q=100, seq_len_kv=100, head_dim=160),
]


@pytest.fixture(autouse=True)
def small_problems(monkeypatch):
    few_at_once(monkeypatch)


def results(shape, seeds) -> Iterator[tuple[bool, bool]]:
    """(whether the gradients are right, whether the simulator found a mistake), each under other random latencies."""
    inputs = BACKWARD.inputs(shape, secrets.randbits(32))
    exact = BACKWARD.reference(shape, inputs)
    allowed = BACKWARD.yardstick(shape, inputs, exact)
    for seed in seeds:
        with watched(seed, at_once=8) as watch:
            accuracy = BACKWARD.check(replace(get_step("fused_pre_post")), shape, inputs, exact, allowed)
        yield accuracy.correct, any(run.found for run in watch.runs)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda p: p.slug)
def test_gradients_are_right_under_any_schedule(shape, nothing_is_zero, pytestconfig):
    assert get_step("fused_pre_post").variant(shape).spare
    assert set(results(shape, some_of((None, 1, 2, 3), 2, pytestconfig))) == {(True, False)}


def test_a_block_that_does_not_wait_for_its_rows_is_found_out(monkeypatch, nothing_is_zero):
    """Nor the warp that scales for what is added: both wait in the same way."""
    [pattern] = [p for p, does in language.SEQUENCES.items() if does.__name__ == "await_number"]
    monkeypatch.setitem(language.SEQUENCES, pattern, lambda *_: 0)
    assert not all(right for right, _ in results(SHAPES[0], range(60)))  # the first that shows it ends the search


def test_a_block_that_counts_before_its_sums_have_arrived_is_found_out(monkeypatch):
    [pattern] = [p for p, does in language.SEQUENCES.items() if does.__name__ == "store_written"]
    monkeypatch.setitem(language.SEQUENCES, pattern, lambda *_: hopper.store_wait(0))
    shape = problem(batch=1, heads=8, seq_len_q=128, seq_len_kv=300, head_dim=64, causal=False)  # many seeds show it
    assert not all(right for right, _ in results(shape, range(60)))


@pytest.mark.parametrize("shape", SHAPES, ids=lambda p: p.slug)
def test_kernels_of_their_own_have_the_first_heads_and_the_last(shape, monkeypatch):
    """As many as the spare warps are ahead, and behind."""
    launched, real = {}, skeleton.gluon_launcher

    def noted(kernel, blocks, *rest, **how):
        launched[kernel.fn.__name__] = blocks
        return real(kernel, blocks, *rest, **how)

    monkeypatch.setattr(skeleton, "gluon_launcher", noted)
    step = replace(get_step("fused_pre_post"))
    inputs = BACKWARD.inputs(shape, 0)
    BACKWARD.call(step, shape, inputs, BACKWARD.poisoned(inputs))
    variant = step.variant(shape)
    tiles = -(-shape.seq_len_q // variant.tile.query)
    ahead = skeleton.heads_ahead(variant.ahead, -(-shape.seq_len_kv // variant.tile.key))
    assert ahead < shape.batch * shape.heads
    assert launched["prepare"] == launched["scaled"] == (tiles, 1, ahead)


@gluon.jit
def shares(out, pieces, rate, tiles, variant: gl.constexpr):
    """The share of each block of a head, of which block j begins with the first tile of queries that sees its keys."""
    j = gl.program_id(0)
    first = gl.minimum(tiles, j * variant.tile.key // variant.tile.query) if variant.causal else 0
    work = Work(j * variant.tile.key, None, None, None, None, None, None, first, tiles - first, None)
    begin, end = spare.own_share(pieces, rate, work, variant)
    gl.store(out + 2 * j, begin)
    gl.store(out + 2 * j + 1, end)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_shares_leave_nothing_and_overlap_nowhere_in_a_long_sequence(head_dim, causal):
    """There the rate, which is rounded up, would come to more pieces than there are."""
    shape = replace(standard(65536, head_dim=head_dim, causal=causal), seq_len_kv=65000)
    step = get_step("fused_pre_post")
    variant = step.variant(shape)
    rows, tiles = step.padded(shape), step.padded(shape) // variant.tile.query
    blocks, _, _ = skeleton.own_blocks(shape, variant)
    pieces = rows // variant.rows_prepared
    out = torch.full((2 * blocks,), -1, dtype=torch.int32)
    launch(shares, (blocks,), (out, pieces, skeleton.rates(shape, variant)[0], tiles, variant), 1)
    begins, ends = out.view(-1, 2).unbind(1)
    assert begins[0] == 0 and ends[-1] == pieces and begins[1:].equal(ends[:-1]) and (begins <= ends).all()


def test_with_few_heads_the_kernel_is_that_of_the_step_before():
    """All heads begin before anybody could prepare their rows."""
    now, before = get_step("fused_pre_post"), get_step("conflict_free_layout")
    few, more = (problem(batch=1, heads=heads, seq_len_q=200, seq_len_kv=200, head_dim=128) for heads in (2, 3))
    assert now.variant(few) == before.variant(few) and now.compile(few).code == before.compile(few).code
    assert now.variant(more) != before.variant(more)
    grouped = problem(batch=1, heads=6, kv_heads=3, seq_len_q=200, seq_len_kv=200, head_dim=128)
    assert now.variant(grouped) == before.variant(grouped)


def test_where_a_tile_of_queries_takes_few_turns_spare_warps_do_nothing(monkeypatch):
    monkeypatch.undo()
    works = {
        (seq_len, head_dim, causal): get_step("fused_pre_post").variant(standard(seq_len, head_dim, causal)).spare
        for seq_len in (1024, 2048)
        for head_dim in (64, 128, 256)
        for causal in (True, False)
    }
    assert [which for which, does in works.items() if not does] == [(1024, 64, True), (1024, 128, True)]


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("causal", [True, False])
def test_the_compiled_kernel_has_all_roles_and_its_registers(head_dim, causal):
    """The producer's warpgroup has four warps: one asks TMA, two prepare, and one scales."""
    step, shape = get_step("fused_pre_post"), standard(4096, head_dim=head_dim, causal=causal)
    variant, compiled = step.variant(shape), step.compile(shape)
    assert variant.workers == [4, 1, 2, 1] and compiled.threads == 32 * 12
    of_compute, *of_others = variant.budgets
    assert len(set(of_others)) == 1 and 2 * of_compute + of_others[0] <= 3 * compiled.registers
    assert compiled.ptx.count(f"setmaxnreg.dec.sync.aligned.u32 \t{of_others[0]};") == 3
    assert (
        compiled.ptx.count("cp.async.bulk.wait_group 2") == variant.adding.by_tma
    )  # one warpgroup has two stores behind dQ
    assert compiled.ptx.count("fence.proxy.async.global") == 2  # the producer awaits its rows, and one warp all sums
    assert get_step("conflict_free_layout").compile(shape).ptx.count("fence.proxy.async.global") == 0
    *before, _ = compiled.ptx.split("red.global.gpu.release.add.u32")
    assert len(before) == 3  # the warps that prepare count, and both warpgroups, when all their threads are done
    for text in before:
        assert text.rindex("bar.sync") > max(text.rfind("st.global"), text.rfind("cp.async.bulk.wait_group "))


UNFIT = [
    ({"sequence": IN_ORDER}, "in any order"),
    ({"adding": BY_TMA}, "adding by fours"),
]


@pytest.mark.parametrize(("changes", "told"), UNFIT, ids=str)
def test_what_spare_warps_cannot_do_is_refused(changes, told):
    with pytest.raises(ValueError, match=told):
        replace(get_step("fused_pre_post"), **changes)
