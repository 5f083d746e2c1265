"""The flattener on small functions: its text does what the source does, and holds no more than what runs."""

import ast
from dataclasses import replace

import libcst as cst
import pytest

from steps.writing import program, values
from steps.writing.flat import SKIP, flatten, in_lines
from steps.writing.results import without_idle_results
from steps.writing.trees import LINE_LENGTH, code
from steps.writing.values import CannotFlatten
from tests.core import flat_source
from tests.core.flat_source import Choice, Choices, both_ways, double, triple

INPUTS = [-3, 0, 1, 2, 40]


@pytest.fixture(autouse=True)
def the_tests_are_the_projects_own(monkeypatch):
    """The flattener takes functions of its own packages apart, and leaves those of others alone."""
    for module in (program, values):
        monkeypatch.setattr(module, "OWN_PACKAGES", ("steps", "tests"))


def run(text: str, name: str):
    made = {}
    exec(text, made)
    return made[name]


NAMES = ["branches", "structure", "hole", "sum_once", "in_short", "one_list", "crossed", "explained", "said_again"]


@pytest.mark.parametrize("choice", [Choice(True, 5), Choice(False, 3), Choice(True, 1, stages=1)], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_the_text_does_what_the_source_does(name, choice):
    source = getattr(flat_source, name)
    bound = {"choice": choice} | ({"how": triple} if name == "hole" else {})
    written = run(flatten(source, bound), name)
    assert [written(x) for x in INPUTS] == [source(x, **bound) for x in INPUTS]


@pytest.mark.parametrize("other", [Choice(True, 7), Choice(True, 5, stages=3), Choice(False, 7)], ids=str)
def test_a_function_that_is_called_with_two_constants(other):
    choices = Choices(Choice(True, 5), other)
    text = flatten(both_ways, {"choices": choices})
    written = run(text, "both_ways")
    assert [written(x) for x in INPUTS] == [both_ways(x, choices) for x in INPUTS]


def test_kernels_that_are_written_together_share_functions_and_keep_their_own_constants():
    """A function of both takes what differs as a parameter; a kernel with other constants is another kernel."""
    one, other = Choice(True, 5), Choice(False, 7)
    first, second, third = ((flat_source.branches, {"choice": its}) for its in (one, other, replace(one, stages=1)))
    text = flatten(*first, second, third)
    assert text.count("def widen(") == 1 and text.count("def branches") == 3
    made = {}
    exec(text, made)
    for kernel, (_, bound) in zip(("branches", "branches_2", "branches_3"), (first, second, third), strict=True):
        assert [made[kernel](x) for x in INPUTS] == [flat_source.branches(x, **bound) for x in INPUTS]


def test_a_call_that_only_gives_a_value_is_gone_where_nothing_reads_it():
    """But not a call of what may do more."""
    text = flatten(flat_source.idle, {"choice": Choice(True, 5)})
    assert "cdiv" not in text and "gl.load(x)" in text


def test_nothing_is_multiplied_or_divided_by_one_unless_the_name_is_to_be_kept():
    bound = {"choice": Choice(True, 1)}
    text = flatten(flat_source.branches, bound)
    assert "WIDTH" not in text
    assert "* WIDTH" in flatten(flat_source.branches, bound, keep=frozenset({"WIDTH"}))


def test_a_branch_that_is_not_taken_is_gone_and_comments_stay():
    text = flatten(flat_source.branches, {"choice": Choice(True, 5)})
    assert "x = -x" not in text and "choice" not in text and "doubled:" not in text
    assert "# said beside the line" in text and "# said before the line" in text
    assert "if x > LIMIT" in text  # known only when it runs
    assert "LIMIT = 10" in text


def test_a_number_keeps_its_name():
    text = flatten(flat_source.branches, {"choice": Choice(True, 5)})
    assert "WIDTH = 5" in text and "* WIDTH" in text


def test_a_function_that_is_handed_in_is_called_by_its_own_name():
    text = flatten(flat_source.hole, {"how": double, "choice": Choice(True, 5)})
    assert "double(x + n)" in text and "how" not in text and "triple" not in text


def test_fields_that_nothing_reads_are_gone_and_those_of_one_value_are_it():
    text = flatten(flat_source.structure, {"choice": Choice(True, 5)})
    assert "return pair.first - pair.second\n" in text and "pair = Pair(width, x * WIDTH)" in text
    assert '\n# Two numbers, and more.\nPair = namedtuple("Pair", "first second")\n\n\n' in text


def test_a_docstring_tells_what_it_does_and_of_no_parameter_that_is_gone():
    text = flatten(flat_source.structure, {"choice": Choice(True, 5)})
    assert '    """A tuple with names, and a name that is taken."""\n' in text


def test_what_is_short_stands_where_it_is_called_unless_it_is_to_be_kept():
    bound = {"choice": Choice(True, 5)}
    text = flatten(flat_source.in_short, bound)
    assert "y = (x + 1) * WIDTH" in text and "    if y > LIMIT:\n        y = LIMIT\n" in text and "x_2" not in text
    kept = flatten(flat_source.in_short, bound, keep=frozenset({"one_more", "at_most"}))
    assert "y = one_more(x) * WIDTH" in kept and "at_most(y)" in kept
    assert [run(kept, "in_short")(x) for x in INPUTS] == [run(text, "in_short")(x) for x in INPUTS]


def test_a_short_sum_stands_for_a_parameter_and_a_long_number_keeps_its_name():
    text = flatten(flat_source.explained, {"choice": Choice(True, 5)})
    assert "found = (x + 1) % STAGES * 10\n    found = found + (x + 1)\n" in text
    assert "return found * LN2" in text


def test_no_function_is_mentioned_that_is_not_there():
    text = flatten(flat_source.explained, {"choice": Choice(True, 5)})
    assert '"""Nothing is doubled. As ``explained``, which is there."""' in text


def test_a_comment_and_an_assignment_are_said_once():
    text = flatten(flat_source.said_again, {"choice": Choice(True, 5)})
    assert text.count("# three numbers") == 1
    assert "found = [row]\n    found = found + [row + 1]\n    x = x + 1\n    row = x * 2\n" in text


def test_what_is_behind_a_return_is_not_looked_at():
    text = flatten(flat_source.ends_early, {"choice": Choice(True, 5)})
    assert "undefined_here" not in text


def test_what_has_no_plain_form_is_named():
    with pytest.raises(CannotFlatten, match="strange"):
        flatten(flat_source.strange, {"choice": Choice(True, 5)})
    with pytest.raises(ValueError, match="branches has no parameter wrong"):
        flatten(flat_source.branches, {"wrong": 1})


def test_the_same_text_every_time():
    bound = {"choice": Choice(False, 3)}
    assert flatten(flat_source.branches, bound) == flatten(flat_source.branches, bound)


@pytest.mark.parametrize("length", range(1, LINE_LENGTH - 20))
def test_a_line_that_is_too_long_is_broken_beside_its_strings_and_its_comment(length):
    """Wherever the last line ends: a comment in two would be no comment, and a string in two no string."""
    line = "".join(["    call(", "x" * length, ", ", '"words in a string", more, ' * 9, "y)", SKIP])
    text = in_lines(line)
    assert text.endswith(SKIP) and len(text.splitlines()) > 1 and max(map(len, text.splitlines())) <= LINE_LENGTH
    assert ast.unparse(ast.parse(text.strip())) == ast.unparse(ast.parse(line.strip()))


BOUNDS = '''
def bounds(first, keys):
    """(whole, end): tiles of keys. whole: without a mask."""
    whole = keys // 2
    end = keys + 1
    whole = whole + first
    return whole, end


def visit(keys):
    _, end = bounds(3, keys)
    whole, last = bounds(4, keys)
    whole = end * last
    return whole
'''


@pytest.mark.parametrize("reads", ["", "    print(whole)\n"])
def test_a_result_that_no_caller_reads_is_neither_handed_back_nor_computed(reads):
    """Also where a caller assigns the name anew before it reads it; and not where one reads it first."""
    text = BOUNDS.replace("    whole = end * last", f"{reads}    whole = end * last")
    functions = {tree.name.value: tree for tree in cst.parse_module(text).body}
    made = without_idle_results(functions, {"visit"}, ())
    assert without_idle_results(functions, {"visit", "bounds"}, ()) is functions
    if reads:
        assert made is functions
        return
    assert "end = bounds(3, keys)" in code(made["visit"]) and "last = bounds(4, keys)" in code(made["visit"])
    assert made["bounds"].get_docstring() == "(whole, end), of which end is returned: tiles of keys."
    assert "return end" in code(made["bounds"]) and "whole =" not in code(made["bounds"])
    written = "\n".join(map(code, made.values()))
    assert [run(written, "visit")(x) for x in INPUTS] == [run(text, "visit")(x) for x in INPUTS]
