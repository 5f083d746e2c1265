"""What a notebook's cell shows: Markdown, figures as small PNGs, programs with colours, what differs between two."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from tutorial_lib import plots, tables

# Figures and listings are light. In a dark theme they are turned round, and keep their hues.
TURNED = "filter: invert(0.9) hue-rotate(180deg);"
# Ink and paper are both named, so that a page of dark theme does not put its own behind the one or over the other.
PAPER, INK = "#f8f8f8", "#1a1a1a"
UNFOLDED = 40  # lines of a program that are shown at once
MARKED = {"+": "#d3f0d3", "-": "#fadbd4"}
NEWLINE = "\n"
CALLER = re.compile(r" < (?=[\w.]+:\d+ )")  # in what the simulator tells; a line of code compares with " < ", too
CODE = (
    f"background:{PAPER}; color:{INK}; font-family:monospace; line-height:1.35; font-size:90%; "
    "max-height:44em; overflow:auto; white-space:pre; padding:0.6em"
)


@dataclass(frozen=True)
class Html:
    """HTML, and the same as plain text for who cannot show it."""

    html: str
    text: str


class Page:
    """Parts to show below one another: Markdown strings, matplotlib Figures, ``Html``."""

    def __init__(self, *parts):
        self.parts = [part for part in parts if part is not None and part != ""]

    def _ipython_display_(self) -> None:
        from IPython.display import display

        for part in self.parts:
            display(*[_bundle(part)], raw=True)


def in_any_theme(*parts) -> Page:
    """A page that tells JupyterLab, where its theme is dark, to turn round all figures and listings of the notebook.

    JupyterLab takes the style from a cell that has run, or from a notebook that is trusted.
    """
    turned = f'[data-jp-theme-light="false"] :is(.jp-RenderedImage img, .jp-RenderedHTML pre[style]) {{ {TURNED} }}'
    return Page(Html(f"<style>{turned}</style>", ""), *parts)


def callers_below(told: str) -> str:
    """What the simulator tells, with each caller of a line in a line of its own."""
    return CALLER.sub("\n      called at ", told)


def _bundle(part) -> dict:
    """A part as Jupyter's MIME types."""
    if isinstance(part, str):
        return {"text/markdown": part, "text/plain": part}
    if isinstance(part, Html):
        return {"text/html": part.html, "text/plain": part.text}
    from base64 import b64encode

    return {"image/png": b64encode(plots.png(part, dpi=80)).decode(), "text/plain": "a figure"}


def marked_lines(
    before: str, after: str, written: Callable[[str], str] = str, compared_by: Callable[[str], str] = str
) -> Iterator[tuple[str, str]]:
    """Every line of ``after``, and in their places those of ``before`` that went: ("+" new, "-" gone or " ", line).

    written: how a text is written, line for line. compared_by: what is compared of a line.
    """
    old, new = written(before).split("\n"), written(after).split("\n")
    lines = [list(map(compared_by, text.split("\n"))) for text in (before, after)]
    compared = SequenceMatcher(None, *lines, autojunk=False)
    for what, i, i_end, j, j_end in compared.get_opcodes():
        if what == "equal":
            yield from ((" ", line) for line in new[j:j_end])
        else:
            yield from (("-", line) for line in old[i:i_end])
            yield from (("+", line) for line in new[j:j_end])


def difference(before: str, after: str, around: int | None = None) -> Html:
    """A program with what is new in it, and what went, marked in front of the line, so that colour is not needed.

    around: how many lines are shown before and after each that changed, None for all; what is left out is an ellipsis,
    and a line that only moved to the right or left has not changed.
    """
    compared_by = str if around is None else str.strip
    lines = list(marked_lines(before, after, compared_by=compared_by))
    near = _near(lines, around)
    rows = [
        f"  {line}" if mark == " " else f'<span style="background:{MARKED[mark]}">{mark} {line}</span>'
        for mark, line in _cut(list(marked_lines(before, after, _highlighted, compared_by)), near)
    ]
    text = "\n".join(f"{mark} {line}".rstrip() for mark, line in _cut(lines, near))
    return Html(f'<pre style="{CODE}">{NEWLINE.join(rows)}</pre>', text)


def _near(lines: Sequence[tuple[str, str]], around: int | None) -> list[int | str]:
    """Which lines are at most ``around`` from one that changed; for those between, which function goes on."""
    changed = [n for n, (mark, _) in enumerate(lines) if mark != " "]
    near = (
        {n for at in changed for n in range(at - around, at + around + 1)} if around is not None else range(len(lines))
    )
    found: list[int | str] = []
    for n, (_, line) in enumerate(lines):
        if n in near:
            found.append(n)
        else:
            begun = line.partition("(")[0] + "(...)" if line.startswith(("def ", "class ")) else ""
            before = found.pop() if found and isinstance(found[-1], str) else "..."
            found.append(f"... {begun}" if begun else before)
    return found


def _cut(lines: Sequence[tuple[str, str]], near: Sequence[int | str]) -> Iterator[tuple[str, str]]:
    yield from ((" ", n) if isinstance(n, str) else lines[n] for n in near)


def code(text: str) -> Html:
    """A program to read; a long one is folded."""
    listing, lines = f'<pre style="{CODE}">{_highlighted(text)}</pre>', len(text.splitlines())
    if lines > UNFOLDED:
        listing = f"<details><summary>The program, {lines} lines</summary>{listing}</details>"
    return Html(listing, text)


def _highlighted(text: str) -> str:
    """A Python program as HTML, line for line; comments, strings and keywords stand out, also in grey."""
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import PythonLexer
    from pygments.style import Style
    from pygments.token import Comment, Keyword, String

    class Plain(Style):  # every colour more makes a page larger
        styles = {Comment: "italic #5a5a5a", String: "#7a4a00", Keyword: "bold #1a3f7a"}  # noqa: RUF012

    lexer = PythonLexer(stripnl=False, ensurenl=False)
    made = highlight(text, lexer, HtmlFormatter(nowrap=True, noclasses=True, style=Plain))
    return made.removesuffix("\n") if text.count("\n") < made.count("\n") else made


def table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table; None shows as a dash."""
    return tables.markdown(list(headers), [[tables.figure(cell) for cell in row] for row in rows])
