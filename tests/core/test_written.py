"""A kernel written out is the kernel that runs: the same code, no switch left, no later step; and it can be edited."""

import ast
import io
import re
import tokenize

import pytest

from steps import STEPS, Unsupported, best, get_step, show
from steps.core.ladder import ROOT, part_of
from steps.core.problems import FULL, HEADLINE, standard
from steps.writing.shown import as_shown, completed
from steps.writing.written import edited, meanings, parts_of, read_step, shown, write_step, written_out
from tests import lock
from tests.expected import EXPECTED, SAME, cases_of, is_written, kernels, name_of, same_compilers
from tests.selection import sampled

KERNELS = kernels()
WRITTEN = [step for step in KERNELS if is_written(step)]
CAPS = {"mma": 80, "next_softmax_first": 349, "deferred_reduce_add": 350}  # lines of the text
LATER = {  # names that only later steps bring; ordinary words that are names, too, are left out
    "cutile": {"mask_loop", "output_buffer", "static_scheduler", "l2_aware", "intra_tile_overlap", "persistent"},
    "hopper": {
        "epilogue_overlap",
        "warpgroup_causal_bound",
        "split_epilogue",
        "half_query",
        "early_query",
        "half_output",
        "reverse_kv_order",
        "hopper_deferred_sum",
    },
    "blackwell": {"lazy_rescaling", "exp2_emulation"},
    "triton": {"mfma", "warp_pipeline_stage"},
    "cdna": {"vote", "xcd_swizzle", "by_shape"},
    "gluon": {
        "gluon_larger_tile",
        "shared_kv_buffer",
        "q_registers",
        "head_dim_tiling",
        "Sums",
        "Copies",
    },
}


def names_in(text: str) -> set[str]:
    return {
        token.string for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type == tokenize.NAME
    }


def assert_same_code(one, other):
    """The same machine code; or the same PTX but for labels for the debugger, which ptxas keeps the order around."""
    assert one.code == other.code or one.figures.ptx == other.figures.ptx is not None, one.differs_from(other)


def is_last_of_its_part(step) -> bool:
    return step is [other for other in WRITTEN if other.backend == step.backend][-1]


@sampled(core=is_last_of_its_part)
@pytest.mark.parametrize("step", WRITTEN, ids=lambda s: s.name)
def test_the_text_is_the_kernel_and_nothing_else(step):
    """It compiles to the code of the step. No switch is left, no later step is named, and it has not grown."""
    problem = step.default_problem
    written = write_step(step, problem)
    assert_same_code(written.compile(problem), step.compile(problem))
    names = names_in(written.text)
    assert not names & {"variant", "Variant"}
    own = {word for word in LATER[step.backend] if word in (step.name, *_before(step))}
    assert not names & (LATER[step.backend] - own)
    assert not re.search(r"\bif (True|False)\b|# noqa", written.text)
    if SAME and step.name in EXPECTED["lines"]:
        assert len(written.text.splitlines()) <= 1.1 * EXPECTED["lines"][step.name]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("mma", standard(4000)),
        ("gluon_larger_tile", standard(head_dim=64, causal=True)),
        ("epilogue_overlap", standard(4000)),
        ("pv_wait_after_max", standard(head_dim=64, causal=True)),
    ],
    ids=lambda x: getattr(x, "slug", x),
)
def test_so_it_does_on_other_problems(name, problem):
    step = get_step(name)
    assert write_step(step, problem).compile(problem).code == step.compile(problem).code


@sampled(core=lambda step: step.name in CAPS)
@pytest.mark.parametrize("step", WRITTEN, ids=lambda s: s.name)
def test_the_text_needs_nothing_of_the_project_and_has_no_field_that_nothing_reads(step):
    tree = ast.parse(written_out(step, step.default_problem))
    nodes = [*ast.walk(tree)]
    imported = {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    imported |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    assert not {name for name in imported if name.split(".")[0] in ("steps", "tutorial_lib", "tests")}
    made = [node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) == "namedtuple"]
    assert made or step.backend not in ("hopper", "blackwell")
    fields = {name for node in made for name in node.args[1].value.split()}
    assert fields <= {node.attr for node in nodes if isinstance(node, ast.Attribute)}


NUMBERED = [step for step in KERNELS if step.number is not None]


@sampled(core=lambda step: step.name in ("producer", "two_blocks", "fast_deterministic", "paged", "p_offset"))
@pytest.mark.parametrize("step", NUMBERED, ids=lambda s: s.name)
def test_what_is_shown_has_no_parameter_that_nothing_reads(step):
    """And it comes back as the text that is launched, with as many lines: messages name those that are shown."""
    text = shown(step, step.default_problem)
    for function in ast.walk(ast.parse(text)):
        if isinstance(function, ast.FunctionDef):
            names = {part.arg for part in (*function.args.args, *function.args.kwonlyargs)}
            read = {node.id for line in function.body for node in ast.walk(line) if isinstance(node, ast.Name)}
            assert names <= read, f"{step.name}: {function.name} does not read {names - read}"
            told = re.findall(r"do_not_specialize=\[(.*?)\]", " ".join(map(ast.unparse, function.decorator_list)))
            assert set(re.findall(r"\w+", " ".join(told))) <= names
    whole = written_out(step, step.default_problem)
    back = completed(text, whole)
    assert ast.dump(ast.parse(back)) == ast.dump(ast.parse(whole))
    assert back.count("\n") == text.count("\n") == whole.count("\n")


