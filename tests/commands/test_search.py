"""The search: what is recorded is what chapters show, and bad requests get one line."""

import dataclasses
import json
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from steps import search, summary
from steps.core.problems import standard
from steps.core.recorded import recorded_search
from steps.core.rules import rule_for
from tests.selection import sampled
from tutorial_lib.display import Page
from tutorial_lib.files import RESULTS
from tutorial_lib.passes import PASSES
from tutorial_lib.records import Found, Searched, recorded_searches

RECORDED = recorded_searches(RESULTS)
OF_GRADIENTS = recorded_searches(RESULTS, "backward")


def text_of(page: Page) -> str:
    return "\n".join(part for part in page.parts if isinstance(part, str))


def test_the_space_holds_every_combination_once():
    found = search.AttentionKernel().space()
    assert len(set(found)) == len(found)
    assert {(c.query, c.key) for c in found} == set(search.TILES)
    assert {(c.warps, c.cluster) for c in found} == set(search.TOGETHER)


@pytest.mark.parametrize("recorded", [*RECORDED, *OF_GRADIENTS], ids=lambda s: f"{s.machine['slug']}-{s.day}")
def test_a_recorded_search_is_of_the_whole_space_in_order(recorded):
    kernels = {kernel.name: kernel for kernel in search.SEARCHED}
    for searched in recorded.searched:
        kernel = kernels[searched.kernel]
        times = [found.microseconds for found in searched.found]
        assert times == sorted(times)
        asked = {found.configuration.label for found in searched.found} | set(searched.failed)
        assert asked == {c.label for c in kernel.space()}
        operations = PASSES[kernel.direction].operations(searched.the_problem())
        for found in searched.found:
            assert found.tflops == pytest.approx(operations / found.microseconds / 1e6)


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda s: s.machine["slug"])
def test_the_tiles_of_the_first_steps_are_the_best_of_their_kind(recorded):
    """Four warps, no cluster, step occupancy's two blocks an SM: no other tile is more than 1 % faster."""
    for searched in recorded.searched:
        kind = [
            found
            for found in searched.found
            if (found.configuration.warps, found.configuration.cluster, found.configuration.occupancy)
            == (None, None, 2)
        ]
        used = rule_for("attention", searched.the_problem(), recorded.machine["arch"]).choice.tile
        [ours] = [f for f in kind if (f.configuration.query, f.configuration.key) == (used.query, used.key)]
        assert ours.microseconds <= 1.01 * kind[0].microseconds


def test_where_nothing_was_searched_it_says_how_to():
    assert recorded_search("sm_80") is None
    assert "No search is recorded" in text_of(summary.searched(64, True, arch="sm_80"))


def test_a_chapter_shows_the_search():
    text = text_of(summary.searched(128, True))
    assert RECORDED[0].day in text and "cluster of 2" in text


def test_a_chapter_shows_the_search_of_a_backward_kernel():
    """And of one that was not searched how to."""
    kernel = "keys, adding to dQ"
    found = recorded_search("sm_90", direction="backward")
    asked = (kernel, 128, True)
    [one] = [s for s in found.searched if (s.kernel, (of := s.the_problem()).head_dim, of.causal) == asked]
    text = text_of(summary.searched(128, True, kernel=kernel))
    assert one.date[:10] in text and one.found[0].configuration.label in text and "cluster" not in text.split("|", 1)[1]
    text = text_of(summary.searched(96, False, kernel=kernel))
    assert "steps.search --direction backward" in text and "without a mask" in text and kernel in text
    assert "No search is recorded" in text_of(summary.searched(128, True, kernel="another"))


def test_a_search_of_another_schema_is_passed_over(tmp_path):
    (tmp_path / "machine").mkdir()
    (tmp_path / "machine" / "search.json").write_text(json.dumps({"schema": 9}), encoding="utf-8")
    assert recorded_searches(tmp_path) == []


