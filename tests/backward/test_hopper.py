"""The backward steps for Hopper: no race under any schedule, and products that the compiler leaves under way."""

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from triton.experimental.gluon import language as gl

from steps import get_step
from steps.backward_hopper import apart, spare, together
from steps.backward_hopper.adding import ANY_ORDER, BY_TMA, FOURS, FOURS_LATER, IN_ORDER
from steps.backward_hopper.lib import NOBODY, ONE_BY_ONE
from steps.backward_hopper.products import FENCE_BEHIND, FROM_ROW_SUMS
from steps.backward_hopper.skeleton import LARGER_SECTION, SECTION, section_for
from steps.backward_hopper.variant import Variant
from steps.core import rules
from steps.core.ladder import kernels_of
from steps.core.problems import standard
from steps.hopper.lib import IN_TURN
from steps.writing.written import write_step
from tests.checking import assert_right, faults
from tests.distinct import core, distinct, named, some_of
from tests.everyday.test_masks import packed
from tests.selection import sampled
from tests.shapes import problem
from tutorial_lib import layouts
from tutorial_lib.passes import BACKWARD
from tutorial_lib.simulator import hopper, language
from tutorial_lib.simulator.run import watched

HOPPER = [step for step in kernels_of("backward") if step.backend == "hopper"]
SHAPES = [
    problem(batch=1, heads=2, kv_heads=1, seq_len_q=330, seq_len_kv=200, head_dim=64),
    problem(batch=1, heads=1, seq_len_q=130, seq_len_kv=700, head_dim=128),
    problem(batch=1, heads=2, seq_len_q=400, seq_len_kv=300, head_dim=128, causal=False),
    problem(batch=1, heads=2, kv_heads=1, seq_len_q=200, seq_len_kv=150, head_dim=256),
    problem(batch=1, heads=2, kv_heads=1, seq_len_q=300, seq_len_kv=300, head_dim=64, causal=False),
    *(problem(batch=1, heads=2, kv_heads=1, seq_len_q=450, seq_len_kv=400, head_dim=d, window=100) for d in (64, 256)),
    problem(batch=1, heads=2, kv_heads=1, seq_len_q=200, seq_len_kv=300, head_dim=64, softcap=2.0),
]


def test_kernels_ask_what_the_problem_is_and_never_which_step_it_is():
    switches = {field.name for field in dataclasses.fields(Variant) if field.type in (bool, "bool")}
    assert switches == {"causal", "ragged", "ragged_queries", "unseen", "packed"}


@pytest.mark.parametrize("generation", [together, apart, spare], ids=lambda module: module.__name__.rpartition(".")[2])
def test_a_generation_is_read_at_one_go(generation):
    text = Path(generation.__file__).read_text(encoding="utf-8")
    assert re.findall(r"^def (\w+)", text, re.MULTILINE)[-1] == "fmha_backward" and len(text.splitlines()) < 260


CASES = distinct(HOPPER, SHAPES)


@sampled(core=core(CASES))
@pytest.mark.parametrize(("step", "shape"), CASES, ids=named)
def test_no_schedule_brings_a_mistake_to_light(step, shape, pytestconfig):
    for seed in some_of((None, *range(1, 12)), 1, pytestconfig):
        assert not faults(step, shape, seed)


COMPILED = distinct(HOPPER, [standard(head_dim=head_dim, causal=True) for head_dim in (64, 128, 256)])


@sampled(core=core(COMPILED, always=[shape for _, shape in COMPILED if shape.head_dim == 128]))
@pytest.mark.parametrize(("step", "shape"), COMPILED, ids=named)
def test_ptxas_adds_no_wait_for_products(step, shape):
    """It does where it cannot prove that registers which a product writes are not in use: then nothing is under way.

    Seen of dQ, where it was kept from one iteration to the next and read under other products. And in one warpgroup of
    those that set registers for a product while the scores are under way, which gains all the same.
    """
    compiled = step.compile(shape)
    asked = compiled.ptx.count("wgmma.wait_group")
    added = 1 if step.variant(shape).gradient is FROM_ROW_SUMS else 0
    assert asked and len(re.findall(r"\bWARPGROUP.DEPBAR", str(compiled.sass))) == asked + added


