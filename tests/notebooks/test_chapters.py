"""The list of chapters is made from the sources, which agree with the steps and with the notebooks."""

import re

import pytest

from steps import STEPS, chapters
from tutorial_lib import notebooks

SOURCES = notebooks.sources()
COMMITTED = notebooks.NOTEBOOKS / notebooks.LIST
ITEM = re.compile(r"^(?P<mark>\d+\.|-) \[(?P<heading>.*)\]\((?P<name>\w+)\.ipynb\)(?P<from>.*)$", re.MULTILINE)


def write_source(folder, name, heading):
    (folder / "source").mkdir(exist_ok=True)
    (folder / "source" / f"{name}.md").write_text(f"{heading}\n\nText.\n")


def test_the_committed_list_is_the_one_that_is_made():
    assert COMMITTED.read_text() == chapters.listed(), "run `python -m steps.chapters`"


def test_making_the_list_again_changes_nothing(tmp_path, monkeypatch, capsys):
    for name, heading in (
        ("00_start_here", "# Start"),
        ("01_naive", "# Step 1: naive"),
        ("power", "# Power"),
        ("summary", "# All"),
    ):
        write_source(tmp_path, name, heading)
    monkeypatch.setattr(chapters, "NOTEBOOKS", tmp_path)
    monkeypatch.setattr(chapters, "listed", lambda make=chapters.listed: make(tmp_path))
    made = []
    for _ in range(2):
        assert chapters.main([]) == 0
        made.append((tmp_path / "README.md").read_text())
    assert made[0] == made[1]
    assert [item["mark"] for item in ITEM.finditer(made[0])] == ["0.", "1.", "2.", "3."]
    assert capsys.readouterr().out.split() == [str(tmp_path / "README.md")] * 2


def test_every_step_has_its_chapter_and_every_chapter_its_step():
    expected = [chapters.FIRST, *(f"{s.number:02}_{s.name}" for s in STEPS if s.number), *chapters.LAST]
    assert [path.stem for path in SOURCES] == expected


@pytest.mark.parametrize("step", STEPS[1:], ids=lambda s: s.name)
def test_a_heading_has_the_number_of_its_step(step):
    heading = notebooks.heading(notebooks.NOTEBOOKS / "source" / f"{step.number:02}_{step.name}.md")
    assert heading.startswith(f"Step {step.number}: ")


def test_the_list_has_the_path_numbered_and_the_rest_beside_it():
    found = {item["name"]: item for item in ITEM.finditer(chapters.listed())}
    assert set(found) == {path.stem for path in SOURCES}
    beside = {f"{step.number:02}_{step.name}" for step in STEPS if step.fork or step.number >= 90}
    assert {name for name, item in found.items() if item["mark"] == "-"} == beside
    numbered = [item for item in found.values() if item["mark"] != "-"]
    assert [item["mark"] for item in numbered] == [f"{n}." for n in range(len(numbered))]
    assert [item["name"] for item in numbered] == sorted(item["name"] for item in numbered)
    assert found["13_cluster"]["from"] == " (from 7 approx_division)"
    assert found["30_wgmma"]["from"] == " (from 24 wide_block, gluon)"


@pytest.mark.parametrize(
    "name, heading, told",
    [
        ("08_explicit", "# Step 8", "step explicit is number 20 now"),
        ("17_nothing", "# Nothing", "must be NN_name.md with number and name of a step"),
        ("01_naive", "No heading", "must begin with a heading"),
    ],
)
def test_a_source_that_is_no_chapter_is_refused(tmp_path, name, heading, told):
    write_source(tmp_path, name, heading)
    with pytest.raises(ValueError, match=re.escape(told)):
        chapters.listed(tmp_path)


def test_sources_and_notebooks_have_the_same_names():
    made = {path.stem for path in notebooks.NOTEBOOKS.glob("*.ipynb")}
    assert made == {path.stem for path in SOURCES}, "run `make notebooks`, and delete what has no source any more"
