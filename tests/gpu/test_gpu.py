"""What only a GPU can show: every step's numbers on it, timing, and faults that do not spread."""

import dataclasses
import secrets
import shutil
import time

import pytest

from steps import STEPS, get_step
from steps.core.ladder import kernels_of
from steps.measuring.measure import Settings, measure
from steps.reference.peers import PEERS
from tests import faulty
from tests.checking import assert_right, skip_unless_taken
from tests.core.test_steps import CUTILE, GLUON, HOPPER, LATE, right_where_scores_are_finite
from tests.shapes import PADDED, SHAPES, problem
from tutorial_lib.counters import METRICS
from tutorial_lib.passes import FORWARD
from tutorial_lib.problem import Problem

pytestmark = pytest.mark.gpu

LONG = [
    Problem(batch=1, heads=4, seq_len_q=4096, seq_len_kv=4096, head_dim=128, causal=True),
    Problem(batch=1, heads=4, kv_heads=1, seq_len_q=2049, seq_len_kv=4097, head_dim=64, dtype="bfloat16"),
    Problem(batch=1, heads=2, seq_len_q=16384, seq_len_kv=16384, head_dim=128),
    # Of launch rules that ask for so many queries, each with a last tile that is not full:
    problem(seq_len_q=2177, seq_len_kv=3001, kv_heads=2, head_dim=128, dtype="bfloat16"),
    problem(seq_len_q=1300, seq_len_kv=1000),
]


@pytest.mark.parametrize("shape", SHAPES + LONG, ids=lambda p: p.slug)
@pytest.mark.parametrize("step", kernels_of("forward"), ids=lambda s: s.name)
def test_step_is_correct_on_the_gpu(step, shape):
    if step.number == 0 and shape.scale is not None and shape.scale <= 0:
        pytest.skip("PyTorch's own kernels are wrong or NaN for a scale that is not above zero")
    assert_right(step, shape, "cuda")


@pytest.mark.parametrize("shape", LATE, ids=lambda p: p.slug)
@pytest.mark.parametrize("step", kernels_of("forward"), ids=lambda s: s.name)
def test_the_first_tiles_of_keys_may_hold_no_finite_score_on_the_gpu(step, shape):
    skip_unless_taken(step, shape)
    right_where_scores_are_finite(step, shape, "cuda")


BETWEEN = [
    *PADDED,
    *(
        problem(head_dim=head_dim, causal=causal, seq_len_q=2049, seq_len_kv=2300)
        for head_dim in (48, 80, 96, 144, 160, 192)
        for causal in (True, False)
    ),
]


@pytest.mark.parametrize("shape", BETWEEN, ids=lambda p: p.slug)
@pytest.mark.parametrize("name", ["static_scheduler", "pv_wait_after_max", "kv_multicast", "split_head_dim"])
def test_heads_between_the_sizes_of_tiles_are_correct(name, shape):
    assert_right(get_step(name), shape, "cuda")


@pytest.mark.parametrize("step", CUTILE + GLUON + HOPPER, ids=lambda s: s.name)
def test_any_strides_will_do_on_the_gpu(step):
    import torch

    q, k, v = FORWARD.inputs(problem(seq_len_q=96, seq_len_kv=96), secrets.randbits(32), "cuda")
    expected = step.attention(q, k, v, True)
    for axes in ((1, 2), (2, 3)):
        strided = [x.transpose(*axes).contiguous().transpose(*axes) for x in (q, k, v)]
        torch.testing.assert_close(step.attention(*strided, True), expected)
    offset = [torch.cat([x.flatten()[:3], x.flatten()])[3:].view(x.shape) for x in (q, k, v)]  # not 16-byte aligned
    torch.testing.assert_close(step.attention(*offset, True), expected)


WIDE = [
    problem(head_dim=512, heads=2, kv_heads=1, seq_len_q=70, seq_len_kv=200),
    problem(head_dim=512, causal=False, dtype="bfloat16"),
    problem(head_dim=1024, heads=2, seq_len_q=130, seq_len_kv=77),
    problem(head_dim=1024, batch=1, heads=1, seq_len_q=1, seq_len_kv=300, causal=False),
]


