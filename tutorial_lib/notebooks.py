"""Makes the notebooks: ``python -m tutorial_lib.notebooks`` executes notebooks/source/*.md into notebooks/*.ipynb.

The text and the cells stand in Markdown, where they are easy to review; the notebooks are what comes of executing them.
``--html DIR`` writes them as a site instead, see ``tutorial_lib.site``; index.html there is notebooks/README.md, the
list of chapters. ``--execute`` runs the notebooks that are there, without their source. Names
choose some: ``003_exp2``.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tutorial_lib import colab
from tutorial_lib.command import BadRequest, as_command, check_writable, make_console, parser_of
from tutorial_lib.course import Chapter, chapters_of
from tutorial_lib.files import write_whole

NOTEBOOKS = Path(__file__).resolve().parent.parent / "notebooks"
KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
# What ipykernel reports. JupyterLab writes it into every notebook that it opens; as it is there already, opening one
# changes nothing. Only the version may differ from that of another Python: ``keep_language`` puts it back.
LANGUAGE = {
    "codemirror_mode": {"name": "ipython", "version": 3},
    "file_extension": ".py",
    "mimetype": "text/x-python",
    "name": "python",
    "nbconvert_exporter": "python",
    "pygments_lexer": "ipython3",
    "version": "3.11.7",
}
LIST = "README.md"  # of chapters, in the folder of the notebooks; index.html among the pages
GLOSSARY = "glossary"
# What is no running text: code, links, headings, tables, formulas, HTML.
NOT_PROSE = re.compile(
    r"(```.*?```|`[^`]*`|!?\[[^\]]*\]\([^)]*\)|^#.*?$|^\|.*?$|\$[^$]*\$|<details>.*?</details>|<[^>]+>)", re.M | re.S
)
CELL_SECONDS = 600
# How the first cell of every chapter begins.
OPENING = """import sys
from importlib.util import find_spec

sys.path.insert(0, "..")  # the folder that holds steps/ and tutorial_lib/
if not find_spec("steps"):
    sys.exit("This chapter needs its course: clone the repository, and run `make learn` there.")
