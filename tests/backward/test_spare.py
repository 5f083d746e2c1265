"""Steps fused_pre_post to fast_deterministic: rows are prepared, sums cleared and dQ scaled beside the products.

Spare warps do it for later heads, query heads have blocks of their own, and kernels begin before the one before ends.
"""

import dataclasses
import inspect
import math
import re

import pytest
import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from steps import get_step
from steps.backward_hopper import rows, skeleton, spare
from steps.backward_hopper.adding import FOURS_BY_TMA, LINES
from steps.backward_hopper.lib import Work
from steps.backward_hopper.variant import Variant
from steps.core.problems import standard
from steps.writing.written import write_step
from tests.checking import asked, faults
from tests.distinct import some_of
from tests.selection import sampled
from tests.shapes import always_apart, few_at_once, problem, zeros_alone
from tutorial_lib.passes import BACKWARD
from tutorial_lib.problem import Problem
from tutorial_lib.simulator import hopper, language, overtaken, state
from tutorial_lib.simulator.run import launch, watched

# With few blocks at once: heads enough that most are prepared and scaled by spare warps.
SPARE = [
    problem(batch=2, heads=4, seq_len_q=200, seq_len_kv=200, head_dim=128),
    problem(batch=1, heads=5, seq_len_q=130, seq_len_kv=300, head_dim=128, causal=False),
    problem(batch=1, heads=6, seq_len_q=300, seq_len_kv=200, head_dim=64, dtype="bfloat16"),
    problem(batch=1, heads=6, seq_len_q=100, seq_len_kv=600, head_dim=64),  # keys that no query sees
    problem(batch=3, heads=2, seq_len_q=100, seq_len_kv=150, head_dim=256),
    problem(batch=1, heads=6, seq_len_q=1, seq_len_kv=70, head_dim=32, causal=False),
    problem(batch=1, heads=6, seq_len_q=130, seq_len_kv=300, head_dim=80, causal=False, dtype="bfloat16"),
    problem(batch=1, heads=6, seq_len_q=100, seq_len_kv=100, head_dim=160),
]
APART = [  # query heads have blocks of their own
    problem(batch=2, heads=4, kv_heads=2, seq_len_q=200, seq_len_kv=200, head_dim=128),
    problem(batch=1, heads=6, kv_heads=2, seq_len_q=130, seq_len_kv=300, head_dim=128, causal=False),
    problem(batch=1, heads=6, kv_heads=1, seq_len_q=300, seq_len_kv=200, head_dim=64, dtype="bfloat16"),
    problem(batch=1, heads=6, kv_heads=3, seq_len_q=100, seq_len_kv=600, head_dim=64),  # keys that no query sees
    problem(batch=1, heads=6, kv_heads=3, seq_len_q=1, seq_len_kv=70, head_dim=32, causal=False),
    problem(batch=1, heads=8, kv_heads=2, seq_len_q=150, seq_len_kv=200, head_dim=256, dtype="bfloat16"),
    problem(batch=2, heads=3, kv_heads=1, seq_len_q=70, seq_len_kv=150, head_dim=160, causal=False),
]
ZEROS = [  # a spare warp clears sums
    problem(batch=2, heads=4, seq_len_q=200, seq_len_kv=200, head_dim=128),
    problem(batch=1, heads=5, seq_len_q=130, seq_len_kv=300, head_dim=128, causal=False),
    problem(batch=1, heads=6, seq_len_q=300, seq_len_kv=200, head_dim=64, dtype="bfloat16"),
    problem(batch=1, heads=6, kv_heads=2, seq_len_q=100, seq_len_kv=600, head_dim=64),  # keys that no query sees
    problem(batch=1, heads=6, seq_len_q=1, seq_len_kv=70, head_dim=32, causal=False),
]
LATER = {"batch": 1, "heads": 6, "seq_len_q": 200, "seq_len_kv": 200}
UNSEEN = LATER | {"seq_len_kv": 500}
EARLY = [  # shape, whether warps are spare, whether no query sees some keys
    (problem(**LATER, head_dim=128), True, False),
    (problem(**LATER, head_dim=256, dtype="bfloat16"), True, False),
    (problem(**LATER, kv_heads=2, head_dim=64), True, False),
    (problem(**UNSEEN, head_dim=128), True, True),
    (problem(**UNSEEN, head_dim=256), True, True),
    (problem(**UNSEEN, kv_heads=2, head_dim=64, dtype="bfloat16"), True, True),
    (problem(batch=1, heads=1, seq_len_q=77, seq_len_kv=150, head_dim=64, causal=False), False, False),
    (problem(batch=1, heads=2, kv_heads=1, seq_len_q=130, seq_len_kv=70, head_dim=128), False, False),
]
SHORT, ALONE, IN_A_GROUP = EARLY[0][0], EARLY[-2][0], EARLY[-1][0]


