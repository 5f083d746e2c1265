"""The kernel of one step as one plain piece of Python: a partial evaluator for source text.

The kernels are skeletons with switches that are constants when a kernel is compiled. ``flatten`` writes down what is
left of a skeleton when its constants are known: the functions that run, without the branches that are not taken, in the
words and with the comments of the source. It works in three phases on concrete syntax trees (libcst):

1. fold: beginning at the entry, every function that is called is read with what is known of its parameters, branches
   whose test is known are replaced by what they come to, and the arguments of the calls that remain are noted; again,
   until nothing new is known.
2. spell: what is known is written as a name of a module-level constant or as a literal, captured names become the names
   of what they stand for, and parameters that are the same at every call vanish.
3. tidy: what has lost its purpose goes, such as calls of functions that do nothing and names for other names.

Whether the text says the same as the source is for a compiler to judge: both must come to the same machine code.
"""

from __future__ import annotations

import builtins
import io
import re
import subprocess
import sys
import textwrap
import tokenize
import types
from collections import Counter
from collections.abc import Iterator

import libcst as cst

from steps.writing.inline import inline
from steps.writing.once import dissolved, named_less, said_once, side_by_side
from steps.writing.program import Program
from steps.writing.prune import as_record
from steps.writing.results import without_idle_results
from steps.writing.tidy import Text
from steps.writing.trees import LINE_LENGTH, code, parameters, uses
from steps.writing.values import CannotFlatten, depth

SKIP = "  # fmt: skip"
ROLES = re.compile(
    r"^(?P<margin> *)WORKERS: gl\.constexpr = (?P<warps>.*)\n *BUDGETS: gl\.constexpr = (?P<registers>.*)\n"
    r"(?P<between>(?:.*\n)*?) *gl\.warp_specialize\(\n *\[\n(?P<roles>(?: *\(.*\),\n)+) *\],\n"
    r" *WORKERS,\n *BUDGETS,\n *\)",
    re.MULTILINE,
)
MATRICES = "LinearLayout("  # which ruff would spread over many lines
NUMBER = re.compile(r"(?:(?P<wrapper>[\w.]+)\()?(?P<number>-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)\)?")
EXPLODED = re.compile(
    r"^(?P<front>(?P<margin> *)\S.*[(\[])\n(?P<inner>(?:(?P=margin)    \S.*,\n){3,})(?P=margin)(?P<end>[)\]]+)$",
    re.MULTILINE,
)  # with arguments in lines of their own
A_LINE = 7  # numbers of which readers see the names' values


def flatten(
    entry: object,
    bound: dict,
    *others: tuple,
    header: str = "",
    keep: frozenset[str] = frozenset(),
    alone: bool = False,
) -> str:
    """A Python module with the kernel ``entry`` as it is when the parameters in ``bound`` are these constants.

    entry: a Python function, which may be a closure, or a ``gluon.jit`` function. others: (entry, bound) of kernels
    that are launched beside it; of the same name the second is name_2. header: the module's docstring. keep: names
    of functions that stay functions, so that others can take their places, and of constants that stay. alone: whether
    no chapter speaks of the text's functions, so that more of them are written out.
    Raises CannotFlatten for what has no plain form.
    """
    program = Program(entry, bound, *others)
    program.fold()
    text = Text(program, keep, alone)
    modules = {function.name: function.function.__module__ for function in program.functions.values()}
    text.functions = inline(text.documented(), modules, {*text.entries, *keep}, alone)
    text.functions = without_idle_results(text.functions, {*text.entries, *keep}, text.classes)
    if alone:
        text.functions = {name: dissolved(tree, text.fields.names) for name, tree in text.functions.items()}
    text.tidy()
    text.functions = {name: said_once(tree) for name, tree in text.documented().items()}
    if alone:
        text.functions = {name: side_by_side(named_less(tree)) for name, tree in text.functions.items()}
    whole = "\n\n\n".join(filter(None, [header and f'"""{header}"""', *_parts(program, text, alone)])) + "\n"
    for name in re.findall(r"^(\w+)_2 = ", whole, re.MULTILINE):  # numbered for the sake of a local that is gone
        whole = whole if name in _names(whole) else re.sub(rf"\b{name}_2\b", name, whole)
    return formatted(_about_what_is_there(whole))


