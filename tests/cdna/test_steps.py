"""The steps for CDNA: what the compiler makes of them, which targets they refuse, and who votes how.

Whether they are right, and what a written kernel is, the tests of all steps ask (tests/core).
"""

import dataclasses
import re
from collections import Counter

import pytest
import torch

from steps import Unsupported, get_step
from steps.cdna.kernel import HEADS_FIRST
from steps.cdna.softmax import SCALE_QUERY, SCALE_SCORES
from steps.core import driver
from steps.core.attention import chosen
from steps.core.ladder import kernels_of
from steps.core.problems import standard
from steps.gluon.launching import arguments
from steps.gluon.tensors import shapes
from steps.writing.written import edited, write_step
from tests.checking import assert_right
from tests.selection import sampled
from tests.shapes import problem
from tutorial_lib.accuracy import compare
from tutorial_lib.architectures import ARCHITECTURES
from tutorial_lib.compiler import CompilerError, Placeholder, compile_amd, triton_source
from tutorial_lib.passes import FORWARD
from tutorial_lib.reference import attention_float64, sdpa_error
from tutorial_lib.simulator.run import watched

CDNA = [step for step in kernels_of("forward") if step.made_for.startswith("gfx")]
DIRECT = [step for step in CDNA if step.backend == "cdna" and step.transfer.copies.direct and not step.choose]
TARGETS = ("gfx942", "gfx950")

# At head_dim 256. On gfx942 the compiler's choice of what to load ahead takes too many registers. On gfx950 it does not
# since Triton 3.9, which copies ahead, into LDS. But stages, of which a lane has 256 registers, spill since then: half
# of them are set aside for sums.
SPILLS = {("plain_triton", "gfx942"), ("wave_priorities", "gfx950"), ("xcd_swizzle", "gfx950")}


def big(head_dim=128, causal=True):
    return standard(4096, head_dim, causal)


def passed(step, variant) -> tuple:
    """What a launch of a step's kernel for the big problem passes."""
    tensors = [Placeholder(shape, "float16") for shape in shapes(big())]
    return *arguments(*tensors, big(), 1.0), variant


@sampled(core=lambda head_dim: head_dim == 128)
@pytest.mark.parametrize("head_dim", [32, 64, 128, 256])
@pytest.mark.parametrize("arch", TARGETS)
@pytest.mark.parametrize("step", CDNA, ids=lambda s: s.name)
def test_a_step_compiles_without_spills_and_fits(step, arch, head_dim):
    shape = big(head_dim)
    if reason := step.unsupported(shape, arch):
        assert step in DIRECT and arch == "gfx942" and "straight into LDS, which gfx950 alone can" in reason
        return
    compiled, variant = step.compile(shape, arch), step.variant(shape, arch)
    assert (compiled.spilled_bytes > 0) == (head_dim == 256 and (step.name, arch) in SPILLS)
    assert compiled.threads == 64 * variant.waves
    assert compiled.shared_bytes <= ARCHITECTURES[arch].shared_bytes and compiled.occupancy[0] >= 1
    if step.backend == "cdna":
        assert compiled.shared_bytes == step.lds_bytes(shape, arch)  # nothing else goes through LDS
    depth = 16 if arch == "gfx950" else 8
    assert compiled.hot_loop["MFMA"] == 2 * variant.tile.scores * head_dim / (32 * 32 * depth) / variant.waves
    exponentials = variant.tile.scores / compiled.threads
    assert exponentials < compiled.hot_loop["transcendental"] <= exponentials + 2
    # Of plain Triton's copies, Triton 3.9 makes direct ones where gfx950 can.
    others = arch == "gfx950" and step.name in ("plain_triton", "by_shape")
    assert (compiled.kinds["direct to LDS"] > 0) == (step in DIRECT or others)


@sampled(core=lambda step: step is CDNA[-1])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("arch", TARGETS)
@pytest.mark.parametrize("step", CDNA, ids=lambda s: s.name)
def test_so_it_does_with_all_that_makes_a_kernel_longer(step, arch, head_dim):
    """bfloat16, lengths that fill no tile, grouped heads, and the log-sum-exp."""
    uneven = {"dtype": "bfloat16", "seq_len_q": 4001, "seq_len_kv": 4001, "kv_heads": 8}
    shape = dataclasses.replace(big(head_dim), **uneven)
    if step.unsupported(shape, arch):
        pytest.skip(step.unsupported(shape, arch))
    variant = dataclasses.replace(step.variant(shape, arch), lse=True)
    lse = Placeholder((shape.batch, shape.heads, shape.seq_len_q), "float32")
    compiled = step.compile_kernel(step.kernel(shape), shape, arch, variant, lse)
    assert compiled.spilled_bytes == 0 and re.search(r"v_mfma_f32_32x32x\d+_bf16", compiled.assembly)
    assert (compiled.kinds["priority"] > 0) == bool(getattr(variant, "stages", None))


