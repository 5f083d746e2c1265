"""Dependencies point one way, there is no circle, and importing costs nothing."""

import ast
import re
import subprocess
import sys
from functools import cache
from importlib.metadata import version

import yaml

from steps.core.ladder import whole_ladder
from tests.newest import pins
from tests.results.recorded import ROOT, tracked

FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for folder in ("steps", "tutorial_lib")
    for path in sorted((ROOT / folder).rglob("*.py"))
}
SKELETONS = (
    "steps.cutile",
    "steps.gluon",
    "steps.hopper",
    "steps.blackwell",
    "steps.parallel",
    "steps.reference",
)


@cache
def imports(module: str) -> frozenset[str]:
    """Modules of the project that a module imports, wherever in it; what is for type checkers alone is left out."""
    found: set[str] = set()

    def look(node):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add(whole if whole in FILES else node.module)
        for child in ast.iter_child_nodes(node):
            look(child)

    look(ast.parse(FILES[module].read_text(encoding="utf-8")))
    # ``from steps import get_step`` comes from steps.core, as steps/__init__.py says.
    named = {"steps.core.ladder" if name == "steps" else name for name in found}
    return frozenset(name for name in named if name in FILES and name != module)


def inside(module: str, *rooms: str) -> bool:
    return any(module == room or module.startswith(room + ".") for room in rooms)


def test_no_module_leads_back_to_itself():
    def reached(module: str) -> set[str]:
        seen, todo = set(), [module]
        while todo:
            for other in imports(todo.pop()) - seen:
                seen.add(other)
                todo.append(other)
        return seen

    assert not [module for module in FILES if module in reached(module)]


def test_dependencies_point_one_way():
    for module in FILES:
        for other in imports(module):
            where = f"{module} imports {other}"
            if inside(module, "tutorial_lib"):
                assert inside(other, "tutorial_lib"), where
            if inside(module, "steps.core"):
                assert inside(other, "tutorial_lib", "steps.core"), where
            if inside(module, *SKELETONS):
                assert inside(other, "tutorial_lib", "steps.core", *SKELETONS), where
            if inside(module, "steps.writing"):
                assert inside(other, "tutorial_lib", "steps.core", "steps.writing"), where
            if inside(module, "steps.measuring"):
                assert inside(other, "tutorial_lib", "steps.core", "steps.measuring", *SKELETONS), where


def requirements() -> dict[str, str]:
    return pins((ROOT / "requirements.txt").read_text(encoding="utf-8"))  # a loose pin fails here


def test_everything_is_pinned_and_installed_as_pinned():
    for name, pinned in requirements().items():
        assert version(name).partition("+")[0] == pinned


def test_conda_installs_the_same_requirements():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    *conda, pip = environment["dependencies"]
    assert pip == {"pip": ["-r requirements.txt"]}
    assert "pip" in conda
    names = {re.split("[=<>]", dependency)[0] for dependency in conda}
    assert not names & set(requirements())  # one place says which version


def test_importing_costs_nothing():
    """Neither the packages nor the command's manual load torch, cuda.tile or pandas."""
    code = """
import sys, steps, tutorial_lib, steps.run, tutorial_lib.problem, tutorial_lib.compiler
heavy = {"torch", "cuda", "triton", "libcst", "pandas", "matplotlib", "pydantic"} & set(sys.modules)
try:
    steps.run.main(["--help"])  # it names the columns, which are of records
except SystemExit:
    heavy |= {"torch", "cuda", "triton", "pandas", "matplotlib"} & set(sys.modules)
sys.exit(f"imported {heavy}" if heavy else 0)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr


def test_a_package_that_is_missing_is_named_in_one_line():
    """For whom forgot to activate the environment: every command, whatever it needs first."""
    asked = {
        "steps.show": ["mma"],
        "steps.export": ["mma"],
        "steps.run": ["--device", "cpu"],
        "steps.inspect": ["mma"],
        "steps.chapters": [],
        "tutorial_lib.notebooks": [],
    }
    code = f"""
import importlib, sys
sys.modules.update(dict.fromkeys(["torch", "cuda", "pydantic", "nbformat", "rich"]))
for module, arguments in {asked}.items():
    assert importlib.import_module(module).main(arguments) == 2, module
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, encoding="utf-8")
    assert done.returncode == 0 and done.stdout == "", done.stderr
    told = done.stderr.splitlines()
    assert len(told) == len(asked)
    for module, line in zip(asked, told):
        assert re.fullmatch(rf"{module}: the package \S+ is not installed for \S+: `make .*", line), line


def test_a_step_imports_nothing_after_it():
    paths = list((ROOT / "steps").glob("*/step[0-9]*.py"))
    assert len(paths) == sum(step.number is not None for step in whole_ladder())
    for path in paths:
        own = int(re.match(r"step(\d+)_", path.name)[1])
        assert all(
            int(number) < own for number in re.findall(r"import step(\d+)_", path.read_text(encoding="utf-8"))
        ), path.name


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


LACKING = """
path.read_text()
path.write_text(text)
open(path)
open(path, 'w')
open(path, mode='a')
path.open()
path.open('w')
os.fdopen(1, 'w')
tempfile.NamedTemporaryFile('w+')
subprocess.run(command, text=True)
"""
WELL = """
path.read_text('utf-8')
path.read_bytes()
open(path, 'rb')
path.open('wb')
os.open(path, os.O_WRONLY)
Image.open(path)
os.fdopen(1, 'wb')
tempfile.TemporaryFile(dir=folder)
dataclasses.replace(step, text=text)
subprocess.run(command, capture_output=True)
"""


def test_what_does_not_say_it_is_found_and_nothing_else():
    assert unsaid(LACKING) == list(range(2, 12)) and not unsaid(WELL)
    assert not unsaid(LACKING.replace(")", ", encoding='utf-8')").replace("(, ", "("))
