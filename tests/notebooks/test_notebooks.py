"""The notebooks: what is committed is its source executed, its cells can run here, and its pages need no network."""

import ast
import asyncio
import base64
import importlib
import json
import os
import re
import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from itertools import pairwise

import nbformat
import pytest

from steps import chapters, get_step, lesson
from steps.chapters import step_of
from tests.notebooks.test_chapters import write_course
from tests.results.recorded import EVERYTHING
from tests.selection import sampled
from tutorial_lib import notebooks, site
from tutorial_lib.course import read_course
from tutorial_lib.problem import Problem

SOURCES = notebooks.sources()
BONES = [
    "Where we stand",
    "The idea",
    "Your turn",
    "The change",
    "Predict",
    "Run",
    "Evidence",
    "Where it matters",
    "Questions",
]
SCREEN = "On one screen"  # with which a part begins
MAY_BE_THERE = {"Why", SCREEN}  # where the page shows its evidence
WORDS, PAGE = 1500, 25_000  # of prose without the questions; characters of a page without its figures
STEP_SOURCES = [path for path in SOURCES if step_of(path)]
EXECUTED = [path for path in SOURCES if path.stem.endswith(("_naive", "_wgmma"))]  # PyTorch alone; a Hopper kernel
FIGURE = re.compile(
    r"(lesson|summary)\.(time|stand|ladder|lengths|wall|rounds|ceilings|traced)\(|\.draw_"
    r"|summary\.cycles\(\)"  # with the names of some steps it is a table alone
)
NUMBER_AND_UNIT = re.compile(r"\d(\.\d+)?\s?(TFLOPS|ms\b|µs|×(?!\s?[\w\[])|x faster|times (as )?(fast|slow))")


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


UNRECORDED = re.compile(
    r"not timed: step \d+ (?P<never>\w+)|Nobody has timed step \d+ (?P<step>\w+) on (?P<there>[^.]*) yet"
    r"|No timing of (?P<problem>[^.]*) is recorded"
)


def told_to_be_unrecorded(cell) -> bool:
    """Whether a cell says that something was not timed; it must not be recorded then."""
    told = "".join(str(output.get("data", {}).get("text/markdown", "")) for output in cell.outputs)
    if found := UNRECORDED.search(told):
        problem, step = found["problem"] or found["there"], found["never"] or found["step"]
        assert not is_recorded(problem, step), f"recorded: {found[0]}"
    return found is not None


def is_recorded(problem: str | None, step: str | None) -> bool:
    """Whether a record of this problem, as it describes itself, holds a timing of this step; None: of any."""
    for run in EVERYTHING:
        if problem in (None, run.the_problem().describe()):
            timed = [m.name for m in run.everybody if m.tflops]
            if step in timed or (step is None and timed):
                return True
    return False


def assert_shows_everything(notebook):
    for cell in notebook.cells:
        if cell.cell_type != "code" or isinstance(ast.parse(cell.source).body[-1], ast.ImportFrom):
            continue
        assert cell.outputs, f"shows nothing: {cell.source}"
        assert not [o for o in cell.outputs if o.output_type == "error" or o.get("name") == "stderr"], cell.source
        if FIGURE.search(cell.source) and not told_to_be_unrecorded(cell):
            assert pictures(cell), f"a figure belongs here: {cell.source}"
        assert all(len(png) > 1000 and png.startswith(b"\x89PNG") for png in pictures(cell))


def test_what_is_recorded_must_not_be_called_unrecorded():
    def cell(told):
        return nbformat.v4.new_code_cell(outputs=[nbformat.v4.new_output("display_data", {"text/markdown": told})])

    whole = get_step("exp2").default_problem.describe()
    other = Problem(batch=3, heads=5, seq_len_q=7, seq_len_kv=11, head_dim=64).describe()  # nobody measures this
    assert told_to_be_unrecorded(cell(f"No timing of {other} is recorded, and there is no GPU."))
    assert told_to_be_unrecorded(cell(f"Nobody has timed step 905 pack_gqa on {whole} yet."))
    assert told_to_be_unrecorded(cell("Compiled and simulated, not timed: step 601 warp_roles is made for sm_100"))
    assert not told_to_be_unrecorded(cell("Recorded, not measured here"))
    for claim in (
        f"No timing of {whole} is recorded, and there is no GPU.",
        f"Nobody has timed step 3 exp2 on {whole} yet.",
        "Compiled and simulated, not timed: step 900 split_kv is made for sm_90",
    ):
        with pytest.raises(AssertionError, match="recorded: "):
            told_to_be_unrecorded(cell(claim))


