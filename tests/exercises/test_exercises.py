"""The exercises: every solution passes, and every wrong answer fails with the message that it should."""

import ast
import inspect
import random
import re
import textwrap
from functools import cache

import pytest
import torch

from steps.exercises import all_exercises, exercise, get_exercise
from steps.exercises.in_kernel import InKernel
from steps.learn import exercises_in
from tests.selection import sampled
from tutorial_lib.accuracy import first_difference
from tutorial_lib.exercises import Compared, Plain, Wrong, clean, define, unfilled
from tutorial_lib.notebooks import GLOSSARY, read_source, sources

EXERCISES = list(all_exercises().values())
# An exercise's answers stand together, so that they are judged by one process, which writes the kernel out once.
ANSWERS = [
    pytest.param(e, number, id=f"{e.name}-{e.wrong[number - 1].what[:40] if number else 'right'}".replace(" ", "_"))
    for e in EXERCISES
    for number in range(1 + len(e.wrong))
]
CELLS = {
    name: (path.stem, blank.function) for path in sources() for name, blank in exercises_in(read_source(path)).items()
}


def header(source: str) -> str:
    [function] = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    return f"{function.name}({ast.unparse(function.args)})"


@cache
def words_of(function) -> str:
    """All that a function says by itself."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    return "\n".join(
        node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and type(node.value) is str
    )


def always(exercise, number):
    """The solution, the first wrong answer, and those that its own judge refuses; all of them where no kernel runs."""
    if number < 2 or isinstance(exercise, Plain | Compared):
        return True
    own = filter(None, (type(exercise).judge, getattr(exercise, "first", None), getattr(exercise, "last", None)))
    return any(exercise.wrong[number - 1].told in words_of(function) for function in own)


@sampled(core=always)
@pytest.mark.parametrize(("exercise", "number"), ANSWERS)
def test_the_solution_is_right_and_a_wrong_answer_is_told_what_is_wrong(exercise, number):
    wrong = exercise.wrong[number - 1] if number else None
    verdict = exercise.grade(exercise.answer(wrong))
    if wrong:
        assert not verdict.right and wrong.told in verdict.message
    else:
        assert verdict.right and verdict.message == exercise.debrief, verdict.message


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        (
            "intra_warpgroup_overlap",
            "accumulator = issue_output(weights, tiles.value, iteration, accumulator)",
            "value = tiles.value.index(iteration % STAGES).reshape([TILE_KEY, HEAD_DIM])\n"
            "    accumulator = warpgroup_mma(weights, value, accumulator, is_async = True)",
        ),
        ("wgmma_loop", "is_async=True", "is_async = True"),
        ("wgmma_loop", "warpgroup_mma_wait(", "warpgroup_mma_wait ("),
        (
            "epilogue_overlap",
            "warpgroup_mma_wait(1, deps=[accumulator])",
            "warpgroup_mma_wait (1, deps = [accumulator])",
        ),
    ],
)
def test_a_right_answer_is_right_however_it_is_written(name, old, new):
    asked = get_exercise(name)
    source = clean(asked.solution)
    assert old in source
    verdict = asked.grade(define(source.replace(old, new), asked.function))
    assert verdict.right, verdict.message


@pytest.mark.parametrize(
    ("first", "says"),
    [(0, ""), (64, "first block of queries is right"), (65, "first block of queries is right"), (76, "not there")],
)
def test_where_the_first_wrong_query_is_tells_what_the_mask_forgets(first, says, monkeypatch):
    """The first query of a block may be right by chance: all that it lacks is one key."""
    found = (
        f"On B=1 H=1 S=177x76 D=64 fp16 causal: wrong. In this head 9 of 177 queries are wrong, from {first} to 176."
    )
    monkeypatch.setattr(InKernel, "judge", lambda self, function, chance: found)
    told = get_exercise("masked_scores").judge(None, None)
    assert told.startswith(found) and says in told and (says or told == found)


@pytest.mark.parametrize("length", [192, 256, 320])
def test_direct_copies_find_their_place_at_every_length(length, monkeypatch):
    """With keys that fill all tiles and no mask the kernel reads otherwise."""
    chance, filled = random.Random(0), get_exercise("refill_lds")
    monkeypatch.setattr(chance, "randint", lambda least, largest: length)
    problems = filled.problems(chance)
    assert {p.causal for p in problems} == {True, False}
    for problem in problems:
        assert "refill(" in filled.kernel(problem, clean(filled.solution)).text


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda e: e.name)
def test_what_the_chapter_leaves_blank_is_told_to_be_blank(exercise):
    """And it has the parameters of the solution. What is to be mended is the first of the wrong answers."""
    _, blank = CELLS[exercise.name]
    assert header(blank) == header(exercise.solution)
    if exercise.mend:
        assert clean(blank) == exercise.wrong_source(exercise.wrong[0])
        return
    verdict = exercise.grade(define(blank, exercise.function))
    assert not verdict.right and verdict.message.startswith("Not filled in yet")


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda e: e.name)
def test_an_exercise_is_complete(exercise):
    assert len(exercise.hints) == 3 and all(exercise.hints) and exercise.debrief
    assert len(exercise.wrong) >= 3 and all(wrong.told for wrong in exercise.wrong)


def test_every_chapter_has_an_exercise_and_every_exercise_a_chapter():
    assert CELLS.keys() == all_exercises().keys()
    assert {path.stem for path in sources()} - {chapter for chapter, _ in CELLS.values()} == {GLOSSARY}


def test_an_ellipsis_that_is_an_index_is_no_blank():
    assert unfilled("def f(x):\n    return x[..., None]\n") is None
    assert unfilled("def f(x):\n    y = ...\n    return x[..., y]\n") == "y = ..."
    assert unfilled("def f(x): ...\n") == "def f(x): ..."


def test_the_first_of_several_blanks_is_told():
    """Also where a later one is less deep in the function's tree."""
    assert unfilled("def f(x):\n    for y in x:\n        y = g(..., y)\n    return ...\n") == "y = g(..., y)"