@pytest.mark.parametrize("shape", WIDE, ids=lambda p: p.slug)
@pytest.mark.parametrize("step", [s for s in GLUON if 1024 in s.head_dims], ids=lambda s: s.name)
def test_wide_heads_are_correct(step, shape):
    assert_right(step, shape, "cuda")


@pytest.mark.parametrize("step", HOPPER, ids=lambda s: s.name)
def test_an_output_that_tma_cannot_describe_is_written_all_the_same(step):
    import torch

    q, k, v = FORWARD.inputs(problem(seq_len_q=96, seq_len_kv=96), secrets.randbits(32), "cuda")
    out = torch.full((2, 4, 64, 96), float("nan"), dtype=q.dtype, device="cuda").transpose(2, 3)
    assert step.attention(q, k, v, True, out=out) is out
    torch.testing.assert_close(out, step.attention(q, k, v, True))


# Steps whose warps have roles, whose blocks share tiles, or whose blocks stay.
TOGETHER = [s for s in HOPPER if s.name != "wgmma"] + [s for s in CUTILE if s.cluster or s.order.persistent]


@pytest.mark.parametrize("step", TOGETHER, ids=lambda s: s.name)
def test_the_same_input_gives_the_same_bits(step):
    """Warps with roles run in whatever order they come, and still add in the same order."""
    import torch

    inputs = FORWARD.inputs(
        problem(seq_len_q=1111, seq_len_kv=1111, heads=8, head_dim=128), secrets.randbits(32), "cuda"
    )
    first = step.attention(*inputs, True)
    for _ in range(100):
        assert torch.equal(step.attention(*inputs, True), first)