@pytest.mark.parametrize("causal", [True, False])
def test_no_product_is_of_zeros(causal):
    """Of a tile's 256 columns 192 are the tensors'. wgmma multiplies 64 rows, in four steps of 16.

    Four products, and dQ. The first warpgroup has 128 columns of that, and has them once more behind the loop.
    """
    step, whole = get_step("deferred_reduce_add"), standard(4096, 256, causal)
    columns = {}
    for head_dim in (192, 256):
        sass = str(step.compile(dataclasses.replace(whole, head_dim=head_dim)).sass)
        columns[head_dim] = sum(map(int, re.findall(r"HGMMA\.64x(\d+)x16", sass)))
    assert columns == {d: 4 * (4 * d + 2 * 128 + (d - 128)) for d in (192, 256)}


IN_BFLOAT16 = distinct(
    [step for step in HOPPER if not step.inside],
    [standard(head_dim=d, causal=causal, dtype="bfloat16") for d in (64, 128, 256) for causal in (True, False)],
)


@sampled(core=lambda step, shape: step.variant(shape).kept > 0)
@pytest.mark.parametrize(("step", "shape"), IN_BFLOAT16, ids=named)
def test_the_loop_costs_as_much_in_bfloat16_as_in_float16(step, shape):
    """As many conversions and exponentials, one instruction in twenty more at most, and no more spills to speak of.

    Where weights wait in 16 bits Triton made other code of bfloat16, which rounded twice and spilled in the loop.
    """
    here, there = step.compile(shape), step.compile(dataclasses.replace(shape, dtype="float16"))
    (instructions, kinds), (known, of_float16) = (compiled.figures.hot["compute"] for compiled in (here, there))
    assert [kinds[kind] for kind in ("tensor core", "MUFU", "conversion")] == [
        of_float16[kind] for kind in ("tensor core", "MUFU", "conversion")
    ]
    assert instructions <= 1.05 * known and kinds["spill"] <= of_float16["spill"] + 8
    assert here.spilled_bytes <= there.spilled_bytes + 16


@pytest.mark.parametrize(
    ("name", "before", "shape", "differs"),
    [
        ("l2_aware_lpt", "decoupled_warpgroups", standard(4096, 64, True), True),
        (
            "l2_aware_lpt",
            "decoupled_warpgroups",
            dataclasses.replace(standard(head_dim=64, causal=True), kv_heads=8),
            False,
        ),
        ("l2_aware_lpt", "decoupled_warpgroups", standard(head_dim=64), False),
        ("backward_ping_pong", "l2_aware_lpt", standard(head_dim=64), False),
        ("backward_ping_pong", "l2_aware_lpt", standard(head_dim=128), True),
        ("backward_ping_pong", "l2_aware_lpt", standard(head_dim=256), False),
    ],
    ids=lambda x: getattr(x, "slug", x),
)
def test_a_step_differs_from_the_one_before_only_where_that_paid(name, before, shape, differs):
    assert (get_step(name).variant(shape) != get_step(before).variant(shape)) is differs


def test_every_block_has_its_place_in_a_section(monkeypatch):
    """More kv heads than a section has, and a section that is not full."""
    monkeypatch.setattr("steps.backward_hopper.skeleton.SECTION", 3 * 16)
    monkeypatch.setattr("steps.backward_hopper.skeleton.LARGER_SECTION", 3 * 16)
    shape = problem(batch=3, heads=7, seq_len_q=70, seq_len_kv=300, head_dim=64, causal=True)
    assert_right(dataclasses.replace(get_step("l2_aware_lpt")), shape)


def test_of_a_section_the_longest_blocks_begin(monkeypatch):
    """The clocks of blocks in the order of their numbers: of 16 heads all with the first keys, then with the next."""
    monkeypatch.setattr("steps.backward_hopper.skeleton.SECTION", 2 * 16)
    monkeypatch.setattr("steps.backward_hopper.skeleton.LARGER_SECTION", 2 * 16)
    shape = problem(batch=2, heads=9, seq_len_q=256, seq_len_kv=256, head_dim=64, causal=True)
    with watched(None) as watch:
        get_step("l2_aware_lpt").gradients(*BACKWARD.inputs(shape, 0), causal=True)
    run = max((run for run in watch.runs if len(run.clocks) == 36), key=lambda run: max(run.clocks.values()))
    tiles, heads, _ = np.array(list(run.clocks)).max(0) + 1
    in_order = sorted(run.clocks, key=lambda block: block[0] + tiles * (block[1] + heads * block[2]))
    clocks = [run.clocks[block] for block in in_order]
    long, short = clocks[0], clocks[16]
    assert short < 0.8 * long
    assert clocks == [long] * 16 + [short] * 16 + [long] * 2 + [short] * 2


