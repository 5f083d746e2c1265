"""The compiler lens: what it reads from machine code, that it is right on real kernels, and how it fails."""

import contextlib
import dataclasses
import io
import stat
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from steps import STEPS, Unsupported, get_step
from steps.core.problems import HEADLINE as EVEN
from steps.cutile.variant import Latency, MaskLoop
from steps.hopper.variant import GROUP_WARPS
from steps.inspect import difference, main
from tests.core.test_one_change import CUTILE, FUSED
from tests.core.test_steps import GLUON, HOPPER
from tutorial_lib import compiler, sass
from tutorial_lib.architectures import ARCHITECTURES, blocks_per_multiprocessor
from tutorial_lib.compiler import CUTILE_ARCHITECTURES, CompilerError, parse_remarks
from tutorial_lib.results import Survey

ROOT = Path(__file__).resolve().parent.parent.parent

# Two loops, the second with a select in it as a mask has, a barrier that spins, and a slow path behind the end.
TEXT = """
        /*0000*/                   MOV R1, c[0x0][0x28] ;
        /*0010*/                   HGMMA.64x128x16.F32 R24, gdesc[UR4], R24 ;
        /*0020*/                   MUFU.EX2 R5, R4 ;
        /*0030*/                   MUFU.EX2 R6, R4 ;
        /*0040*/                   MUFU.EX2 R7, R4 ;
        /*0050*/                   MUFU.EX2 R8, R4 ;
        /*0060*/                   MUFU.EX2 R5, R4 ;
        /*0070*/                   MUFU.EX2 R6, R4 ;
        /*0080*/                   MUFU.EX2 R7, R4 ;
        /*0090*/                   MUFU.EX2 R8, R4 ;
        /*00a0*/              @P0  BRA 0x10 ;
        /*00b0*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R2], R3 ;
        /*00c0*/              @!P0 BRA 0xb0 ;
        /*00d0*/                   HGMMA.64x128x16.F32 R24, gdesc[UR4], R24 ;
        /*00e0*/                   FSEL R5, R5, -INF , P0 ;
        /*00f0*/                   MUFU.EX2 R5, R4 ;
        /*0100*/                   MUFU.EX2 R6, R4 ;
        /*0110*/                   MUFU.EX2 R7, R4 ;
        /*0120*/                   MUFU.EX2 R8, R4 ;
        /*0130*/                   MUFU.EX2 R5, R4 ;
        /*0140*/                   MUFU.EX2 R6, R4 ;
        /*0150*/                   MUFU.EX2 R7, R4 ;
        /*0160*/                   MUFU.EX2 R8, R4 ;
        /*0170*/              @P1  BRA 0xd0 ;
        /*0180*/                   STL [R1], R5 ;
        /*0190*/                   EXIT ;
        /*01a0*/                   NANOSLEEP 0x20 ;
        /*01b0*/                   BRA 0x100 ;
        /*01c0*/                   BRA 0x1c0;
"""


def test_instructions_are_told_apart():
    instructions = sass.parse(TEXT)
    assert len(instructions) == 29
    assert instructions[10] == sass.Instruction(0xA0, "P0", "BRA", "0x10")
    kinds = sass.count_kinds(instructions)
    expected = {"tensor core": 2, "MUFU": 16, "FP32": 1, "spill": 1, "synchronisation": 2, "control": 6}
    assert {kind: count for kind, count in kinds.items() if count} == expected | {"integer and move": 1}
    assert sum(kinds.values()) == len(instructions)


def test_the_hot_loop_is_the_first_that_works():
    """Not the masked one behind it, not a barrier that spins, not the way back from a slow path."""
    instructions = sass.parse(TEXT)
    assert [(body[0].address, body[-1].address) for body in sass.loops(instructions)] == [(0x10, 0xA0), (0xD0, 0x170)]
    hot = sass.hot_loops(instructions)
    assert list(hot) == ["compute"] and hot["compute"][0].address == 0x10


