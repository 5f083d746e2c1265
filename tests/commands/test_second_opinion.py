"""``python -m steps.second_opinion``: steps timed by our rule and by another."""

import pytest

from steps import second_opinion
from tutorial_lib.records import recorded_opinions

MACHINE = {"name": "A GPU", "slug": "gpu", "arch": "sm_90"}


@pytest.fixture
def faked(monkeypatch):
    """A GPU on which every step takes 2 ms after a rest, 2.5 ms going on, and 3 ms by the other way."""
    prepared = []

    class Bench:
        def __init__(self, problem, direction, device, seed, check):
            self.problem, self.calls = problem, {}

        def prepare(self, step):
            prepared.append((self.problem.slug, step.name))
            self.calls[step.name] = lambda i: None

        def sample(self, name, sustained):
            return {"milliseconds": 2.5 if sustained else 2.0}

    monkeypatch.setattr("tutorial_lib.hardware.has_gpu", lambda: True)
    monkeypatch.setattr("tutorial_lib.hardware.describe_machine", lambda device: MACHINE)
    monkeypatch.setattr("steps.measuring.bench.Bench", Bench)
    monkeypatch.setattr("triton.testing.do_bench_cudagraph", lambda call, return_mode: call() or 3.0)
    return prepared


def test_it_is_recorded_and_shown(faked, tmp_path, capsys, monkeypatch):
    asked = ["--steps", "mma,epilogue_overlap", "--iterations", "2", "--output-dir", str(tmp_path)]
    assert second_opinion.main(asked) == 0
    assert len(faked) == 6 and {name for _, name in faked} == {"mma", "epilogue_overlap"}
    [record] = recorded_opinions(tmp_path)
    assert [len(one.rounds) for one in record.timed] == [2, 2, 2]
    said = " ".join(capsys.readouterr().out.split())
    assert "2 (2–2) 2.5 (2.5–2.5) 3 (3–3) 1.50 1.20" in said and "Written: " in said
    monkeypatch.setattr("tutorial_lib.hardware.has_gpu", lambda: False)
    assert second_opinion.main(["--output-dir", str(tmp_path)]) == 0
    assert "There is no GPU here. Recorded:" in capsys.readouterr().out


def test_steps_that_do_not_fit_are_refused(faked, tmp_path, capsys):
    for steps, told in (("warp", "no step warp"), ("tensor_memory", "made of tcgen05")):
        assert second_opinion.main(["--steps", steps, "--output-dir", str(tmp_path)]) == 2
        said = capsys.readouterr().err
        assert said.startswith("steps.second_opinion: argument --steps: ") and told in said and said.count("\n") == 1
    assert not list(tmp_path.iterdir())