def test_a_shown_file_comes_back_with_all_parameters(tmp_path):
    """One that was edited, too, in its parameters or elsewhere."""
    step, problem, path = get_step("wgmma"), standard(head_dim=64, causal=True), tmp_path / "mine.py"
    text, whole = shown(step, problem), written_out(step, problem)
    assert "order, starts" not in text and "order, starts" in whole
    path.write_text(text, encoding="utf-8")
    assert read_step(path).text == whole
    split = text.replace("fmha(Q, K, V, Out, scale,", "fmha(\n    Q, K, V, Out,\n    scale,  # in base 2\n   ")
    assert (back := completed(split, whole)).count("\n") == split.count("\n")
    assert ast.dump(ast.parse(back)) == ast.dump(ast.parse(whole))
    assert "Out, order, starts, scale" in completed(text.replace("Out, scale", "Out, order, scale"), whole)
    assert completed("", whole) == "" and completed(whole, whole) == whole


def test_what_is_not_shown_is_not_documented_either():
    whole = 'def f():\n    pass\n\n\ndef k(a, b):\n    """K.\n\n    a: one. b: other.\n    """\n    return b\n'
    assert as_shown(whole) == whole.replace("a, b", "b").replace("a: one. ", "")


def _before(step) -> list[str]:
    found = []
    while step.previous:
        step = step.previous
        found.append(step.name)
    return found


@pytest.mark.parametrize(("name", "lines"), CAPS.items(), ids=lambda x: x)
def test_a_kernel_is_short_enough_to_be_read(name, lines):
    assert len(written_out(get_step(name), get_step(name).default_problem).splitlines()) <= lines


def test_the_text_is_plain_python_with_the_step_in_its_docstring():
    step = get_step("producer")
    text = written_out(step, FULL)
    assert text.startswith('"""Step 201 producer: ') and text.rstrip().splitlines()[0].count('"""') == 1
    compile(text, "producer", "exec")
    assert written_out(step, FULL) == text


def test_a_step_made_of_pytorch_has_no_text():
    with pytest.raises(Unsupported, match="no kernel of its own to show"):
        written_out(get_step("naive"), FULL)
    with pytest.raises(Unsupported, match="head_dim must be a multiple of 8"):
        written_out(get_step("epilogue_overlap"), standard(head_dim=512))


def test_a_text_is_for_the_problems_that_it_was_written_for():
    written = write_step(get_step("epilogue_overlap"), FULL)
    assert written.unsupported(standard(8192), "sm_90") is None
    assert "its constants differ in: head_dim, value_dim" in written.unsupported(standard(head_dim=64), "sm_90")
    assert "not for sm_80" in written.unsupported(FULL, "sm_80")


def test_an_edited_text_is_another_kernel():
    written = write_step(get_step("mma"), FULL)
    faster = edited(
        written, ("weights = ct.exp(scores - new_max)", "weights = ct.exp2(scores - new_max)"), name="other"
    )
    assert faster.compile(FULL).code != written.compile(FULL).code
    with pytest.raises(ValueError, match="must stand in the kernel once, not 0 times:\nno such line"):
        edited(written, ("no such line", ""))


