"""What each machine can run: the page of machines, packages that are missing, GPUs that nothing is made for."""

import dataclasses
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from steps import get_step, machines, run, trace
from steps.core.attention import chosen
from steps.core.ladder import whole_ladder
from steps.core.problems import HEADLINE
from steps.core.recorded import read_survey
from steps.core.step import target_of
from steps.reference.peers import peers_of
from steps.running.doctor import why_not
from tutorial_lib import colab, hardware
from tutorial_lib.files import RESULTS
from tutorial_lib.needs import MODULES
from tutorial_lib.problem import Problem

ROOT = RESULTS.parent
KEPT = json.loads((RESULTS / machines.DATA).read_text(encoding="utf-8"))

# Hides packages from every process that has this folder on its path: Python imports it when it starts.
HIDING = """
import importlib.machinery as machinery, os
find, hidden = machinery.PathFinder.find_spec, os.environ["HIDDEN"].split(",")
def found(name, path=None, target=None):
    there = not any(f"{name}.".startswith(f"{each}.") for each in hidden)
    return find(name, path, target) if there else None
machinery.PathFinder.find_spec = staticmethod(found)
"""


@pytest.fixture
def without(tmp_path):
    """A function that runs Python, with packages hidden from it and from the processes that it starts."""
    (tmp_path / "sitecustomize.py").write_text(HIDING, encoding="utf-8")

    def python(hidden: str, *command: str):
        environment = {**os.environ, "PYTHONPATH": str(tmp_path), "HIDDEN": hidden}
        return subprocess.run(
            [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True, encoding="utf-8"
        )

    return python


def test_the_page_is_what_the_steps_and_the_kept_wheels_say():
    assert (RESULTS / machines.PAGE).read_text(encoding="utf-8") == machines.page(KEPT)


def test_wheels_were_looked_up_for_the_versions_that_are_pinned():
    assert {name: kept["version"] for name, kept in KEPT["wheels"].items()} == {
        name: version for name, (version, _) in machines.pinned().items()
    }


@pytest.mark.parametrize("system", [system for system in machines.SYSTEMS if system != "macOS x86_64"])
def test_requirements_leave_out_what_has_no_wheel_and_nothing_else(system):
    assert machines.without_wheel(KEPT["wheels"], system) == []
    for name in machines.left_out(system):
        assert system not in KEPT["wheels"][name]["systems"], name


def test_wheels_are_found_by_their_tags(monkeypatch):
    tags = ("cp312-cp312-manylinux_2_28_x86_64", "cp38-abi3-macosx_11_0_universal2", "cp313-cp313-win_amd64")
    files = [{"filename": f"a_b-{v}-{tag}.whl"} for v, tag in zip(("1.0", "1.0", "1.0"), tags)]
    files += [{"filename": "a_b-2.0-py3-none-any.whl"}, {"filename": "a_b-1.0.tar.gz"}, {"filename": "a_b-x.whl"}]
    asked = []
    monkeypatch.setenv("PIP_INDEX_URL", "https://index/simple/")

    def answer(request, timeout):
        asked.append(request.full_url)
        return io.BytesIO(json.dumps({"files": files}).encode())

    monkeypatch.setattr("urllib.request.urlopen", answer)
    one, other = machines.look_up("a-b", "1.0"), machines.look_up("a-b", "2.0")
    assert one == {"Linux x86_64": [2, 28], "macOS arm64": [11, 0], "macOS x86_64": [11, 0]}
    assert other == {system: [] for system in machines.SYSTEMS}
    wheels = {"a": {"systems": other}, "b": {"systems": one}, "c": {"systems": {"macOS arm64": [9, 1]}}}
    assert machines.at_least(wheels, "macOS arm64") == "macOS 11.0" and machines.at_least({}, "Linux aarch64") == "–"
    assert asked == ["https://index/simple/a-b/"] * 2


def test_every_gpu_of_the_page_compiles_what_no_step_refuses():
    survey = read_survey(RESULTS / "compiled" / "b4_h32_s4096_d128_fp16_causal" / "survey.json")
    problem = Problem(**survey.problem)
    archs = {machine.arch for machine in machines.MACHINES} & set(survey.architectures)
    assert len(archs) >= 8
    for arch in archs:
        for label, by_arch in survey.compiled.items():
            refused = get_step(label.split()[-1]).unsupported(problem, arch)
            assert (refused is None) == (not isinstance(by_arch[arch], str)), (label, arch)


def test_a_gpu_before_ampere_is_refused_by_every_kernel():
    kernels = [step for step in whole_ladder() if step.package]
    assert len(kernels) > 50
    for step in kernels:
        assert "sm_75" in (step.unsupported(step.default_problem, "sm_75") or ""), step.label


def test_a_peer_says_which_gpus_it_is_made_for():
    peers = {peer.name: peer for direction in ("forward", "backward") for peer in peers_of(direction)}
    assert "sm_75" in peers["sdpa_flash"].unsupported(HEADLINE, "sm_75")
    assert "sm_80" in peers["flash_attn_3"].unsupported(HEADLINE, "sm_80")
    assert peers["sdpa_efficient"].unsupported(HEADLINE, "sm_75") is None


@pytest.fixture
def t4(monkeypatch):
    """PyTorch reports a T4, as far as it is asked here."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (7, 5))


def test_with_a_gpu_before_ampere_everything_runs_on_the_cpu(t4, capsys):
    assert not hardware.has_gpu() and run.choose_device("auto") == "cpu"
    assert capsys.readouterr().out == "The compilers make no code for the GPU here, which is sm_75.\n"
    assert run.main(["--device", "cuda"]) == 2
    told = "argument --device: the compilers make no code for the GPU here, which is sm_75; use --device cpu"
    assert capsys.readouterr().err == f"steps.run: {told}\n"


def test_where_a_system_has_no_such_locks_nobody_waits_for_a_gpu(monkeypatch):
    monkeypatch.setitem(sys.modules, "fcntl", None)  # as on Windows
    entered = []
    with hardware.gpu_turn("cuda"):
        entered.append(True)
    assert entered


def test_a_chapter_says_why_such_a_gpu_is_not_used(t4, monkeypatch):
    from steps import lesson

    monkeypatch.setattr(lesson, "describe_versions", dict)
    assert "the CPU, as the compilers make no code for the GPU here, which is sm_75" in lesson.machine(None).parts[-1]


@pytest.mark.parametrize(("hidden", "left"), [("triton", "cutile"), ("triton,cuda", "none")])
def test_without_a_package_its_steps_are_left_out_and_the_others_run(without, tmp_path, hidden, left):
    asked = ["--steps", "0,exp2,explicit,hopper", "--seq-len", "64", "--output-dir", str(tmp_path)]
    done = without(hidden, "-m", "steps.run", *asked)
    assert done.returncode == 0, done.stderr
    assert "Kernels in Gluon and Triton are left out" in done.stdout
    assert ("Kernels in cuTile are left out" in done.stdout) == (left == "none")
    assert re.search(r"^ +0 +sdpa.* yes", done.stdout, re.MULTILINE)
    assert bool(re.search(r"^ +3 +exp2.* yes", done.stdout, re.MULTILINE)) == (left == "cutile")
    assert re.search(r"Skipped: .*100 explicit, 200 wgmma.*the package triton", done.stdout)


def test_without_packages_the_ladder_is_whole_and_imports_still_fail(without):
    code = """
import sys
from steps.core.ladder import whole_ladder
assert len(whole_ladder()) > 60 and not {"triton", "cuda"} & {name.partition(".")[0] for name in sys.modules}
try:
    import triton
except ModuleNotFoundError as error:
    print(error.name)
"""
    done = without("triton,cuda", "-c", code)
    assert (done.returncode, done.stdout) == (0, "triton\n"), done.stderr


def test_the_doctor_fits_on_a_screen_and_asks_no_network(monkeypatch, capsys):
    def refused(*_):
        raise AssertionError("the doctor used the network")

    monkeypatch.setattr("socket.socket.connect", refused)
    assert run.main(["--doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 24
    heads = [line.partition(":")[0] for line in lines]
    assert heads[:6] == ["system", "Python", "packages", "compiler", "driver", "GPU"]


def test_the_doctor_says_why_a_part_does_not_run(monkeypatch, capsys, t4):
    properties = SimpleNamespace(name="Made up", total_memory=2**37, multi_processor_count=1, L2_cache_size=1)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (12, 1))
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: properties)
    monkeypatch.setattr("steps.running.doctor.describe_versions", lambda: {"python": "3"})
    assert run.main(["--doctor"]) == 0
    told = capsys.readouterr().out
    assert re.search(r"^on the GPU: +cutile, gluon, fp8, backward, everyday$", told, re.MULTILINE)
    assert re.search(r"^launch rules: +untested: .* never timed on sm_121$", told, re.MULTILINE)
    assert re.search(r"^not hopper: +made of wgmma, which sm_90 alone has, not sm_121$", told, re.MULTILINE)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (9, 0))
    assert run.main(["--doctor"]) == 0
    assert "untested" not in capsys.readouterr().out


def test_a_part_of_several_kinds_of_kernels_says_why_none_of_them_runs():
    reason = why_not("sm_89")["fp8"]
    assert "made of wgmma, which sm_90 alone has, not sm_89; made of numbers in fp8, which cuTile has for " in reason


def test_parts_without_their_package_say_so():
    told = why_not("cpu", tuple(MODULES))
    reasons = {f"the package {package} is not installed" for package in MODULES}
    assert {each for why in told.values() for each in why.split("; ")} == reasons


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_89", "sm_100", "sm_121", "gfx942"])
def test_the_front_door_is_pytorch_where_nothing_was_timed(arch):
    for more in ({}, {"softcap": 30.0}, {"window": 128}, {"sinks": True}):
        assert chosen(dataclasses.replace(HEADLINE, **more), arch).backend == "torch"


def test_a_trace_that_the_gpu_here_cannot_take_is_shown_as_recorded(t4, monkeypatch, capsys):
    monkeypatch.setattr("tutorial_lib.hardware.describe_machine", lambda device: {"arch": "sm_89"})
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (8, 9))
    assert trace.main(["producer"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("Not measured here: made of wgmma, which sm_90 alone has, not sm_89. Recorded:\n")


def test_a_container_asks_for_what_is_there():
    asked = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text(encoding="utf-8"))
    assert asked["image"].endswith(":3.12") and asked["hostRequirements"]["gpu"] == "optional"
    made = subprocess.run(["make", "-n", *asked["postCreateCommand"].split()[1:]], cwd=ROOT, capture_output=True)
    assert asked["postCreateCommand"].startswith("make ") and made.returncode == 0, made.stderr


def test_colab_has_a_cell_and_a_badge_on_the_path_where_an_address_is_known(tmp_path):
    from tutorial_lib import notebooks

    for name in ("a", "b"):
        (tmp_path / f"{name}.md").write_text(f"# {name}\n\nText.\n", encoding="utf-8")
    table = '[[part]]\ntitle = "P"\nabout = "."\nchapters = [{ name = "a", minutes = 1 }, { name = "b", minutes = 1, '
    table += "beside = true }]\n"
    cells = {}
    for setting in ("", 'repository = ""\n', 'repository = "somebody/course"\n'):
        (tmp_path / "course.toml").write_text(setting + table, encoding="utf-8")
        cells[setting] = {n: notebooks.read_source(tmp_path / f"{n}.md").cells for n in ("a", "b")}
    nothing, empty, known = cells.values()
    assert nothing == empty and known["b"] == empty["b"]
    assert known["a"][0].source.count("blob/main/notebooks/a.ipynb") == 1 and "colab" not in empty["a"][0].source
    added = known["a"][1]
    assert added.cell_type == "code" and '"https://github.com/somebody/course"' in added.source
    compile(added.source, "cell", "exec")
    (tmp_path / "course.toml").write_text('repository = "https://x"\n' + table, encoding="utf-8")
    with pytest.raises(ValueError, match='must be "OWNER/NAME"'):
        colab.repository(tmp_path)


def test_the_cell_installs_what_chapters_need_and_no_server():
    needed, found, left = Path(ROOT, "requirements.txt").read_text(encoding="utf-8").partition(colab.LAST)
    assert found and {"torch", "triton", "cuda-tile", "matplotlib"} <= set(re.findall(r"^[\w-]+", needed, re.MULTILINE))
    assert "ipykernel" not in needed and "ipykernel" in left


def test_issues_ask_for_what_the_doctor_says():
    for form in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        assert "python -m steps.run --doctor" in form.read_text(encoding="utf-8"), form.name


MACHINES = [
    ("sm_90", None, {"hopper", "cutile", "gluon", "torch"}, {"blackwell", "cdna", "triton"}),
    ("sm_120", None, {"cutile", "gluon", "torch"}, {"hopper", "blackwell", "cdna", "triton"}),
    ("sm_100", None, {"blackwell", "cutile", "gluon", "torch"}, {"hopper", "cdna", "triton"}),
    ("sm_103", None, {"blackwell", "cutile", "gluon", "torch"}, {"hopper", "cdna", "triton"}),
    ("gfx950", "7.0.0", {"cdna", "triton", "torch"}, {"hopper", "blackwell", "cutile", "gluon"}),
    ("gfx942", "7.0.0", {"cdna", "triton", "torch"}, {"hopper", "blackwell", "cutile", "gluon"}),
]


@pytest.mark.parametrize(("arch", "hip", "there", "not_there"), MACHINES, ids=lambda x: x if isinstance(x, str) else "")
def test_a_machine_picks_up_the_steps_that_are_for_it(monkeypatch, arch, hip, there, not_there):
    asked = []
    properties = SimpleNamespace(name="Made up", gcnArchName=f"{arch}:xnack-", total_memory=2**37)
    monkeypatch.setattr("torch.version.hip", hip)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: properties)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (int(arch[3:-1]), int(arch[-1])))
    monkeypatch.setattr(run, "check_memory", lambda *_: None)
    monkeypatch.setattr(run, "measure_all", lambda options, device, *of: asked.append((device, *of)) or 0)
    assert run.main(["--steps", "all", "--seq-len", "4096"]) == 0
    [(device, problems, [steps], _)] = asked
    assert device == "cuda" and target_of(torch.device("cuda", 0)) == arch
    [(problem, _)] = problems
    refused = {step.name: step.unsupported(problem, arch) for step in steps}
    able = {step.backend for step in steps if refused[step.name] is None}
    assert able >= there and not able & not_there
    assert all(arch in reason for step in steps if step.backend in not_there and (reason := refused[step.name]))