def test_the_order_of_work_is_that_of_the_code():
    code = """
        /*0000*/ HGMMA.64x64x16.F32 R24, gdesc[UR8], !UPT ;
        /*0010*/ HGMMA.64x64x16.F32 R24, gdesc[UR12], R24, gsb0 ;
        /*0020*/ WARPGROUP.ARRIVE ;
        /*0030*/ WARPGROUP.DEPBAR.LE gsb0, 0x1 ;
        /*0040*/ FADD R1, R2, R3 ;
        /*0048*/ FMNMX R1, R2, R3, !PT ;
        /*0050*/ MUFU.EX2 R1, R1 ;
        /*0058*/ FMNMX R4, R2, R3, !PT ;
        /*0060*/ MUFU.RCP R2, R1 ;
        /*0068*/ WARPGROUP.DEPBAR.LE gsb0, 0x0 ;
        /*0070*/ MUFU.EX2 R3, R1 ;
    """
    expected = [("HGMMA", 2), ("wait", 1), ("FMNMX", 2), ("EX2", 1), ("wait", 1), ("EX2", 1)]
    assert sass.order_of_work(sass.parse(code)) == expected


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_where_the_second_wait_stands(head_dim):
    """As written the compiler moves it before (most of) the exponentials; with late_wait it is the last of a turn."""
    shape = dataclasses.replace(EVEN, head_dim=head_dim, causal=False)
    early, late = (get_step(name).compile(shape).hot_order for name in ("lean_sum", "late_wait"))
    assert [what for what, _ in late] == ["HGMMA", "wait", "FMNMX", "EX2", "wait"]
    assert sum(count for what, count in early if what == "wait") == 2 and early[-1][0] == "EX2"
    assert early[-1][1] > sum(count for what, count in early if what == "EX2") / 2


@pytest.mark.parametrize(("head_dim", "causal"), [(64, False), (64, True), (128, False), (128, True), (256, True)])
def test_the_maxima_stand_in_front_of_the_second_wait(head_dim, causal):
    """Step at_maxima: between the two waits are all the maxima, and behind them most exponentials."""
    between, behind = around_the_second_wait("at_maxima", head_dim, causal)
    assert between["FMNMX"] and not behind["FMNMX"] and behind["EX2"] > 4 * between["EX2"]


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_a_mask_moves_the_second_wait_up(head_dim):
    """Left to the compiler, maxima stand in front of it, but hardly one under a mask."""
    (full, _), (masked, _) = (around_the_second_wait("lean_sum", head_dim, causal) for causal in (False, True))
    assert masked["FMNMX"] <= 1 < 10 < full["FMNMX"]


def around_the_second_wait(name, head_dim, causal):
    """How many maxima and exponentials of a turn stand between its two waits, and behind the second."""
    order = get_step(name).compile(dataclasses.replace(EVEN, head_dim=head_dim, causal=causal)).hot_order
    waits = [n for n, (what, count) in enumerate(order) for _ in range(count) if what == "wait"]
    assert len(waits) == 2
    return Counter(dict(order[waits[0] + 1 : waits[1]])), Counter(dict(order[waits[1] + 1 :]))


def test_the_diagonal_first_leaves_no_mask_in_the_loop():
    """Step diagonal_first: one branch less in a turn, the one around the mask."""
    shape = dataclasses.replace(EVEN, head_dim=256, causal=True)
    before, now = (get_step(name).compile(shape).hot_loop for name in ("at_maxima", "diagonal_first"))
    assert now["control"] < before["control"]
    assert (now["tensor core"], now["MUFU"]) == (before["tensor core"], before["MUFU"])


def test_the_hot_loop_is_without_what_ends_a_tile_of_queries():
    """One loop over many tiles of queries jumps over the division and the store of the output in most turns."""
    shape = dataclasses.replace(EVEN, causal=False)
    nested, one = (get_step(name).compile(shape) for name in ("stay", "one_loop"))
    assert one.hot_loop["FP32"] < 1.02 * nested.hot_loop["FP32"] and one.hot_loop["shared memory"] == 0
    assert one.hot_order[-2:] == [("HGMMA", 8), ("wait", 1)]