def test_what_does_not_fit_is_refused_by_the_step_and_by_the_compiler():
    step = get_step("mfma")
    three = dataclasses.replace(step, transfer=dataclasses.replace(step.transfer, stages=3))
    with pytest.raises(Unsupported, match="needs 96 KiB of LDS a block; gfx942 has 64 KiB"):
        three.compile(big(), "gfx942")
    given = passed(step, three.variant(big(), "gfx942"))
    with pytest.raises(CompilerError, match="gfx942 has 65536 bytes of LDS; the kernel takes 98304"):
        compile_amd(step.kernel(big()), given, 4, "gfx942", 1)
    with pytest.raises(ValueError, match="arch must be one of gfx942, gfx950, got 'sm_90'"):
        compile_amd(step.kernel(big()), given, 4, "sm_90", 1)
    with pytest.raises(ValueError, match="stages take direct copies, and three tiles in LDS"):
        dataclasses.replace(step, stages=get_step("wave_priorities").stages)


# --- what the compiler adds by itself, and what it needs to be told ---


def test_the_compiler_says_of_an_ordinary_read_what_the_kernel_says_of_a_relaxed_one():
    """An iteration waits for its own tile alone, and all waves meet before it is overwritten.

    Before Triton 3.9 an ordinary read waited for all copies, and of a relaxed one nobody saw to it that it is in time.
    """
    whole = write_step(get_step("direct_to_lds"), big(causal=False))
    unsaid = edited(whole, ("        gl.barrier()\n", ""))
    slots = ("keys.index(stage).permute((1, 0))", "values.index(stage)")
    reads = [(f"async_copy.load_shared_relaxed({slot}, RIGHT)", f"{slot}.load(RIGHT)") for slot in slots]
    ordinary = edited(unsaid, *reads)
    loops = [[one.text for one in step.compile(step.written_for).hot_body] for step in (whole, unsaid, ordinary)]
    assert loops[0] == loops[1] == loops[2] and loops[0].count("s_barrier") == 2
    assert waits(whole) == [8]  # of 16 copies that a lane has under way


def waits(step) -> list[int]:
    """In the hot loop: until all copies but so many have come."""
    body = step.compile(step.written_for).hot_body
    return [int(found[1]) for i in body if (found := re.search(r"vmcnt\((\d+)\)", i.text))]


def test_the_compiler_brings_the_next_tile_ahead():
    """What the module of plain_triton expects: through registers, or, since Triton 3.9, straight into LDS on gfx950."""
    older, newer = (get_step("plain_triton").compile(big(), arch) for arch in TARGETS)
    a_tile = get_step("mfma").compile(big(), "gfx950").shared_bytes  # of keys and values
    assert older.shared_bytes == a_tile and "ttg.swizzled_shared<{vec = 4, perPhase = 1, maxPhase = 16" in older.tile_ir
    kinds = [one.kind for one in older.hot_body]
    written = next(n for n, one in enumerate(older.hot_body) if one.opcode.startswith("ds_write"))
    assert "direct to LDS" not in kinds and kinds.index("vector memory") < kinds.index("MFMA") < written
    assert newer.hot_loop["direct to LDS"] > newer.hot_loop["vector memory"] == 0
    assert newer.shared_bytes > 2 * a_tile and "ttg.padded_shared<[512:+8]" in newer.tile_ir


def test_gfx950_reads_values_transposed_and_gfx942_has_the_weights_where_it_wants_them():
    older, newer = (get_step("mfma").compile(big(causal=False), arch) for arch in TARGETS)
    assert "ds_read_u16" in older.assembly and "ds_read_b64_tr_b16" not in older.assembly
    assert "ds_read_b64_tr_b16" in newer.assembly and "ds_read_u16" not in newer.assembly
    exchanges = 2  # of the lanes that share a row: for its maximum, and for its sum
    assert older.hot_loop["cross-lane"] == exchanges < newer.hot_loop["cross-lane"]


