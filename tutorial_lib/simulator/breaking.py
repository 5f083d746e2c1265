"""Breaks a kernel's text, one synchronisation at a time: to see what a wait, an arrival or a fence is there for.

Works on a kernel that is written out as one module, such as ``steps.show`` prints: every place is there once.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

# What orders things: by the name that is called. A function of the kernel's own that does nothing else is one, too.
WAITS = {"wait", "wait_group", "warpgroup_mma_wait", "store_wait"}
SIGNS = {
    "arrive",
    "expect",
    "commit_group",
    "barrier",
    "thread_barrier",
    "fence_async_shared",
    "tcgen05_commit",
}
LOOSER = {"wait_group", "warpgroup_mma_wait", "store_wait"}  # take how many may still be under way
TOLD = {"tcgen05_mma": "mbarriers"}  # a product, and the argument that says where it tells that it has ended

# Mistakes in a call that names the barrier or tile: each is another second argument, of a wait the parity, of
# ``expect`` the bytes, of a ring of barriers the arrivals. The other two need no argument.
MISTAKES = {
    "other parity": "{} ^ 1",
    "one more arrival": "{} + 1",
    "twice the bytes": "{} * 2",
    "half of the bytes": "{} // 2",
}
LEFT_OUT, NOT_AT_LAST = "left out", "left out at last"


@dataclass(frozen=True)
class Broken:
    """A kernel's text with one change. line: of the kernel that is whole; what: the statement, and how it is broken.

    relaxed: a cluster's barrier that tells nothing of what stands in front of it. for itself: a product
    with multicast that tells of its end in its own CTA alone.
    """

    line: int
    what: str
    how: str  # "without", "other parity", "one more under way", "relaxed", "for itself"; or a mistake of ``mistaken``
    text: str

    def __str__(self) -> str:
        return f"line {self.line}, {self.how}: {self.what}"


def broken(text: str) -> Iterator[Broken]:
    """Every way to break a kernel's text by one synchronisation."""
    functions = [f for f in ast.parse(text).body if isinstance(f, ast.FunctionDef)]
    own = {
        function.name
        for function in functions
        if (body := [line for line in function.body if not _is_docstring(line)])
        and all(_called(line) in WAITS | SIGNS for line in body)
    }
    for function in functions:
        for line in sorted(filter(_is_line, ast.walk(function)), key=lambda line: line.lineno):
            name = _called(line)
            told = next((k.value for k in _call(line).keywords if k.arg == TOLD[name]), None) if name in TOLD else None
            if isinstance(told, ast.List) and not told.elts:  # a product that tells nobody
                continue
            if name not in WAITS | SIGNS | own and told is None:
                continue
            place = line.lineno, " ".join(ast.get_source_segment(text, line).split())
            if told is not None:
                yield Broken(*place, "without", _changed(text, told, "[]"))
                for to_all in (k.value for k in _call(line).keywords if k.arg == "multicast"):
                    yield Broken(*place, "for itself", _changed(text, to_all, "False"))
                continue
            if function.name not in own:  # such a function is broken where it is called, once for each place
                yield Broken(*place, "without", _without(text, line))
            called = ast.get_source_segment(text, _call(line).func)
            if called.endswith("cluster.barrier"):
                yield Broken(*place, "relaxed", _replaced(text, _call(line), f"{called}(relaxed=True)"))
            if name == "wait" and _call(line).args:
                yield Broken(*place, "other parity", _changed(text, _call(line).args[1], "({}) ^ 1"))
            if name in LOOSER and _call(line).args:
                yield Broken(*place, "one more under way", _changed(text, _call(line).args[0], "({}) + 1"))


def without(text: str, statement: str) -> str:
    """The text without a synchronisation that holds ``statement``, or begins in this line.

    Raises ValueError where there is none such, or more than one.
    """
    every = [b for b in broken(text) if b.how == "without"]
    piece = "".join(statement.split())
    found = [b for b in every if piece == str(b.line)] or [b for b in every if piece in "".join(b.what.split())]
    if len(found) != 1:
        told = "several" if found else "no such synchronisation; there are"
        raise ValueError(f"{statement!r}: {told}: " + "; ".join(f"{b.line} {b.what}" for b in found or every))
    return found[0].text