def test_which_step_lets_products_run_under_exponentials_of_its_own_tile():
    """In halves the first PV products begin before the last exponentials, mask or not; else all of them behind."""
    for causal in (False, True):
        shape = dataclasses.replace(EVEN, causal=causal)
        before, halves = (get_step(name).compile(shape).hot_order for name in ("found", "halves"))
        assert [what for what, _ in before] == ["wait", "HGMMA", "wait", "FMNMX", "EX2", "HGMMA", "wait"]
        work = [what for what, _ in halves if what in ("HGMMA", "EX2")]
        assert work[:2] == ["HGMMA", "EX2"] and work[2:].count("EX2") >= 3 and work[-1] == "HGMMA"


@pytest.mark.parametrize(
    ("name", "head_dim", "causal", "overlaps"),
    [
        ("approx_division", 64, False, True),
        ("eight_warps", 128, False, False),
        ("stay", 128, False, True),
        ("stay", 128, True, False),
    ],
)
def test_where_the_compiler_sets_products_among_the_exponentials_of_the_next_tile(name, head_dim, causal, overlaps):
    """PV products before any exponential of a turn are of the tile before."""
    order = get_step(name).compile(dataclasses.replace(EVEN, head_dim=head_dim, causal=causal)).hot_order
    order = [(what, count) for what, count in order if what != "FMNMX"]
    before = [what for what, _ in order[: [what for what, _ in order].index("EX2")]]
    assert (before.count("HGMMA") >= 2 and len(order) > 8) == overlaps
    assert (before.count("HGMMA") == 1 and len(order) == 6) == (not overlaps)


@pytest.mark.parametrize(
    "head_dim, causal, share", [(128, False, 1), (64, True, 1), (64, False, 0), (256, True, 1 / 4)]
)
def test_an_output_apart_takes_shared_memory_of_its_own(head_dim, causal, share):
    """The output of step stay leaves through Q's place, but where it has one already, or room for a part."""
    shape = dataclasses.replace(EVEN, head_dim=head_dim, causal=causal)
    shared, apart = (get_step(name).compile(shape) for name in ("mask_loop", "apart"))
    output = get_step("apart").variant(shape, "sm_90").tile.query * head_dim * 2  # bytes
    assert apart.shared_bytes - shared.shared_bytes == pytest.approx(share * output, abs=0.01 * output)  # but barriers
    assert apart.spill_instructions == shared.spill_instructions == 0


def test_an_output_apart_leaves_the_hot_loop_alone():
    """Step apart, of head_dim 128 without a mask."""
    full = dataclasses.replace(EVEN, head_dim=128, causal=False)
    assert get_step("apart").compile(full).hot_order == get_step("mask_loop").compile(full).hot_order


@pytest.mark.parametrize(
    "shape",
    [{}, {"seq_len_q": 1024, "seq_len_kv": 1024}, {"seq_len_kv": 4095, "causal": False}, {"dtype": "bfloat16"}],
    ids=str,
)
def test_hints_bring_the_overlap_back_under_a_mask(shape):
    """Step mask_loop: with the loop for the mask, and the hints, and not without them."""
    shape = dataclasses.replace(EVEN, **({"head_dim": 128, "causal": True} | shape))
    overlapped = get_step("mask_loop")
    without_hints = dataclasses.replace(overlapped, mask_loop=MaskLoop(overlapped.mask_loop.key, Latency()))

    def products_before_exponentials(step):
        order = step.compile(shape).hot_order
        return sum(what == "HGMMA" for what, _ in order[: [what for what, _ in order].index("EX2")])

    assert products_before_exponentials(overlapped) >= 2
    assert products_before_exponentials(without_hints) == products_before_exponentials(overlapped.previous) == 1
    assert overlapped.compile(shape).spill_instructions == 0


