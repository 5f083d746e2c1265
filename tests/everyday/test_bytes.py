"""Where bytes decide how long it takes: they are counted, set beside a copy, and read from a cold L2 cache."""

from dataclasses import asdict, replace

import pytest

from steps import get_step
from steps.core.problems import DECODING, FULL, HEADLINE, PAGED_DECODING
from steps.measuring import measure
from steps.measuring.bench import COLD_SETS, SETS, input_sets
from tutorial_lib import tables, timing
from tutorial_lib.passes import BACKWARD, FORWARD, PAGED
from tutorial_lib.report import as_markdown
from tutorial_lib.timing import Sample

CACHE = 50 * 2**20


@pytest.mark.parametrize(
    ("kind", "problem", "expected"),
    [
        (FORWARD, DECODING, True),
        (FORWARD, replace(DECODING, seq_len_q=16), True),
        (FORWARD, replace(DECODING, seq_len_q=64), False),  # 512 rows a kv head: products
        (FORWARD, replace(DECODING, seq_len_q=8192), False),
        (PAGED, PAGED_DECODING, True),
        (FORWARD, HEADLINE, False),
        (FORWARD, replace(FULL, seq_len_q=128, seq_len_kv=128), False),  # few operations a byte, and no decoding
        (BACKWARD, HEADLINE, False),
    ],
)
def test_bytes_decide_for_few_queries_against_many_keys(kind, problem, expected):
    assert kind.by_bytes(problem) is expected


@pytest.mark.parametrize("batch", [1, 2, 8])
@pytest.mark.parametrize("seq_len_kv", [8192, 32768, 131072])
def test_sets_of_inputs_that_take_turns_are_larger_than_the_cache(seq_len_kv, batch):
    problem = replace(DECODING, batch=batch, kv_heads=1, heads=8, seq_len_kv=seq_len_kv)
    sets = input_sets(FORWARD, problem, CACHE)
    assert sets * FORWARD.tensor_bytes(problem) >= 4 * CACHE and 1 <= sets <= COLD_SETS


def test_of_other_problems_there_are_as_many_sets_as_before():
    assert input_sets(FORWARD, HEADLINE, CACHE) == 1
    assert (
        input_sets(FORWARD, replace(HEADLINE, batch=1, heads=1, kv_heads=1, seq_len_q=512, seq_len_kv=512), CACHE)
        == SETS
    )


def sample(milliseconds: float) -> dict:
    return asdict(Sample(milliseconds=milliseconds, gpu=None))


@pytest.fixture
def run():
    """A run of a decoding problem as it is summed up, in which a copy takes 0.4 ms and step split_kv 0.5 ms."""
    steps = [get_step(name) for name in ("sdpa", "approx_division", "split_kv")]
    contenders = [measure._Contender(step, status="measured", reason=None, runs=True) for step in steps]
    milliseconds = {"sdpa": 1.0, "approx_division": 2.0, "split_kv": 0.5, timing.CEILING: 0.4}
    rounds = [{name: sample(ms) for name, ms in milliseconds.items()} for _ in range(3)]
    settings = measure.Settings(device="cpu", seed=0, rounds=3)
    return measure._summarise(DECODING, contenders, settings, rounds, [], [])


def test_speed_is_told_in_bytes_a_second_and_as_a_share_of_the_copys(run):
    moved = 2 * 8 * 8 * 32768 * 128 * 2 + 2 * 8 * 64 * 128 * 2
    found = run.measurement("split_kv")
    assert found.gigabytes_per_s == pytest.approx(moved / 0.5e-3 / 1e9)
    assert run.ceiling.gigabytes_per_s == pytest.approx(2**30 / 0.4e-3 / 1e9) and run.ceiling.tflops is None
    assert found.percent_of_ceiling == pytest.approx(100 * found.gigabytes_per_s / run.ceiling.gigabytes_per_s)
    assert found.speedup_vs_previous.median == 4


def test_tables_and_reports_tell_it(run):
    names = [header for header, _ in tables.columns(run)]
    assert names.index("GB/s") == names.index("TFLOPS") + 1
    text = as_markdown(run)
    assert "The ceiling: copy in device memory, 1 GiB read and written together, 2684 GB/s (2684–2684)" in text
    rows = [[cell.strip() for cell in line.split("|")] for line in text.splitlines() if line.startswith("|")]
    columns = next(row for row in rows if "GB/s" in row)
    [told] = [row for row in rows if len(row) == len(columns) and row[columns.index("GB/s")] == "2,148"]
    assert told[columns.index("of ceiling")] == "80 %"
