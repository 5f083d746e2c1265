"""The notebooks: what is committed is its source executed, its cells can run here, and its pages need no network."""

import ast
import base64
import importlib
import json
import re
import shutil
from functools import cache
from html.parser import HTMLParser

import nbformat
import pytest

from steps import lesson
from steps.chapters import FIRST, LAST
from tutorial_lib import notebooks

SOURCES = notebooks.sources()
BONES = ["The idea", "The change", "Predict", "Run", "Evidence", "Why", "Try"]
STEP_SOURCES = [path for path in SOURCES if path.stem not in (FIRST, *LAST)]
EXECUTED = [path for path in SOURCES if path.stem.endswith(("_naive", "_wgmma"))]  # PyTorch alone; a Hopper kernel
FIGURE = re.compile(
    r"(lesson|summary)\.(time|lost|ladder|lengths|architectures|wall|rounds|ceilings|cycles|traced)\(|\.draw_"
)
NUMBER_AND_UNIT = re.compile(r"\d(\.\d+)?\s?(TFLOPS|ms\b|µs|×(?!\s?\w)|x faster|times (as )?(fast|slow))")


@cache
def from_source(path):
    return notebooks.read_source(path)


def committed(path):
    return nbformat.read(notebooks.NOTEBOOKS / f"{path.stem}.ipynb", as_version=4)


def as_written(notebook) -> list[tuple[str, str]]:
    return [(cell.cell_type, cell.source) for cell in notebook.cells]


def code_of(path) -> list[ast.Module]:
    """The chapter's cells; raises SyntaxError for one that is not Python."""
    return [ast.parse(cell.source) for cell in from_source(path).cells if cell.cell_type == "code"]


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


# --- the sources ---