@pytest.fixture
def nothing_is_zero(monkeypatch):
    """Scratch memory holds NaN and odd counts before anybody writes there."""
    real = torch.empty

    def empty(*shape, dtype=None, **how):
        made = real(*shape, dtype=dtype, **how)
        return made.fill_(77 if dtype == torch.int32 else math.nan)

    monkeypatch.setattr(torch, "empty", empty)


def broken_wait(monkeypatch, name: str, instead) -> None:
    """The simulator does something else in place of a wait that is written in PTX."""
    [pattern] = [p for p, does in language.SEQUENCES.items() if does.__name__ == name]
    real = language.SEQUENCES[pattern]
    monkeypatch.setitem(language.SEQUENCES, pattern, lambda *given: instead(real, *given))


def arguments_before_the_variant(passed: tuple) -> tuple:
    return passed[: next(n for n, x in enumerate(passed) if isinstance(x, Variant))]


@pytest.fixture
def launched(monkeypatch):
    """(kernel's name, blocks, arguments, early, overtaken) of all launches that were made ready."""
    found, real = [], skeleton.gluon_launcher

    def noted(kernel, blocks, passed, *rest, early=False, overtaken=False, **how):
        found.append((kernel.fn.__name__, blocks, passed, early, overtaken))
        return real(kernel, blocks, passed, *rest, early=early, overtaken=overtaken, **how)

    monkeypatch.setattr(skeleton, "gluon_launcher", noted)
    return found


CASES = [
    *(("fused_pre_post", few_at_once, shape, {"spare": True}) for shape in SPARE),
    *(("cta_per_query_head", few_at_once, shape, {"spare": True}) for shape in APART),
    *(("cta_per_query_head", always_apart, shape, {"spare": False}) for shape in APART),
    *(("tma_zero_fill", zeros_alone, shape, {"spare": False}) for shape in ZEROS),
    *(("dependent_launch", few_at_once, s, {"spare": spare, "unseen": unseen}) for s, spare, unseen in EARLY),
    ("dependent_launch", zeros_alone, problem(**LATER, head_dim=64), {"spare": False}),
    *(("newest_first", few_at_once, shape, {}) for shape in (SHORT, IN_A_GROUP)),
]


@pytest.mark.parametrize(("name", "few", "shape", "told"), CASES, ids=lambda x: getattr(x, "slug", None))
def test_gradients_are_right_under_any_schedule(name, few, shape, told, nothing_is_zero, monkeypatch, pytestconfig):
    few(monkeypatch)
    step = get_step(name)
    variant = step.variant(shape)
    assert {field: getattr(variant, field) for field in told} == told
    assert variant.helpers.zeros == (few is zeros_alone)
    assert name != "cta_per_query_head" or (variant.sharing, variant.group_size) == (shape.group_size, 1)
    number = 2 if name == "fused_pre_post" else 1
    for seed in some_of((None, 1, 2, 3), number, pytestconfig):
        assert not faults(step, shape, seed, at_once=8)


SECTIONS = {(True, 64), (False, 128), (False, 256)}  # (causal, head_dim): no section, of four heads and of two


@sampled(core=lambda name, causal, head_dim: name == "fast_deterministic" and (causal, head_dim) in SECTIONS)
@pytest.mark.parametrize("name", ["deterministic_l2_aware", "two_dq_writers", "fast_deterministic"])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("causal", [True, False])
def test_blocks_in_turn_begin_in_sections_without_a_mask(
    head_dim, causal, name, nothing_is_zero, monkeypatch, pytestconfig
):
    """And still wait for blocks alone that have begun: with room for one at a time, too."""
    few_at_once(monkeypatch)
    monkeypatch.setattr(skeleton, "SECTION", 12)
    shape = problem(**LATER | {"seq_len_kv": 300}, head_dim=head_dim, causal=causal)
    step = get_step(name)
    heads = step.variant(shape).section // -(-shape.seq_len_kv // step.variant(shape).tile.key)
    assert heads == (0 if causal else 2 if head_dim == 256 else 4) and step.deterministic
    for seed, at_once in [(None, 1), *((seed, 8) for seed in some_of((None, 1), 1, pytestconfig))]:
        assert not faults(step, shape, seed, at_once=at_once)


