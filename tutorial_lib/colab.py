"""For readers on Colab: a badge under a chapter's heading, and a first cell that fetches the course and its packages.

Both need the address of the repository, which is ``repository`` in notebooks/source/course.toml: "OWNER/NAME" on
GitHub. While that is empty, chapters have neither.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from tutorial_lib.course import TABLE

NAME = re.compile(r"[\w.-]+/[\w.-]+")
LAST = "# notebook servers"  # how the first line of requirements.txt begins that the cells of chapters do not need

CELL = f'''# On Colab: fetch the course and what it needs, which takes minutes. Elsewhere this does nothing.
import os
import subprocess
import sys
from pathlib import Path

if not Path("../steps").exists():
    subprocess.run(["git", "clone", "--depth", "1", "https://github.com/{{repository}}", "course"], check=True)
    os.chdir("course/notebooks")
    needed, _, _ = Path("../requirements.txt").read_text().partition("{LAST}")
    Path("needed.txt").write_text(needed)
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "-r", "needed.txt"], check=True)'''


def repository(source: Path) -> str:
    """The setting, of the chapters in ``source``; "" where there is none. Raises ValueError for another form."""
    found = tomllib.loads(Path(source, TABLE).read_text(encoding="utf-8")).get("repository", "")
    if found and not NAME.fullmatch(found):
        raise ValueError(f'{TABLE}: repository must be "OWNER/NAME" on GitHub, or empty, got {found!r}')
    return found


def badge(repository: str, chapter: str) -> str:
    """A link that opens a chapter on Colab."""
    at = f"https://colab.research.google.com/github/{repository}/blob/main/notebooks/{chapter}.ipynb"
    return f"[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]({at})"


def cell(repository: str) -> str:
    """The first cell's code."""
    return CELL.replace("{repository}", repository)