# --- the sources ---


@pytest.mark.parametrize("path", STEP_SOURCES, ids=lambda p: p.stem)
def test_every_step_is_told_in_the_same_order(path):
    """A prediction starts empty, and five questions, whose answers are folded, come last."""
    text = path.read_text(encoding="utf-8")
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert [heading for heading in headings if heading not in MAY_BE_THERE] == BONES
    assert text.count(".predict()") == 1
    asked = text.partition("## Questions")[2]
    assert asked.count("<details>") == asked.count("</details>") == asked.count("<summary>") == 5


@pytest.mark.parametrize("path", [path for path in SOURCES if path.stem != "glossary"], ids=lambda p: p.stem)
def test_a_chapter_is_short(path):
    prose = [cell.source for cell in from_source(path).cells if cell.cell_type == "markdown"]
    assert len("\n".join(prose).partition("## Questions")[0].split()) <= WORDS
    assert len("".join(prose)) + len(shown(committed(path))) <= PAGE


def shown(notebook) -> str:
    """What stands on a page besides prose and figures, as text."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    data = [output.get("data", {}) for cell in cells for output in cell.outputs]
    return "".join([cell.source for cell in cells] + [d.get("text/markdown", d.get("text/plain", "")) for d in data])


def test_a_part_begins_with_one_screen():
    """A picture of who computes what, before anything else is told of the part's first step."""
    for part in read_course(notebooks.NOTEBOOKS / "source"):
        if part.title == "To look up":
            continue
        text = notebooks.NOTEBOOKS.joinpath("source", f"{part.chapters[0].name}.md").read_text(encoding="utf-8")
        heading, _, screen = text.split("\n## ")[1].partition("\n")
        assert heading == SCREEN and re.search(r"drawings\.|pictures\.|\.block\(|\.draw_", screen), part.title


@pytest.mark.parametrize("path", [path for path in SOURCES if path.stem != "glossary"], ids=lambda p: p.stem)
def test_a_chapter_opened_alone_says_in_one_line_what_to_do(path, tmp_path):
    first = next(cell.source for cell in from_source(path).cells if cell.cell_type == "code")
    done = subprocess.run([sys.executable, "-I", "-c", first], cwd=tmp_path, capture_output=True, encoding="utf-8")
    [told] = done.stderr.splitlines()
    assert done.returncode == 1 and done.stdout == "" and "make learn" in told


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
    assert imported or path.stem == notebooks.GLOSSARY


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


@pytest.mark.parametrize("path", STEP_SOURCES, ids=lambda p: p.stem)
def test_what_a_page_tells_to_read_is_in_its_listings(path):
    """A function may be written into its caller, and then the listing does not have it."""
    cells = [cell for cell in committed(path).cells if cell.cell_type == "code"]
    html = "".join(output.get("data", {}).get("text/html", "") for cell in cells for output in cell.outputs)
    listed = set(re.findall(r"def (\w+)\(", re.sub("<[^>]*>", "", html)))
    prose = "\n".join(cell.source for cell in from_source(path).cells if cell.cell_type == "markdown")
    told = re.findall(r"\b[Rr]ead ((?:(?:, and |, | and )?`\w+`)+)", prose)
    assert {name for names in told for name in re.findall(r"\w+", names.replace(" and ", " "))} <= listed


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.stem)
def test_figures_follow_a_dark_theme(path):
    """One cell tells JupyterLab to turn them round; without it they are white on a black page."""
    shown = [output.get("data", {}) for cell in committed(path).cells for output in cell.get("outputs", [])]
    drawn = any("image/png" in data for data in shown)
    assert not drawn or any("data-jp-theme-light" in data.get("text/html", "") for data in shown)