def _names(text: str) -> set[str]:
    """The names of a text, those that only comments and docstrings have aside."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return {token.string for token in tokens if token.type == tokenize.NAME}


def _about_what_is_there(text: str) -> str:
    """The text without mention of functions that it does not have: "As ``f``, where ..." and "(``f``)"."""
    names = _names(text)

    def likewise(found: re.Match) -> str:
        return found[0] if found["name"] in names else found["rest"].upper()

    def beside(found: re.Match) -> str:
        return found[0] if found["name"] in names else ""

    text = re.sub(r"\bAs ``(?P<name>\w+)``, (?:where )?(?P<rest>\w)", likewise, text)
    return re.sub(r"[ \n#]*\(``(?:\w+\.)?(?P<name>\w+)``\)", beside, text)


def _parts(program: Program, text: Text, alone: bool) -> Iterator[str]:
    """Imports, constants, classes and functions, as far as something names them. alone: as for ``flatten``."""
    places = {function.name: function.function for function in program.functions.values()}
    functions = _ordered(text, places, program.entries[0].function.__module__)
    used = Counter()
    for name in functions:
        used += uses(text.functions[name]).loads
    records = [as_record(tree) for name, tree in text.classes.items() if used[name]]
    others = [
        source for cls, source in program.classes.items() if used[cls.__name__] and cls.__name__ not in text.classes
    ]
    for source in (*records, *others):
        used += uses(cst.parse_module(source)).loads
    program.imports["namedtuple"] = "from collections import namedtuple"
    constants = []
    for name in reversed(sorted(program.constants, key=lambda name: depth(program.constants[name]))):
        if used[name]:
            definition = program.literal(program.constants[name])
            used += uses(cst.parse_expression(definition)).loads
            constants.append((name, definition))
    if program.jit and constants:
        wrapper = program.dotted(sys.modules["triton.experimental.gluon.language"].constexpr)
        used[wrapper.split(".")[0]] += 1
        constants = [(name, its if its.startswith(f"{wrapper}(") else f"{wrapper}({its})") for name, its in constants]
    _check(program, text, used)
    values = dict(reversed(constants))
    lines = [*_numbers_together(values)] if alone else []
    lines += [f"{name} = {its}" for name, its in _named_together(values)]
    yield import_lines({name: line for name, line in program.imports.items() if used[name]})
    numbers = "\n".join(f"{line}{SKIP * (len(line) > LINE_LENGTH)}" for line in lines)
    yield "\n\n".join(filter(None, [numbers, "\n".join(records)]))
    yield from (source.strip() for source in others)
    yield from (code(text.functions[name]) for name in functions)


def _numbers_together(constants: dict[str, str]) -> Iterator[str]:
    """Lines of some numbers each, which are taken out of the constants."""
    numbers = {name: found for name, its in constants.items() if (found := NUMBER.fullmatch(its))}
    while numbers:
        names, room = [], LINE_LENGTH - 20  # beside the brackets, and a wrapper for all
        for name, its in numbers.items():
            if len(names) < A_LINE and (length := len(name) + len(its["number"]) + 4) <= room:
                names.append(name)
                room -= length
        values = ", ".join(numbers[name]["number"] for name in names)
        for name in names:
            del constants[name]
        wrapper = numbers[names[0]]["wrapper"]
        numbers = {name: its for name, its in numbers.items() if name not in names}
        if len(names) == 1:
            yield f"{names[0]} = {wrapper}({values})" if wrapper else f"{names[0]} = {values}"
        else:
            yield f"{', '.join(names)} = {f'map({wrapper}, ({values}))' if wrapper else values}"


def _named_together(constants: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Constants, a pair a line: layouts that are the same have one line for all their names, where these fit."""
    names: dict[str, list[str]] = {}
    for name, its in constants.items():
        names.setdefault(its if "Layout(" in its else name, []).append(name)
    for name, *others in names.values():
        together = " = ".join([name, *others])
        fits = len(f"{together} = {constants[name]}") <= LINE_LENGTH or MATRICES in constants[name]
        yield together if fits else name, constants[name]
        yield from () if fits else ((other, name) for other in others)


def _check(program: Program, text: Text, used: Counter) -> None:
    """Raise for a name that nothing in the text explains."""
    explained = {*program.constants, *text.functions, *program.imports, *vars(builtins)}
    explained |= {cls.__name__ for cls in program.classes}
    for function in program.functions.values():
        if tree := text.functions.get(function.name):
            found = uses(tree)
            bound = {*found.stores, *(part.name.value for part in parameters(tree))}
            if unexplained := set(found.loads) - bound - explained:
                name = min(unexplained)
                raise function.error("this name has no plain form", cst.Name(name))


def _ordered(text: Text, places: dict[str, types.FunctionType], main: str) -> list[str]:
    """Names of functions, callees first, and else as in the source, with the entry's module last."""
    waiting = sorted(
        text.functions,
        key=lambda name: (
            places[name].__module__ == main,
            places[name].__module__,
            places[name].__code__.co_firstlineno,
        ),
    )
    ordered: list[str] = []
    while waiting:
        for name in waiting:
            if not {*uses(text.functions[name]).loads} & {other for other in waiting if other != name}:
                break
        else:
            raise CannotFlatten(f"functions that call each other: {', '.join(waiting)}")
        waiting.remove(name)
        ordered.append(name)
    return ordered