@pytest.mark.parametrize(
    ("heads", "tiles", "width"),
    [
        (8, 81, 4),
        (32, 16, 16),
        (28, 16, 16),
        (5, 64, 6),
        (24, 8, 33),
        (7, 81, 4),
        (64, 64, 4),
        (128, 8, 33),
        (3, 300, 1),
    ],
)
def test_the_last_of_few_sections_is_nearly_whole(heads, tiles, width):
    """Else its longest blocks begin when others end. Of many sections all are as large as they were when recorded."""
    section = section_for(heads, tiles)
    assert max(1, section // tiles) == width
    assert section == SECTION or heads * tiles <= 3 * SECTION


def test_blocks_that_add_in_order_have_sections_of_one_size():
    shape = problem(batch=1, heads=8, seq_len_q=5126, seq_len_kv=5126, head_dim=256)
    assert get_step("l2_aware_lpt").variant(shape).section == LARGER_SECTION
    shape = dataclasses.replace(shape, causal=False)
    assert get_step("deterministic_l2_aware").variant(shape).section == SECTION


@pytest.mark.parametrize("head_dim", [64, 128])
def test_only_step_even_banks_stores_d_query_without_bank_conflicts(head_dim):
    """By Triton's count, for the store of float32 into the buffer that TMA reads."""
    variant = get_step("conflict_free_layout").variant(standard(head_dim=head_dim))
    shape = [variant.query_rows, variant.query_columns]
    by_tma = gl.NVMMASharedLayout(128, 32, rank=2)
    assert layouts.triton_conflicts(variant.query_sums, by_tma, shape, bits=32) == 1
    assert layouts.triton_conflicts(variant.query_fours, by_tma, shape, bits=32) == 1
    assert layouts.triton_conflicts(variant.query_fours, variant.shared_fours, shape, bits=32) == 0


@pytest.mark.parametrize("head_dim", [32, 64, 128])
def test_tma_finds_the_halves_of_odd_rows_in_changed_places(head_dim):
    """And nothing else moved: what ``rows.scaled`` undoes."""
    variant = get_step("conflict_free_layout").variant(standard(head_dim=head_dim))
    rows, columns = shape = [variant.query_rows, variant.query_columns]
    places = layouts.places_in(variant.shared_fours, gl.NVMMASharedLayout(128, 32, rank=2), shape)
    assert places == [row * columns + (column ^ (row & 1) * 16) for row in range(rows) for column in range(columns)]


MANY_BLOCKS = [
    problem(batch=1, heads=2, kv_heads=1, seq_len_q=300, seq_len_kv=600, head_dim=64, causal=False),
    problem(batch=1, heads=1, seq_len_q=500, seq_len_kv=700, head_dim=128),
    problem(batch=1, heads=2, kv_heads=1, seq_len_q=130, seq_len_kv=200, head_dim=256),
]
IN_SEQUENCES = [
    packed((300, 1, 200, 400), (400, 3, 300, 100), heads=1, kv_heads=1, causal=causal) for causal in (True, False)
]


def bits(step, shape, seeds) -> Iterator[bytes]:
    """What comes out under random latencies, eight blocks at once."""
    inputs = BACKWARD.inputs(shape, 0)
    for seed in seeds:
        with watched(seed, at_once=8) as watch:
            dq = BACKWARD.call(step, shape, inputs)[0]
        assert not any(run.found for run in watch.runs)
        yield dq.view(torch.int16).numpy().tobytes()


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        *(("deterministic", shape) for shape in MANY_BLOCKS),
        *(("dq_writer_warp", shape) for shape in MANY_BLOCKS[:2]),
        *(("two_dq_writers", shape) for shape in MANY_BLOCKS),
        *(("fast_deterministic", shape) for shape in (*MANY_BLOCKS[:2], *IN_SEQUENCES)),
    ],
    ids=str,
)
def test_blocks_in_turn_give_the_same_bits_under_any_schedule(name, shape, pytestconfig):
    assert len(set(bits(get_step(name), shape, some_of(range(6), 3, pytestconfig)))) == 1


