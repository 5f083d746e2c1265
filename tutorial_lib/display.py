"""What a notebook's cell shows: Markdown, figures as small PNGs, and the coloured difference of two texts."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import unified_diff

from tutorial_lib import plots, tables

COLOURS = {"+": "#d9f2d9", "-": "#fbdcd5", "@": "#e8e8e8"}

CODE = "font-family:monospace; line-height:1.35; font-size:90%"


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


def _bundle(part) -> dict:
    """A part as Jupyter's MIME types."""
    if isinstance(part, str):
        return {"text/markdown": part, "text/plain": part}
    if isinstance(part, Html):
        return {"text/html": part.html, "text/plain": part.text}
    from base64 import b64encode

    return {"image/png": b64encode(plots.png(part, dpi=80)).decode(), "text/plain": "a figure"}


def difference(before: str, after: str, context: int = 3) -> Html:
    """The change from one text to another, line by line; every line begins with + or -, so colour is not needed."""
    lines = list(unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=context))[2:]
    rows = "".join(
        f'<div style="background:{COLOURS.get(line[:1], "transparent")}; color:#111">{html.escape(line) or " "}</div>'
        for line in lines
    )
    return Html(f'<pre style="{CODE}">{rows}</pre>', "\n".join(lines))


def code(text: str) -> Html:
    """A program to read."""
    return Html(f'<pre style="{CODE}">{html.escape(text)}</pre>', text)


def table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table; None shows as a dash."""
    return tables.markdown(list(headers), [[tables.figure(cell) for cell in row] for row in rows])
