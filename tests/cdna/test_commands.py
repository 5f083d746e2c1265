"""The commands know AMD's steps: what became of one, and what its waves voted."""

import re

from steps import get_step, inspect, simulate
from steps.core.problems import HEADLINE
from steps.core.recorded import read_survey
from tutorial_lib import plots, tables


def test_inspect_shows_what_a_step_is_made_for(capsys):
    assert inspect.main(["vote", "--against", "direct_to_lds"]) == 0
    out = capsys.readouterr().out
    assert "gfx950, Triton" in out and "Different code." in out and "Floor of the problem on MI355X" in out
    assert "Exponentials are not in it" in out
    for row in (
        "MFMA",
        "register move",
        "direct to LDS",
        "scalar registers a wave",
        "waves per SIMD, as registers allow",
    ):
        assert re.search(rf"^ +{row} +\d", out, re.MULTILINE), row
    assert "tensor core " not in out  # a kind that AMD's code has not


def test_inspect_shows_the_assembly(monkeypatch):
    shown = []
    monkeypatch.setattr("pydoc.pager", shown.append)
    assert inspect.main(["mfma", "--arch", "gfx942", "--text", "sass"]) == 0
    assert "v_mfma_f32_32x32x8_f16" in shown[0] and "s_endpgm" in shown[0]


def test_a_survey_of_amds_architectures_has_the_steps_that_are_for_them(capsys):
    assert inspect.main(["all", "--arch", "gfx950"]) == 0
    out = capsys.readouterr().out
    assert "703 wave_priorities" in out and "200 wgmma" not in out and "2 mma" not in out
    assert "VGPRs, AGPRs, SGPRs, scratch bytes, LDS KiB, waves per SIMD" in " ".join(out.split())
    assert "spilled bytes per thread" not in out


def test_a_survey_of_all_tells_of_every_maker_what_belongs_to_it(monkeypatch, tmp_path):
    few = tuple(map(get_step, ("mma", "tensor_memory", "mfma", "direct_to_lds")))
    monkeypatch.setattr("steps.core.ladder.kernels_of", lambda _: few)
    assert inspect.main(["all", "--arch", "sm_90,sm_100,gfx942,gfx950", "--output", str(tmp_path)]) == 0
    survey = read_survey(tmp_path / "survey.json")
    of_all, blackwell, amd = tables.readings(survey)
    assert of_all.steps == ["2 mma", "600 tensor_memory"] and of_all.architectures == ["sm_90", "sm_100"]
    assert blackwell.steps == ["600 tensor_memory"] and blackwell.architectures == ["sm_100"]
    assert amd.steps == ["701 mfma", "702 direct_to_lds"] and amd.architectures == ["gfx942", "gfx950"]
    compiled = get_step("tensor_memory").compile(HEADLINE, "sm_100")
    assert blackwell.values(survey, "600 tensor_memory", "sm_100")[0] == compiled.tensor_columns
    found, compiled = amd.values(survey, "701 mfma", "gfx942"), get_step("mfma").compile(HEADLINE, "gfx942")
    kib = compiled.shared_bytes / 1024
    facts = compiled.amd
    assert found[:6] == [facts.vgprs, facts.agprs, facts.sgprs, facts.scratch_bytes, kib, facts.occupancy]
    assert not any(amd.values(survey, "702 direct_to_lds", "gfx942"))  # which cannot
    panels = [axes.get_title() for axes in plots.heat_table(survey).axes]
    assert panels == [*of_all.figures, blackwell.title, amd.title]


def test_a_simulated_step_tells_its_votes(capsys, tmp_path):
    asked = ["vote", "--seq-len", "200", "--head-dim", "64", "--timeline", str(tmp_path / "t.png")]
    assert simulate.main(asked) == 0
    assert re.search(r"Votes of waves, .*: rescaled \d+ times, left as it was \d+ times", capsys.readouterr().out)
    assert (tmp_path / "t.png").read_bytes().startswith(b"\x89PNG")


def test_a_race_is_told_with_both_lines(capsys):
    assert (
        simulate.main(["direct_to_lds", "--seq-len", "200", "--head-dim", "64", "--without", "wait_group(TILES"]) == 1
    )
    out = capsys.readouterr().out
    assert "race on keys" in out and "read by all waves" in out and "after: copy into LDS by all waves" in out
