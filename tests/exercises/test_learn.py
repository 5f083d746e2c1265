"""The learner's copy: blanks filled with what was answered, answers that nothing overwrites, and what is solved."""

import json
import os
from datetime import date

import nbformat
import pytest

from steps import exercises, learn, progress
from steps.exercises import get_exercise
from tests.notebooks.test_chapters import write_course
from tutorial_lib.answers import Answers
from tutorial_lib.exercises import define

BLANK = "def softmax_exp2(scores, row_max, scale):\n    return ...\n"
CHAPTER = f"""# One

Text.

```python
from steps.exercises import exercise
```

```python
{BLANK}

exercise("exp2", softmax_exp2)
```
"""


@pytest.fixture
def series(tmp_path, monkeypatch):
    """A course of one chapter with one exercise; returns its source and the learner's folder."""
    write_course(tmp_path, "00_one")
    source = tmp_path / "source" / "00_one.md"
    source.write_text(CHAPTER, encoding="utf-8")
    (tmp_path / "README.md").write_text("# All\n", encoding="utf-8")
    return source, tmp_path / "learn"


def cell(path) -> str:
    """The cell of the exercise."""
    notebook = nbformat.read(path, as_version=4)
    [blank] = learn.exercises_in(notebook).values()
    return notebook.cells[blank.number].source


def test_a_copy_is_not_executed_and_its_blanks_are_blank(series):
    source, folder = series
    [written] = learn.write_copies(folder, source.parent.parent)
    notebook = nbformat.read(written, as_version=4)
    assert all(not c.outputs and c.execution_count is None for c in notebook.cells if c.cell_type == "code")
    assert cell(written) == f'{BLANK}\n\nexercise("exp2", softmax_exp2)'
    assert (folder / "README.md").exists()
    nbformat.validate(notebook)


def test_a_copy_that_somebody_works_in_stays(series):
    source, folder = series
    [written] = learn.write_copies(folder, source.parent.parent)
    mine = written.read_text(encoding="utf-8").replace("Text.", "My notes.")
    written.write_text(mine, encoding="utf-8")
    assert learn.write_copies(folder, source.parent.parent) == []
    assert written.read_text(encoding="utf-8") == mine


def test_a_chapter_that_changed_comes_with_the_answers_and_the_old_copy_is_kept(series):
    source, folder = series
    [written] = learn.write_copies(folder, source.parent.parent)
    written.write_text(written.read_text(encoding="utf-8").replace("Text.", "My notes."), encoding="utf-8")
    Answers(folder).keep("exp2", "def softmax_exp2(scores, row_max, scale):\n    return 1\n", False)
    for number, old in enumerate(("00_one.before.ipynb", "00_one.before2.ipynb")):
        source.write_text(CHAPTER.replace("Text.", f"New text {number}."), encoding="utf-8")
        assert learn.write_copies(folder, source.parent.parent) == [written]
        assert "return 1\n\n\nexercise(" in cell(written) and (folder / old).exists()
    assert "My notes." in (folder / "00_one.before.ipynb").read_text(encoding="utf-8")


def test_what_stands_above_a_blank_stays(series):
    source, folder = series
    source.write_text(CHAPTER.replace(BLANK, f"import math\n\n\n{BLANK}"), encoding="utf-8")
    Answers(folder).keep("exp2", "def softmax_exp2(scores, row_max, scale):\n    return math.e\n", False)
    [written] = learn.write_copies(folder, source.parent.parent)
    assert cell(written).startswith("import math\n\n\ndef softmax_exp2(") and "return math.e\n\n\nexercise(" in cell(
        written
    )


def test_a_damaged_copy_is_written_again_and_kept(series):
    source, folder = series
    [written] = learn.write_copies(folder, source.parent.parent)
    written.write_text("{", encoding="utf-8")
    assert learn.write_copies(folder, source.parent.parent) == [written]
    assert (folder / "00_one.before.ipynb").read_text(encoding="utf-8") == "{"


