"""The Blackwell steps: in order under random latencies, compiled for their targets, with room for what they need."""

import dataclasses

import pytest
import torch

from steps import get_step
from steps.blackwell import sharing, softmax, taking
from steps.blackwell.skeleton import MOST_COLUMNS, MOST_SHARED
from steps.core.ladder import kernels_of
from steps.core.order import deal
from steps.core.problems import FULL, HEADLINE, standard
from steps.inspect import main as inspect
from steps.simulate import main as simulate
from tests.checking import faults
from tests.distinct import some_of
from tests.selection import sampled
from tests.shapes import problem
from tutorial_lib.compiler import CompilerError
from tutorial_lib.passes import FORWARD
from tutorial_lib.pictures import tensor_memory
from tutorial_lib.simulator.run import watched

BLACKWELL = [step for step in kernels_of("forward") if step.backend == "blackwell"]
SCHEDULES = range(4)
COMPILED = [  # problem, target
    (dataclasses.replace(HEADLINE, seq_len_kv=4001), "sm_100"),
    (dataclasses.replace(FULL, head_dim=64, dtype="bfloat16"), "sm_100"),
    (FULL, "sm_103"),
    (standard(head_dim=256), "sm_103"),
]


SHAPES = [  # with warpgroups that are not full, and one that is empty
    problem(batch=1, heads=2, seq_len_q=300, seq_len_kv=600),
    problem(batch=1, heads=2, kv_heads=1, seq_len_q=90, seq_len_kv=700, head_dim=128, causal=False),
]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda p: p.slug)
@pytest.mark.parametrize("step", BLACKWELL, ids=lambda s: s.name)
def test_no_kernel_has_a_race_a_missing_fence_or_a_deadlock(step, shape, pytestconfig):
    for seed in some_of(SCHEDULES, 1, pytestconfig):
        assert not faults(step, shape, seed)


@sampled(core=lambda step, shape: step is BLACKWELL[-1] or shape == COMPILED[0][0])
@pytest.mark.parametrize(("shape", "arch"), COMPILED, ids=lambda x: getattr(x, "slug", x))
@pytest.mark.parametrize("step", BLACKWELL, ids=lambda s: s.name)
def test_a_step_compiles_for_its_targets_and_there_is_room(step, shape, arch):
    compiled, variant = step.compile(shape, arch), step.variant(shape)
    assert "tcgen05.mma" in compiled.ptx and "wgmma" not in compiled.ptx and f"sm_{arch[3:]}a" in compiled.ptx
    assert compiled.occupancy is None or 1 <= compiled.occupancy[0] <= MOST_COLUMNS // compiled.tensor_columns
    assert compiled.shared_bytes <= MOST_SHARED
    # The hardware gives columns out in powers of two.
    assert variant.tensor_columns <= compiled.tensor_columns <= MOST_COLUMNS
    assert compiled.tensor_columns < 2 * variant.tensor_columns
    # tcgen05.mma takes 16 of head_dim at a time for QK, and 16 keys for PV; of each loop's text there is one.
    assert compiled.hot_loop["tensor core"] == variant.warpgroups * (shape.head_dim + variant.tile.key) / 16
    # A few numbers that roles begin with may be kept in local memory. A loop fetches none of them, or one at 256. With
    # a polynomial, too, one or two: since Triton 3.9, which needs a few registers more there.
    polynomial = variant.exponential is softmax.a_quarter_by_polynomial
    most = 56 if variant.schedule is taking.LAUNCHED else 48 if polynomial else 40 if variant.registers else 0
    assert compiled.spilled_bytes <= most
    assert compiled.hot_loop["spill"] <= (4 if shape.head_dim == 256 else 2 if polynomial else 0)


@pytest.mark.parametrize("step", BLACKWELL, ids=lambda s: s.name)
def test_a_thread_has_a_whole_row_of_scores(step):
    """An exponential a score and row, no shuffle for a maximum; with exp2_emulation a quarter of them are others."""
    compiled, variant = step.compile(FULL), step.variant(FULL)
    polynomial = variant.exponential is softmax.a_quarter_by_polynomial
    row, emulated = variant.tile.key, variant.tile.key // 4 if polynomial else 0
    assert row - emulated < compiled.hot_loop["MUFU"] <= row - emulated + 2
    assert compiled.kinds["tensor memory"] > 0


def test_what_no_block_has_room_for_is_refused(monkeypatch):
    step = get_step("warp_roles")
    for name, told in (("MOST_SHARED", "bytes of shared memory"), ("MOST_COLUMNS", "512 columns of tensor memory")):
        with monkeypatch.context() as less:
            less.setattr(f"steps.blackwell.skeleton.{name}", 100)
            with pytest.raises(CompilerError, match=f"{told}, and a block has 100"):
                step.compile(FULL)