@pytest.mark.parametrize(("few", "second"), [(few_at_once, 2), (always_apart, 4)])
def test_sums_of_more_heads_than_an_axis_holds_fill_two(few, second, nothing_is_zero, monkeypatch):
    few(monkeypatch)
    monkeypatch.setattr(skeleton, "MOST_BLOCKS", 5)
    step, shape = get_step("cta_per_query_head"), APART[0]
    assert lines_of(step, shape)[1] == second
    assert not faults(step, shape, at_once=8)


def test_sums_of_many_heads_are_rounded_or_refused():
    """A grid's second and third axis have at most 65,535 blocks each."""
    many = Problem(batch=40000, heads=2, kv_heads=1, seq_len_q=4096, seq_len_kv=4096, head_dim=128, causal=True)
    step = get_step("cta_per_query_head")
    assert lines_of(step, many) == (40004, 2) and step.unsupported(many, "sm_90") is None
    more = dataclasses.replace(many, batch=65535)
    heads = math.prod(lines_of(step, more))
    assert f"sums are of {heads} heads, a number that has no two factors" in step.unsupported(more, "sm_90")


def lines_of(step, shape) -> tuple[int, int]:
    return skeleton.lines_rounded(shape, step.variant(shape))


# --- what is left out is found out ---


def test_a_block_that_does_not_wait_for_its_rows_is_found_out(monkeypatch, nothing_is_zero):
    """Nor the warp that scales for what is added: both wait in the same way."""
    few_at_once(monkeypatch)
    broken_wait(monkeypatch, "await_number", lambda *_: 0)
    assert any(
        faults(get_step("fused_pre_post"), SPARE[0], seed, at_once=8) for seed in range(60)
    )  # until one shows it


def test_a_block_that_counts_before_its_sums_have_arrived_is_found_out(monkeypatch):
    few_at_once(monkeypatch)
    broken_wait(monkeypatch, "store_written", lambda *_: hopper.store_wait(0))
    shape = problem(batch=1, heads=8, seq_len_q=128, seq_len_kv=300, head_dim=64, causal=False)  # many seeds show it
    assert any(faults(get_step("fused_pre_post"), shape, seed, at_once=8) for seed in range(60))


def test_sums_that_nobody_clears_are_found_out(nothing_is_zero, monkeypatch):
    always_apart(monkeypatch)
    real = skeleton.gluon_launcher

    def clears_nothing(kernel, blocks, passed, *rest, **how):
        if kernel is skeleton.prepare:
            before = arguments_before_the_variant(passed)
            passed = (*before[:-1], 0, *passed[len(before) :])
        return real(kernel, blocks, passed, *rest, **how)

    monkeypatch.setattr(skeleton, "gluon_launcher", clears_nothing)
    assert faults(get_step("cta_per_query_head"), APART[0], at_once=8)


WAITS = re.compile(r"^    gdc_wait\(\).*\n", re.MULTILINE)


