"""What samples come to: medians over rounds, as results.json holds them. A sample is ``timing.Sample`` as a dict."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from tutorial_lib.results import Latency, Sustained


def median_of(values: Iterable[float]) -> float | None:
    """The median, or None where there is nothing."""
    found = list(values)
    return statistics.median(found) if found else None


def ghz_of(samples: Iterable[dict]) -> float | None:
    """The median of the clocks that were read."""
    return median_of(sample["clock"]["ghz"] for sample in samples if sample["clock"])


def cycles_of(samples: Iterable[dict]) -> float | None:
    """Cycles of an SM that a call takes, the median: of each sample the time, at the clock of that very sample."""
    return median_of(sample["milliseconds"] * 1e6 * sample["clock"]["ghz"] for sample in samples if sample["clock"])


def sustained_of(samples: Sequence[dict], operations: float) -> Sustained:
    """What a load that went on showed. operations: of a call."""
    latency = Latency.of([sample["milliseconds"] for sample in samples])
    spent = [sample for sample in samples if sample["joules"] is not None]
    return Sustained(
        latency_ms=latency,
        tflops=operations / latency.median / 1e9,
        clock_ghz=ghz_of(samples),
        cycles=cycles_of(samples),
        joules=median_of(sample["joules"] for sample in spent),
        watts=median_of(1000 * sample["joules"] / sample["milliseconds"] for sample in spent),
    )
