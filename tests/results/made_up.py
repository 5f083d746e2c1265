"""Small runs made up for tests: every step's latency in every round is given, and all else follows from it."""

import dataclasses

from steps.core.problems import HEADLINE
from tutorial_lib import timing
from tutorial_lib.problem import Problem
from tutorial_lib.results import Latency, Measurement, Round, Run

NOISE = (1.0, 1.001, 0.999)  # factors on latencies, which every step meets in another round


def measurement(name: str, number: int | None, **fields) -> Measurement:
    made = {"title": name.title(), "status": "skipped", "change": f"{name} changes this.", "key_changes": [], **fields}
    return Measurement(name=name, number=number, **made)


def run_of(
    milliseconds: dict[str, float],
    code: dict[str, str] | None = None,
    problem: Problem = HEADLINE,
    peers: tuple[str, ...] = (),
    **fields,
) -> Run:
    """A run of steps numbered from 0 in their order, each following the one before; fields: of all measurements."""
    rounds = [
        Round(latency_ms={name: ms * NOISE[(i + j) % len(NOISE)] for j, (name, ms) in enumerate(milliseconds.items())})
        for i in range(len(NOISE))
    ]
    base = Run(
        date="2026-01-02T03:04:05+00:00",
        machine={"name": "A GPU", "slug": "a-gpu", "arch": "sm_90"},
        versions={"torch": "2"},
        settings={"device": "cuda"},
        problem=problem.as_dict(),
        steps=[],
        rounds=rounds,
    )

    def timed(name: str, number: int | None, previous: Measurement | None) -> Measurement:
        spread = timing.spread(base.latencies(name))
        m = measurement(
            name,
            number,
            **{
                "status": "measured",
                "correct": True,
                "max_error": 1e-3,
                "reference_error": 1e-3,
                "latency_ms": Latency(**dataclasses.asdict(spread), rounds=len(rounds)),
                "tflops": 1000 / spread.median,
                "resources": {"code": code[name]} if code and name in code else None,
                "previous": previous and previous.name,
                "previous_number": previous and previous.number,
                **fields,
            },
        )
        compared = {"speedup_vs_baseline": base.speedup(m, measurement(next(iter(milliseconds)), 0))}
        compared["speedup_vs_previous"] = previous and base.speedup(m, previous)
        return m.model_copy(update=compared)

    steps: list[Measurement] = []
    for number, name in enumerate(name for name in milliseconds if name not in peers):
        steps.append(timed(name, number, steps[-1] if steps else None))
    return base.model_copy(update={"steps": steps, "peers": [timed(name, None, None) for name in peers]})
