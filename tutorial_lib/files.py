"""Where results are, and how a file is written: whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

RESULTS = Path(__file__).resolve().parent.parent / "results"  # what is recorded, and where commands write


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file so that, killed at any moment, it is either the old one or the new one.

    Text is written in UTF-8; a byte of a file's name in it that Python could not decode, as it was.
    """
    path = Path(os.path.realpath(path))  # a link stays, and what it leads to is written
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