def test_what_takes_no_loop_for_the_mask_is_the_code_of_the_step_before():
    """No mask or another head_dim; no room beside the loop for an output; under a mask as dealt."""
    for name, shape in [
        ("mask_loop", dataclasses.replace(EVEN, head_dim=128, causal=False)),
        ("mask_loop", dataclasses.replace(EVEN, head_dim=64, causal=True)),
        ("mask_loop", dataclasses.replace(EVEN, head_dim=256, causal=True)),
        ("apart", dataclasses.replace(EVEN, head_dim=128, causal=True)),
        ("counted", dataclasses.replace(EVEN, head_dim=128, causal=True)),
        ("counted", dataclasses.replace(EVEN, head_dim=64, causal=True)),
    ]:
        step = get_step(name)
        before, now = (sass.without_addresses(one.compile(shape).sass) for one in (step.previous, step))
        assert before == now, (name, shape)


def test_code_is_the_same_whatever_its_addresses():
    moved = TEXT.replace("/*0", "/*1")
    assert sass.without_addresses(TEXT) == sass.without_addresses(moved)
    assert sass.without_addresses(TEXT) != sass.without_addresses(TEXT.replace("FSEL", "FMUL"))


@pytest.mark.parametrize(
    ("step", "arch"),
    [(s, arch) for s in CUTILE for arch in ("sm_80", "sm_90", "sm_100", "sm_121") if not s.unsupported(EVEN, arch)],
    ids=lambda x: getattr(x, "name", x),
)
def test_every_step_compiles_and_its_hot_loop_is_found(step, arch):
    compiled = step.compile(EVEN, arch)
    assert 0 < compiled.registers <= 255 and compiled.instructions > 500 and compiled.occupancy[0] >= 1
    assert compiled.kinds["tensor core"] > 0 and compiled.kinds["MUFU"] > 0
    # One exponential a score and lane that computes, and at least one for the correction of the old sum.
    assert compiled.compute_threads == 32 * (step.configured(EVEN, arch).warps or 4)
    exponentials = compiled.scores_per_tile / compiled.compute_threads
    assert exponentials < compiled.hot_loop["MUFU"] <= exponentials + 4
    assert compiled.hot_loop_instructions < 0.6 * compiled.instructions
    assert compiled.remarks and "MMA" in " ".join(remark.text for remark in compiled.remarks)
    assert "entry @fmha" in compiled.tile_ir and compiled.ptx is None


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_120"])
@pytest.mark.parametrize("step", GLUON, ids=lambda s: s.name)
def test_every_gluon_step_compiles_and_its_hot_loop_is_found(step, arch):
    compiled = step.compile(EVEN, arch)
    assert 0 < compiled.registers <= 255 and compiled.occupancy[0] >= 1 and compiled.threads == 128
    # Split-KV computes every row's correction in all four warps; split-Q once a row.
    exponentials = compiled.scores_per_tile / 128
    assert exponentials < compiled.hot_loop["MUFU"] <= exponentials + 16
    # Two products, in mma.sync.m16n8k16, by four warps.
    assert compiled.hot_loop["tensor core"] == 2 * compiled.scores_per_tile * EVEN.head_dim / (16 * 8 * 16) / 4
    assert "ttg.local_alloc" in compiled.tile_ir and "mma.sync" in compiled.ptx
    assert compiled.shared_bytes >= step.shared_bytes(EVEN)


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("step", HOPPER, ids=lambda s: s.name)
def test_every_hopper_step_compiles_and_its_hot_loop_is_found(step, head_dim):
    problem = dataclasses.replace(EVEN, head_dim=head_dim, dtype="bfloat16")
    compiled, variant = step.compile(problem, "sm_90"), step.variant(problem)
    assert compiled.threads == 32 * (variant.warps * variant.parts + (GROUP_WARPS if step.roles else 0))
    assert compiled.compute_threads == 128 * variant.groups and compiled.compute_groups == variant.parts
    assert compiled.occupancy[0] >= 1
    # One exponential a score, and one a row for the correction; the mask, which whole tiles jump over, is not counted.
    exponentials = compiled.scores_per_tile / compiled.compute_threads
    assert exponentials < compiled.hot_loop["MUFU"] <= exponentials + 2
    # wgmma takes 16 of head_dim at a time for QK, 16 keys for PV, and at most 256 columns.
    assert compiled.hot_loop["tensor core"] == head_dim / 16 + variant.tile.key / 16
    assert "wgmma.mma_async" in compiled.ptx and "cp.async.bulk.tensor" in compiled.ptx


