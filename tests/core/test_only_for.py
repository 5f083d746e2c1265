"""A step that is for some problems alone is its predecessor for all others; kernels do not ask which step it is."""

import ast
import dataclasses
import importlib
import pickle
import re
from functools import partial
from itertools import product

import pytest

from steps import get_step
from steps.core.fused import FusedStep, OnlyFor
from steps.core.ladder import PARTS, kernels_of
from steps.core.path import runs_as_before
from steps.core.problems import standard
from steps.hopper.products import HALF_HELD, QUARTER_HELD, SHARED
from tests.selection import ROOT
from tutorial_lib.files import RESULTS

ARCH = "sm_90"
PROBLEMS = [
    standard(*shape) for shape in product((1024, 1280, 2048, 4096, 8192), (32, 64, 80, 128, 256), (True, False))
]
FUSED = [step for step in kernels_of("forward") if isinstance(step, FusedStep)]


def conditions(step) -> list[OnlyFor]:
    """Of what a step changes of its predecessor: for which problems alone it does so; empty if something is for all."""
    found = []
    for before, now in [] if step.begins_a_skeleton else step.changed_holes().values():
        while now != before:
            if not isinstance(now, OnlyFor):
                return []
            found.append(now)
            now = now.otherwise
    return found


PARTLY = [step for step in FUSED if conditions(step)]
assert {"mask_loop", "epilogue_overlap", "pv_wait_after_max", "quarter_q_registers"} <= {step.name for step in PARTLY}


def is_for(step, problem) -> bool:
    return any(condition.takes(step.in_tiles(problem)) for condition in conditions(step))


@pytest.mark.parametrize("step", PARTLY, ids=lambda step: step.name)
def test_elsewhere_a_step_is_its_predecessor(step):
    others = [problem for problem in PROBLEMS if not is_for(step, problem)]
    assert others or step.name in ("pv_wait_after_max",)
    for problem in others:
        assert step.variant(problem, ARCH) == step.previous.variant(problem, ARCH)
        assert step.entry(problem, ARCH)[0] is step.previous.entry(problem, ARCH)[0]
        assert runs_as_before(step, problem, ARCH)
    asked = filter(partial(is_for, step), (*PROBLEMS, step.default_problem))
    assert any(not runs_as_before(step, problem, ARCH) for problem in asked)


def test_what_is_new_is_there_for_the_problems_that_it_is_for_and_no_others():
    def queries(name, *shape):
        return get_step(name).variant(standard(*shape)).queries

    assert (
        queries("quarter_q_registers", 2048, 128, True)
        == queries("quarter_q_registers", 2048, 128, False)
        == QUARTER_HELD
    )
    assert queries("quarter_q_registers", 1024, 128, True) == queries("quarter_q_registers", 8192, 128, True) == SHARED
    assert queries("quarter_q_registers", 4096, 64, True) == SHARED
    assert queries("quarter_q_registers", 4096, 256, True) == HALF_HELD  # of an earlier step, for other problems


def small(problem) -> bool:
    return problem.head_dim == 64


def masked(problem) -> bool:
    return problem.causal


def test_a_later_step_stands_where_an_earlier_one_does_not():
    first = get_step("producer").evolve(only_for=small, queries=HALF_HELD)
    second = first.evolve(only_for=masked, queries=QUARTER_HELD)
    held = {shape: second.for_problem(standard(1024, *shape)).queries for shape in product((64, 128), (True, False))}
    assert held == {
        (64, True): QUARTER_HELD,
        (64, False): HALF_HELD,
        (128, True): QUARTER_HELD,
        (128, False): SHARED,
    }
    assert second.evolve(queries=SHARED).for_problem(standard(1024, 64, True)).queries is SHARED


def test_a_condition_is_asked_about_the_head_dim_of_tiles():
    step = get_step("producer").evolve(only_for=small, queries=HALF_HELD)
    assert step.for_problem(standard(1024, 40)).queries is HALF_HELD


def test_what_replaces_a_hole_is_there_for_all_problems():
    step = dataclasses.replace(get_step("quarter_q_registers"), queries=SHARED)
    assert all(step.for_problem(problem).queries is SHARED for problem in PROBLEMS)


def test_it_is_told_where_a_step_changes_something():
    [told] = get_step("reverse_kv_order").key_changes()
    assert told.startswith("walk: ") and told.endswith(" where wide_and_masked")


def test_some_holes_are_the_same_for_all_problems():
    with pytest.raises(ValueError, match="order must be the same for all problems"):
        get_step("epilogue_overlap").evolve(only_for=small, order=get_step("producer").order)
    with pytest.raises(ValueError, match="warps must be the same for all problems"):
        get_step("exp2").evolve(only_for=small, warps=8)


