"""What the compiler makes of the cuTile steps, as chapters tell it: hints, overlap, shared memory, clusters."""

import dataclasses

import cuda.tile as ct
import pytest
from cuda.tile.compilation import CallingConvention, KernelSignature, TupleConstraint

from steps import get_step
from steps.core.problems import FULL
from steps.core.problems import HEADLINE as EVEN
from steps.cutile.skeleton import array, signature
from steps.cutile.variant import Latency, MaskLoop
from tests.core.test_one_change import CUTILE
from tests.expected import same_compilers
from tests.selection import sampled
from tutorial_lib import compiler, sass
from tutorial_lib.compiler import CUTILE_ARCHITECTURES

pytestmark = same_compilers


def test_which_step_lets_products_run_under_exponentials_of_its_own_tile():
    """In halves the first PV products begin before the last exponentials, mask or not; else all of them behind."""
    for causal in (False, True):
        shape = dataclasses.replace(EVEN, causal=causal)
        before, halves = (get_step(name).compile(shape).hot_order for name in ("autotuned", "intra_tile_overlap"))
        assert [what for what, _ in before] == ["wait", "HGMMA", "wait", "FMNMX", "EX2", "HGMMA", "wait"]
        work = [what for what, _ in halves if what in ("HGMMA", "EX2")]
        assert work[:2] == ["HGMMA", "EX2"] and work[2:].count("EX2") >= 1 and work[-1] == "HGMMA"


@pytest.mark.parametrize(
    ("name", "head_dim", "causal", "overlaps"),
    [
        ("approx_division", 64, False, True),
        ("larger_tile", 128, False, False),
        ("persistent", 128, False, True),
        ("persistent", 128, True, False),
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
    """The output of step persistent leaves through Q's place, but where it has one already, or room for a part."""
    shape = dataclasses.replace(EVEN, head_dim=head_dim, causal=causal)
    shared, apart = (get_step(name).compile(shape) for name in ("mask_loop", "output_buffer"))
    output = get_step("output_buffer").variant(shape, "sm_90").tile.query * head_dim * 2  # bytes
    assert apart.shared_bytes - shared.shared_bytes == pytest.approx(share * output, abs=0.01 * output)  # but barriers
    assert apart.spill_instructions == shared.spill_instructions == 0


def test_an_output_apart_leaves_the_hot_loop_alone():
    """Step output_buffer, of head_dim 128 without a mask."""
    full = dataclasses.replace(EVEN, head_dim=128, causal=False)
    assert get_step("output_buffer").compile(full).hot_order == get_step("mask_loop").compile(full).hot_order


@pytest.mark.parametrize(
    "shape",
    [{}, {"seq_len_q": 1024, "seq_len_kv": 1024}, {"seq_len_kv": 4095, "causal": False}, {"dtype": "bfloat16"}],
    ids=str,
)
def test_hints_bring_the_overlap_back_under_a_mask(shape):
    """Step mask_loop: with the loop for the mask, and the hints, and not without them."""
    shape = dataclasses.replace(EVEN, **({"head_dim": 128, "causal": True} | shape))
    overlapped = get_step("mask_loop")
    without_hints = dataclasses.replace(
        overlapped, mask_loop=MaskLoop(overlapped.for_problem(shape).mask_loop.key, Latency())
    )

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
        ("output_buffer", dataclasses.replace(EVEN, head_dim=128, causal=True)),
        ("static_scheduler", dataclasses.replace(EVEN, head_dim=128, causal=True)),
        ("static_scheduler", dataclasses.replace(EVEN, head_dim=64, causal=True)),
    ]:
        step = get_step(name)
        before, now = (sass.without_addresses(one.compile(shape).sass) for one in (step.previous, step))
        assert before == now, (name, shape)


OTHERS = ("sm_80", "sm_100", "sm_121")  # of which each step is compiled for one, as all take long


@sampled(core=lambda step, arch: arch == "sm_90")
@pytest.mark.parametrize(
    ("step", "arch"),
    [
        (step, arch)
        for n, step in enumerate(CUTILE)
        for arch in ("sm_90", OTHERS[n % 3])
        if not step.unsupported(EVEN, arch)
    ],
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


def test_the_compiler_explains_itself():
    compiled = get_step("mma").compile(EVEN)
    assert compiled.remarks and "MMA" in " ".join(remark.text for remark in compiled.remarks)
    assert "entry @fmha" in compiled.tile_ir and compiled.ptx is None


def test_a_cluster_fetches_for_both_its_blocks():
    alone, together = (get_step(name).compile(EVEN) for name in ("approx_division", "cluster"))
    assert ".MULTICAST" in together.sass and ".MULTICAST" not in alone.sass
    assert together.scores_per_tile == alone.scores_per_tile  # a block has half of a tile of twice the queries
    assert together.spill_instructions == 0


def test_eight_warps_hold_what_spills_in_four():
    trap, rescue = (get_step(name).compile(EVEN) for name in ("larger_tile_four_warps", "larger_tile"))
    assert trap.spill_instructions > 0 == rescue.spill_instructions
    assert (trap.compute_threads, rescue.compute_threads) == (128, 256)


@pytest.mark.parametrize("arch", sorted(set(CUTILE_ARCHITECTURES) - {"sm_80", "sm_90", "sm_100", "sm_121"})[::2])
def test_every_architecture_is_accepted(arch):
    compiled = get_step("persistent").compile(EVEN, arch)
    assert compiled.registers > 0
    assert compiled.instructions or arch == "sm_107"  # which Triton's disassembler does not know


def test_loading_transposed_changes_nothing():
    """Up to Hopper exp2 and load_order are the same instructions; mma is not, and what exp2 saves shows in FP32."""
    for arch in ("sm_90", "sm_80", "sm_121"):
        mma, exp2, load_order = (get_step(name).compile(EVEN, arch) for name in ("mma", "exp2", "load_order"))
        assert load_order.same_code(exp2) == (arch != "sm_121")  # as the chapter says
        assert not exp2.same_code(mma)
        assert exp2.hot_loop["FP32"] < 0.5 * mma.hot_loop["FP32"]


@pytest.mark.parametrize("name", ["mma", "exp2"])  # in base e, in base 2
def test_a_kernel_that_stores_the_log_sum_exp_compiles(name):
    step = get_step(name)
    function = step.kernel_function(dataclasses.replace(step.variant(FULL, "sm_90"), lse=True))
    q, k, v, o, scale = signature(FULL).parameters
    lse = array((FULL.batch, FULL.heads, FULL.seq_len_q), ct.float32)
    parameters = [q, k, v, TupleConstraint((o, lse)), scale]
    compiled = compiler.compile_cutile(
        step.compiled_when_launched(function),
        KernelSignature(parameters, CallingConvention.cutile_python_v2(), symbol="fmha"),
        "sm_90",
        step.variant(FULL, "sm_90").tile.scores,
    )
    assert compiled.code != step.compile(FULL).code