def is_module(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        return False
    return True


def test_a_cell_keeps_its_id_when_another_comes(tmp_path):
    write_course(tmp_path, "000_start_here")
    path = tmp_path / "source" / "000_start_here.md"
    path.write_text("# One\n\n```python\nfirst\n```\n\n```python\n1\n```\n\n```python\n1\n```\n", encoding="utf-8")
    before = notebooks.read_source(path)
    assert notebooks.read_source(path) == before
    assert len({cell.id for cell in before.cells}) == len(before.cells)
    path.write_text(
        "# One\n\n```python\nfirst\n```\n\n```python\n0\n```\n\n```python\n1\n```\n\n```python\n1\n```\n",
        encoding="utf-8",
    )
    after = notebooks.read_source(path)
    assert [cell.id for cell in after.cells if cell.source != "0"] == [cell.id for cell in before.cells]
    nbformat.validate(after)


def links(path) -> list[str]:
    return re.findall(r"\]\((.*?)\)", from_source(path).cells[-1].source)


def test_a_chapter_links_to_its_neighbours_on_the_path_and_to_the_list(tmp_path):
    beside = {name: {"beside": "true"} for name in ("15_beside", "16_beside")}
    write_course(tmp_path, "00_one", "10_two", "15_beside", "16_beside", "20_three", **beside)
    found = {path.stem: links(path) for path in notebooks.sources(tmp_path)}
    assert found == {
        "00_one": ["README.md", "10_two.ipynb"],
        "10_two": ["00_one.ipynb", "README.md", "20_three.ipynb"],
        "15_beside": ["10_two.ipynb", "README.md", "16_beside.ipynb"],
        "16_beside": ["15_beside.ipynb", "README.md", "20_three.ipynb"],
        "20_three": ["10_two.ipynb", "README.md"],
    }


def test_a_new_chapter_is_linked_from_its_neighbours(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(notebooks, "NOTEBOOKS", tmp_path)
    monkeypatch.setattr(notebooks, "sources", lambda folder=tmp_path, find=notebooks.sources: find(folder))
    for names in (("00_one",), ("00_one", "20_three"), ("00_one", "10_two", "20_three")):
        write_course(tmp_path, *names)
        assert notebooks.main([names[-2] if len(names) == 3 else names[-1]]) == 0
    for name in names:
        made = nbformat.read(tmp_path / f"{name}.ipynb", as_version=4)
        assert made.cells[-1] == notebooks.read_source(tmp_path / "source" / f"{name}.md").cells[-1]


# --- what is committed ---


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.stem)
def test_the_committed_notebook_is_its_source_executed(path):
    notebook, source = committed(path), from_source(path)
    assert as_written(notebook) == as_written(source), "run `make notebooks`"
    assert [cell.id for cell in notebook.cells] == [cell.id for cell in source.cells]
    assert notebook.metadata == source.metadata
    assert_shows_everything(notebook)


def test_the_committed_notebooks_are_small():
    """Most of one is its figures."""
    sizes = {path.name: path.stat().st_size for path in notebooks.NOTEBOOKS.glob("*.ipynb")}
    assert {name: size for name, size in sizes.items() if size > 250_000} == {}


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
    write_course(tmp_path, "000_start_here")
    source = tmp_path / "source" / "000_start_here.md"
    source.write_text("# One\n\n```python\n1\n```\n", encoding="utf-8")
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
    assert json.loads(path.read_text(encoding="utf-8"))["metadata"] == notebooks.read_source(source).metadata
    assert path.read_bytes() == before


def bad_chapter(tmp_path, monkeypatch):
    write_course(tmp_path, "00_bad")
    (tmp_path / "source" / "00_bad.md").write_text("# Bad\n\n```python\n1 / 0\n```\n", encoding="utf-8")
    monkeypatch.setattr(notebooks, "NOTEBOOKS", tmp_path)
    monkeypatch.setattr(notebooks, "sources", lambda folder=tmp_path: [tmp_path / "source" / "00_bad.md"])


def test_a_cell_that_fails_is_told(tmp_path, monkeypatch, capsys):
    bad_chapter(tmp_path, monkeypatch)
    assert notebooks.main([]) == 1
    assert "ZeroDivisionError" in capsys.readouterr().err
    assert not (tmp_path / "00_bad.ipynb").exists()


def test_the_command_forks_its_kernels_with_all_that_chapters_import():
    """Each in the notebooks' folder, and in a group of its own, which ends with it."""
    code = "import os, sys\n'steps.lesson' in sys.modules, os.getcwd(), os.getpgid(0) == os.getpid()"
    chapters = {name: nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)]) for name in ("one", "two")}
    done = []
    assert asyncio.run(notebooks.execute_all(chapters, 2, lambda name, notebook: done.append(notebook)))
    shown = {notebook.cells[0].outputs[0].data["text/plain"] for notebook in done}
    assert len(done) == 2 and shown == {str((True, str(notebooks.NOTEBOOKS), True))}