def test_a_step_is_decided_once_for_problems_of_a_kind_and_keeps_nothing_when_it_is_sent():
    step = dataclasses.replace(get_step("quarter_q_registers"))
    decided = step.for_problem(standard(4096, 128, True))
    assert decided is step.for_problem(standard(2048, 128, True)) and decided.for_problem(standard(4096, 64)) is decided
    assert not any(isinstance(value, OnlyFor) for value in decided.holes().values())
    arrived = pickle.loads(pickle.dumps(step))
    assert arrived == step and vars(arrived).keys() == {field.name for field in dataclasses.fields(step)}


# --- which step it is ---

FOLDERS = sorted({folder for part in PARTS for folder in part.folders} - {"reference"})
MODULES = [path for folder in FOLDERS for path in sorted(ROOT.glob(f"steps/{folder}/*.py"))]
SHARED_BY_STEPS = [path for path in MODULES if not re.match(r"step\d", path.name)]
CORE = [ROOT / "steps" / "core" / f"{name}.py" for name in ("fused", "rules", "tiles")]
WHICH_STEP = {"name", "number", "inside", "previous", "fork"}


def asks_which_step(text: str) -> list[str]:
    """Where a condition reads of a step what tells which it is."""
    found = []
    for node in ast.walk(ast.parse(text)):
        tests = [node.test] if isinstance(node, ast.If | ast.IfExp | ast.While) else []
        tests += [node] if isinstance(node, ast.Compare | ast.BoolOp) else []
        for part in (part for test in tests for part in ast.walk(test)):
            of_a_step = isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name)
            if of_a_step and part.value.id in ("self", "step") and part.attr in WHICH_STEP:
                found.append(ast.unparse(node))
    return found


# What conditions of a folder's kernels may read of ``variant``: what the problem asks, and what follows from it; and
# what launch rules say: tile, stages, warpgroups.
MAY_READ = {
    "gluon": {"causal", "ragged", "lse"},
    "cdna": {"causal", "ragged", "lse", "stages"},
    "blackwell": {"causal", "ragged", "lse", "warpgroups"},
    "backward_blackwell": {"causal", "ragged", "ragged_queries", "group_size"},
    "cutile": {"causal", "ragged", "lse", "window", "softcap", "sinks", "quantized", "together", "rows"},
    "backward_cutile": {
        *("causal", "ragged", "ragged_queries", "window", "softcap", "sequences", "group_size", "tile", "rows"),
    },
    "everyday": {"causal", "ragged", "lse", "page_size", "quantized", "tile"},
}
FLAGS = {"causal", "ragged", "ragged_queries", "unseen", "lse", "packed", "sinks", "quantized"}  # what a problem asks
HOSTS = ("launching", "skeleton", "variant", "decoding", "paged_decoding")  # modules that no GPU runs


def asks_of_the_variant(text: str) -> set[str]:
    """What conditions read of ``variant``."""
    tests = [node.test for node in ast.walk(ast.parse(text)) if isinstance(node, ast.If | ast.IfExp | ast.While)]
    read = [part for test in tests for part in ast.walk(test) if isinstance(part, ast.Attribute)]
    return {part.attr for part in read if isinstance(part.value, ast.Name) and part.value.id == "variant"}


@pytest.mark.parametrize("folder", MAY_READ)
def test_conditions_of_kernels_ask_about_the_problem(folder):
    """No constant in them is one that a step sets: steps give functions."""
    kernels = [path for path in MODULES if path.parent.name == folder and path.stem not in HOSTS]
    read = {path.name: asks_of_the_variant(path.read_text(encoding="utf-8")) for path in kernels}
    assert set().union(*read.values()) <= MAY_READ[folder], read


@pytest.mark.parametrize("folder", sorted(path.parent.name for path in ROOT.glob("steps/*/variant.py")))
def test_constants_of_a_kernel_are_no_switches(folder):
    """Whatever reads them: what is true or false in a kernel's constants says something of the problem."""
    module = importlib.import_module(f"steps.{folder}.variant")
    [kind] = (kind for name, kind in vars(module).items() if name in ("Variant", "DecodeVariant"))
    fields = dataclasses.fields(kind)
    assert fields and {field.name for field in fields if field.type in ("bool", "bool | None")} <= FLAGS


def test_what_a_condition_reads_is_found():
    text = "def f(variant):\n    x = 1 if variant.defer_sum else 2\n    while variant.causal and g(variant.apart): pass"
    assert asks_of_the_variant(text) == {"defer_sum", "causal", "apart"}


@pytest.mark.parametrize("path", SHARED_BY_STEPS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_no_kernel_and_no_skeleton_asks_which_step_it_is(path):
    assert asks_which_step(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "text",
    [
        "x = 1 if step.number >= 208 else 2",
        "if self.name in ('epilogue_overlap', 'split_epilogue'): pass",
        "a = step.inside and b",
    ],
)
def test_such_a_condition_is_found(text):
    assert asks_which_step(text)


def test_records_that_conditions_name_exist():
    named = [
        found
        for path in (*MODULES, *CORE)
        for found in re.findall(r"nvidia-\w[\w-]+/[\w/]+", path.read_text(encoding="utf-8"))
    ]
    assert len(named) > 4 and all((RESULTS / name).exists() for name in named)