def test_a_problem_that_nothing_runs_is_one_line(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("tutorial_lib.hardware.why_no_gpu", lambda: None)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device=None: (9, 0))
    reason = "OutOfMemoryError: far too long"
    monkeypatch.setattr(
        search,
        "compile_all",
        lambda asked: {(k.name, p): dict.fromkeys(k.space(), reason) for k, p in asked},
    )
    monkeypatch.setattr("tutorial_lib.hardware.describe_machine", lambda device: {"slug": "machine"})
    assert search.main(["--output-dir", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and f"no configuration runs; the first says {reason}" in error
    assert list(tmp_path.iterdir()) == []


BACKWARD_KERNELS = [kernel for kernel in search.SEARCHED if kernel.direction == "backward"]


@sampled(core=lambda kernel, place: kernel is BACKWARD_KERNELS[place])
@pytest.mark.parametrize("place", [0, -1])
@pytest.mark.parametrize("kernel", BACKWARD_KERNELS, ids=lambda k: k.name)
def test_a_kernel_of_the_backward_pass_is_searched_in_its_own_space(kernel, place):
    space = kernel.space()
    assert len(set(space)) == len(space) and {(c.query, c.key) for c in space} >= set(search.TILES)
    step, problem = kernel.configured(space[place]), standard(head_dim=64)
    made = kernel.compile(step, problem, "sm_90")
    shape = search.as_shape(space[place])
    blocks, _, found = step.kernel(kernel.kernel, problem)
    assert found == shape and made.scores_per_tile == shape.tile.scores
    own = (blocks[0] * (shape.tile.key if kernel.kernel == "keys" else shape.tile.query), *blocks[1:])
    assert own == (problem.seq_len_q, problem.heads, problem.batch)


@pytest.fixture
def gpu_that_is_not_there(monkeypatch):
    """Compiling and timing are made up: tiles of many scores are fast."""
    monkeypatch.setattr("tutorial_lib.hardware.why_no_gpu", lambda: None)
    monkeypatch.setattr("tutorial_lib.hardware.describe_machine", lambda device: {"slug": "machine", "arch": "sm_90"})
    monkeypatch.setattr("tutorial_lib.hardware.describe_versions", lambda: {"cuda-tile": "1", "torch": "2"})
    monkeypatch.setattr(
        search, "compile_all", lambda asked: {(k.name, p): {c: {} for c in k.space()} for k, p in asked}
    )
    done = []

    def timed(kernel, problem, made, console):
        if len(done) == stop:
            raise KeyboardInterrupt
        done.append((kernel.name, problem))
        found = [
            Found(
                configuration=c, microseconds=1e6 / c.query / c.key, margin=0.1, samples=5, tflops=1.0, registers=1,
                spill_instructions=0, shared_bytes=0,
            )
            for c in sorted(made, key=lambda c: -c.query * c.key)
        ]  # fmt: skip
        return Searched(problem=problem.as_dict(), kernel=kernel.name, step=kernel.step, found=found, failed={})

    stop = None

    def interrupt_at(n):
        nonlocal stop
        stop = n

    monkeypatch.setattr(search, "search", timed)
    return done, interrupt_at


def test_an_interrupted_search_keeps_what_it_has_and_a_part_takes_its_place(gpu_that_is_not_there, tmp_path, capsys):
    done, interrupt_at = gpu_that_is_not_there
    interrupt_at(3)
    asked = ["--direction", "backward", "--output-dir", str(tmp_path)]
    assert search.main(asked) == 130
    [kept] = recorded_searches(tmp_path, "backward")
    assert [(s.kernel, s.the_problem()) for s in kept.searched] == done and len(done) == 3
    interrupt_at(None)
    assert search.main([*asked, "--head-dim", "64"]) == 0
    [kept] = recorded_searches(tmp_path, "backward")
    keys = [(s.kernel, s.the_problem()) for s in kept.searched]
    assert len(set(keys)) == len(keys) and {problem.head_dim for _, problem in keys} == {64, 128}
    assert "('keys', 64, True): BlockShape(tile=Tile(query=128, key=128)" in capsys.readouterr().out.replace("\n", " ")


def test_what_is_searched_says_of_which_step_and_when(monkeypatch):
    """The tuner is made up."""
    import cuda.tile as ct

    [kernel] = [k for k in search.SEARCHED if k.name == "queries"]
    [first, *_] = kernel.space()
    made = {first: {"registers": 1, "spill_instructions": 0, "shared_bytes": 2}}
    timed = SimpleNamespace(config=first, mean_us=2.0, error_margin_us=0.1, num_samples=3)
    tuned = SimpleNamespace(successes=[timed], failures=[])
    monkeypatch.setattr("steps.core.step.target_of", lambda device: "sm_90")
    monkeypatch.setattr("torch.cuda.current_stream", lambda: None)
    monkeypatch.setattr(type(kernel), "prepared", lambda *_: (None, None, None))
    monkeypatch.setattr(PASSES["backward"], "inputs", lambda *_: ())
    monkeypatch.setattr(PASSES["backward"], "poisoned", lambda *_: ())
    monkeypatch.setattr(ct.tune, "exhaustive_search", lambda *_, **__: tuned)
    searched = search.search(kernel, standard(head_dim=64), made, SimpleNamespace(print=lambda *_: None))
    assert (searched.kernel, searched.step) == ("queries", "preprocess_kernel")
    assert datetime.fromisoformat(searched.date) <= datetime.now(UTC)


def test_a_kernel_can_be_searched_alone(gpu_that_is_not_there, tmp_path, capsys):
    done, _ = gpu_that_is_not_there
    asked = ["--output-dir", str(tmp_path), "--head-dim", "64", "--kernel", "queries"]
    assert search.main(["--direction", "backward", *asked]) == 0
    assert {kernel for kernel, _ in done} == {"queries"} and {problem.causal for _, problem in done} == {True, False}
    assert search.main(asked) == 2
    assert "--kernel is for the kernels of --direction backward" in capsys.readouterr().err
    capsys.readouterr()
    assert search.main(["--direction", "backward", *asked, "--kernel", "rows"]) == 2
    assert "rows" in capsys.readouterr().err
    assert search.main(["--direction", "backward", *asked[:-1], "keys"]) == 0
    [kept] = recorded_searches(tmp_path, "backward")
    assert {s.kernel for s in kept.searched} == {"keys", "queries"}


def test_what_was_searched_of_another_step_is_not_kept(gpu_that_is_not_there, monkeypatch, tmp_path):
    """A kernel keeps its name when another step takes over."""
    asked = ["--direction", "backward", "--output-dir", str(tmp_path), "--head-dim", "64", "--kernel"]
    assert search.main([*asked, "keys"]) == search.main([*asked, "queries"]) == 0
    others = [dataclasses.replace(k, step="mask_loops") if k.name == "keys" else k for k in search.SEARCHED[1:]]
    monkeypatch.setattr(search, "SEARCHED", others)
    assert search.main([*asked, "queries"]) == 0
    [kept] = recorded_searches(tmp_path, "backward")
    assert {s.kernel for s in kept.searched} == {"queries"}


def test_what_other_compilers_made_is_not_kept(gpu_that_is_not_there, monkeypatch, tmp_path):
    asked = ["--direction", "backward", "--output-dir", str(tmp_path), "--head-dim"]
    assert search.main([*asked, "64"]) == 0
    monkeypatch.setattr("tutorial_lib.hardware.describe_versions", lambda: {"cuda-tile": "2", "torch": "2"})
    assert search.main([*asked, "128"]) == 0
    [kept] = recorded_searches(tmp_path, "backward")
    assert {s.problem["head_dim"] for s in kept.searched} == {128}