@pytest.mark.parametrize(("gpu", "at_once", "threads"), [(False, 8, "1"), (True, 4, "2")])
def test_chapters_side_by_side_share_the_cores(monkeypatch, gpu, at_once, threads):
    asked = []

    async def execute_all(chapters, at_once, done):
        asked.append((at_once, os.environ["OMP_NUM_THREADS"]))
        return True

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("tutorial_lib.hardware.has_gpu", lambda: gpu)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(notebooks, "execute_all", execute_all)
    monkeypatch.setattr(notebooks, "relink", lambda source: None)
    assert notebooks.main(["000_start_here"]) == 0 and asked == [(at_once, threads)]


# --- the site ---


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
        if tag == "link" and attributes.get("rel") != "canonical":
            self.fetched.append(attributes.get("href", ""))


@pytest.fixture(scope="module", params=["three chapters", "all chapters"])
def series(request, tmp_path_factory):
    """The site of the committed chapters, which takes half a minute, or of three: its pages, and the chapters."""
    if request.param == "all chapters":
        return site.write_site(notebooks.NOTEBOOKS, tmp_path_factory.mktemp("site")), notebooks.NOTEBOOKS
    folder = tmp_path_factory.mktemp("course")
    write_course(folder, "00_one", "01_two", "aside", aside={"beside": "true"})
    text = "# The producer\n\nSee [two](01_two.ipynb#its-heading), [all](README.md).\n\n```python\n1\n```\n"
    (folder / "source" / "00_one.md").write_text(text, encoding="utf-8")
    (folder / "source" / "01_two.md").write_text("# Two\n\n## Its heading\n\nText.\n", encoding="utf-8")
    (folder / "README.md").write_text(chapters.listed(folder), encoding="utf-8")
    for path in notebooks.sources(folder):
        notebook = notebooks.read_source(path)
        for cell in (cell for cell in notebook.cells if cell.cell_type == "code"):
            data = [{"text/markdown": "| a | b |\n| --- | --- |\n| 1 | [two](01_two.ipynb) |"}, {"image/png": DOT}]
            cell.outputs = [nbformat.v4.new_output("display_data", each) for each in data]
        notebooks.write(notebook, folder / f"{path.stem}.ipynb")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site, "MORE", {})
        return site.write_site(folder, tmp_path_factory.mktemp("site")), folder


DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
of_the_site = sampled(core=lambda series: series == "three chapters")


@of_the_site
def test_the_site_has_all_chapters_needs_no_network_and_its_links_lead_somewhere(series):
    pages, course = series
    folder = pages[0].parent
    assert not (folder.parent / "jupyter_execute").exists()
    more = {*site.MORE} if course == notebooks.NOTEBOOKS else set()
    assert {page.stem for page in pages} == {"index", *more, *(path.stem for path in notebooks.sources(course))}
    for page in pages:
        text = page.read_text(encoding="utf-8")
        found = References()
        found.feed(text)
        for reference in found.fetched:
            assert not re.match(r"(https?:)?//", reference), (page.name, reference)
            assert reference.startswith("data:") or (folder / reference.partition("?")[0].partition("#")[0]).exists()
        for link in found.links:
            target = link.partition("#")[0]
            assert not target or re.match(r"https?:|mailto:", target) or (folder / target).exists(), (page.name, link)
        assert "sidebar" in text and "| --- |" not in text and "| — |" not in text  # tables are tables