@pytest.mark.parametrize("name", ["deterministic", "dq_writer_warp", "two_dq_writers"])
@pytest.mark.parametrize("broken", ["await_number", "store_written"])
def test_blocks_that_do_not_wait_for_their_turn_do_not(broken, name, monkeypatch):
    """For the blocks before, or until what was added has reached global memory.

    Where blocks of a head begin one after the other, or after a wait for another kernel, they came in order by chance.
    """
    shape = problem(batch=1, heads=2, seq_len_q=256, seq_len_kv=1500, head_dim=64, causal=False)
    instead = {"await_number": lambda *_: 0, "store_written": lambda *_: hopper.store_wait(0)}
    [pattern] = [p for p, does in language.SEQUENCES.items() if does.__name__ == broken]
    monkeypatch.setitem(language.SEQUENCES, pattern, instead[broken])
    found = bits(dataclasses.replace(get_step(name), sections=False, begin=ONE_BY_ONE), shape, range(6))
    first = next(found)
    assert any(other != first for other in found)  # the first that shows it ends the search


def test_what_a_step_adds_is_as_it_says():
    """The instructions that add dQ: of pairs, of fours, by TMA."""
    for name, instruction in (
        ("async_products", "F32x2"),
        ("vectorized_atomics", "F32x4"),
        ("tma_reduce_add", "UTMAREDG"),
    ):
        sass = str(get_step(name).compile(standard(causal=True)).sass)
        found = {one for one in ("F32x2", "F32x4", "UTMAREDG") if one in sass}
        assert found == {instruction}


def test_a_warp_adds_where_tma_does():
    """At head_dim 256 the kernel is that of blocks in turn; elsewhere one warp waits for turns, and not eight."""
    step = get_step("dq_writer_warp")
    assert [step.variant(standard(head_dim=d)).adders for d in (64, 128, 256)] == [1, 1, 0]
    waits = {
        n: get_step(n).compile(standard()).ptx.count("ld.acquire.gpu") for n in ("deterministic", "dq_writer_warp")
    }
    assert waits["dq_writer_warp"] == 1 < waits["deterministic"]


def test_of_two_adders_each_takes_every_other_tile():
    """And at head_dim 256, where warpgroups add from registers, each has a warp that passes its tiles on."""
    for head_dim, places in ((64, (1, 2)), (128, (1, 2)), (256, (5, 2))):  # where a block counts itself
        code = [
            get_step(n).compile(standard(head_dim=head_dim)).ptx for n in ("deterministic_l2_aware", "two_dq_writers")
        ]
        assert tuple(text.count("red.global.gpu.release.add") for text in code) == places


@pytest.mark.parametrize(
    ("name", "shape", "pieces"),
    [
        ("newest_first", standard(), ("slot.store(d_scores)", "fence", "dQ", "dK", "add")),
        ("deferred_fence", standard(), ("slot.store(d_scores)", "dQ", "dK", "fence", "add")),
        (
            "deferred_reduce_add",
            standard(head_dim=64, causal=False),
            ("add", "slot.store(d_scores)", "dQ", "dK", "fence"),
        ),
    ],
    ids=["newest_first", "deferred_fence", "deferred_reduce_add"],
)
def test_the_pieces_of_an_iteration_stand_in_the_order_that_a_step_says(name, shape, pieces):
    """Of the source. A compiler may still put a fence of its own before a product that reads shared memory."""
    marks = {
        "slot.store(d_scores)": ".store(d_scores)",
        "dQ": "d_query = issue_own_d_query(",
        "dK": "d_key = warpgroup_mma(",
        "fence": "fence_async_shared()",
    }
    text = write_step(get_step(name), shape).text
    iteration = text[text.index("for iteration in range(0, work.a_head):", text.index("def consume")) :]
    iteration = iteration[: iteration.index("# --- dQ of the last iteration")]
    marks["add"] = "let_tma_add(" if "let_tma_add(" in text else "add_by_tma("  # the latter stores first
    assert sorted(pieces, key=lambda piece: iteration.index(marks[piece])) == list(pieces)