def import_lines(lines: dict[str, str]) -> str:
    """Import lines in two groups, the standard library's first, sorted; names of one module on one line."""
    plain, froms = set(), {}
    for line in lines.values():
        if line.startswith("from "):
            module, _, what = line.removeprefix("from ").partition(" import ")
            froms.setdefault(module, set()).add(what)
        else:
            plain.add(line)
    joined = sorted(plain)
    for module, names in sorted(froms.items()):
        begin = f"from {module} import "
        for part in textwrap.wrap(", ".join(sorted(names)), LINE_LENGTH - len(begin)):
            joined.append(begin + part.rstrip(","))
    standard = [line for line in joined if line.split()[1].split(".")[0] in sys.stdlib_module_names]
    return "\n\n".join(filter(None, ["\n".join(standard), "\n".join(line for line in joined if line not in standard)]))


def formatted(text: str) -> str:
    """The text as ruff formats it, or as it is where there is no ruff; first, long lines that ruff leaves alone."""
    text = "\n".join(map(in_lines, text.splitlines())) + "\n"
    command = [sys.executable, "-m", "ruff", "format", "--line-length", str(LINE_LENGTH), "-"]
    done = subprocess.run(command, input=text, capture_output=True, encoding="utf-8")
    return _packed(ROLES.sub(_roles, done.stdout)) if done.returncode == 0 else text


def _roles(found: re.Match) -> str:
    """A call of ``warp_specialize`` with a line for each role, and none for a bracket alone."""
    before, margin = found["between"], found["margin"]
    roles = found["roles"].replace("\n    ", "\n").removeprefix("    ")
    return f"{before}{margin}gl.warp_specialize([\n{roles}{margin}], {found['warps']}, {found['registers']}){SKIP}"


def in_lines(line: str) -> str:
    """A line as several, where it is too long: a comment, or a call or ``def`` that ruff is to leave alone."""
    margin = line[: len(line) - len(line.lstrip())]
    if line.endswith(SKIP) and sum(map(line.count, ")]")) > sum(map(line.count, "([")):  # what was broken before
        return line
    if line.endswith(SKIP) and len(line) <= LINE_LENGTH + len(SKIP):
        return line.removesuffix(SKIP)
    if len(line) <= LINE_LENGTH or not (line.endswith(SKIP) or line.startswith(f"{margin}# ")):
        return line
    if line.startswith(f"{margin}# "):
        begin = f"{margin}# "
        return textwrap.fill(line.removeprefix(begin), LINE_LENGTH, initial_indent=begin, subsequent_indent=begin)
    if " = " in line.partition("(")[0] and not margin:  # a constant
        return _hung(line.removesuffix(SKIP))
    begin = margin + 4 * " " * (1 + line.startswith(f"{margin}def "))
    return "\n".join(_wrapped(_unbroken(line), begin)).replace("\xa0", " ")


def _unbroken(text: str) -> str:
    """The text of a call with spaces in strings, and in ``SKIP``, at which no line ends."""
    return re.sub(rf'"[^"]*"|{SKIP}$', lambda found: found[0].replace(" ", "\xa0"), text)


def _wrapped(text: str, begin: str) -> list[str]:
    """The lines of a text, which end at spaces alone. begin: of all but the first."""
    how = {"subsequent_indent": begin, "break_long_words": False, "break_on_hyphens": False}
    return textwrap.wrap(text, LINE_LENGTH, **how)


def _hung(line: str) -> str:
    """A constant that is too long for a line, in several. None ends inside a list of numbers, or in a text."""
    front, value = re.match(r"((?:[\w, ]+ = )+)(.*)", line).groups()
    call, _, inner = (value if value.endswith(")") else f"({value})").partition("(")
    together = re.sub(r", (?=[^][(]*])", ",\xa0", _unbroken(inner + SKIP))
    together = f"{front}{call}(".replace(" ", "\xa0") + f" {together}"  # the first line may end with the bracket
    first, *more = _wrapped(together, "    ")
    return "\n".join([first.replace("( ", "(", 1), *more]).replace("\xa0", " ")


def _packed(text: str) -> str:
    """Calls whose arguments ruff has given a line each, with as many in a line as fit."""

    def packed(found: re.Match) -> str:
        margin, inner = found["margin"], found["inner"]
        if "#" in inner or text[found.end() :].lstrip().startswith((")", "]")):  # what is inside cannot be skipped
            return found[0]
        parts = [part.strip().replace(" ", "\xa0") for part in inner.splitlines()]
        begin = f"{margin}    "
        lines = textwrap.wrap(" ".join(parts), LINE_LENGTH, initial_indent=begin, subsequent_indent=begin)
        if len(lines) + 1 >= len(parts):
            return found[0]
        return "\n".join([found["front"], *lines, f"{margin}{found['end']}{SKIP}"]).replace("\xa0", " ")

    return EXPLODED.sub(packed, text)
