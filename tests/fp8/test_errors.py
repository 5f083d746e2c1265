"""Where errors of fp8 come from, as chapter 300 shows it: long rows, outliers, and those of records."""

import math

import pytest

from steps import get_step, summary
from steps.core.recorded import recorded_runs
from steps.fp8 import errors
from tutorial_lib.files import RESULTS
from tutorial_lib.problem import E5M2
from tutorial_lib.quantize import scale_of_blocks, scale_of_heads, scale_of_tensor


@pytest.mark.parametrize("keys", [1000, 16384])
def test_two_levels_lose_little_of_a_long_row_and_the_tensor_cores_alone_much(keys):
    found = errors.of_length(get_step("pv_fp8").default_problem, keys)
    in_float32, in_two_levels, in_tensor_cores = found.kernel
    assert in_two_levels < 1.5 * in_float32 and in_two_levels < found.format
    assert in_tensor_cores > (1.5 if keys < 4096 else 50) * in_float32
    whole, kept, lost = found.needle
    assert abs(whole - 1) < 1e-6 and abs(kept - 1) < 0.005 and lost < (0.99 if keys < 4096 else 0.8)


def mean(times, *how):
    return sum(errors.of_outliers(times, *how, seed=seed) for seed in range(3)) / 3


def test_outliers_cost_less_behind_a_rotation_and_finer_scales_save_little():
    """No way here takes a third of the error with a scale for each head away, but for a rotation at times 10.

    For outliers up to 30 times as large a third of that error is less than the error without outliers.
    """
    usual = mean(1, scale_of_heads)
    for times in (10, 30, 100):
        whole = mean(times, scale_of_heads)
        ways = (scale_of_blocks, False), (scale_of_heads, True), (scale_of_blocks, True)
        assert min(mean(times, *way) for way in ways) > 2 / 3 * whole
        assert (whole / 3 < usual) == (times < 100)
    heads, blocks, tensor = (mean(10, scale_of) for scale_of in (scale_of_heads, scale_of_blocks, scale_of_tensor))
    rotated = mean(10, scale_of_heads, True)
    assert rotated < 0.75 * heads and rotated < 1.15 * usual
    assert rotated < 0.9 * blocks < 0.9 * heads < tensor


def test_e5m2_costs_twice_as_much_as_e4m3():
    for times in (1, 10):
        assert 1.7 < mean(times, scale_of_heads, False, E5M2) / mean(times, scale_of_heads) < 2.3


def test_records_are_set_beside_the_peer(monkeypatch):
    """In the geometric mean; who has no record of the peer says so."""
    runs = [run for run in recorded_runs(RESULTS, "fp8") if run.measurement("flash_attn_3")]
    monkeypatch.setattr(summary, "recorded_grid", lambda _: runs)
    ratios = [run.speedup(run.by_speed()[0], run.measurement("flash_attn_3")).median for run in runs]
    told, shown = summary.beside("flash_attn_3", "fp8").parts
    assert (
        f"Of 30 problems {len(runs)} have been recorded." in told
        and f"{math.prod(ratios) ** (1 / len(ratios)):.2f} times" in told
        and all(f" at head_dim {n}" in told for n in (64, 128, 256))
    )
    assert f"{ratios[0]:.2f}× {runs[0].by_speed()[0].label.split()[0]} |" in shown
    [nothing] = summary.beside("flash_attn_9", "fp8").parts
    assert nothing == "No record of this grid holds flash_attn_9."


def test_what_transposing_moves_is_told_as_a_share(monkeypatch):
    [run, *_] = [run for run in recorded_runs(RESULTS, "fp8") if run.by_speed()[0].name == "p_offset"]
    monkeypatch.setattr(summary, "recorded_grid", lambda _: [run])
    shape, seconds = run.the_problem(), run.by_speed()[0].latency_ms.median / 1000
    read_and_written = 2 * shape.batch * shape.heads * shape.seq_len_kv * shape.head_dim
    [shown] = summary.transposing("fp8", 2 * read_and_written / seconds).parts
    assert "| 50% |" in shown


def test_in_records_no_error_is_above_the_peers():
    compared = 0
    for run in recorded_runs(RESULTS, "fp8"):
        peer = run.measurement("flash_attn_3")
        for name in ("p_offset", "two_level_accumulation"):
            if peer and peer.max_error and (m := run.measurement(name)):
                assert m.max_error <= 1.02 * peer.max_error, (run.the_problem().slug, name)
                compared += 1
    assert compared
