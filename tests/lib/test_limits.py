"""The model of the limit on cases worked out by hand, and the counters beside it."""

import dataclasses

import pytest

from steps import get_step
from steps.core.problems import HEADLINE
from steps.layouts import DRAWN
from tests.results.recorded import recorded
from tutorial_lib import limits
from tutorial_lib.architectures import ARCHITECTURES, Gpu
from tutorial_lib.counters import METRICS, CountersError, parse, read_counters, together
from tutorial_lib.files import RESULTS
from tutorial_lib.limits import UnknownRates, explain, floor, limit
from tutorial_lib.passes import FORWARD
from tutorial_lib.problem import Problem
from tutorial_lib.records import recorded_physics
from tutorial_lib.sass import ALL_KINDS

# One SM at 1 Hz, so that seconds are clocks, and a byte a second.
TOY = Gpu("toy", "sm_90", 1, 1.0, 1.0)
RICH = dataclasses.replace(TOY, bandwidth=1e12)

FULL = Problem(batch=1, heads=1, seq_len_q=64, seq_len_kv=128, head_dim=128)


def resources(**changes) -> dict:
    hot = dict.fromkeys(ALL_KINDS, 0.0) | {"MUFU": 66.0, "FP32": 272.0}
    made = {"hot_loop": hot, "issued_per_tile": 1776.0, "blocks_per_sm": 2, "kv_tiles": 1, "scores_per_tile": 64 * 128}
    return made | changes


def test_floor_by_hand():
    found = floor(FULL, TOY)
    assert found.units["tensor cores"] == 4 * 64 * 128 * 128 / 4096 == 1024
    assert found.units["exponentials"] == 64 * 128 / 16 == 512
    assert found.units["memory"] == FORWARD.least_bytes(FULL)
    quick = floor(FULL, Gpu("toy", "sm_90", 2, 1.0, 1e12))
    assert quick.units["tensor cores"] == 512 and quick.seconds == 512 and quick.bound == "tensor cores"


def test_limit_by_hand():
    found = limit(FULL, resources(), RICH)
    assert found.units["tensor cores"] == 1024
    assert found.units["exponentials"] == 66 * 128 / 16 == 528  # 64 a thread for the scores, 2 for the correction
    assert found.units["FP32 pipe"] == 272
    assert found.units["issue slots"] == 1776 / 4
    assert found.overlapped and found.seconds == 1024 and found.bound == "tensor cores"
    alone = limit(FULL, resources(blocks_per_sm=1), RICH)
    assert alone.seconds == 1024 + 528  # one block: its softmax waits for its own matrix product
    assert alone.terms == {"the products": 1024, "the softmax": 528} and found.terms == {"tensor cores": 1024}
    assert "overlap" in alone.advice
    twice = limit(FULL, resources(kv_tiles=10), RICH)
    assert twice.seconds == 10240


def hot(**counts) -> dict:
    """What a kernel is made of, with these instructions in its loop."""
    return {"hot_loop": resources()["hot_loop"] | counts, "compute_threads": 128, "threads": 128}


SMALL = dataclasses.replace(FULL, head_dim=32)
TENSOR = 4 * 64 * 128 * 128  # operations of both products of a tile
MMA_SYNC = TENSOR / (2 * 16 * 8 * 16) / 4  # instructions of one of four warps
UNITS = {  # problem, what the kernel is made of, GPU, unit, clocks of it, what bounds, and what the advice names
    "shared memory": (FULL, {"shared_clocks_per_tile": 3000.0}, RICH, 3000, "shared memory", "bank conflicts"),
    "mma.sync is slower": (FULL, hot(**{"tensor core": MMA_SYNC}), RICH, TENSOR / 2731, "tensor cores", ""),
    "than wgmma": (FULL, hot(**{"tensor core": 16.0}), RICH, TENSOR / 4096, "tensor cores", "the tensor cores bound"),
    "a small head_dim": (SMALL, {}, RICH, 528, "exponentials", "exponentials"),
    "slow memory": (FULL, {}, TOY, FORWARD.least_bytes(FULL), "memory", ""),
    "slow memory, one block": (FULL, {"blocks_per_sm": 1}, TOY, FORWARD.least_bytes(FULL), "memory", ""),
    "packed arithmetic counts twice": (SMALL, hot(**{"packed FP32": 640.0}), RICH, 272 + 2 * 640, "FP32 pipe", ""),
    "issue slots": (SMALL, {"issued_per_tile": 8000.0}, RICH, 2000, "issue slots", "the issue slots bound"),
}


