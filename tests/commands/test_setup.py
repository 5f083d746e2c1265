"""The files that make an environment agree with each other and with what is imported."""

import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import yaml

from steps.core.ladder import whole_ladder
from tests.newest import pins

ROOT = Path(__file__).resolve().parent.parent.parent


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
heavy = {"torch", "cuda", "triton", "pandas", "matplotlib", "pydantic"} & set(sys.modules)
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


def test_the_library_knows_no_step():
    for path in (ROOT / "tutorial_lib").glob("*.py"):
        assert not re.search(r"^\s*(from|import) steps\b", path.read_text(encoding="utf-8"), re.MULTILINE), path.name


def test_a_step_imports_nothing_after_it():
    paths = list((ROOT / "steps").glob("*/step[0-9]*.py"))
    assert len(paths) == sum(step.number is not None for step in whole_ladder())
    for path in paths:
        own = int(re.match(r"step(\d+)_", path.name)[1])
        assert all(
            int(number) < own for number in re.findall(r"import step(\d+)_", path.read_text(encoding="utf-8"))
        ), path.name