def test_a_file_comes_back_as_a_step(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(written_out(get_step("exp2"), FULL).replace("softmax_exp2", "my_softmax"), encoding="utf-8")
    step = read_step(path)
    assert step.name == "mine" and step.written_for == FULL
    assert step.compile(FULL).code == get_step("exp2").compile(FULL).code
    path.write_text(path.read_text(encoding="utf-8").replace("def fmha(", "def fmha(("), encoding="utf-8")
    with pytest.raises(ValueError, match=r"mine.py is not Python: line \d+"):
        read_step(path)
    path.write_text("print('somebody else')\n", encoding="utf-8")
    with pytest.raises(ValueError, match="must be a kernel that"):
        read_step(path)
    with pytest.raises(ValueError, match="cannot read"):
        read_step(tmp_path / "nothing.py")


WRITTEN_DOWN = {name.split()[0] for name in EXPECTED["digests"]}  # the others are newer
CASES = [(step, *case) for step in KERNELS for case in cases_of(step)]


@same_compilers
@sampled(core=lambda step, problem, arch: (problem, arch) == (step.default_problem, step.made_for))
@pytest.mark.parametrize(("step", "problem", "arch"), CASES, ids=lambda x: getattr(x, "slug", getattr(x, "name", x)))
def test_every_kernel_is_the_code_that_it_was(step, problem, arch):
    """A refactoring leaves every instruction as it is. A change on purpose: ``python -m tests.expected``."""
    if step.name not in WRITTEN_DOWN:
        pytest.skip(f"{step.name} is new: `python -m tests.expected {step.name}` writes down which code it is")
    compiled, digest = step.compile(problem, arch), EXPECTED["digests"][name_of(step, problem, arch)]
    assert compiled.digest == digest, lock.told_apart(compiled, digest, EXPECTED)


def test_every_hole_is_explained():
    """By the docstring of the skeleton, which --where prints from."""
    for step in {type(step): step for step in KERNELS}.values():
        told = meanings(step)
        assert not set(step.holes()) - set(told), step.name
        assert all(said.endswith(".") and not said.startswith(":") for said in told.values())


def test_the_best_step_is_shown(capsys, monkeypatch):
    """For the headline's problem, or another; on this machine's architecture or another; and why."""
    monkeypatch.setattr(show, "here", lambda: "sm_90")
    choice = best(HEADLINE, "sm_90")
    assert show.main(["best", "--where"]) == 0
    first, why, *_ = capsys.readouterr().out.splitlines()
    assert first == f"Step {choice.step.label}, for {HEADLINE.describe()}:" and why == choice.why
    assert show.main(["best", "--arch", "sm_100", "--head-dim", "64"]) == 0
    told = capsys.readouterr().out
    other = best(standard(head_dim=64, causal=True), "sm_100").step
    assert told == shown(other, standard(head_dim=64, causal=True), "sm_100")
    assert show.main(["best", "--arch", "cpu"]) == 2 and "must be a CUDA device" in capsys.readouterr().err


def test_the_digests_are_of_the_steps_that_there_are():
    assert set(EXPECTED["digests"]) == {name_of(*case) for case in CASES if case[0].name in WRITTEN_DOWN}
    assert set(EXPECTED["lines"]) == {step.name for step in WRITTEN if step.name in WRITTEN_DOWN}


def test_where_the_parts_of_a_step_stand_is_told():
    """Its file, launch rule, constants, launch and kernel: a line of each holds its name."""
    for step in KERNELS:
        parts = parts_of(step, step.default_problem)
        for told in filter(None, parts.pop("launch rule", "").split(", ")):
            place, name = told.split()
            file, _, numbers = place.partition(":")
            lines = (ROOT.parent / file).read_text(encoding="utf-8").split("\n")
            assert all(lines[int(number) - 1] == f'name = "{name}"' for number in numbers.split(",")), told
        assert (ROOT.parent / parts.pop("the step")).exists()
        assert parts.keys() == {"constants", "launch", "kernel"}, step.name
        for told in parts.values():
            place, name = told.split()
            assert defined(place, name.rpartition(".")[2]), told
    assert "launch rule" in parts_of(get_step("two_blocks"), standard())


def test_every_part_is_written_out():
    written = {part_of(step.number).name for step in STEPS if step in WRITTEN}
    assert written == {"cutile", "gluon", "hopper", "blackwell", "cdna", "everyday"}


def defined(where, name):
    """Whether a function's definition stands at a file:line, or behind its decorators."""
    file, _, line = where.partition(":")
    found = (ROOT.parent / file).read_text(encoding="utf-8").split("\n")[int(line) - 1 :]
    return any(f"def {name}(" in text for text in found[:4])


def test_where_the_functions_of_a_step_stand_is_listed(capsys):
    assert show.main(["next_softmax_first", "--where"]) == 0
    told, *lines = capsys.readouterr().out.splitlines()
    assert told == f"Step 208 next_softmax_first, for {get_step('next_softmax_first').default_problem.describe()}:"
    listed = [line.split(maxsplit=1) for line in lines if line.startswith("steps/")]
    called = dict(name.split(" = ") for _, name in listed if " = " in name)
    assert listed[0][1] == "fmha" and {"attend_to_rest"} <= {name for _, name in listed}
    begin = lines.index("Its holes, which evolve fills otherwise:") + 1
    holes = dict(line.split(maxsplit=1) for line in lines[begin:] if re.match(r"  \w", line))
    assert lines[begin + [*holes].index("groups") * 2 + 1].strip() == "warpgroups that compute."
    assert holes["highest"] == "softmax.in_four_chains" and holes["groups"] == "2"  # three where it is for head_dim 64
    assert called["consume"] == "variant.consume" and called["quarter_in_registers"] == "variant.queries.take"
    for where, name in listed:
        assert defined(where, name.partition(" = ")[0]), where
    for asked in (["ring", "--where"], ["exp2", "--where", "--output", "mine.py"], ["exp2", "--where", "--arch", "90"]):
        assert show.main(asked) == 2 and capsys.readouterr().err.startswith("steps.show: argument --")
