"""The notebooks: each runs here, shows what it should, is what its source says, and reads without a network."""

import base64
import re
from html.parser import HTMLParser

import nbformat
import pytest

from steps import STEPS
from tutorial_lib import notebooks

SOURCES = notebooks.sources()
BONES = ["The idea", "The change", "Predict", "Run", "Evidence", "Why", "Try"]
STEP_SOURCES = [path for path in SOURCES if path.stem[:2] not in ("00", "su")]
FIGURE = re.compile(r"lesson\.(time|lost|ladder|lengths|architectures|wall|rounds|ceilings)\(|pictures\.|\.draw_")
NUMBER_AND_UNIT = re.compile(r"\d(\.\d+)?\s?(TFLOPS|ms\b|µs|×(?!\s?\w)|x faster|times (as )?(fast|slow))")


def committed(path):
    return nbformat.read(notebooks.NOTEBOOKS / f"{path.stem}.ipynb", as_version=4)


def as_written(notebook) -> list[tuple[str, str]]:
    return [(cell.cell_type, cell.source) for cell in notebook.cells]


def pictures(cell) -> list[bytes]:
    data = [output.get("data", {}).get("image/png") for output in cell.outputs]
    return [base64.b64decode(png) for png in data if png]


def assert_shows_everything(notebook):
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        assert cell.outputs, f"shows nothing: {cell.source}"
        assert not [o for o in cell.outputs if o.output_type == "error" or o.get("name") == "stderr"], cell.source
        if FIGURE.search(cell.source):
            assert pictures(cell), f"a figure belongs here: {cell.source}"
        assert all(len(png) > 1000 and png.startswith(b"\x89PNG") for png in pictures(cell))


def test_every_step_has_its_notebook():
    expected = ["00_start_here", *(f"{s.number:02}_{s.name}" for s in STEPS[1:]), "summary"]
    assert [path.stem for path in SOURCES] == expected


def test_the_list_of_chapters_has_them_all_in_order():
    listed = re.findall(r"^- \[(.*)\]\((.*)\.ipynb\)$", (notebooks.NOTEBOOKS / "README.md").read_text(), re.MULTILINE)
    assert listed == [(notebooks.title(notebooks.read_source(path)), path.stem) for path in SOURCES]


@pytest.mark.parametrize("path", STEP_SOURCES, ids=lambda p: p.stem)
def test_every_step_is_told_in_the_same_order(path):
    headings = re.findall(r"^## (.*)$", path.read_text(), re.MULTILINE)
    assert headings == BONES


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.stem)
def test_prose_holds_no_measured_number(path):
    for cell in notebooks.read_source(path).cells:
        if cell.cell_type == "markdown":
            assert not NUMBER_AND_UNIT.search(cell.source), NUMBER_AND_UNIT.search(cell.source)[0]


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.stem)
def test_the_committed_notebook_is_its_source_executed(path):
    notebook = committed(path)
    assert as_written(notebook) == as_written(notebooks.read_source(path)), "run `make notebooks`"
    assert_shows_everything(notebook)


def test_the_committed_notebooks_are_small():
    sizes = [path.stat().st_size for path in notebooks.NOTEBOOKS.glob("*.ipynb")]
    assert sum(sizes) < 60_000 * len(sizes)


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.stem)
def test_it_runs_here(path):
    notebook = notebooks.execute(notebooks.read_source(path))
    assert_shows_everything(notebook)
    first = next(cell for cell in notebook.cells if cell.cell_type == "code")
    assert "This machine has" in str(first.outputs)


def test_a_cell_that_fails_is_told(tmp_path, monkeypatch, capsys):
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "00_bad.md").write_text("# Bad\n\n```python\n1 / 0\n```\n")
    monkeypatch.setattr(notebooks, "NOTEBOOKS", tmp_path)
    monkeypatch.setattr(notebooks, "sources", lambda folder=tmp_path: [tmp_path / "source" / "00_bad.md"])
    assert notebooks.main([]) == 1
    assert "ZeroDivisionError" in capsys.readouterr().err
    assert not (tmp_path / "00_bad.ipynb").exists()


def test_a_chapter_that_is_none_gets_one_line(capsys):
    assert notebooks.main(["17_nothing"]) == 2
    assert "argument NAME: must be some of 00_start_here" in capsys.readouterr().err


class References(HTMLParser):
    """What a page fetches, and where its links lead."""

    def __init__(self):
        super().__init__()
        self.fetched, self.links = [], []

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag == "a":
            self.links.append(attributes.get("href", ""))
        self.fetched += [attributes[name] for name in ("src", "data") if attributes.get(name)]
        if tag == "link":
            self.fetched.append(attributes.get("href", ""))


def test_pages_fetch_nothing_and_their_links_lead_somewhere(tmp_path):
    assert notebooks.main(["--html", str(tmp_path)]) == 0
    names = {path.name for path in tmp_path.glob("*.html")}
    assert names == {"index.html", *(f"{path.stem}.html" for path in SOURCES)}
    for path in tmp_path.glob("*.html"):
        text = path.read_text()
        page = References()
        page.feed(text)
        assert all(reference.startswith("data:") for reference in page.fetched), path.name
        assert "@import" not in text and not re.search(r"url\(['\"]?https?:", text)
        chapters = [link for link in page.links if not link.startswith(("#", "http"))]
        assert chapters and set(chapters) <= names, path.name
