"""``python -m steps.inspect``: what it shows and records, what it refuses, and compilers that fail."""

import contextlib
import io
import json
import re
import stat
import subprocess
import sys

import pytest

from steps import get_step
from steps.core.problems import HEADLINE as EVEN
from steps.core.recorded import read_survey
from steps.inspect import difference, main
from steps.writing.written import written_out
from tests.core.test_one_change import CUTILE
from tests.expected import same_compilers
from tests.selection import ROOT, sampled
from tutorial_lib import compiler
from tutorial_lib.compiler import AMD_ARCHITECTURES, CUTILE_ARCHITECTURES, CompilerError
from tutorial_lib.records import Survey
from tutorial_lib.results import as_json


def call(*arguments) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(list(arguments))
    return status, out.getvalue(), err.getvalue()


def test_inspect_compares_two_steps():
    status, out, err = call("exp2", "--against", "mma", "--arch", "sm_90")
    assert status == 0 and err == ""
    assert "2 mma" in out and "3 exp2" in out and "Different code." in out
    assert re.search(r"^Instruction [\d,]+ of [\d,]+ is the first that differs: .*; before: \S.*$", out, re.MULTILINE)
    assert "registers per thread" in out and "instructions per K/V tile, hot loop" in out
    assert "step002_mma.py" in out and "TMA Load instruction" in out and "k = ct.load(" in out
    assert "matrix products and softmax take turns" in " ".join(out.split())
    assert "The same code." in call("4", "--against", "3")[1]


@pytest.mark.parametrize("again", [False, True])
def test_inspect_says_how_a_step_is_launched(again):
    """And that registers are those at launch, where warps change them."""
    out = call("producer")[1]
    launch = "Launch: rule SM90_TwoGroups_128x128, tile of 128 queries and 128 keys, 12 warps"
    given = "setmaxnreg then gives 168 to warps 4 to 7, 24 to warp 8, and what is left to warps 0 to 3."
    assert f"{launch}, 2 stages, 4,096 blocks. Registers are those of a thread at launch: {given}\n" in out
    kernel = (
        r"kernel steps/hopper/kernel\.py:\d+ fmha\. All that the kernel calls: python -m steps\.show producer --where$"
    )
    assert re.search(rf"^Code: the step steps/hopper/step201_producer\.py, .*{kernel}", out, re.MULTILINE)
    assert "setmaxnreg" not in call("wgmma")[1]


def test_inspect_says_how_a_backward_step_is_launched():
    """Its stages hold queries and dO."""
    out = call("decoupled_warpgroups")[1]
    assert re.search(r"^Launch: rule \w+, tile of \d+ queries and \d+ keys, \d+ warps, \d stages, ", out, re.MULTILINE)


def test_inspect_says_that_a_tile_is_of_no_rule():
    assert "\nLaunch: tile of its own (64 queries and 64 keys), 4 warps, " in call("explicit")[1]


def test_inspect_is_instant_the_second_time():
    """What takes the time is not loaded at all, and the same is said."""
    asked = ["exp2", "--against", "mma", "--arch", "sm_90,sm_100,sm_121"]
    loaded = "import runpy, sys; sys.argv = sys.argv[1:]\ntry: runpy.run_module('steps.inspect', run_name='__main__')\n"
    loaded += "except SystemExit: print([m for m in ('torch', 'triton', 'cuda') if m in sys.modules], file=sys.stderr)"
    first = call(*asked)[1]
    command = [sys.executable, "-c", loaded, "steps.inspect", *asked]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, encoding="utf-8")
    assert done.stdout == first and done.stderr.strip().splitlines()[-1] == "[]"


def test_inspect_pages_through_the_code(monkeypatch):
    shown = []
    monkeypatch.setattr("pydoc.pager", shown.append)
    for which in ("tile-ir", "sass", "ptx"):
        assert call("7", "--text", which)[0] == 0
    assert "entry @fmha" in shown[0] and "HGMMA" in shown[1] and "no PTX" in shown[2]


@pytest.fixture
def few_steps(monkeypatch):
    """Of the ladder some that differ: every kind of kernel, and one without."""
    few = tuple(map(get_step, ("sdpa", "mma", "exp2", "approx_division", "split_q", "wgmma")))
    monkeypatch.setattr("steps.core.ladder.kernels_of", lambda _: few)
    return few


def test_inspect_records_a_survey(few_steps, tmp_path):
    status, out, _ = call("all", "--arch", "sm_90,sm_107", "--output", str(tmp_path))
    assert status == 0
    assert "does not know sm_107" in out.replace("\n", " ")
    survey = Survey.model_validate_json((tmp_path / "survey.json").read_text(encoding="utf-8"))
    assert survey.steps == [step.name for step in few_steps[1:]] and survey.architectures == ["sm_90", "sm_107"]
    assert survey.compiled["approx_division"]["sm_90"] == get_step("approx_division").compile(EVEN, "sm_90").as_dict()
    assert {path.name for path in tmp_path.iterdir()} == {"survey.json", "survey.png", "survey.svg"}