"""


def sources(folder: Path = NOTEBOOKS) -> list[Path]:
    """The chapters in the order of the course; raises ValueError where a chapter has no place in it."""
    source = Path(folder, "source")
    return [source / f"{chapter.name}.md" for chapter in chapters_of(source)]


def read_source(path: Path):
    """A chapter's Markdown as a notebook without outputs, with links to its neighbours and to the list of chapters.

    Its first cell finds the course, or says in one line that the chapter was opened without it. The same text gives
    the same notebook, and a cell's id is made from the cell alone: it stays what it is when other cells come and go.
    """
    import jupytext
    import nbformat

    notebook = jupytext.read(path, fmt="md")
    notebook.metadata = _metadata()
    chapters = {chapter.name: chapter for chapter in chapters_of(path.parent)}
    headings = {name: heading(path.with_name(f"{name}.md")) for name in chapters}
    link_terms(notebook, path)
    if code := [cell for cell in notebook.cells if cell.cell_type == "code"]:
        code[0].source = f"{OPENING}\n{code[0].source}"
    first = notebook.cells[0]
    title, _, text = first.source.partition("\n")
    under = chapters[path.stem].line(headings)
    if chapters[path.stem].place and (repository := colab.repository(path.parent)):
        under += f"\n\n{colab.badge(repository, path.stem)}\n"
        notebook.cells.insert(1, nbformat.v4.new_code_cell(colab.cell(repository)))
    first.source = f"{title}\n\n{under}\n{text}".rstrip()
    notebook.cells.append(nbformat.v4.new_markdown_cell(_neighbours(path.stem, list(chapters.values()))))
    seen = Counter()
    for cell in notebook.cells:
        name = hashlib.sha256(f"{cell.cell_type} {cell.source}".encode()).hexdigest()[:8]
        seen[name] += 1
        cell.id, cell.metadata = name if seen[name] == 1 else f"{name}-{seen[name]}", {}
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    return notebook


def _neighbours(name: str, chapters: list[Chapter]) -> str:
    """Links to the chapters before and after, and to the list: on the path, or for one beside it also in its part."""
    own = next(chapter for chapter in chapters if chapter.name == name)
    row = [chapter for chapter in chapters if chapter.place or (not own.place and chapter.part == own.part)]
    at = row.index(own)
    links = [f"[all chapters]({LIST})"]
    if at > 0:
        links.insert(0, f"[← {row[at - 1].name}]({row[at - 1].name}.ipynb)")
    if at + 1 < len(row):
        links.append(f"[{row[at + 1].name} →]({row[at + 1].name}.ipynb)")
    return " · ".join(links)


def link_terms(notebook, path: Path) -> None:
    """Link each entry of the glossary where a chapter first uses it in running text; "step swizzle" names a step."""
    anchors = {}
    for words, anchor in glossary(path.parent):
        anchors |= {form: anchor for word in words for form in (word, word[0].upper() + word[1:])}
    if path.stem == GLOSSARY or not anchors:
        return
    known = "|".join(re.escape(word).replace(r"\ ", r"\s+") for word in sorted(anchors, key=len, reverse=True))
    term = re.compile(rf"(?<![\w-])(?<![Ss]tep )(?<![Ss]teps )(?P<word>{known})(e?s)?(?![\w-])")
    linked = set()

    def link(found: re.Match) -> str:
        anchor = anchors[" ".join(found["word"].split())]
        if anchor in linked:
            return found[0]
        linked.add(anchor)
        return f"[{found[0]}]({GLOSSARY}.ipynb#{anchor})"

    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            pieces = NOT_PROSE.split(cell.source)  # every second one is no running text
            pieces[::2] = [term.sub(link, piece) for piece in pieces[::2]]
            cell.source = "".join(pieces)


def glossary(folder: Path) -> list[tuple[list[str], str]]:
    """(words, anchor) of every entry: its heading, and what the line under it says after "Also:"."""
    path = folder / f"{GLOSSARY}.md"
    if not path.exists():
        return []
    entries = re.findall(r"^## (.+)\n\n(?:\*Also: ([^*]+)\*)?", path.read_text(encoding="utf-8"), re.MULTILINE)
    return [([term, *filter(None, also.split(", "))], term.replace(" ", "-")) for term, also in entries]


def execute(notebook, folder: Path = NOTEBOOKS):
    """Run all cells in a fresh kernel in ``folder``; raises nbclient's CellExecutionError at the first that fails."""
    return asyncio.run(executed(notebook, folder))


async def executed(notebook, folder: Path = NOTEBOOKS, **of_client):
    """As ``execute``, while others are executed. of_client: see nbclient's NotebookClient."""
    from nbclient import NotebookClient
    from traitlets.config import Config

    with tempfile.TemporaryDirectory() as sockets:  # files of one's own, not open ports
        client = NotebookClient(
            notebook,
            config=Config(AsyncKernelManager={"transport": "ipc", "ip": f"{sockets}/kernel"}),
            kernel_name="python3",
            timeout=CELL_SECONDS,
            resources={"metadata": {"path": str(folder)}},
            record_timing=False,
            **of_client,
        )
        return await client.async_execute()


async def execute_all(notebooks: Mapping[str, object], at_once: int, done: Callable[[str, object], None]) -> bool:
    """Execute so many at a time; calls ``done`` with each that ran through. Returns whether all of them did."""
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    from tutorial_lib.kernels import ForkingManager

    free = asyncio.Semaphore(at_once)

    async def one(name: str, notebook) -> bool:
        async with free:
            try:
                await executed(notebook, kernel_manager_class=ForkingManager)
            except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
                print(f"tutorial_lib.notebooks: {name}: {error}", file=sys.stderr)
                return False
            done(name, notebook)
            return True

    # The last of the course take longest: begun first, none of them runs alone at the end.
    return all(await asyncio.gather(*(one(*item) for item in reversed(notebooks.items()))))