@pytest.mark.parametrize("arch", ["sm_80", "sm_100", "sm_120"])
@pytest.mark.parametrize("step", HOPPER, ids=lambda s: s.name)
def test_hopper_steps_refuse_other_architectures_by_name(step, arch):
    with pytest.raises(Unsupported, match=f"wgmma, which sm_90 alone has, not {arch}"):
        step.compile(EVEN, arch)


@pytest.mark.parametrize("name", ["cluster", "sections", "found"])
def test_clusters_are_refused_where_there_are_none(name):
    with pytest.raises(Unsupported, match=r"made of clusters .* not sm_80"):
        get_step(name).compile(EVEN, "sm_80")


def test_a_cluster_fetches_for_both_its_blocks():
    alone, together = (get_step(name).compile(EVEN) for name in ("approx_division", "cluster"))
    assert ".MULTICAST" in together.sass and ".MULTICAST" not in alone.sass
    assert together.scores_per_tile == alone.scores_per_tile  # a block has half of a tile of twice the queries
    assert together.spill_instructions == 0


def test_eight_warps_hold_what_spills_in_four():
    trap, rescue = (get_step(name).compile(EVEN) for name in ("large_tile", "eight_warps"))
    assert trap.spill_instructions > 0 == rescue.spill_instructions
    assert (trap.compute_threads, rescue.compute_threads) == (128, 256)


@pytest.mark.parametrize("name", ["overlap", "dealt", "linked"])
def test_a_mask_that_whole_tiles_jump_over_is_not_counted(name):
    causal, full = (get_step(name).compile(dataclasses.replace(EVEN, causal=mask)).hot_loop for mask in (True, False))
    for kind in ("FP32", "MUFU", "conversion", "tensor core"):
        assert causal[kind] == full[kind]


def test_what_a_branch_leaves_to_some_lanes_is_counted():
    """In split-KV some lanes store what they hold for the other warps, every turn; the others jump over it."""
    compiled = get_step("explicit").compile(EVEN)
    loops = sass.loops(sass.parse(compiled.sass))
    whole = next(kinds for body in loops if (kinds := sass.count_kinds(body))["MUFU"] >= 8)
    assert compiled.hot_loop["shared memory"] == whole["shared memory"]


def test_registers_end_the_spills_at_head_dim_256():
    wide = dataclasses.replace(EVEN, head_dim=256)
    assert get_step("producer").compile(wide).spill_instructions > 0
    assert get_step("registers").compile(wide).spill_instructions == 0
    assert get_step("producer").compile(EVEN).spill_instructions == 0


@pytest.mark.parametrize("head_dim", [64, 256, 512, 1024])
def test_shared_memory_is_as_the_steps_say(head_dim):
    """Two stages double it, sharing halves it, Q in registers takes Q away, pieces stop it from growing."""
    problem = dataclasses.replace(EVEN, head_dim=head_dim, causal=False)
    needs = {s.name: s.compile(problem, "sm_90").shared_bytes for s in GLUON if head_dim in s.head_dims}
    assert needs["fine_grained"] <= 72 * 1024
    if head_dim <= 256:
        tile = 64 * head_dim * 2
        assert needs["stages"] == needs["split_q"] + 2 * tile == 5 * tile
        assert needs["shared_kv"] == 3 * tile and needs["q_registers"] == 2 * tile
    else:
        with pytest.raises(Unsupported, match="head_dim must be one of 32, 64, 128, 256"):
            get_step("q_registers").compile(problem)


def test_swizzling_multiplies_as_much():
    """Step swizzle has the matrix products and exponentials of step explicit: only addresses differ."""
    plain, swizzled = (get_step(name).compile(EVEN) for name in ("explicit", "swizzle"))
    for kind in ("tensor core", "MUFU"):
        assert plain.hot_loop[kind] == swizzled.hot_loop[kind]
    assert not plain.same_code(swizzled)


