"""The course as a site: the executed chapters as pages with a start page, parts, search, previous and next.

Sphinx makes it, with myst-nb, which reads notebooks, and the theme Furo. It needs no network, and no server: open
``index.html`` from the file system.
"""

from __future__ import annotations

import gc
import logging
import os
import re
import tempfile
from pathlib import Path

from tutorial_lib.course import read_course
from tutorial_lib.display import TURNED

TITLE = "Fused attention, one optimization a step"
OPTIONS = {
    "project": TITLE,
    "html_title": TITLE,
    "extensions": ["myst_nb"],
    "html_theme": "furo",
    "nb_execution_mode": "off",
    "nb_render_markdown_format": "gfm",  # tables, in what cells show
    "nb_ipywidgets_js": {},  # they would come from the network
    "myst_heading_anchors": 4,
    "html_show_sourcelink": False,
    "html_copy_source": False,
    "html_show_copyright": False,
    "html_static_path": ["_static"],
    "html_css_files": ["course.css"],
    "suppress_warnings": ["mystnb.unknown_mime_type"],
}

# What Furo lacks. Tables may be wider than running text, where a window has room beside its drawers: 15em for the
# chapters, and from 82em on as much for the headings; Furo gives both 46em. A page of paper does not
# scroll.
DARK = f"article :is(img, pre[style]) {{ {TURNED} }}"
STYLE = f"""\
@media (min-width: 67em) {{
  .content {{ width: calc(100vw - 22.5em); }}
  article p, article ul, article ol {{ max-width: 46em; }}
}}
@media (min-width: 82em) {{ .content {{ width: min(62em, 50vw + 4em); }} }}
table.docutils {{ font-size: 85%; }}
table.docutils td, table.docutils th {{ padding: 0.2rem 0.4rem; }}
@media not print {{
  body[data-theme="dark"] {DARK}
  @media (prefers-color-scheme: dark) {{ body:not([data-theme="light"]) {DARK} }}
}}
@media print {{
  article pre {{ max-height: none !important; white-space: pre-wrap !important; }}
  .table-wrapper {{ overflow: visible !important; }}
  table.docutils {{ font-size: 60%; }}
}}
"""
MORE = {
    "simulator": "tutorial_lib/simulator/README.md"
}  # pages beside the chapters: name -> file that chapters link to


class SiteError(RuntimeError):
    """Sphinx cannot make the site; the message holds its own words."""


def write_site(notebooks: Path, folder: Path) -> list[Path]:
    """Write the site of the chapters in ``notebooks`` into ``folder``; returns its pages. Raises SiteError.

    A link that leads nowhere is an error, too.
    """
    from sphinx.application import Sphinx
    from sphinx.errors import SphinxError
    from sphinx.util.docutils import docutils_namespace, patch_docutils

    with tempfile.TemporaryDirectory() as place:
        source, kept = Path(place, "source"), Path(place, "kept")
        source.mkdir()
        write_pages(notebooks, source)
        warnings = _Lines()
        gc.disable()  # to search the trees of all pages for garbage again and again takes a third of the time
        try:
            with patch_docutils(), docutils_namespace():
                told = {"status": None, "warning": warnings, "parallel": os.cpu_count() or 1}
                made = Sphinx(source, None, folder, kept, "html", OPTIONS, **told)
                # Else myst-nb leaves the figures of the outputs, which pages have copies of, beside the site.
                made.env.mystnb_config = made.env.mystnb_config.copy(output_folder=str(kept / "outputs"))
                made.build(force_all=True)
        except SphinxError as error:
            raise SiteError(str(error)) from None
        finally:
            gc.enable()
            logging.getLogger("sphinx").handlers.clear()
        if warnings.lines:
            told = re.sub(r"\x1b\[[\d;]*m", "", "".join(warnings.lines))  # without colours
            raise SiteError(told.replace(f"{source}/", "").strip())
        return sorted(folder / f"{name}.html" for name in made.project.docnames)


def write_pages(notebooks: Path, source: Path) -> None:
    """What Sphinx makes the site of: chapters without the links at their ends, which a site has itself; an index."""
    import nbformat

    (source / "_static").mkdir()
    (source / "_static" / "course.css").write_text(STYLE, encoding="utf-8")
    course = read_course(notebooks / "source")
    chapters = [chapter for part in course for chapter in part.chapters]
    for chapter in chapters:
        notebook = nbformat.read(notebooks / f"{chapter.name}.ipynb", as_version=4)
        notebook.cells.pop()
        for cell in notebook.cells:
            if cell.cell_type == "markdown":
                cell.source = _links(cell.source)
            for output in cell.get("outputs", ()):  # which Sphinx takes as they are
                if told := output.get("data", {}).get("text/markdown"):
                    output["data"]["text/markdown"] = re.sub(r"(]\(\w+)\.ipynb(?=[#)])", r"\1.html", told)
        nbformat.write(notebook, source / f"{chapter.name}.ipynb")
    index = _links((notebooks / "README.md").read_text(encoding="utf-8"))
    captions = {part.title.partition(":")[0]: [c for c in part.chapters if c.place] for part in course}
    for name, path in MORE.items():
        text = Path(__file__).parents[1].joinpath(path).read_text(encoding="utf-8")
        (source / f"{name}.md").write_text(text.replace("](../../notebooks/", "]("), encoding="utf-8")
    captions["Beside the path"] = [chapter for chapter in chapters if not chapter.place]  # next leads along the path
    for caption, found in captions.items():
        names = "\n".join([chapter.name for chapter in found] + [*MORE] * (caption == "Beside the path"))
        index += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{names}\n```\n"
    (source / "index.md").write_text(index, encoding="utf-8")


def _links(text: str) -> str:
    """The list of chapters is the site's index; an anchor is written as Sphinx makes it from a heading."""
    text = text.replace("](README.md)", "](index.md)")
    for name, path in MORE.items():
        text = text.replace(f"](../{path})", f"]({name}.md)")
    return re.sub(r"(?<=\.ipynb#)[^)\s]+", lambda anchor: re.sub(r"[^\w-]", "", anchor[0].lower()), text)


class _Lines:
    """A stream that keeps what is written to it."""

    def __init__(self):
        self.lines: list[str] = []

    def write(self, text: str) -> None:
        self.lines.append(text)

    def flush(self) -> None:
        pass