ALL_KEYS = [  # shape, blocks that share its queries, tiles of keys of a block
    (problem(batch=1, heads=2, seq_len_q=350, seq_len_kv=77, head_dim=64, causal=False), 2, 1),
    (problem(batch=1, heads=2, seq_len_q=600, seq_len_kv=120, head_dim=72, causal=False), 3, 1),
    (problem(batch=2, heads=4, kv_heads=2, seq_len_q=600, seq_len_kv=77, head_dim=64, causal=False), 3, 1),
    (problem(batch=1, heads=4, kv_heads=2, seq_len_q=200, seq_len_kv=100, head_dim=128, causal=False), 1, 1),
    (problem(batch=2, heads=1, seq_len_q=200, seq_len_kv=77, head_dim=64, causal=True, dtype="bfloat16"), 1, 1),
    (problem(batch=2, heads=2, seq_len_q=77, seq_len_kv=77, head_dim=64, causal=True, sinks=True), 1, 1),
    (problem(batch=1, heads=2, seq_len_q=350, seq_len_kv=77, head_dim=64, causal=False, sinks=True), 2, 1),
    (problem(batch=1, heads=2, seq_len_q=200, seq_len_kv=197, head_dim=64, causal=False), 1, 2),
    (problem(batch=1, heads=1, seq_len_q=1, seq_len_kv=256, head_dim=48, causal=False, dtype="bfloat16"), 1, 2),
]


@pytest.mark.parametrize(("shape", "parts", "tiles"), ALL_KEYS, ids=lambda x: getattr(x, "slug", x))
def test_a_block_with_all_keys_stores_dq(shape, parts, tiles, monkeypatch, pytestconfig):
    """And no kernel is behind it, but where blocks share queries, which rounds dK and dV, and that for sinks."""
    monkeypatch.setitem(rules.WHERE, "two_tiles_of_keys", lambda problem: problem.seq_len_kv > 128)
    step = dataclasses.replace(get_step("deferred_reduce_add"))
    variant = step.variant(shape)
    assert variant.adding.complete and (variant.parts, variant.key_tiles) == (parts, tiles)
    for seed in some_of((None, *range(1, 6)), 2, pytestconfig):
        with watched(seed) as watch:
            assert_right(step, shape)
        assert len(watch.runs) == 2 + (parts > 1) + shape.sinks and not any(run.found for run in watch.runs)


@pytest.mark.parametrize(("head_dim", "columns"), [(72, 96), (96, 96), (104, 128), (160, 160), (192, 192)])
def test_columns_that_tensors_do_not_have_are_not_added(head_dim, columns):
    """Sums are as wide as a tile; what is behind the columns that are added stays as it was."""
    shape = problem(batch=1, heads=2, seq_len_q=130, seq_len_kv=200, head_dim=head_dim)
    step = dataclasses.replace(get_step("deferred_reduce_add"))
    assert step.variant(shape).sum_columns == columns
    assert_right(step, shape)


def test_what_shortens_iterations_is_where_it_pays():
    step = get_step("deferred_reduce_add")
    found = {
        (head_dim, causal): step.variant(standard(head_dim=head_dim, causal=causal))
        for head_dim in (64, 128, 256)
        for causal in (True, False)
    }
    assert {at for at, variant in found.items() if variant.fence is FENCE_BEHIND} == {at for at in found if at[0] < 256}
    assert {at for at, variant in found.items() if variant.gradient is FROM_ROW_SUMS} == {(128, True), (128, False)}
    assert {at for at, variant in found.items() if variant.adding is FOURS_LATER} == {(64, False)}
    assert not any(variant.turns.barriers for variant in found.values())
    whole = problem(seq_len_q=2048, seq_len_kv=2048, head_dim=64, causal=False)
    assert step.variant(whole).adding is FOURS_LATER
    for ragged in ({"seq_len_kv": 2000}, {"seq_len_q": 2000}):  # which takes a mask
        assert step.variant(dataclasses.replace(whole, **ragged)).adding is not FOURS_LATER


@pytest.mark.parametrize(
    ("name", "changes", "told"),
    [
        ("async_products", {"sequence": IN_ORDER}, "take warpgroups that are apart"),
        ("fast_deterministic", {"adding_unmasked": FOURS_LATER}, "sequence=IN_ORDER takes adding_unmasked=None"),
        ("dq_writer_warp", {"sequence": ANY_ORDER}, "warps that add take sequence=IN_ORDER"),
        ("vectorized_atomics", {"turns": IN_TURN}, "warpgroups that are apart"),
        ("decoupled_warpgroups", {"adding": FOURS}, "adding by TMA"),
        ("cta_per_query_head", {"helpers": NOBODY, "sequence": IN_ORDER}, "take adding by fours, in any order"),
        ("fused_pre_post", {"sequence": IN_ORDER}, "in any order"),
        ("fused_pre_post", {"adding": BY_TMA}, "adding by fours"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_what_does_not_go_together_is_refused(name, changes, told):
    with pytest.raises(ValueError, match=told):
        dataclasses.replace(get_step(name), **changes)
