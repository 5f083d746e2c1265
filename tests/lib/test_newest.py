"""What ``python -m tests.newest`` reads, and what it leaves behind; no test here runs pip."""

import pytest

from tests import newest
from tutorial_lib.command import BadRequest

JUNIT = """<testsuites><testsuite>
<testcase classname="tests.core.test_a" name="test_one"/>
<testcase classname="tests.core.test_a.TestClass" name="test_two[x]"><failure message="assert 1\n == 2">long</failure>
</testcase>
<testcase classname="tests.core.test_a" name="test_three"><failure message="later"/></testcase>
<testcase classname="tests.core.test_a" name="test_four"><error message="failed on setup"/></testcase>
<testcase classname="tests.lib.test_b" name="test_one"><skipped message="needs Chromium"/></testcase>
<testcase classname="tests.lib.test_b" name="test_two"><skipped message="tests/expected.json is of {'triton'}: run"/>
</testcase>
<testcase classname="" name="tests.gpu.test_c"><error message="collection failure">import x
E   ModuleNotFoundError: No module named 'x'</error></testcase>
</testsuite></testsuites>"""


class Runner:
    """In place of commands: keeps them, and answers each with what ``answers`` holds for a word of it."""

    def __init__(self, **answers):
        self.commands, self.answers = [], answers

    def __call__(self, command):
        self.commands.append(list(command))
        return next((answer for word, answer in self.answers.items() if word in command), (0, []))


def test_pins_are_read_without_comments():
    text = "# all\ntorch==2.15.0\n\nsphinx==9.0.4  # the last for Python 3.11\na-b==1.0+cu1; x == 'y'\n"
    assert newest.pins(text) == {"torch": "2.15.0", "sphinx": "9.0.4", "a-b": "1.0+cu1"}
    with pytest.raises(BadRequest, match="expected name==VERSION, got 'torch>=2'"):
        newest.pins("torch>=2\n")


def test_what_pip_lists_is_found_among_warnings():
    lines = ["WARNING: Location 'x' is ignored", '[{"name": "Cuda_Tile", "version": "1.8"}]', ""]
    assert newest.listed(lines) == {"cuda-tile": "1.8"}


def test_rooms_are_counted_and_no_skip_is_silent():
    found = newest.rooms(JUNIT)
    assert list(found) == ["tests/core", "tests/gpu", "tests/lib"]
    counts, failures = found["tests/core"]
    assert counts == {"passed": 1, "failed": 3} and failures[0] == "test_two[x]: assert 1 == 2"
    assert found["tests/lib"] == ({"skipped": 1, "skipped for other compilers": 1}, [])
    assert found["tests/gpu"][1] == ["tests.gpu.test_c: E ModuleNotFoundError: No module named 'x'"]


def test_other_compilers_are_told_by_the_reason_that_skips():
    from tests.expected import same_compilers

    assert same_compilers.kwargs["reason"].startswith(newest.OTHER_COMPILERS)


def test_an_environment_is_begun_anew_unless_it_was_finished(tmp_path):
    left = tmp_path / "environment" / "half"
    left.parent.mkdir()
    left.touch()
    run = Runner()
    python = newest.make_environment(tmp_path, ["torch", "triton"], run)
    assert not left.exists() and python == str(tmp_path / "environment" / "bin" / "python")
    assert run.commands[1][0] == python and run.commands[1][-2:] == ["torch", "triton"]
    left.parent.mkdir()
    left.touch()
    newest.make_environment(tmp_path, ["torch"], run)
    assert left.exists()  # it was finished, and is brought up to date
    with pytest.raises(OSError, match=r"^ERROR: no torch$"):
        newest.make_environment(tmp_path, ["torch"], Runner(pip=(1, ["WARNING: a", "ERROR: no torch"])))
    newest.make_environment(tmp_path, ["torch"], run)
    assert not left.exists()


def test_what_pytest_ends_with(tmp_path):
    class Pytest(Runner):
        def __call__(self, command):
            report = next(word for word in command if word.startswith("--junitxml=")).partition("=")[2]
            if written := self.answers.get("report"):
                newest.write_whole(newest.Path(report), written)
            self.commands.append(list(command))
            return self.answers["pytest"]

    run = Pytest(pytest=(1, []), report=JUNIT)
    assert newest.tested("new/python", ["tests/core"], run) == newest.rooms(JUNIT)
    assert run.commands[0][0] == "new/python" and run.commands[0][-1] == "tests/core"
    with pytest.raises(BadRequest, match="no test was chosen"):
        newest.tested("python", [], Pytest(pytest=(5, [])))
    with pytest.raises(BadRequest, match="ERROR: not found"):
        newest.tested("python", [], Pytest(pytest=(4, ["ERROR: not found: x", ""])))
    with pytest.raises(OSError, match="status 4: E   No module"):  # conftest.py cannot be imported
        newest.tested("python", [], Pytest(pytest=(4, ["ImportError", "E   No module"])))