def write(notebook, path: Path) -> None:
    import nbformat

    notebook.metadata = _metadata()
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if len(output.get("data", {})) > 1:  # who shows notebooks shows the richer form
                output.data.pop("text/plain", None)
    nbformat.validate(notebook)
    write_whole(path, nbformat.writes(notebook) + "\n")


def relink(source: Path) -> None:
    """Bring the links of a notebook that is there up to date, when a chapter beside it is new; nothing else."""
    import nbformat

    path = NOTEBOOKS / f"{source.stem}.ipynb"
    if path.exists():
        notebook, links = nbformat.read(path, as_version=4), read_source(source).cells[-1]
        if notebook.cells[-1] != links and f"]({LIST})" in notebook.cells[-1].source:
            notebook.cells[-1] = links
            write(notebook, path)


def _metadata() -> dict:
    return {"kernelspec": dict(KERNEL), "language_info": dict(LANGUAGE)}


def keep_language(model: dict, **_) -> None:
    """What JupyterLab calls before it saves: a notebook keeps its ``language_info``, whichever Python opened it.

    ``python -m jupyterlab --ContentsManager.pre_save_hook=tutorial_lib.notebooks.keep_language``
    """
    if model["type"] == "notebook" and model["content"]["metadata"].get("kernelspec") == KERNEL:
        model["content"]["metadata"]["language_info"] = dict(LANGUAGE)


def heading(path: Path) -> str:
    """The first heading of a Markdown file; raises ValueError where its first line is none."""
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    if not first.startswith("# "):
        raise ValueError(f"{path} must begin with a heading, such as: # The idea; got {first!r}")
    return first.removeprefix("# ")


def run(options: argparse.Namespace) -> int:
    import nbformat

    from tutorial_lib.hardware import has_gpu

    console = make_console()
    known = {path.stem: path for path in sources()}
    for name in options.names:
        if name not in known:
            raise BadRequest(f"argument NAME: must be some of {', '.join(known)}, got {name!r}")
        if options.execute and not (NOTEBOOKS / f"{name}.ipynb").exists():
            raise BadRequest(f"argument --execute: {name}.ipynb is not there yet; make it without --execute")
    if options.html:
        check_writable("--html", options.html)
    if options.html:
        from tutorial_lib.site import SiteError, write_site

        try:
            with console.status("writing pages"):
                pages = write_site(NOTEBOOKS, options.html)
        except SiteError as error:
            print(f"tutorial_lib.notebooks: {error}", file=sys.stderr)
            return 1
        console.print(f"{len(pages)} pages; begin with {options.html / 'index.html'}", soft_wrap=True)
        return 0
    asked = {
        name: nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4) if options.execute else read_source(known[name])
        for name in options.names or known
    }

    def done(name: str, notebook) -> None:
        write(notebook, NOTEBOOKS / f"{name}.ipynb")
        console.print(str(NOTEBOOKS / f"{name}.ipynb"), soft_wrap=True)

    # On a GPU each sample has it alone (``hardware.gpu_turn``). Most of the time goes into compilers; a chapter waits
    # for one at a time. Some cores must be free for whoever launches what is sampled.
    cores = os.cpu_count() or 1
    at_once = max(1, cores // 2) if has_gpu() else cores
    # Threads that wait for each other on cores that other notebooks hold take several times as long.
    os.environ.setdefault("OMP_NUM_THREADS", str(cores // at_once))
    with console.status(f"executing {len(asked)} chapters"):
        right = asyncio.run(execute_all(asked, at_once, done))
    for source in known.values():
        relink(source)
    return 0 if right else 1


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of("tutorial_lib.notebooks", __doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="chapters, such as 003_exp2 (all)")
    parser.add_argument("--execute", action="store_true", help="execute the notebooks that are there, not their source")
    parser.add_argument("--html", type=Path, metavar="DIR", help="write the notebooks that are there as a site")
    return as_command("tutorial_lib.notebooks", lambda: run(parser.parse_args(arguments)), interrupted="Interrupted.")


if __name__ == "__main__":
    sys.exit(main())