TWICE = Compared(
    name="twice",
    function="twice",
    hints=("", "", ""),
    solution="def twice(x):\n    return 2 * x",
    wrong=(Wrong("it is squared", old="2 * x", new="x * x"), Wrong("it is halved", old="2 * x", new="x / 2")),
    debrief="Right.",
    cases=lambda chance: [(2,), (3,), (4,)],
    told=lambda x: f"{x} is a number.",
)


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        ("2 * x", None),
        ("torch.tensor(2 * x)", None),
        ("torch.tensor(2 * x).numpy()[()]", None),
        (
            "x * x",
            "`twice(3)` must be 6, and yours gives 9. 3 is a number. **This is what comes out when it is squared.**",
        ),
        ("torch.tensor(x + 3)", "`twice(2)` must be 4, and yours gives 5. 2 is a number."),
        ("x + 3", "`twice(2)` must be 4, and yours gives 5. 2 is a number."),
        ("'no'", "`twice(2)` must be a whole number. This came: `'no'`."),
    ],
)
def test_the_first_case_that_differs_is_told_with_the_mistake(returned, told):
    assert TWICE.judge(define(f"def twice(x):\n    return {returned}", "twice"), random.Random(0)) == told


def test_a_mistake_in_the_learners_code_is_told_with_its_line():
    exercise = get_exercise("exp2")
    source = exercise.solution.replace("ct.maximum(row_max,", "ct.maximum(row_maximum,")
    verdict = exercise.grade(define(source, exercise.function))
    assert not verdict.right and "row_maximum" in verdict.message


def test_a_function_of_another_name_is_refused():
    exercise = get_exercise("exp2")
    verdict = exercise.grade(define(exercise.solution.replace("def softmax_exp2", "def mine"), "mine"))
    assert not verdict.right and "must be called `softmax_exp2`, not `mine`" in verdict.message


@pytest.mark.parametrize("answer", [5, None, "softmax_exp2", print, int])
def test_what_is_no_function_gets_one_line(answer):
    verdict = get_exercise("exp2").grade(answer)
    assert not verdict.right and verdict.message.startswith("An answer is a function, `softmax_exp2`; this came: ")


def test_an_exercise_that_is_none_gets_one_line():
    [told] = exercise("none", print).parts
    assert "exercise" in told and "none" in told and "\n" not in told


def test_where_an_output_is_wrong_first_is_told():
    exact = torch.ones(1, 2, 6, 8, dtype=torch.float64)
    output = exact.float()
    output[0, 1, 2:4] = 2
    told = first_difference(output, exact, 1e-3)
    assert "batch 0, head 1, query 2, column 0: it is 2 and should be 1." in told
    assert "2 of 6 queries are wrong, from 2 to 3." in told and "The whole row is 2 times" in told
    output[0, 0, 5] = float("nan")
    assert "head 0, query 5" in (told := first_difference(output, exact, 1e-3)) and "The whole row is NaN" in told


def test_hints_come_one_after_the_other_and_the_solution_last():
    html = get_exercise("exp2").help().html
    order = [html.index(f"Hint {n} of 3") for n in (1, 2, 3)] + [html.index("The solution")]
    assert order == sorted(order) and html.count("<details>") == html.count("</details>") == 4
    assert not re.search(r"<details[^>]*open", html)