def test_split_q_exchanges_less_between_warps():
    split_kv, split_q = (get_step(name).compile(EVEN) for name in ("swizzle", "split_q"))
    assert split_q.hot_loop["synchronisation"] < 0.5 * split_kv.hot_loop["synchronisation"]


def test_a_block_that_does_not_fit_is_refused():
    wide = dataclasses.replace(EVEN, head_dim=256)
    with pytest.raises(Unsupported, match="needs 160 KiB of shared memory a block; sm_120 has 99 KiB"):
        get_step("stages").compile(wide, "sm_120")


@pytest.mark.parametrize("arch", sorted(set(CUTILE_ARCHITECTURES) - {"sm_80", "sm_90", "sm_100", "sm_121"}))
def test_every_architecture_is_accepted(arch):
    compiled = get_step("stay").compile(EVEN, arch)
    assert compiled.registers > 0
    assert compiled.instructions or arch == "sm_107"  # which Triton's disassembler does not know


def test_loading_transposed_changes_nothing():
    """Steps exp2 and load_order are the same instructions; mma is not, and what exp2 saves shows where it should."""
    for arch in ("sm_90", "sm_121"):
        mma, exp2, load_order = (get_step(name).compile(EVEN, arch) for name in ("mma", "exp2", "load_order"))
        assert load_order.same_code(exp2)
        assert not exp2.same_code(mma)
        assert exp2.hot_loop["FP32"] < 0.5 * mma.hot_loop["FP32"]


def test_compiled_again_it_comes_from_disk(monkeypatch, tmp_path):
    monkeypatch.setenv("FMHA_TUTORIAL_CACHE", str(tmp_path))
    first = CUTILE[-1].compile(EVEN, "sm_90")
    monkeypatch.setattr(compiler, "_compile", lambda *arguments: pytest.fail("compiled twice"))
    again = CUTILE[-1].compile(EVEN, "sm_90")
    assert again == first and again.hot_loop == first.hot_loop
    [kept] = tmp_path.iterdir()
    kept.write_text("{not json")
    monkeypatch.undo()
    monkeypatch.setenv("FMHA_TUTORIAL_CACHE", str(tmp_path))
    assert CUTILE[-1].compile(EVEN, "sm_90") == first  # a spoilt file is compiled over


def test_a_cache_that_cannot_be_written_is_no_harm(monkeypatch):
    monkeypatch.setenv("FMHA_TUTORIAL_CACHE", "/proc/nowhere")
    assert get_step("halves").compile(EVEN, "sm_90").registers == 128


def test_occupancy_by_hand():
    # 255 registers are given out as 256, to 8 warps of 32: 65536, all that an SM has.
    assert blocks_per_multiprocessor("sm_90", 256, 255, 83040) == (1, "registers")
    assert blocks_per_multiprocessor("sm_90", 256, 128, 83040) == (2, "registers")
    # 228 KiB hold one block of 150 KiB; 100 KiB hold three of 32 KiB, each with 1 KiB for the system.
    assert blocks_per_multiprocessor("sm_90", 128, 64, 150 * 1024) == (1, "shared memory")
    assert blocks_per_multiprocessor("sm_120", 128, 64, 32 * 1024) == (3, "shared memory")
    assert blocks_per_multiprocessor("sm_80", 512, 16, 0) == (4, "warps")
    assert blocks_per_multiprocessor("sm_107", 128, 64, 0) is None
    two_blocks = get_step("occupancy").compile(EVEN, "sm_90")
    assert two_blocks.occupancy == (2, "registers")
    assert two_blocks.occupancy_percent == 100 * 2 * (256 / 32) / 64  # of the 64 warps that an SM of sm_90 holds


def test_every_rate_names_its_source():
    assert set(ARCHITECTURES) == set(CUTILE_ARCHITECTURES)
    for architecture in ARCHITECTURES.values():
        assert "[guide]" in architecture.source
        assert architecture.tensor_flops is None or "," in architecture.source  # a tensor rate needs a second source