@pytest.mark.parametrize("name", UNITS)
def test_the_unit_that_takes_longest_bounds(name):
    problem, made, gpu, clocks, bound, advice = UNITS[name]
    found = limit(problem, resources(**made), gpu)
    assert found.bound == bound and found.units[bound] == found.seconds == clocks and advice in found.advice
    assert ("shared memory" in found.units) == ("shared_clocks_per_tile" in made)


def test_the_rates_of_the_model_are_what_a_kernel_reaches_that_does_nothing_else():
    for physics in recorded_physics(RESULTS):
        rates = ARCHITECTURES[physics.machine["arch"]]
        assert 0.97 < physics.rate("mma_sync") / rates.mma_sync_flops < 1
        for columns in (64, 128, 256):
            for place in ("ss", "rs"):
                assert 0.99 < physics.rate(f"wgmma_{place}_n{columns}") / rates.tensor_flops <= 1
        assert 0.99 < physics.rate("ex2") / rates.mufu <= 1
        assert 0.9 < physics.rate("fma") / rates.fp32 <= 1


def test_cycles_are_what_a_prediction_is_of_where_the_clock_was_read():
    """The prediction at the measured clock, over the measured time, is a ratio of cycles."""
    run = recorded(machine="nvidia-h200")
    for c in limits.compare(run):
        m, p = c.measurement, run.the_problem()
        cycles = c.limit.seconds * m.clock_ghz * 1e9
        assert c.limit.seconds / c.measured == pytest.approx(cycles / m.cycles, rel=0.02)
        if m.name == "epilogue_overlap":
            tiles = m.resources["kv_tiles"]
            in_cycles = c.limit.units["tensor cores"] * m.clock_ghz * 1e9
            assert in_cycles == pytest.approx(tiles * 4 * 128 * 128 * p.head_dim / 4096 / 132)


def test_wgmma_reads_its_factors_from_shared_memory():
    """128 queries, 128 keys: each warpgroup reads K and V and its queries; TMA writes a tile of K and one of V."""
    assert get_step("epilogue_overlap").shared_clocks(DRAWN) == (2 * (2 * 128 + 64) + 2 * 128) * 128 * 2 / 128
    wide = dataclasses.replace(DRAWN, head_dim=256)
    assert get_step("epilogue_overlap").shared_clocks(wide) == (2 * (2 * 64 + 64) + 2 * 64) * 256 * 2 / 128
    assert get_step("split_epilogue").shared_clocks(wide) == (2 * (2 * 64 + 32) + 2 * 64) * 256 * 2 / 128


def test_what_is_not_known_is_not_guessed():
    assert limit(FULL, resources(hot_loop=None), TOY) is None
    assert limit(FULL, resources(blocks_per_sm=None), TOY) is None
    with pytest.raises(UnknownRates, match="no source states the tensor rate of sm_121"):
        floor(FULL, Gpu("spark", "sm_121", 48, 1.0, 1.0))


def test_a_prediction_that_is_off_is_explained():
    assert explain(1.0, 0.8, None) == "the model explains 80% of it"
    assert "no counters were recorded" in explain(1.0, 0.5, None)
    assert "wrong here" in explain(1.0, 2.0, None)
    counters = {"issue_active_pct": 31.0, "tensor_pct": 64.0}
    assert "31%" in explain(1.0, 0.5, counters) and "latency" not in explain(1.0, 0.5, counters)


