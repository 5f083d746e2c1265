"""What samples come to, by hand."""

import pytest

from tutorial_lib.samples import cycles_of, ghz_of, latency_of, median_of, sustained_of


def sample(milliseconds: float, ghz: float | None = None, joules: float | None = None) -> dict:
    return {"milliseconds": milliseconds, "clock": ghz and {"ghz": ghz}, "joules": joules}


def test_cycles_are_taken_inside_each_sample():
    """A clock that falls while the time grows: the cycles are the same in every round."""
    samples = [sample(1.0, 2.0), sample(2.0, 1.0), sample(1.25, 1.6)]
    assert cycles_of(samples) == 2e6 and ghz_of(samples) == 1.6


def test_what_was_not_read_is_not_counted():
    assert cycles_of([sample(1.0)]) is None and ghz_of([sample(1.0)]) is None and median_of([]) is None
    assert cycles_of([sample(1.0), sample(2.0, 1.5)]) == 3e6
    found = sustained_of([sample(2.0)], 1e12)
    assert (found.clock_ghz, found.cycles, found.joules, found.watts) == (None, None, None, None)


def test_a_load_that_goes_on():
    found = sustained_of([sample(2.0, 1.5, 1.4), sample(2.0, 1.4, 1.2), sample(2.2, 1.3, 1.6)], 1e12)
    assert (found.latency_ms.median, found.latency_ms.rounds) == (2.0, 3)
    assert found.tflops == 500 and found.clock_ghz == 1.4 and found.joules == 1.4
    assert found.watts == pytest.approx(700)
    assert latency_of([1.0, 3.0]).low == pytest.approx(1.2)