def test_remarks_are_read_once_each():
    entry = """--- !Passed
Pass: Memory
DebugLoc: {{ File: '/somewhere/steps/cutile/kernel.py', Line: {line}, Column: 8 }}
Args:
  - RemarkId: {number}
  - Remark: Load instruction selected
  - Instruction: TMA Load instruction
  - Shape: '[64, 128]'
...
"""
    text = entry.format(line=9, number=1) + entry.format(line=3, number=2) + entry.format(line=9, number=3)
    remarks = parse_remarks(text)
    assert [remark.line for remark in remarks] == [3, 9]
    assert remarks[0].file == "cutile/kernel.py"
    assert remarks[0].text == "Load instruction selected: TMA Load instruction: [64, 128]"


# --- python -m steps.inspect ------------------------------------------------------------------------------------------


def call(*arguments) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(list(arguments))
    return status, out.getvalue(), err.getvalue()


def test_inspect_compares_two_steps():
    status, out, err = call("exp2", "--against", "mma", "--arch", "sm_90")
    assert status == 0 and err == ""
    assert "2 mma" in out and "3 exp2" in out and "Different code." in out
    assert "registers a thread" in out and "instructions a K/V tile, hot loop" in out
    assert "step02_mma.py" in out and "TMA Load instruction" in out and "k = ct.load(" in out
    assert "matrix products and softmax take turns" in " ".join(out.split())
    assert "The same code." in call("4", "--against", "3")[1]


def test_inspect_is_instant_the_second_time():
    command = [sys.executable, "-m", "steps.inspect", "exp2", "--against", "mma", "--arch", "sm_90,sm_100,sm_121"]
    first, again = (subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout for _ in range(2))
    assert again == first
    loaded = "import runpy, sys; sys.argv = sys.argv[1:]\ntry: runpy.run_module('steps.inspect', run_name='__main__')\n"
    loaded += "except SystemExit: print([m for m in ('torch', 'triton', 'cuda') if m in sys.modules], file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", loaded, *command[2:]], cwd=ROOT, check=True, capture_output=True)
    assert done.stderr.decode().strip().splitlines()[-1] == "[]"  # what takes the time is not loaded at all


def test_inspect_pages_through_the_code(monkeypatch):
    shown = []
    monkeypatch.setattr("pydoc.pager", shown.append)
    for which in ("tile-ir", "sass", "ptx"):
        assert call("7", "--text", which)[0] == 0
    assert "entry @fmha" in shown[0] and "HGMMA" in shown[1] and "no PTX" in shown[2]


def test_inspect_records_a_survey(tmp_path):
    status, out, _ = call("all", "--arch", "sm_90,sm_107", "--output", str(tmp_path))
    assert status == 0
    assert "does not know sm_107" in out.replace("\n", " ")
    survey = Survey.model_validate_json((tmp_path / "survey.json").read_text())
    assert survey.steps == [step.label for step in FUSED] and survey.architectures == ["sm_90", "sm_107"]
    assert survey.compiled["7 approx_division"]["sm_90"]["registers"] == 128
    assert {path.name for path in tmp_path.iterdir()} == {"survey.json", "survey.png", "survey.svg"}


def test_the_recorded_survey_is_what_the_compiler_makes():
    path = ROOT / "results" / "compiled" / EVEN.slug / "survey.json"
    survey = Survey.model_validate_json(path.read_text())
    assert survey.architectures == list(CUTILE_ARCHITECTURES)
    for step in CUTILE:
        for arch in ("sm_90", "sm_121"):
            refused = step.unsupported(EVEN, arch)
            made = f"step {step.label}: {refused}" if refused else step.compile(EVEN, arch).as_dict()
            assert survey.compiled[step.label][arch] == made, "run: python -m steps.inspect all --arch all --output ..."


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["warp"], "step must be a number or name of the ladder"),
        (["exp2", "--against", "nothing"], "step must be a number or name"),
        (["exp2", "--arch", "sm_55"], "--arch: must be all or some of sm_80"),
        (["exp2", "--arch", ""], "--arch: must be all or some of sm_80"),
        (["sdpa"], "step 0 sdpa has no kernel of its own to compile"),
        (["exp2", "--head-dim", "48"], "head_dim must be one of 32, 64, 128, 256, got 48"),
        (["exp2", "--seq-len", "0"], "--seq-len: must be a whole number of at least 1, got '0'"),
        (["all", "--against", "mma"], "--against and --text: go with a single step"),
        (["all", "--output", "/proc/somewhere"], "--output: cannot write to /proc/somewhere"),
        (["exp2", "--output", "somewhere"], "--output: goes with the step all"),
        ([], "the following arguments are required: step"),
    ],
)
def test_inspect_refuses_in_one_line(arguments, message):
    status, out, err = call(*arguments)
    assert status == 2 and out == "" and len(err.splitlines()) == 1 and message in err


