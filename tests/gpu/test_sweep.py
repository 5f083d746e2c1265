"""On a GPU: a sweep of two small problems, of every pass, beside whoever is installed."""

import pytest

from steps import sweep
from steps.core.recorded import recorded_sweeps
from steps.measuring.drawing import TIMED, Drawn
from tests.shapes import problem
from tutorial_lib.records import FRONT_DOOR

pytestmark = pytest.mark.gpu
DRAWN = [
    Drawn(problem(kv_heads=2, seq_len_q=512, seq_len_kv=512, head_dim=128, dtype="bfloat16"), "training", "one"),
    Drawn(problem(batch=4, heads=12, seq_len_q=197, seq_len_kv=197, causal=False), "vision", "other"),
]


@pytest.mark.parametrize("timed", TIMED)
def test_two_problems_are_swept(timed, tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "problems", lambda seed, count, asked: DRAWN[:count])
    assert sweep.main(["--pass", timed, "--count", "2", "--iterations", "1", "--output-dir", str(tmp_path)]) == 0
    [record] = recorded_sweeps(tmp_path)
    assert [row.the_problem() for row in record.rows] == [one.problem for one in DRAWN]
    for row in record.rows:
        assert row.timed and row.correct, row.failure
        assert {FRONT_DOOR, "sdpa", "sdpa_flash"} <= set(row.milliseconds), row.skipped
        assert all(0 < ms < 10 for times in row.milliseconds.values() for ms in times)
        assert bool(row.host_us) == (timed != "training")