def mistaken(text: str, function: str, about: str, mistake: str) -> Broken:
    """The text with a mistake in the one call of ``function`` that is about a barrier or a tile.

    function: how the kernel calls it, without its module. about: a name among the call's arguments, or the one that its
    result gets. mistake: of ``MISTAKES``, or that the call is left out: always, or in the last round of the loop over a
    range around it.

    Raises ValueError where there is no such call, or more than one, or for an unknown mistake.
    """
    tree = ast.parse(text)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _name(node.func) == function]
    results = {id(call): target for node in ast.walk(tree) for target, call in _results(node)}
    found = [
        call
        for call in calls
        if about in {_name(part) for argument in call.args for part in ast.walk(argument)}
        or about == _name(results.get(id(call)))
    ]
    if len(found) != 1:
        raise ValueError(f"the kernel calls {function} about {about} {len(found)} times, not once")
    [call] = found
    [line] = [node for node in ast.walk(tree) if _is_line(node) and call in ast.walk(node)]
    if mistake in MISTAKES:
        whole = isinstance(call.args[1], ast.Name | ast.Attribute | ast.Constant)
        made = _changed(text, call.args[1], MISTAKES[mistake] if whole else MISTAKES[mistake].format("({})"))
    elif mistake == LEFT_OUT:
        made = _without(text, line)
    elif mistake == NOT_AT_LAST:
        loops = [node for node in ast.walk(tree) if isinstance(node, ast.For) and line in ast.walk(node)]
        if not loops or _name(getattr(loops[-1].iter, "func", None)) != "range":
            raise ValueError(f"no loop over a range is around the call of {function} about {about}")
        rounds, end = loops[-1].target, loops[-1].iter.args[-1]
        margin = " " * (line.col_offset + 4)
        made = _changed(text, line, f"if {ast.unparse(rounds)} + 1 < {ast.unparse(end)}:\n{margin}{{}}")
    else:
        known = ", ".join([*MISTAKES, LEFT_OUT, NOT_AT_LAST])
        raise ValueError(f"no mistake is called {mistake!r}; there are: {known}")
    return Broken(line.lineno, " ".join(ast.get_source_segment(text, line).split()), mistake, made)


def _results(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """(target, value) of an assignment, or of each pair of one of several names at once."""
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        target, value = node.targets[0], node.value
        together = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
        yield from zip(target.elts, value.elts, strict=True) if together else [(target, value)]


def _name(node: ast.AST | None) -> str | None:
    """The name, or that of an attribute."""
    return getattr(node, "attr", getattr(node, "id", None))


def _is_line(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr | ast.Assign)


def _is_docstring(line: ast.stmt) -> bool:
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)


def _call(line: ast.stmt) -> ast.Call | None:
    value = getattr(line, "value", None)
    return value if _is_line(line) and isinstance(value, ast.Call) else None


def _called(line: ast.stmt) -> str | None:
    call = _call(line)
    return _name(call and call.func)


def _without(text: str, line: ast.stmt) -> str:
    if isinstance(line, ast.Assign):  # x = warpgroup_mma_wait(n, deps=[x]): waits for nothing, and hands x on
        return _changed(text, _call(line).args[0], "1000000")
    return _replaced(text, line, "pass")


def _changed(text: str, node: ast.expr, form: str) -> str:
    return _replaced(text, node, form.format(ast.get_source_segment(text, node)))


def _replaced(text: str, node: ast.AST, new: str) -> str:
    lines = text.splitlines(keepends=True)
    before = "".join(lines[: node.lineno - 1]) + lines[node.lineno - 1][: node.col_offset]
    after = lines[node.end_lineno - 1][node.end_col_offset :] + "".join(lines[node.end_lineno :])
    return before + new + after