@pytest.mark.parametrize("taken_out", [None, 0, 1])
def test_every_role_waits_that_would_not_find_what_it_needs(taken_out, monkeypatch):
    """Numbers that blocks count are what an earlier call may have left: all that the warp that scales waits for."""
    few_at_once(monkeypatch)
    variant, empty = get_step("dependent_launch").variant(SHORT), torch.empty
    every = variant.warpgroups * -(-SHORT.seq_len_kv // variant.tile.key)
    whole = write_step(get_step("dependent_launch"), SHORT)
    found = [match.span() for match in WAITS.finditer(whole.text)]
    assert len(found) == 2  # the producer, and spare warps
    begin, end = (0, 0) if taken_out is None else found[taken_out]
    step = dataclasses.replace(whole, text=whole.text[:begin] + whole.text[end:])

    def as_left(*size, dtype=None, **how):
        made = empty(*size, dtype=dtype, **how)
        return made.fill_(every if dtype == torch.int32 else 3.0)

    asked("backward", SHORT)
    monkeypatch.setattr(torch, "empty", as_left)
    assert (taken_out is None) == (not any(faults(step, SHORT, seed, at_once=8) for seed in (None, 1, 2)))


@pytest.mark.parametrize("shape", [SHORT, IN_A_GROUP], ids=lambda p: p.slug)
def test_the_last_kernel_waits_too(shape, monkeypatch):
    """It scales dQ, or dV. On the simulator it begins first, as all others are put off."""
    few_at_once(monkeypatch)
    first, catch_up = [], overtaken.catch_up

    def unless_last():
        first.append(state.run)
        if state.run is not first[0]:
            catch_up()

    monkeypatch.setattr(overtaken, "catch_up", unless_last)
    assert faults(get_step("dependent_launch"), shape, at_once=8)


# --- who does what ---


def test_blocks_of_later_heads_wait_for_their_zeros(monkeypatch, nothing_is_zero):
    """All of them, for all pieces of their head."""
    zeros_alone(monkeypatch)
    step, shape, awaited = get_step("tma_zero_fill"), ZEROS[0], []
    broken_wait(monkeypatch, "await_number", lambda real, *given: awaited.append(given[-1]) or real(*given))
    assert not faults(step, shape, at_once=8)
    variant = step.variant(shape)
    tiles, heads, batch = skeleton.own_blocks(shape, variant)
    assert len(awaited) == tiles * (heads * batch - skeleton.heads_ahead(variant.ahead, tiles))
    assert set(awaited) == {step.padded(shape) // variant.query_rows}


@pytest.mark.parametrize("shape", [*SPARE, ZEROS[0]], ids=lambda p: p.slug)
def test_kernels_of_their_own_have_the_first_heads_and_the_last(shape, launched, monkeypatch):
    """As many as the spare warps are ahead, and behind; where a warp clears alone, small kernels have all rows."""
    (zeros_alone if shape is ZEROS[0] else few_at_once)(monkeypatch)
    step = dataclasses.replace(get_step("tma_zero_fill" if shape is ZEROS[0] else "fused_pre_post"))
    inputs = asked("backward", shape).inputs
    BACKWARD.call(step, shape, inputs, BACKWARD.poisoned(inputs))
    variant = step.variant(shape)
    ahead = skeleton.heads_ahead(variant.ahead, -(-shape.seq_len_kv // variant.tile.key))
    assert ahead < shape.batch * shape.heads
    (_, prepared, passed, *_), *_, (_, scaled, *_) = launched
    if shape is ZEROS[0]:
        assert prepared[1:] == scaled[1:] == (shape.heads, shape.batch)
        assert arguments_before_the_variant(passed)[-1] == ahead  # of which sums are cleared
    else:
        assert prepared == scaled == (step.padded(shape) // variant.small_rows, 1, ahead)


def test_early_kernels_are_launched_so_and_the_first_lets_none_begin_before_it_has_waited(launched, monkeypatch):
    always_apart(monkeypatch)
    step = dataclasses.replace(get_step("dependent_launch"))
    inputs = asked("backward", IN_A_GROUP).inputs
    assert step.variant(IN_A_GROUP).sharing == 2
    BACKWARD.call(step, IN_A_GROUP, inputs, BACKWARD.poisoned(inputs))
    names = ["prepare", "fmha_backward", "scaled"]
    assert [(name, early, overtaken) for name, _, _, early, overtaken in launched] == [
        (name, True, n < 2) for n, name in enumerate(names)
    ]
    first = inspect.getsource(rows.prepare.fn)
    assert first.index("begin.wait()") < first.index("begin.let()") < first.index("prepare_rows(")


def test_simulated_clocks_count_no_time_for_kernels_before(monkeypatch):
    """The simulator puts them off by many clocks, which are none of the kernel's."""
    with watched() as watch:
        assert asked("backward", ALONE).check(dataclasses.replace(get_step("dependent_launch"))).correct
    assert len(watch.runs) == 3
    assert max(clocks for run in watch.runs for clocks in run.clocks.values()) < overtaken.LATE / 10


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
    shape = dataclasses.replace(standard(65536, head_dim=head_dim, causal=causal), seq_len_kv=65000)
    step = get_step("fused_pre_post")
    variant = step.variant(shape)
    rows, tiles = step.padded(shape), step.padded(shape) // variant.tile.query
    blocks, _, _ = skeleton.own_blocks(shape, variant)
    pieces = rows // variant.rows_prepared
    out = torch.full((2 * blocks,), -1, dtype=torch.int32)
    launch(shares, (blocks,), (out, pieces, skeleton.rates(shape, variant)[0], tiles, variant), 1)
    begins, ends = out.view(-1, 2).unbind(1)
    assert begins[0] == 0 and ends[-1] == pieces and begins[1:].equal(ends[:-1]) and (begins <= ends).all()


# --- for which problems ---


def grouped(seq_len: int, causal: bool, head_dim: int = 128, kv_heads: int = 8) -> Problem:
    lengths = {"seq_len_q": seq_len, "seq_len_kv": seq_len}
    return Problem(batch=4, heads=64, kv_heads=kv_heads, head_dim=head_dim, causal=causal, **lengths)


def test_with_few_heads_the_kernel_is_that_of_the_step_before(monkeypatch):
    """All heads begin before anybody could prepare their rows."""
    few_at_once(monkeypatch)
    now, before = get_step("fused_pre_post"), get_step("conflict_free_layout")
    few, more = (problem(batch=1, heads=heads, seq_len_q=200, seq_len_kv=200, head_dim=128) for heads in (2, 3))
    assert now.variant(few) == before.variant(few) and now.compile(few).code == before.compile(few).code
    assert now.variant(more) != before.variant(more)
    in_groups = problem(batch=1, heads=6, kv_heads=3, seq_len_q=200, seq_len_kv=200, head_dim=128)
    assert now.variant(in_groups) == before.variant(in_groups)


def test_where_a_tile_of_queries_takes_few_turns_spare_warps_do_nothing_but_clear_sums():
    name = {"spare": "fused_pre_post", "zeros": "tma_zero_fill"}
    for seq_len in (1024, 2048):
        for head_dim in (64, 128, 256):
            for causal in (True, False):
                shape, few = standard(seq_len, head_dim, causal), (seq_len, causal) == (1024, True) and head_dim < 256
                assert get_step(name["spare"]).variant(shape).spare is not few
                assert get_step(name["zeros"]).variant(shape).helpers.zeros is few
    clears, before = get_step("tma_zero_fill"), get_step("k_registers")
    assert clears.variant(standard(4096)) == before.variant(standard(4096))
    assert not before.variant(standard(1024, causal=True)).ahead


def test_heads_are_apart_where_trials_found_that_faster():
    step, before = get_step("cta_per_query_head"), get_step("fused_pre_post")
    together = [
        (seq_len, causal, head_dim, kv_heads)
        for seq_len in (1024, 4096)
        for causal in (True, False)
        for head_dim in (64, 128)
        for kv_heads in (1, 8)
        if step.variant(grouped(seq_len, causal, head_dim, kv_heads)).sharing == 1
    ]
    of_one_length = [(1024, False, 64, 8), (1024, False, 128, 8)]
    assert together == [(1024, True, 64, 8), *of_one_length, (4096, False, 64, 1), (4096, False, 64, 8)]
    for shape in (standard(4096, causal=True), standard(4096, 256, causal=True), grouped(1024, False)):
        assert step.variant(shape) == before.variant(shape) and step.scratch_bytes(shape) == before.scratch_bytes(shape)


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_heads_are_apart_where_blocks_of_groups_would_leave_sms_without_work(head_dim):
    """However few iterations a head takes, but for those that it takes to add dK and dV."""
    step = get_step("cta_per_query_head")
    few_blocks = Problem(batch=1, heads=8, kv_heads=1, seq_len_q=1024, seq_len_kv=1024, head_dim=head_dim)
    more = dataclasses.replace(few_blocks, seq_len_q=3000, seq_len_kv=3000, heads=16, kv_heads=4)
    few_queries = dataclasses.replace(few_blocks, seq_len_q=64, seq_len_kv=8000, heads=64)
    assert [step.variant(shape).sharing for shape in (few_blocks, more, few_queries)] == [8, 4, 1]
    assert step.work(more, "sm_90").iterations < get_step("fused_pre_post").work(more, "sm_90").iterations


def test_the_sums_are_counted_as_scratch_memory():
    shape, now, before = grouped(4096, True), get_step("cta_per_query_head"), get_step("fused_pre_post")
    more = 4 * 2 * shape.batch * shape.kv_heads * shape.seq_len_kv * shape.head_dim
    assert now.scratch_bytes(shape) - before.scratch_bytes(shape) == more + 4 * 2 * shape.batch * shape.heads


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_which_problems_have_keys_that_no_query_sees(head_dim):
    """A block of them has no iteration."""
    step, before = get_step("dependent_launch"), get_step("coalesced_atomics")
    for queries in (1, 64, 100, 128, 190, 300):
        for keys in range(64, 600, 32):
            shape = problem(seq_len_q=queries, seq_len_kv=keys, head_dim=head_dim)
            variant = step.variant(shape)
            tiles = -(-queries // variant.tile.query)
            starts = range(0, keys, variant.tile.key)
            assert variant.unseen == any(start // variant.tile.query >= tiles for start in starts)
            assert not step.variant(dataclasses.replace(shape, causal=False)).unseen
            assert not before.variant(shape).unseen  # there it is all one


# --- the machine code ---


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("causal", [True, False])
def test_the_compiled_kernel_has_all_roles_and_its_registers(head_dim, causal, monkeypatch):
    """The producer's warpgroup has four warps: one asks TMA, two prepare, and one scales."""
    few_at_once(monkeypatch)
    step, shape = get_step("fused_pre_post"), standard(4096, head_dim=head_dim, causal=causal)
    variant, compiled = step.variant(shape), step.compile(shape)
    assert variant.workers == [4, 1, 2, 1] and compiled.threads == 32 * 12
    of_compute, *of_others = variant.budgets
    assert len(set(of_others)) == 1 and 2 * of_compute + of_others[0] <= 3 * compiled.registers
    assert compiled.ptx.count(f"setmaxnreg.dec.sync.aligned.u32 \t{of_others[0]};") == 3
    # One warpgroup has two stores behind dQ.
    assert compiled.ptx.count("cp.async.bulk.wait_group 2") == variant.adding.by_tma
    assert compiled.ptx.count("fence.proxy.async.global") == 2  # the producer awaits its rows, and one warp all sums
    assert get_step("conflict_free_layout").compile(shape).ptx.count("fence.proxy.async.global") == 0
    *before, _ = compiled.ptx.split("red.global.gpu.release.add.u32")
    assert len(before) == 3  # the warps that prepare count, and both warpgroups, when all their threads are done
    for text in before:
        assert text.rindex("bar.sync") > max(text.rfind("st.global"), text.rfind("cp.async.bulk.wait_group "))


@pytest.mark.parametrize("head_dim", [64, 128])
def test_zeros_are_written_before_they_are_counted(head_dim):
    """The simulator's TMA is too fast to show it: the machine's code must wait until memory is written, not read."""
    step, shape = get_step("tma_zero_fill"), standard(1024, head_dim, causal=True)
    variant, compiled = step.variant(shape), step.compile(shape)
    assert variant.helpers.zeros and variant.workers == [4, 1, 1] and compiled.threads == 32 * 12
    assert compiled.ptx.count("fence.proxy.async.global") == 1  # the producer awaits the zeros
    [before] = compiled.ptx.split("red.global.gpu.release.add.u32")[:-1]
    waits = re.findall(r"cp\.async\.bulk\.(?:wait_group|commit_group|tensor\.\w+\.global)[^;]*;", before)
    assert waits[-1] == "cp.async.bulk.wait_group 0;"


@pytest.mark.parametrize(
    ("head_dim", "causal", "kept"), [(64, True, 64), (64, False, 64), (128, True, 0), (128, False, 64), (256, True, 0)]
)
def test_as_much_of_k_is_kept_as_costs_few_spills(head_dim, causal, kept):
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


def test_a_lane_adds_four_sums_at_once():
    """One instruction for four numbers of 4 bytes each: 64 KB for each of dK and dV of a block's 128 keys."""
    ptx = get_step("cta_per_query_head").compile(grouped(4096, True)).ptx
    assert ptx.count("red.global.gpu.relaxed.add.v4.f32") == 2 * 2 * 16


def test_the_last_head_first_is_not_the_same_code():
    """The large kernel is, and the small ones are not."""
    before, now = (get_step(name).compile(standard(1024)) for name in ("dependent_launch", "newest_first"))
    assert before.sass == now.sass and not now.same_code(before)
