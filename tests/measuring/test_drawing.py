"""Problems that are drawn from known models: the same for a seed, within bounds, of every family."""

import subprocess
import sys
from collections import Counter
from itertools import islice

import pytest

from steps import get_step
from steps.measuring import drawing
from steps.measuring.drawing import TIMED, fits, problems, read_models
from tests.shapes import problem

FAMILIES, MODELS = read_models()


def test_models_say_where_they_are_written():
    assert len({model.name for model in MODELS}) == len(MODELS)
    for model in MODELS:
        assert model.source.startswith(("https://huggingface.co/", "https://arxiv.org/abs/")), model.name
        assert model.families and set(model.families) <= set(FAMILIES), model.name
        for family in (FAMILIES[name] for name in model.families):
            assert model.lengths or family.lengths or family.queries, f"{model.name} has no lengths in {family.name}"
            assert set(family.passes) <= set(TIMED) and family.passes and family.title


def test_what_people_run_is_there():
    dims = {model.head_dim for model in MODELS}
    assert {64, 80, 96, 128, 256} <= dims
    for dim in dims:
        assert get_step("next_softmax_first").unsupported(problem(head_dim=dim), "sm_90") is None
    assert {model.windows for model in MODELS} > {(0,)}


@pytest.mark.parametrize("timed", TIMED)
def test_a_seed_draws_the_same_problems_and_another_others(timed):
    drawn = problems(0, 40, timed)
    assert len(drawn) == 40 == len({one.problem for one in drawn})
    assert problems(0, 25, timed) == drawn[:25] and problems(1, 40, timed) != drawn
    code = f"from steps.measuring.drawing import problems; print(problems(0, 40, {timed!r}))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True).stdout
    assert told.strip() == repr(drawn)  # in a process where texts have other hashes


@pytest.mark.parametrize("timed", TIMED)
def test_every_family_has_its_share_within_bounds(timed):
    drawn = problems(3, 60, timed)
    asked = {name: family.turns for name, family in FAMILIES.items() if timed in family.passes}
    for name, count in Counter(one.family for one in drawn).items():
        assert abs(count - 60 * asked.pop(name) / sum(f.turns for f in FAMILIES.values() if timed in f.passes)) <= 2
    assert not asked
    models = {model.name: model for model in MODELS}
    for one in drawn:
        found, model = one.problem, models[one.model]
        assert one.family in model.families and fits(found, timed)
        assert (found.heads, found.kv_heads, found.head_dim) == (
            model.heads,
            model.kv_heads or model.heads,
            model.head_dim,
        )
        assert found.seq_len_q <= 32768 and found.seq_len_kv <= 65536
        assert found.window in (None, *model.windows)


def test_what_is_too_large_or_takes_too_long_is_left_out():
    assert fits(problem(), "training")
    long = problem(batch=1, heads=32, seq_len_q=32768, seq_len_kv=32768, head_dim=128)
    assert fits(long, "forward") and not fits(long, "training")
    assert not fits(problem(batch=64, heads=64, seq_len_q=1, seq_len_kv=65536, head_dim=128, causal=False), "forward")


def test_a_family_that_has_no_more_is_given_up(monkeypatch):
    only = drawing.Family(name="one", title="", passes=("forward",), causal=True, batches=(1,), dtypes=("float16",))
    model = drawing.Model(name="m", families=("one",), heads=2, head_dim=64, source="", lengths=(16, 32))
    monkeypatch.setattr(drawing, "read_models", lambda: ({"one": only}, (model,)))
    assert {one.problem.seq_len_q for one in problems(0, 10, "forward")} == {16, 32}
    assert len(problems(0, 10, "forward")) == 2 and problems(0, 10, "backward") == []


def test_models_take_turns():
    members = [model.name for model in MODELS if "vision" in model.families]
    drawn = [one.model for one in problems(0, 400, "forward") if one.family == "vision"]
    assert set(islice(drawn, len(members))) == set(members)