def test_recorded_steps_are_compared_with_the_model():
    """The kernels on the H100 at S=4096, causal: each has its least time, which nobody beats.

    Counters are of the code that was timed: a step that has changed since they were read has none.
    """
    run = recorded()
    compared = limits.compare(run)
    assert [c.measurement.number for c in compared] == [m.number for m in run.steps if m.number >= 2]
    counted = [c for c in compared if c.measurement.counters]
    assert len(counted) >= 15
    for c in compared:
        assert c.limit.seconds < c.measured
        assert c.explanation()
    for c in counted:
        found = set(c.measurement.counters)
        assert (
            set(METRICS) - {"shared_pct", "shared_wavefronts", "l2_pct"} <= found <= set(METRICS)
        )  # not all have those
        # What ran at once stays below what the resources allow, and is most of it.
        assert 0.6 < c.measurement.counters["achieved_occupancy_pct"] / c.measurement.resources["occupancy_pct"] < 1.01
        assert c.measurement.counters["time_us"] == pytest.approx(1e6 * c.measured, rel=0.1)


def test_counters_are_read_from_ncu_output():
    header = '"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'
    lines = [
        "==PROF== Connected to process 501",
        header,
        '"0","501","fmha","gpu__time_duration.sum","ns","1,045,536"',
        '"0","501","fmha","lts__t_sector_hit_rate.pct","%","91.47"',
        '"0","501","fmha","something_else","%","1"',
        '"1","501","fmha","gpu__time_duration.sum","ms","2"',
    ]
    first, second = parse("\n".join(lines))
    assert first == {"time_us": pytest.approx(1045.536), "l2_hit_pct": 91.47} and second == {"time_us": 2000}
    with pytest.raises(CountersError, match="read no counters"):
        parse("==PROF== Disconnected")


def test_counters_of_several_kernels_are_those_of_all_their_time():
    short = {"time_us": 100.0, "tensor_pct": 80.0, "dram_read_bytes": 5.0}
    long = {"time_us": 300.0, "tensor_pct": 40.0, "dram_read_bytes": 7.0}
    assert together([short, long]) == {"time_us": 400.0, "tensor_pct": pytest.approx(50.0), "dram_read_bytes": 12.0}
    assert together([short]) == short
    assert together([short, long | {"l2_hit_pct": 1.0}]).keys() == together([long | {"l2_hit_pct": 1.0}, short]).keys()


def test_without_ncu_it_says_so(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(CountersError, match="ncu, Nsight Compute's command, was not found"):
        read_counters(["true"], "fmha", 1.0)


def test_ncu_that_fails_is_one_line(monkeypatch, tmp_path):
    fake = tmp_path / "ncu"
    fake.write_text("#!/bin/sh\necho '==ERROR== no permission'\nexit 1\n", encoding="utf-8")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(CountersError, match="ncu failed: ==ERROR== no permission"):
        read_counters(["true"], "fmha", 10.0)


def test_a_block_begins_and_ends_where_an_sm_holds_no_other():
    rich = Gpu("toy", "sm_90", 2, 1.0, 1e12)
    clocks = ARCHITECTURES["sm_90"].block_clocks
    without = limit(FULL, resources(blocks_per_sm=1), rich)
    alone = limit(FULL, resources(blocks_per_sm=1, blocks=10), rich)
    assert alone.seconds == without.seconds + 5 * clocks and alone.units == without.units
    assert alone.terms == without.terms | {"beginnings and ends of blocks": 5 * clocks}
    assert limit(FULL, resources(blocks=10), rich).seconds == limit(FULL, resources(), rich).seconds
    least = min(1 / physics.rate("block") for physics in recorded_physics(RESULTS))  # of all machines recorded
    assert least == pytest.approx(clocks, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "blocks"),
    [
        *(("exp2", 4 * 32 * 64), ("gluon_larger_tile", 4 * 32 * 32), ("producer", 4 * 32 * 32)),
        *(("pv_wait_after_max", 132), ("folded_lse", 4 * 32 * 64), ("decoupled_warpgroups", 4 * 32 * 32)),
    ],
)
def test_how_many_blocks_a_launch_has_is_known(name, blocks):
    """A block has 64 queries in cuTile, 128 in Gluon, as many keys backward; persistent blocks are as many as SMs."""
    assert get_step(name).compile(HEADLINE, "sm_90").blocks == blocks