def test_a_wrong_answer_does_not_take_the_place_of_a_right_one(tmp_path):
    answers = Answers(tmp_path)
    assert answers.answer("exp2") is None and answers.solved() == {}
    answers.keep("exp2", "first", False)
    answers.keep("exp2", "right", True)
    answers.keep("exp2", "later", False)
    assert answers.answer("exp2") == "right" and answers.solved() == {"exp2": date.today().isoformat()}
    answers.keep("exp2", "better", True)
    assert answers.answer("exp2") == "better"


def test_answers_survive_new_names(tmp_path):
    Answers(tmp_path).keep("old", "release(barriers.key_free, part_of(turn))\n", True)
    today = Answers(tmp_path, names={"old": "new"}, words=exercises.OLD_WORDS)
    assert today.answer("new") == "release(barriers.key_empty, query_of(turn))\n" and list(today.solved()) == ["new"]
    today.keep("new", "better\n", True)
    today.keep("other", "right\n", True)
    assert today.answer("new") == "better\n" and list(Answers(tmp_path).solved()) == ["new", "other"]


def test_an_answer_is_kept_in_the_learners_folder_alone(tmp_path, monkeypatch):
    exercise = get_exercise("exp2")
    wrong = define(exercise.wrong_source(exercise.wrong[0]), exercise.function)
    monkeypatch.chdir(tmp_path)
    exercises.exercise("exp2", wrong)
    assert os.listdir(tmp_path) == []
    (tmp_path / "answers").mkdir()
    exercises.exercise("exp2", define(BLANK, exercise.function))
    assert Answers(tmp_path).answer("exp2") is None  # a blank is no answer
    exercises.exercise("exp2", wrong)
    assert Answers(tmp_path).answer("exp2") == exercise.wrong_source(exercise.wrong[0])
    assert Answers(tmp_path).solved() == {}
    exercises.exercise("exp2", define(exercise.solution, exercise.function))
    assert list(Answers(tmp_path).solved()) == ["exp2"]


def test_a_verdict_counts_where_the_answer_cannot_be_kept(tmp_path, monkeypatch):
    exercise = get_exercise("exp2")
    (tmp_path / "answers").mkdir()
    (tmp_path / "answers" / "progress.json").write_text("{", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    page = exercises.exercise("exp2", define(exercise.solution, exercise.function))
    assert page.parts[0].startswith("**Right.**") and "Your answer was not kept: " in page.parts[-1]
    assert (tmp_path / "answers" / "progress.json").read_text(encoding="utf-8") == "{"


@pytest.fixture
def learner(tmp_path, monkeypatch):
    monkeypatch.setattr("steps.exercises.answers_in.__defaults__", (tmp_path,))
    return Answers(tmp_path)


def test_what_is_solved_is_listed_in_the_order_of_the_course(learner, capsys):
    found = progress.rows({}, lambda name: None)
    assert len(found) == len(exercises.all_exercises()) and found[0][0] == "000_start_here"
    learner.keep(found[0][1], "x", True)
    learner.keep(found[1][1], "x", False)
    assert progress.main([]) == 0
    told = capsys.readouterr().out
    assert f"1 of {len(found)} exercises are solved." in told
    assert f"The next is {found[1][1]}, in chapter {found[1][0]}" in told
    assert f"solved {date.today().isoformat()}" in told and "begun" in told


def test_what_was_solved_of_an_exercise_that_is_gone_stays_and_counts_no_more(learner, monkeypatch, capsys):
    learner.keep("gone", "def gone():\n    return 1\n", True)
    assert progress.main([]) == 0
    told = capsys.readouterr().out
    assert f"0 of {len(exercises.all_exercises())} exercises are solved." in told and "gone" not in told
    monkeypatch.chdir(learner.folder.parent)
    [page] = exercises.exercise("gone", len).parts  # in an old copy of its chapter
    assert "gone" in page and "\n" not in page
    assert learner.answer("gone") and list(learner.solved()) == ["gone"]


def test_a_damaged_file_of_what_is_solved_gets_one_line(learner, capsys):
    learner.folder.mkdir()
    (learner.folder / "progress.json").write_text(json.dumps({"solved": ["exp2"]}), encoding="utf-8")
    assert progress.main([]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and "progress.json is damaged" in told
    assert (learner.folder / "progress.json").exists()
