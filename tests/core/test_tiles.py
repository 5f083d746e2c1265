"""The table of sizes is what the recorded search says, and nothing else is read when a kernel is launched."""

import ast
from pathlib import Path

from steps import get_step, search
from steps.core.problems import standard
from steps.core.recorded import recorded_search
from steps.core.tiles import FOUND

ROOT = Path(__file__).resolve().parent.parent.parent


def test_what_was_found_is_the_fastest_of_the_recorded_search():
    assert search.table_of(recorded_search("sm_90")) == FOUND


def test_the_step_takes_what_was_found():
    problem = standard(head_dim=64)
    configured, found = get_step("found").configured(problem, "sm_90"), FOUND["sm_90", 64, False]
    assert (configured.tile, configured.warps, configured.cluster) == (found.tile, found.warps, found.cluster)
    assert configured.occupancy == found.occupancy and not configured.searched


def test_where_nothing_was_searched_the_step_is_the_one_before():
    step = get_step("found")
    assert step.configured(standard(), "sm_80").holes() == step.previous.holes()


def test_no_kernel_reads_results():
    """What a launch uses: no module of a skeleton, nor what it imports of the core, knows the folder of records."""
    launched = [*ROOT.glob("steps/cutile/*.py"), *ROOT.glob("steps/gluon/*.py"), *ROOT.glob("steps/hopper/*.py")]
    launched += [ROOT / "steps" / "core" / f"{name}.py" for name in ("tiles", "order", "fused", "step", "problems")]
    for path in launched:
        imported = {
            name.name
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ImportFrom)
            for name in node.names
        }
        assert not imported & {"RESULTS", "read_run", "recorded_runs", "recorded_searches", "recorded_search"}, path