@pytest.fixture
def fake_tileiras(monkeypatch, tmp_path):
    """Puts a script in the compiler's place: fake_tileiras(shell text)."""

    def install(script: str):
        path = tmp_path / "tileiras"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("FMHA_TUTORIAL_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(compiler, "_tileiras", lambda: str(path))
        compiler.compiler_version.cache_clear()

    yield install
    compiler.compiler_version.cache_clear()


def test_a_compiler_that_is_too_old_is_refused(fake_tileiras):
    fake_tileiras('echo "Cuda compilation tools, release 13.2, V13.2.86"')
    status, _, err = call("exp2")
    assert status == 2 and err == "steps.inspect: tileiras must be at least 13.4, got 13.2.86\n"


def test_a_compiler_that_cannot_be_run_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(compiler, "_tileiras", lambda: str(tmp_path))  # a folder
    compiler.compiler_version.cache_clear()
    status, _, err = call("exp2")
    assert status == 2 and err.startswith("steps.inspect: tileiras cannot be run") and len(err.splitlines()) == 1


def test_a_compiler_that_is_missing_is_refused(monkeypatch):
    def missing():
        raise CompilerError("tileiras, cuTile's compiler, was not found")

    monkeypatch.setattr(compiler, "_tileiras", missing)
    compiler.compiler_version.cache_clear()
    status, _, err = call("exp2")
    assert status == 2 and err == "steps.inspect: tileiras, cuTile's compiler, was not found\n"


def test_a_compiler_that_fails_for_one_architecture_still_serves_the_others(fake_tileiras):
    real = compiler._tileiras()
    fake_tileiras(f'case "$*" in *sm_80*) echo "error: out of luck" >&2; exit 3;; esac\nexec "{real}" "$@"')
    status, out, err = call("exp2", "--arch", "sm_80,sm_90")
    assert status == 2
    assert err == "steps.inspect: sm_80: tileiras failed for sm_80: error: out of luck\n"
    assert "sm_90, tileiras" in out and "registers a thread" in out


def test_a_compiler_that_fails_on_one_step_stops_no_other(fake_tileiras):
    real = compiler._tileiras()
    seen = "$(dirname $0)/seen"  # the first compilation fails, all others are real
    version = f'case "$*" in --version) exec "{real}" --version;; esac'
    fake_tileiras(
        f'{version}\nif [ ! -e "{seen}" ]; then touch "{seen}"; echo "error: once" >&2; exit 3; fi\nexec "{real}" "$@"'
    )
    status, out, err = call("all", "--arch", "sm_90")
    assert status == 2 and err == "steps.inspect: 2 mma, sm_90: tileiras failed for sm_90: error: once\n"
    assert "none" in out and "3 exp2" in out


def test_differences_are_put_in_words():
    assert difference(10, 10) == ""
    assert difference(0, 5) == "appeared"
    assert difference(5, 0) == "vanished"
    assert difference(200, 150) == "-25 %"
    assert difference(1000, 999) == "+0 %"  # not "-0 %"
    assert difference(None, 5) == ""


def test_torch_steps_have_nothing_to_compile():
    with pytest.raises(ValueError, match="no kernel of its own"):
        STEPS[0].compile(EVEN)