@pytest.mark.parametrize("path", STEP_SOURCES, ids=lambda p: p.stem)
def test_every_step_is_told_in_the_same_order(path):
    headings = re.findall(r"^## (.*)$", path.read_text(), re.MULTILINE)
    assert headings == BONES


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.stem)
def test_prose_holds_no_measured_number(path):
    for cell in from_source(path).cells:
        if cell.cell_type == "markdown":
            assert not NUMBER_AND_UNIT.search(cell.source), NUMBER_AND_UNIT.search(cell.source)[0]


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.stem)
def test_every_name_that_a_cell_imports_exists(path):
    imported = 0
    for node in (node for tree in code_of(path) for node in ast.walk(tree)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                importlib.import_module(alias.name)
                imported += 1
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                assert_has(node.module, alias.name)
                imported += 1
    assert imported


def assert_has(module: str, name: str):
    """``from module import name`` works."""
    if not hasattr(importlib.import_module(module), name):
        importlib.import_module(f"{module}.{name}")


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.stem)
def test_every_attribute_that_a_cell_uses_exists(path):
    """Of the lesson, and of the modules of this repository that cells import whole."""
    known = {"lesson": names_of_a_lesson()}
    for node in (node for tree in code_of(path) for node in ast.walk(tree)):
        if isinstance(node, ast.ImportFrom) and node.module.partition(".")[0] in ("steps", "tutorial_lib"):
            modules = {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            known |= {name: dir(importlib.import_module(m)) for name, m in modules.items() if is_module(m)}
    used = [node for tree in code_of(path) for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    for node in used:
        if isinstance(node.value, ast.Name) and node.value.id in known:
            assert node.attr in known[node.value.id], f"{node.value.id}.{node.attr}"


@cache
def names_of_a_lesson() -> list[str]:
    return [*dir(lesson.Lesson), *vars(lesson.Lesson("exp2"))]


def is_module(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        return False
    return True


def test_a_cell_keeps_its_id_when_another_comes(tmp_path):
    path = tmp_path / "source" / "00_start_here.md"
    path.parent.mkdir()
    path.write_text("# One\n\n```python\n1\n```\n\n```python\n1\n```\n")
    before = notebooks.read_source(path)
    assert notebooks.read_source(path) == before
    assert len({cell.id for cell in before.cells}) == len(before.cells)
    path.write_text("# One\n\n```python\n0\n```\n\n```python\n1\n```\n\n```python\n1\n```\n")
    after = notebooks.read_source(path)
    assert [cell.id for cell in after.cells if cell.source != "0"] == [cell.id for cell in before.cells]
    nbformat.validate(after)


def test_a_chapter_links_to_its_neighbours_and_to_the_list():
    first, second, *_, last = SOURCES
    third = SOURCES[2]
    links = [re.findall(r"\]\((.*?)\)", from_source(path).cells[-1].source) for path in (first, second, last)]
    assert links[0] == ["README.md", f"{second.stem}.ipynb"]
    assert links[1] == [f"{first.stem}.ipynb", "README.md", f"{third.stem}.ipynb"]
    assert links[2] == [f"{SOURCES[-2].stem}.ipynb", "README.md"]


def test_a_new_chapter_is_linked_from_its_neighbours(tmp_path, monkeypatch, capsys):
    (tmp_path / "source").mkdir()
    monkeypatch.setattr(notebooks, "NOTEBOOKS", tmp_path)
    monkeypatch.setattr(notebooks, "sources", lambda folder=tmp_path, find=notebooks.sources: find(folder))
    for name in ("00_one", "20_three", "10_two"):
        (tmp_path / "source" / f"{name}.md").write_text("# A chapter\n")
        assert notebooks.main([name]) == 0
    for name in ("00_one", "10_two", "20_three"):
        made = nbformat.read(tmp_path / f"{name}.ipynb", as_version=4)
        assert made == notebooks.read_source(tmp_path / "source" / f"{name}.md")


# --- what is committed ---


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.stem)
def test_the_committed_notebook_is_its_source_executed(path):
    notebook, source = committed(path), from_source(path)
    assert as_written(notebook) == as_written(source), "run `make notebooks`"
    assert [cell.id for cell in notebook.cells] == [cell.id for cell in source.cells]
    assert notebook.metadata == source.metadata
    assert_shows_everything(notebook)


def test_the_committed_notebooks_are_small():
    """Most of one is the step's whole kernel, in colours, and figures."""
    sizes = {path.name: path.stat().st_size for path in notebooks.NOTEBOOKS.glob("*.ipynb")}
    assert {name: size for name, size in sizes.items() if size > 400_000} == {}


# --- executing ---


@pytest.mark.parametrize("path", EXECUTED, ids=lambda p: p.stem)
def test_it_runs_here(path):
    notebook = notebooks.execute(notebooks.read_source(path))
    assert_shows_everything(notebook)
    first = next(cell for cell in notebook.cells if cell.cell_type == "code")
    assert "Executed on" in str(first.outputs)  # and says where


def test_two_kinds_of_chapters_are_executed():
    assert [path.stem.partition("_")[2] for path in EXECUTED] == ["naive", "wgmma"]


def test_what_jupyterlab_saves_is_what_was_there(tmp_path):
    """JupyterLab writes what the kernel reports into every notebook that it opens, and here saves the same file."""
    from ipykernel.ipkernel import IPythonKernel
    from jupyter_server.services.contents.filemanager import FileContentsManager
    from traitlets.config import Config

    path = tmp_path / "one.ipynb"
    source = tmp_path / "source" / "00_start_here.md"
    source.parent.mkdir()
    source.write_text("# One\n\n```python\n1\n```\n")
    notebooks.write(notebooks.read_source(source), path)
    before = path.read_bytes()
    hook = f"{notebooks.keep_language.__module__}.{notebooks.keep_language.__name__}"
    config = Config(FileContentsManager={"pre_save_hook": hook})
    manager = FileContentsManager(root_dir=str(tmp_path), config=config)
    model = manager.get("one.ipynb")
    reported = IPythonKernel.language_info
    assert set(reported) == set(notebooks.LANGUAGE)
    assert {**reported, "version": ""} == {**notebooks.LANGUAGE, "version": ""}
    model["content"]["metadata"]["language_info"] = {**reported, "version": "3.99.0"}
    manager.save(model, "one.ipynb")
    assert json.loads(path.read_text())["metadata"] == notebooks.read_source(source).metadata
    assert path.read_bytes() == before


def bad_chapter(tmp_path, monkeypatch):
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "00_bad.md").write_text("# Bad\n\n```python\n1 / 0\n```\n")
    monkeypatch.setattr(notebooks, "NOTEBOOKS", tmp_path)
    monkeypatch.setattr(notebooks, "sources", lambda folder=tmp_path: [tmp_path / "source" / "00_bad.md"])


def test_a_cell_that_fails_is_told(tmp_path, monkeypatch, capsys):
    bad_chapter(tmp_path, monkeypatch)
    assert notebooks.main([]) == 1
    assert "ZeroDivisionError" in capsys.readouterr().err
    assert not (tmp_path / "00_bad.ipynb").exists()


def test_a_chapter_that_is_none_gets_one_line(capsys):
    assert notebooks.main(["17_nothing"]) == 2
    assert "argument NAME: must be some of 00_start_here" in capsys.readouterr().err


# --- pages ---


class References(HTMLParser):
    """What a page fetches, where its links lead, and its section headings."""

    def __init__(self):
        super().__init__()
        self.fetched, self.links, self.sections = [], [], 0

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag == "a":
            self.links.append(attributes.get("href", ""))
        self.fetched += [attributes[name] for name in ("src", "data") if attributes.get(name)]
        if tag == "link":
            self.fetched.append(attributes.get("href", ""))
        self.sections += tag == "h2"


def read_page(text: str, name: str) -> tuple[References, set[str]]:
    """A page that fetches nothing, and the pages that it links to."""
    page = References()
    page.feed(text)
    assert all(reference.startswith("data:") for reference in page.fetched), name
    assert "@import" not in text and not re.search(r"url\(['\"]?https?:", text)
    return page, {link.partition("#")[0] for link in page.links if not link.startswith(("#", "http"))}


@pytest.mark.parametrize("path", [SOURCES[0], *EXECUTED, SOURCES[-1]], ids=lambda p: p.stem)
def test_a_page_fetches_nothing_and_its_links_lead_somewhere(path):
    _, linked = read_page(notebooks.as_html(committed(path), path.stem), path.stem)
    assert "index.html" in linked
    assert linked <= {"index.html", *(f"{source.stem}.html" for source in SOURCES)}


def test_every_chapter_and_the_list_become_pages(tmp_path, monkeypatch):
    """With the list as it is, and of the chapters the first and the last."""
    series = tmp_path / "series"
    (series / "source").mkdir(parents=True)
    for path in (SOURCES[0], SOURCES[-1]):
        shutil.copy(path, series / "source")
        shutil.copy(notebooks.NOTEBOOKS / f"{path.stem}.ipynb", series)
    shutil.copy(notebooks.NOTEBOOKS / notebooks.LIST, series)
    monkeypatch.setattr(notebooks, "NOTEBOOKS", series)
    monkeypatch.setattr(notebooks, "sources", lambda folder=series, find=notebooks.sources: find(folder))
    assert notebooks.main(["--html", str(tmp_path / "html")]) == 0
    names = {path.name for path in (tmp_path / "html").iterdir()}
    assert names == {"index.html", f"{SOURCES[0].stem}.html", f"{SOURCES[-1].stem}.html"}
    index, linked = read_page((tmp_path / "html" / "index.html").read_text(), "index")
    assert linked == {f"{path.stem}.html" for path in SOURCES}
    assert index.sections == (series / notebooks.LIST).read_text().count("\n## ") > 1