@of_the_site
def test_the_site_leads_along_the_path_and_can_be_searched(series):
    pages, course = series
    folder = pages[0].parent
    path = [c.name for part in read_course(course / "source") for c in part.chapters if c.place]
    for before, after in pairwise(path):
        page = (folder / f"{before}.html").read_text(encoding="utf-8")
        found = re.search(r'<a class="next-page" href="(\w+)\.html"', page)
        assert found and found[1] == after
    assert "producer" in (folder / "searchindex.js").read_text(encoding="utf-8") and (folder / "search.html").exists()


def test_every_link_between_chapters_leads_to_a_heading():
    """What a site of all chapters would tell, without making one."""
    written = {path.stem: committed(path) for path in SOURCES}
    prose = {
        name: "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
        for name, notebook in written.items()
    }
    anchors = {
        name: {re.sub(r"\s+", "-", h) for h in re.findall(r"^#+ (.*)$", text, re.M)} for name, text in prose.items()
    }
    found = [
        (name, link) for name, text in prose.items() for link in re.findall(r"]\((\w+)\.ipynb(?:#([^)\s]+))?\)", text)
    ]
    assert len(found) > 300
    assert [each for each in found if each[1][0] not in prose] == []
    assert [(name, link) for name, link in found if link[1] and link[1] not in anchors[link[0]]] == []


def test_a_link_that_leads_nowhere_is_told(tmp_path, monkeypatch, capsys):
    write_course(tmp_path, "00_one")
    (tmp_path / "source" / "00_one.md").write_text("# One\n\nSee [two](00_two.ipynb).\n", encoding="utf-8")
    (tmp_path / "README.md").write_text("# All\n", encoding="utf-8")
    notebooks.write(notebooks.read_source(tmp_path / "source" / "00_one.md"), tmp_path / "00_one.ipynb")
    monkeypatch.setattr(notebooks, "NOTEBOOKS", tmp_path)
    monkeypatch.setattr(notebooks, "sources", lambda folder=tmp_path, find=notebooks.sources: find(folder))
    assert notebooks.main(["--html", str(tmp_path / "html")]) == 1
    assert "00_two.ipynb" in capsys.readouterr().err


def test_bars_beside_each_other_are_of_the_same_rounds_as_their_ratio(tmp_path):
    """Where the record's own rounds leave a step out, the earlier ones in which both were timed."""
    from steps.lesson import Lesson
    from tutorial_lib.files import RESULTS

    (tmp_path / "h100").symlink_to(RESULTS / "nvidia-h100-80gb-hbm3")  # whose record is of several days
    lesson = Lesson("kv_multicast", results=tmp_path)
    run = lesson.run
    now, before, own = (run.measurement(name) for name in ("kv_multicast", "pv_wait_after_max", "sdpa"))
    assert now.earlier and not before.earlier
    then = run.as_together(now, before)
    bars = [then.measurement(m.name).tflops for m in (now, before)]
    ratio = run.speedup(now, before)
    assert then.day == now.earlier != run.day and ratio.low < bars[0] / bars[1] < ratio.high
    assert run.as_together(own, before) is run
    told, figure, *_ = lesson.time().parts
    drawn = [bar.get_height() for bar in figure.axes[0].patches]
    assert drawn[-2:] == bars[::-1] and then.day in told and then.day in figure.get_suptitle()


def test_counters_of_steps_and_peers_stand_in_one_table():
    from steps import summary
    from steps.core.problems import standard
    from steps.core.recorded import find_recorded
    from tutorial_lib.files import RESULTS

    problem = standard(4096, 128, causal=False)
    told, shown = summary.counters(problem, ("cta_per_query_head", "flash_attn_4", "nobody"), gradients=True).parts
    assert problem.describe() in told
    header, _, *rows = shown.splitlines()
    assert [row.split(" | ")[0] for row in rows] == ["| cta_per_query_head", "| flash-attn-4"]
    assert header.count("|") - 2 == len(summary.UNITS) + 2  # none of these headers is unknown to the table
    days = [row.strip("| ").rpartition(" | ")[2] for row in rows]
    run = find_recorded(problem, [RESULTS], "backward")
    assert (
        header.endswith("| timed earlier, on |") and days[0] == run.measurement("cta_per_query_head").earlier != run.day
    )
    [none] = summary.counters(standard(2048, 128), ("cta_per_query_head",), gradients=True).parts
    assert "--profile" in none
