"""``steps.run`` on a machine with a Blackwell or an AMD GPU that is made up: which steps it takes and refuses.

How far the pretence goes: PyTorch says that a GPU is there, and which. What would be launched on it is not.
"""

from types import SimpleNamespace

import pytest
import torch

from steps import run
from steps.core.step import target_of

MACHINES = [
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
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (10, int(arch[-1])))
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