@pytest.mark.parametrize(
    "step", [s for s in TOGETHER if s.backend == "cutile" or s.order.persistent], ids=lambda s: s.name
)
def test_no_hang_in_many_launches_over_random_shapes(step):
    """Barriers that count wrong hang sooner or later: 10,000 launches, over random shapes."""
    import random

    import torch

    rng = random.Random(secrets.randbits(32))
    ours = step.backend == "hopper"  # where cuTile's compiler makes the barriers, fewer shapes, as each may be compiled
    for _ in range(1000 if ours else 100):
        heads = rng.choice([2, 4]) if ours else 4
        fields = {
            "batch": rng.randint(1, 3) if ours else 2,
            "heads": heads,
            "kv_heads": rng.choice([heads // 2, heads]),
        }
        longest = rng.choice([700, 700, 700, 3000])  # some launch rules ask for 2,048 queries
        lengths = {"seq_len_q": rng.randint(1, longest), "seq_len_kv": rng.randint(1, longest)}
        head_dim = rng.choice([64, 128, 256]) if ours else 128
        shape = problem(**fields, **lengths, head_dim=head_dim, causal=rng.random() < 0.5)
        inputs = FORWARD.inputs(shape, rng.getrandbits(32), "cuda")
        first = step.attention(*inputs, shape.causal)
        for _ in range(9 if ours else 99):
            assert torch.equal(step.attention(*inputs, shape.causal), first), shape.describe()
    torch.cuda.synchronize()


def test_timing_orders_what_is_plainly_ordered():
    settings = Settings(device="cuda", seed=1, rounds=5)
    run, interrupted, _ = measure(
        Problem(batch=2, heads=16, seq_len_q=2048, seq_len_kv=2048, head_dim=128, causal=True),
        [get_step("naive"), get_step("approx_division")],
        [p for p in PEERS if p.name == "sdpa_cudnn"],
        settings,
    )
    assert not interrupted
    baseline, naive, fused = run.steps  # the baseline joins by itself
    assert baseline.name == "sdpa" and baseline.kernels
    assert {m.status for m in run.steps} == {"measured"}
    assert fused.speedup_vs_baseline.median > naive.speedup_vs_baseline.median
    assert naive.latency_ms.low <= naive.latency_ms.median <= naive.latency_ms.high
    assert 0 < fused.percent_of_ceiling < 100
    assert len(run.rounds) == 5 and all(r.sm_clock_mhz for r in run.rounds)
    assert set(run.rounds[0].latency_ms) == {"sdpa", "naive", "approx_division", "sdpa_cudnn", "ceiling"}


@pytest.mark.skipif(shutil.which("ncu") is None, reason="needs ncu, of Nsight Compute")
def test_counters_are_read():
    settings = Settings(device="cuda", seed=1, rounds=2, profile=True)
    run, _, _ = measure(problem(seq_len_q=2048, seq_len_kv=2048, head_dim=128), [STEPS[0], STEPS[7]], [], settings)
    sdpa, fused = run.steps
    assert sdpa.counters is None and set(fused.counters) == set(METRICS)
    assert 0 < fused.counters["tensor_pct"] < 100 and fused.counters["time_us"] > 0


def test_a_fault_costs_nobody_else_a_result():
    bad = [faulty.raises, faulty.wrong, faulty.illegal_address, faulty.faults_later, faulty.hangs_on_gpu]
    began = time.monotonic()
    run, _, _ = measure(
        problem(),
        [STEPS[2], *(faulty.make(f, 90 + n) for n, f in enumerate(bad)), STEPS[7]],
        [],
        Settings(device="cuda", seed=1, rounds=3, timeout=30),
    )
    found = {m.name: m for m in run.steps}
    assert {name for name, m in found.items() if m.status == "measured"} == {"sdpa", "mma", "approx_division"}
    assert {found[f.__name__].status for f in bad} == {"failed"}
    assert "this step raises" in found["raises"].reason
    assert "wrong result" in found["wrong"].reason
    assert "CUDA error" in found["illegal_address"].reason
    assert "CUDA error" in found["faults_later"].reason
    assert "hung: no answer within 30 s" in found["hangs_on_gpu"].reason
    assert len(run.rounds) == 3
    assert time.monotonic() - began < 200


def test_what_does_not_fit_is_skipped_with_the_numbers():
    run, _, _ = measure(
        Problem(batch=4, heads=32, seq_len_q=16384, seq_len_kv=16384, head_dim=64, causal=True),
        [STEPS[0], STEPS[1]],
        [],
        Settings(device="cuda", seed=1, rounds=2, check=False),
    )
    assert run.steps[0].status == "measured"
    assert run.steps[1].status == "skipped"
    assert "GB of scratch memory" in run.steps[1].reason and "are free" in run.steps[1].reason


def test_tile_override_is_honoured():
    from steps.core.tiles import Tile

    step = dataclasses.replace(STEPS[7], tile=Tile(128, 64))
    assert_right(step, problem(seq_len_q=300, seq_len_kv=300), "cuda")


SMALL = problem(heads=4, seq_len_q=256, seq_len_kv=256, head_dim=64)


def test_a_search_times_every_configuration(monkeypatch, tmp_path):
    from steps import search
    from tutorial_lib.records import recorded_searches

    monkeypatch.setattr(search, "TILES", ((64, 64), (128, 64)))
    monkeypatch.setattr(search, "BLOCKS", (2,))
    monkeypatch.setattr(search, "problems", lambda *_: [SMALL])
    assert search.main(["--output-dir", str(tmp_path)]) == 0
    [recorded] = recorded_searches(tmp_path)
    [searched] = recorded.searched
    assert len(searched.found) + len(searched.failed) == 6
    assert searched.found[0].microseconds > 0 and searched.the_problem() == SMALL
    assert searched.step == "approx_division" and searched.date


def test_a_trial_is_measured_and_kept(monkeypatch, tmp_path):
    from steps import trials
    from steps.trials import __main__ as command

    trial = dataclasses.replace(trials.get_trial("lazy"), problems=(SMALL,), values=(0, 8))
    monkeypatch.setattr(command, "all_trials", lambda: {"lazy": trial})
    assert command.main(["--iterations", "2", "--output-dir", str(tmp_path)]) == 0
    [run] = trials.recorded_trial(trial, tmp_path)
    assert [m.status for m in run.steps] == ["measured"] * 3
    assert all(m.correct for m in run.steps)