@pytest.mark.parametrize(
    ("name", "holes", "message"),
    [
        ("warp_roles", {"sharing": sharing.COPIES}, "blocks share keys and values where their warps have no roles"),
        ("tensor_memory", {"schedule": taking.LISTS}, "blocks stay where their warps have roles"),
    ],
)
def test_holes_that_do_not_go_together_are_refused(name, holes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(get_step(name), **holes)


def test_blocks_that_run_at_once_take_every_tile_once():
    """Three begin, and compute what the others would have, the longest tiles first."""
    shape = problem(batch=1, heads=2, seq_len_q=900, seq_len_kv=900)
    inputs, step = FORWARD.inputs(shape, 0), get_step("dynamic_scheduler")
    expected = get_step("blackwell_persistent").attention(*inputs, shape.causal)
    tile = step.variant(shape).tile
    blocks, (order, starts) = step.order.blocks(shape, tile, expected.device)
    assert order.tolist() == deal(shape, tile, 1)[0] and starts.tolist() == list(range(blocks + 1))
    for seed in SCHEDULES:
        with watched(seed, at_once=3) as watch:
            out = step.attention(*inputs, shape.causal)
        [run] = watch.runs
        assert torch.equal(out, expected) and not run.found
        assert len(run.clocks) == 3 < blocks == len(order)


# --- rescaling ---


def rescaled(step, q, k, v) -> int:
    """How often a warpgroup's output was rescaled; the output is right."""
    shape = problem(batch=1, heads=1, seq_len_q=q.shape[2], seq_len_kv=k.shape[2], causal=False)
    exact = FORWARD.reference(shape, (q, k, v))
    with watched(trace=True) as watch:
        assert FORWARD.check(step, shape, (q, k, v), exact, FORWARD.yardstick(shape, (q, k, v), exact)).correct
    [run] = watch.runs
    return sum(
        lane.startswith("correct") and label == "store" for _, lane, kind, label, *_ in run.trace if kind == "tmem"
    )


def test_rescaling_happens_when_a_maximum_grows_enough_and_not_else():
    """Keys of the second tile of four are larger than those of the first, by less than the threshold or by more."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, n, 64, generator=generator).half() for n in (256, 512, 512))
    counts = {}
    for growth in (1.0, 8.0):
        larger = k.clone()
        larger[:, :, 128:256] *= growth
        counts[growth] = [rescaled(get_step(name), q, larger, v) for name in ("correction_warpgroup", "lazy_rescaling")]
    warpgroups, tiles = 2, 4
    always = warpgroups * (tiles - 1)
    assert counts == {1.0: [always, 0], 8.0: [always, warpgroups]}


# --- what lies in tensor memory ---


def test_it_is_told_and_drawn_what_lies_in_which_columns():
    """Weights lie where scores were, and outputs behind the scores of both; nobody notes it without a trace."""
    shape = problem(batch=1, heads=1, seq_len_q=256, seq_len_kv=256, head_dim=128, causal=False)
    q, k, v = FORWARD.inputs(shape, 0)
    for trace in (False, True):
        with watched(trace=trace) as watch:
            get_step("correction_warpgroup").attention(q, k, v, causal=False)
        [run] = watch.runs
        assert bool(run.columns) == trace
    touched = {(what, written, first, count) for _, what, written, first, count, *_ in run.columns}
    for warpgroup in (0, 1):
        scores, output = 128 * warpgroup, 256 + 128 * warpgroup
        expected = {("product", True, scores, 128), ("load", False, scores, 128)}
        expected |= {("store of 16 bits", True, scores, 64), ("factor", False, scores, 64)}
        expected |= {("first sum", True, output, 128), ("sum", True, output, 128)}
        expected |= {("load", False, output + n, 64) for n in (0, 64)}
        expected |= {("store of 32 bits", True, output + n, 64) for n in (0, 64)}
        assert expected <= touched
        touched -= expected
    assert not touched
    figure = tensor_memory(run.columns, run.longest, "made up", until=20000)
    [axes] = figure.axes
    held = {patch.get_label() for patch in axes.get_legend().get_patches()}
    assert {"scores", "weights", "output"} < held and axes.get_ylim() == (512, 0)
    assert len(axes.patches) > len(run.columns)


# --- the commands ---


def test_the_simulator_draws_a_timeline_and_the_lens_tells_tensor_memory(capsys, tmp_path):
    path = tmp_path / "timeline.png"
    assert simulate(["lazy_rescaling", "--seq-len", "200", "--timeline", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG") and "tmem" in capsys.readouterr().out
    assert simulate(["correction_warpgroup", "--without", "tcgen05_mma(weights"]) == 1
    assert "deadlock: block" in capsys.readouterr().out
    assert inspect(["tensor_memory", "--head-dim", "64"]) == 0
    told = capsys.readouterr().out
    for word in ("sm_100", "tensor memory, columns", "UTCHMMA", "LDTM", "STTM", "UTMALDG"):
        assert word in told
    assert inspect(["tensor_memory", "--arch", "sm_120"]) == 2
    assert "not for sm_120" in capsys.readouterr().err
