"""Which cases of the big matrices run (tests/selection.py): a core always, and every other one at one of 20 commits."""

import subprocess

import pytest

from tests import selection

pytest_plugins = ("pytester",)

MATRIX = """
import pytest
from tests.selection import sampled

@sampled(core=lambda n: n < 2)
@pytest.mark.parametrize("n", range(40))
@pytest.mark.parametrize("kind", ["a", "b"])
def test_of_two(n, kind): pass

@sampled()
@pytest.mark.parametrize("n", range(40))
def test_without_a_core(n): pass

def test_of_no_matrix(): pass
"""
CORE = {"test_of_two[a-0]", "test_of_two[a-1]", "test_of_two[b-0]", "test_of_two[b-1]", "test_of_no_matrix"}


@pytest.fixture
def ran(pytester, monkeypatch, capsys):
    """``ran(*arguments)``: the tests of MATRIX that pytest runs then, and what it prints."""
    pytester.makepyfile(test_matrix=MATRIX)
    pytester.makeconftest("from tests.conftest import *")
    pytester.makeini("[pytest]\nmarkers = sampled")
    monkeypatch.setenv("PYTHONPATH", str(selection.ROOT))

    def run(*arguments):
        passed, skipped, failed = pytester.inline_run(*arguments).listoutcomes()
        assert not skipped and not failed
        told = capsys.readouterr()
        return {report.nodeid.partition("::")[2] for report in passed}, told.out + told.err

    return run


def test_a_core_and_what_is_selected_run_on_every_worker(ran):
    whole, _ = ran("--selection", "all")
    assert len(whole) == 2 * 40 + 40 + 1 and whole > CORE
    expected = CORE | {name for name in whole if selection.in_part(f"test_matrix.py::{name}", 3)}
    assert len(expected) > len(CORE)
    for asked, workers in (("3", ()), ("23", ("-n", "2"))):
        found, told = ran("--selection", asked, *workers)
        assert found == expected
        assert f"selection: {asked} (as asked); --selection {asked} runs it again" in told


def test_the_commit_chooses_where_nobody_asks(ran):
    number, by = selection.of_this_commit()
    found, told = ran()
    assert f"selection: {number} ({by})" in told
    assert found > CORE and found == ran("--selection", str(number))[0]


@pytest.mark.parametrize("asked", ["-1", "", "1.5", "some"])
def test_what_is_no_selection_is_refused_in_one_line(pytester, asked):
    pytester.makeconftest("from tests.conftest import *")
    done = pytester.runpytest_inprocess(f"--selection={asked}")
    told = f"ERROR: --selection must be all, or a whole number, got {asked!r}"
    assert done.ret == pytest.ExitCode.USAGE_ERROR and done.stderr.str().strip() == told


def git(folder, *arguments):
    given = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *given, *arguments], cwd=folder, check=True, capture_output=True, encoding="utf-8")
    return done.stdout


def test_commits_are_counted_where_they_are_known(tmp_path, monkeypatch):
    whole, shallow = tmp_path / "whole", tmp_path / "shallow"
    whole.mkdir()
    git(whole, "init", "--quiet")
    for _ in range(22):
        git(whole, "commit", "--quiet", "--allow-empty", "--message", "one more")
    git(tmp_path, "clone", "--quiet", "--depth", "1", whole.as_uri(), str(shallow))
    monkeypatch.setattr(selection, "ROOT", whole)
    assert selection.of_this_commit() == (22, "the number of commits")
    monkeypatch.setattr(selection, "ROOT", shallow)
    commit = git(whole, "rev-parse", "HEAD").strip()
    assert selection.of_this_commit() == (int(commit[:8], 16), f"commit {commit[:8]} of a shallow clone")


def test_without_git_or_a_clone_it_is_the_first(tmp_path, monkeypatch):
    monkeypatch.setattr(selection, "ROOT", tmp_path)
    assert selection.of_this_commit() == (0, "git tells no commit here")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert selection.of_this_commit() == (0, "git tells no commit here")