@same_compilers
@sampled(core=lambda step: step is CUTILE[0])
@pytest.mark.parametrize("step", CUTILE, ids=lambda step: step.name)
def test_the_recorded_survey_is_what_the_compiler_makes(step):
    path = ROOT / "results" / "compiled" / EVEN.slug / "survey.json"
    survey = read_survey(path)
    assert survey.architectures == [*CUTILE_ARCHITECTURES, *AMD_ARCHITECTURES]
    for arch in ("sm_90", "sm_121")[: 2 if step is CUTILE[0] else 1]:  # a kernel takes seconds
        refused = step.unsupported(EVEN, arch)
        made = refused or step.compile(EVEN, arch).as_dict()
        made = json.loads(as_json(survey.model_copy(update={"compiled": {"it": {"there": made}}})))  # as a file has it
        assert survey.compiled[step.label][arch] == made["compiled"]["it"]["there"], (
            "run: python -m steps.inspect all --arch all --output ..."
        )


@pytest.fixture
def fake_tileiras(monkeypatch, tmp_path):
    """Puts a script in the compiler's place: fake_tileiras(shell text)."""

    def install(script: str):
        path = tmp_path / "tileiras"
        path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("FMHA_TUTORIAL_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(compiler, "_tileiras", lambda: str(path))
        monkeypatch.setattr(compiler, "lock", None)  # which knows what the real one makes
        compiler.compiler_version.cache_clear()

    yield install
    compiler.compiler_version.cache_clear()


def test_a_compiler_that_is_too_old_is_refused(fake_tileiras):
    fake_tileiras('echo "Cuda compilation tools, release 13.2, V13.2.86"')
    status, _, err = call("exp2")
    assert status == 2 and err == "steps.inspect: tileiras must be at least 13.4, got 13.2.86\n"


def test_a_compiler_that_cannot_be_run_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(compiler, "_tileiras", lambda: str(tmp_path))  # a folder
    compiler.compiler_version.cache_clear()
    status, _, err = call("exp2")
    assert status == 2 and err.startswith("steps.inspect: tileiras cannot be run") and len(err.splitlines()) == 1


def test_a_compiler_that_is_missing_is_refused(monkeypatch):
    def missing():
        raise CompilerError("tileiras, cuTile's compiler, was not found")

    monkeypatch.setattr(compiler, "_tileiras", missing)
    compiler.compiler_version.cache_clear()
    status, _, err = call("exp2")
    assert status == 2 and err == "steps.inspect: tileiras, cuTile's compiler, was not found\n"


def test_a_compiler_that_fails_for_one_architecture_still_serves_the_others(fake_tileiras):
    real = compiler._tileiras()
    fake_tileiras(f'case "$*" in *sm_80*) echo "error: out of luck" >&2; exit 3;; esac\nexec "{real}" "$@"')
    status, out, err = call("exp2", "--arch", "sm_80,sm_90")
    assert status == 2
    assert err == "steps.inspect: sm_80: tileiras failed for sm_80: error: out of luck\n"
    assert "sm_90, tileiras" in out and "registers per thread" in out


def test_a_compiler_that_fails_on_one_step_stops_no_other(fake_tileiras, monkeypatch):
    monkeypatch.setattr("steps.core.ladder.kernels_of", lambda _: tuple(map(get_step, ("sdpa", "mma", "exp2"))))
    real = compiler._tileiras()
    seen = "$(dirname $0)/seen"  # the first compilation fails, all others are real
    version = f'case "$*" in --version) exec "{real}" --version;; esac'
    fake_tileiras(
        f'{version}\nif [ ! -e "{seen}" ]; then touch "{seen}"; echo "error: once" >&2; exit 3; fi\nexec "{real}" "$@"'
    )
    status, out, err = call("all", "--arch", "sm_90")
    assert status == 2 and err == "steps.inspect: 2 mma, sm_90: tileiras failed for sm_90: error: once\n"
    assert "none" in out and "3 exp2" in out


def test_differences_are_put_in_words():
    assert difference(10, 10) == ""
    assert difference(0, 5) == "appeared"
    assert difference(5, 0) == "vanished"
    assert difference(200, 150) == "-25 %"
    assert difference(1000, 999) == "+0 %"  # not "-0 %"
    assert difference(None, 5) == ""


def test_a_name_that_is_not_there_is_told(tmp_path):
    """Of a file that somebody edited; Triton's outermost error tells the line alone."""
    path = tmp_path / "mine.py"
    text = written_out(get_step("producer"), get_step("producer").default_problem)
    path.write_text(text.replace("warpgroup_mma_wait(0", "warpgroup_mma_waits(0", 1), encoding="utf-8")
    _, _, err = call(str(path))
    assert "Triton failed for sm_90: NameError('warpgroup_mma_waits is not defined')" in err