@pytest.mark.parametrize("head_dim", [32, 64, 128, 256])
def test_swizzled_rows_lie_in_different_banks(head_dim):
    """16 rows that follow each other, and one chunk of each: 16 groups of four banks, of 64."""
    its = get_step("direct_to_lds").transfer.shared(head_dim)
    chunks = head_dim // its.vec
    for chunk in range(chunks):
        places = [row * chunks + (chunk ^ row // its.per_phase % its.max_phase) for row in range(16)]
        assert len({place % 16 for place in places}) == 16


def test_a_swizzle_moves_addresses_between_lanes():
    step = get_step("direct_to_lds")
    flat = dataclasses.replace(step, transfer=dataclasses.replace(step.transfer, swizzle=False))
    moved, still = ("ds_bpermute" in one.compile(big()).assembly for one in (step, flat))
    assert moved and not still


def test_q_scaled_once_saves_arithmetic():
    before, after = (get_step(name).compile(big(causal=False)).hot_loop for name in ("direct_to_lds", "scaled_query"))
    assert after["VALU"] < before["VALU"] and after["transcendental"] == before["transcendental"]


def test_a_vote_costs_moves_between_registers():
    """More than the multiplications that are saved, as its module says."""
    before, after = (get_step(name).compile(big(causal=False)).hot_loop for name in ("direct_to_lds", "vote"))
    saved = before["packed VALU"] - after["packed VALU"]  # Triton 3.9 packs other arithmetic, too, in either step
    assert 0 < saved < after["register move"] - before["register move"]


LATE = re.compile(r"\ts_and_saveexec_b64[^\n]*\n\ts_cbranch_execz[^\n]*\n[^\n]*\n\ts_barrier\n")  # for some waves alone


def test_stages_have_priorities_and_a_wait_between_them_is_no_barrier_more():
    """Before Triton 3.9 such a wait made the compiler drop the stages; inside of one, under a condition, it is one."""
    shape = big(causal=False)
    whole = write_step(get_step("wave_priorities"), shape)
    compiled = whole.compile(shape)
    assert compiled.hot_loop["priority"] == 3 and compiled.hot_loop["barrier"] == 3
    assert LATE.search(compiled.assembly)  # the second half alone, in front of the loop: it begins one barrier later
    assert not LATE.search(get_step("direct_to_lds").compile(shape).assembly)
    texts = [one.text for one in compiled.hot_body]
    copies = next(n for n, text in enumerate(texts) if "vmcnt" in text)
    assert waits(whole) == [4] and texts[copies + 1] == "s_barrier"  # first the wait, so that the others know of it
    between = "        async_copy.wait_group(AHEAD - 1)\n        with"
    hidden = "            if j >= 0:\n                async_copy.wait_group(AHEAD - 1)\n        with"
    assert edited(whole, (between, hidden)).compile(shape).hot_loop["barrier"] == 4
    with pytest.raises(CompilerError):
        edited(whole, (between, hidden.replace("if j >= 0:", "if True:"))).compile(shape)


# --- which blocks, and which kernel ---


def test_heads_first_is_another_order_of_the_same_blocks():
    shape = problem(seq_len_q=600, heads=6, kv_heads=2)
    before, after = get_step("wave_priorities"), get_step("xcd_swizzle")
    assert before.blocks(shape, before.variant(shape)) == (3, 6, 2) and after.blocks(shape, after.variant(shape)) == (
        6,
        3,
        2,
    )
    inputs = FORWARD.inputs(shape, 0)
    assert torch.equal(after.attention(*inputs, True), before.attention(*inputs, True))


@pytest.mark.parametrize(
    ("shape", "arch", "like"),
    [
        (big(), "gfx950", "xcd_swizzle"),
        (big(), "gfx942", "mfma"),
        (big(64), "gfx950", "direct_to_lds"),
        (problem(head_dim=128, seq_len_q=512, seq_len_kv=768), "gfx950", "xcd_swizzle"),
        (problem(head_dim=128, seq_len_q=512, seq_len_kv=800), "gfx950", "direct_to_lds"),
        (problem(head_dim=128, seq_len_q=256, seq_len_kv=512), "cpu", "direct_to_lds"),
    ],
)
def test_the_last_step_chooses_by_shape(shape, arch, like):
    """The kernel is that of an earlier step, but for the order of the blocks."""
    chosen_one, wanted = get_step("by_shape").variant(shape, arch), get_step(like).variant(shape, arch)
    assert chosen_one == dataclasses.replace(wanted, numbering=HEADS_FIRST)


# --- votes ---


def votes(q, k, v):
    """How often a wave's block of the output was rescaled, and how often it was left."""
    with watched() as watch:
        get_step("vote").attention(q, k, v)
    counts = sum((run.counts for run in watch.runs), start=Counter())
    return counts["rescaled"], counts["left as it was"]


def test_ordinary_keys_leave_the_output_as_it_is_and_growing_ones_do_not():
    q, k, v = FORWARD.inputs(problem(batch=1, heads=1, seq_len_q=128, seq_len_kv=512, causal=False), 0)
    blocks = 4 * 2  # waves, and blocks of 32 columns
    assert votes(q, k, v) == (blocks, 7 * blocks)  # the first of eight tiles begins from nothing
    growing = torch.arange(8).repeat_interleave(64)[:, None] * torch.ones(64)
    assert votes(torch.ones_like(q), growing[None, None].half(), v) == (8 * blocks, 0)


def test_a_vote_is_of_a_wave():
    """The queries of one wave alone see growing scores: it rescales, and the other three do not."""
    shape = problem(batch=1, heads=1, seq_len_q=128, seq_len_kv=128, causal=False)
    q, k, v = (torch.zeros_like(x) for x in FORWARD.inputs(shape, 0))
    q[:, :, 32:64], k[:, :, 64:] = 1.0, 2.0
    assert votes(q, k, v) == (4 * 2 + 2, 3 * 2)


@pytest.mark.parametrize("scale", [0.25, -0.25, 0.26, 4.0])
def test_q_is_scaled_only_where_one_more_rounding_does_no_harm(scale):
    shape = problem(seq_len_q=70, seq_len_kv=300, causal=False, scale=scale)
    assert get_step("scaled_query").variant(shape).scaling == (
        SCALE_QUERY if abs(scale) <= 2 / 64**0.5 else SCALE_SCORES
    )
    assert_right(get_step("scaled_query"), shape)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["direct_to_lds", "vote", "wave_priorities", "xcd_swizzle", "by_shape"])
def test_large_inputs_lose_no_digits(name, dtype):
    """Ten times as large as usual: a query sees few keys, and Q rounded once more would be seen."""
    shape = problem(batch=1, heads=1, seq_len_q=70, seq_len_kv=130, causal=False, dtype=dtype)
    given = [10 * x for x in FORWARD.inputs(shape, 0)]
    exact = attention_float64(*given)
    found = compare(get_step(name).attention(*given), exact, sdpa_error(given, exact, False, None))
    assert found.correct, found.explain()


@pytest.mark.parametrize("scale", [0.01, 0.125, 1.0, 4.0])
def test_a_maximum_that_stays_behind_is_still_right(scale):
    """Small scores, of which no maximum moves far, and large ones, with weights up to 2^8."""
    assert_right(get_step("vote"), problem(seq_len_q=70, seq_len_kv=300, causal=False, scale=scale))


# --- where such a GPU is ---


def test_what_programs_call_is_pytorchs_own_there():
    """Nothing is recorded on these GPUs, so nothing is known to be faster."""
    assert chosen(big(), "gfx950").name == "sdpa"


def test_a_kernel_for_amd_is_left_to_tritons_launcher():
    """Ours packs parameters for NVIDIA's driver, from PTX, which there is none of."""
    import triton

    step = get_step("mfma")
    given = passed(step, step.variant(big()))
    source, how = triton_source(step.kernel(big()), given, 4, "gfx950")
    with pytest.raises(LookupError):
        driver.Parameters(triton.compile(source, **how), given)


def test_an_older_triton_is_refused_in_one_sentence(monkeypatch):
    """Between whose stages no wait may stand; to the simulator all are the same."""
    monkeypatch.setattr("steps.cdna.skeleton.triton_is_new", lambda: False)
    for name in ("plain_triton", "mfma", "wave_priorities"):
        assert "needs Triton 3.9" in get_step(name).unsupported(standard(), "gfx950")
        assert get_step(name).unsupported(standard(), "cpu") is None


def test_no_record_of_another_maker_names_a_best_step():
    from steps import Unsupported, best

    for direction in ("forward", "backward"):
        with pytest.raises(Unsupported, match="no recorded step takes"):
            best(standard(), "gfx950", direction=direction)
