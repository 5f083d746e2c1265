"""Text is UTF-8 whatever the locale says: who reads or writes it as text says so, and this finds who does not.

ruff's PLW1514 knows a path only where it sees one made, and finds a tenth of them.
"""

import ast

import pytest

from tests.results.recorded import ROOT, tracked

MODE = frozenset("rwaxbt+")
POSITIONS = {"read_text": 0, "write_text": 1}  # where an encoding may stand without its name


def unsaid(source: str) -> list[int]:
    """Lines of calls that read or write text without saying its encoding."""
    return [node.lineno for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) and _lacks_it(node)]


def _lacks_it(call: ast.Call) -> bool:
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    if "encoding" in keywords:
        return False
    if any(_is(keywords.get(name), True) for name in ("text", "universal_newlines")):
        return True  # of subprocess: an encoding alone says that it is text
    name = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", None)
    if name in POSITIONS and isinstance(call.func, ast.Attribute):
        return len(call.args) <= POSITIONS[name]
    mode = _mode(call, name)
    return mode is not None and "b" not in mode


def _mode(call: ast.Call, name: str | None) -> str | None:
    """The mode in which a call opens a file, None where it opens none."""
    if name == "open":  # the function's second argument, and a path's first
        place, usual = int(isinstance(call.func, ast.Name)), "r"
    elif name in ("NamedTemporaryFile", "TemporaryFile", "SpooledTemporaryFile"):
        place, usual = 0, "w+b"
    elif name == "fdopen":
        place, usual = 1, "r"
    else:
        return None
    given = [keyword.value for keyword in call.keywords if keyword.arg == "mode"] + call.args[place : place + 1]
    if not given:
        return usual
    text = given[0].value if isinstance(given[0], ast.Constant) else None
    return text if isinstance(text, str) and set(text) <= MODE else None  # an image's open takes no mode


def _is(node: ast.expr | None, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def test_everything_that_is_text_says_its_encoding():
    files = {str(path.relative_to(ROOT)): path for path in tracked("*.py")}
    found = {name: unsaid(path.read_text("utf-8")) for name, path in files.items()}
    assert not {name: lines for name, lines in found.items() if lines}, 'say encoding="utf-8" there'


@pytest.mark.parametrize(
    "lacking",
    [
        "path.read_text()",
        "path.write_text(text)",
        "open(path)",
        "open(path, 'w')",
        "open(path, mode='a')",
        "path.open()",
        "path.open('w')",
        "os.fdopen(1, 'w')",
        "tempfile.NamedTemporaryFile('w+')",
        "subprocess.run(command, text=True)",
    ],
)
def test_what_does_not_say_it_is_found(lacking):
    assert unsaid(lacking) == [1]
    begun = lacking.removesuffix(")")
    assert not unsaid(f"{begun}{'' if begun.endswith('(') else ', '}encoding='utf-8')")


@pytest.mark.parametrize(
    "well",
    [
        "path.read_text('utf-8')",
        "path.read_bytes()",
        "open(path, 'rb')",
        "path.open('wb')",
        "os.open(path, os.O_WRONLY)",
        "Image.open(path)",
        "os.fdopen(1, 'wb')",
        "tempfile.TemporaryFile(dir=folder)",
        "dataclasses.replace(step, text=text)",
        "subprocess.run(command, capture_output=True)",
    ],
)
def test_what_says_it_or_is_no_text_is_not(well):
    assert not unsaid(well)
