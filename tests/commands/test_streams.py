"""Whatever standard output is: in ASCII or latin-1, closed, with a reader that left, in another locale."""

import io
import os
import subprocess
import sys

import pytest

from tests.results.recorded import ROOT
from tutorial_lib.command import as_command, make_console
from tutorial_lib.files import write_whole

TEXT = "1.05× (1.03–1.07), «same» → 5 µs … ≤ ±1 é 中 │─┼█"
ENCODINGS = ("ascii", "latin-1", "cp1252", "utf-8")


@pytest.fixture
def output(monkeypatch):
    """``output(encoding)``: standard output from here on, a text file in that encoding; ``.buffer`` has the bytes."""

    def made(encoding: str) -> io.TextIOWrapper:
        stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True)
        monkeypatch.setattr(sys, "stdout", stream)
        return stream

    return made


def say(text: str):
    def work() -> int:
        print(text)
        return 0

    return work


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_characters_that_an_encoding_lacks_are_question_marks(output, encoding):
    stream = output(encoding)
    assert as_command("a", say(TEXT)) == 0
    told = stream.buffer.getvalue().decode(encoding).rstrip("\n")
    assert told == TEXT.encode(encoding, "replace").decode(encoding) and (told == TEXT) == (encoding == "utf-8")
    assert stream.errors == "strict"  # as it was


def test_a_byte_of_a_files_name_that_could_not_be_decoded_is_written_as_it_came(tmp_path):
    name = b"r\xe9sum\xe9"
    write_whole(tmp_path / "log", f"× {name.decode('utf-8', 'surrogateescape')}")
    assert (tmp_path / "log").read_bytes() == "× ".encode() + name


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_columns_of_a_table_align_in_every_encoding(output, encoding):
    from rich.table import Table

    stream = output(encoding)

    def work() -> int:
        table = Table("what", "times (p10–p90)")
        table.add_row("a", "± 1.05×")
        table.add_row("b → c", "2")
        make_console().print(table)
        return 0

    assert as_command("a", work) == 0
    lines = stream.buffer.getvalue().decode(encoding).splitlines()
    assert len(lines) > 4 and len({len(line.rstrip()) for line in lines}) == 1
    assert any("1.05×" in line for line in lines) == (encoding != "ascii")


@pytest.mark.parametrize("through", [print, lambda text: make_console().print(text)], ids=["print", "console"])
def test_a_reader_that_went_away_ends_a_command_without_a_word(monkeypatch, capsys, through):
    class Left(io.StringIO):
        def flush(self):
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Left())
    assert as_command("a", lambda: through("text") or 0, interrupted="Interrupted.") == 130
    assert capsys.readouterr().err == ""


# Prints, and lets another process print; the file that it opens must not become the other's standard output.
PROGRAM = """
import subprocess, sys
from pathlib import Path
from tutorial_lib.command import as_command

def work():
    with open("file", "w", encoding="utf-8") as file:
        for _ in range(10_000):
            print("1.05×")
        print("told", file=sys.stderr)
        subprocess.run(["echo", "child"], check=True)
        file.write("whole")
    return 7

sys.exit(as_command("a", work, interrupted="Interrupted."))
"""


@pytest.mark.parametrize(
    ("shell", "status", "told"),
    [
        ('"$@" >&-', 7, "told\n"),
        ('"$@" <&- >&- 2>&-', 7, ""),
        ('"$@" | true; exit ${PIPESTATUS[0]}', 130, ""),
        ('"$@" >/dev/full', 1, "a: [Errno 28] No space left on device\n"),
    ],
    ids=["closed", "all closed", "left", "full"],
)
def test_a_command_whose_output_goes_nowhere(shell, status, told, tmp_path):
    command = ["bash", "-c", shell, "bash", sys.executable, "-c", PROGRAM]
    there = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=there, stderr=subprocess.PIPE, encoding="utf-8")
    assert (done.returncode, done.stderr) == (status, told)
    assert (tmp_path / "file").read_text(encoding="utf-8") == ("whole" if status == 7 else "")


def test_a_command_runs_in_the_c_locale():
    command = [sys.executable, "-m", "steps.trace", "epilogue_overlap"]
    there = {name: value for name, value in os.environ.items() if name != "PYTHONIOENCODING"}
    there |= {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(command, cwd=ROOT, env=there, capture_output=True, encoding="utf-8")
    assert (done.returncode, done.stderr) == (0, "")
    assert "1.07 times as long (1.06?1.07)" in done.stdout
