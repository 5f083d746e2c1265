"""Results of functions that no caller reads: they are neither handed back nor computed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator

import libcst as cst

from steps.writing.prune import documented
from steps.writing.trees import Rewriter, assignment, bare, code, effectless, found_in, uses


def without_idle_results(
    functions: dict[str, cst.FunctionDef], fixed: Collection[str], records: Collection[str]
) -> dict[str, cst.FunctionDef]:
    """The functions, by name, without parts of returned tuples that every call drops.

    fixed: names of functions that stay as they are. records: names of named tuples, which may be made without effect.
    """
    idle: dict[str, list[set[int]]] = defaultdict(list)
    loads = sum((uses(tree).loads for tree in functions.values()), uses().loads)
    for tree in functions.values():
        for callee, positions in _calls(tree, functions):
            idle[callee].append(positions)
    gone = {}
    for name, each in idle.items():
        results = [line.value for line in found_in(functions[name], cst.Return)]
        tuples, common = all(isinstance(result, cst.Tuple) for result in results), set.intersection(*each)
        known = name not in fixed and tuples and len(each) == loads[name]  # nothing else names it
        spare = [result.elements[k].value for result in results for k in common] if known and tuples else []
        some_left = all(len(result.elements) > len(common) for result in results) if spare else False
        if some_left and all(effectless(value, records) for value in spare):
            gone[name] = common
    if not gone:
        return functions
    return {name: _less(tree.visit(_Fewer(gone)), gone.get(name), records) for name, tree in functions.items()}


def _calls(tree: cst.FunctionDef, functions: Collection[str]) -> Iterator[tuple[str, set[int]]]:
    """(function, positions in what it returns that nothing reads) of each call that is assigned to several names."""
    total = uses(tree)
    for block in found_in(tree, cst.IndentedBlock):
        for n, statement in enumerate(block.body):
            target, value = assignment(statement) or (None, None)
            if isinstance(target, cst.Tuple) and isinstance(value, cst.Call) and code(value.func) in functions:
                names = [code(part.value) for part in target.elements]
                idle = {
                    k for k, name in enumerate(names) if not total.loads[name] or overwritten(name, block.body[n + 1 :])
                }
                yield code(value.func), idle if all(map(str.isidentifier, names)) else set()


def overwritten(name: str, following: Collection[cst.BaseStatement]) -> bool:
    """Whether the next statement that mentions a name assigns it without reading it."""
    for statement in following:
        found = uses(statement)
        if found.loads[name] or found.stores[name]:
            return not found.loads[name] and isinstance(statement, cst.SimpleStatementLine)
    return False


class _Fewer(Rewriter):
    """Takes results out of the targets of calls. gone: function -> their positions."""

    def __init__(self, gone: dict[str, set[int]]):
        self.gone = gone

    def leave_Assign(self, original, updated):
        gone = self.gone.get(code(updated.value.func)) if isinstance(updated.value, cst.Call) else None
        if not gone:
            return updated
        (target,) = updated.targets
        return updated.with_changes(targets=[target.with_changes(target=_without(target.target, gone))])


class _Returns(cst.CSTTransformer):
    """Takes results out of what is returned. gone: their positions."""

    def __init__(self, gone: set[int]):
        self.gone = gone

    def leave_Return(self, original, updated):
        return updated.with_changes(value=_without(updated.value, self.gone))


class _Unassigned(Rewriter):
    """Takes out assignments of names."""

    def __init__(self, names: set[str]):
        self.names = names

    def replace(self, statement, following):
        target, _ = assignment(statement) or (None, None)
        return [] if isinstance(target, cst.Name) and target.value in self.names else None


def _less(tree: cst.FunctionDef, gone: set[int] | None, records: Collection[str]) -> cst.FunctionDef:
    """A function that returns so much less, and computes no more than that."""
    if gone is None:
        return tree
    dropped = {code(part.value) for n, part in enumerate(found_in(tree, cst.Return)[0].value.elements) if n in gone}
    tree = tree.visit(_Returns(gone))
    read, made = uses(tree.body).loads.copy(), defaultdict(list)
    for line in found_in(tree, cst.SimpleStatementLine):
        target, value = assignment(line) or (None, None)
        if isinstance(target, cst.Name):
            made[target.value].append(value)
            read[target.value] -= uses(value).loads[target.value]
    idle = {name for name, values in made.items() if not read[name] and all(effectless(v, records) for v in values)}
    return _told(tree.visit(_Unassigned(idle)), dropped)


def _told(tree: cst.FunctionDef, dropped: set[str]) -> cst.FunctionDef:
    """A function whose docstring says nothing of what is not returned, "b: ...".

    One that begins with the names of all results, "(a, b): ...", tells which is returned: "(a, b), of which a: ...".
    """
    tree = documented(tree, (), dropped)
    said, results = tree.get_docstring(), {code(line.value) for line in found_in(tree, cst.Return)}
    if not said or not said.startswith("(") or len(results) > 1:
        return tree
    first, *others = tree.body.body
    (left,) = results
    left = f"({left})" if "," in left else left
    said = cst.SimpleString(code(first.body[0].value).replace("):", f"), of which {left} is returned:", 1))
    return tree.with_deep_changes(tree.body, body=[first.with_changes(body=[cst.Expr(said)]), *others])


def _without(whole: cst.Tuple, gone: set[int]) -> cst.BaseExpression:
    """A tuple without the parts at these positions, or the part that is left."""
    kept = [part for n, part in enumerate(whole.elements) if n not in gone]
    if len(kept) == 1:
        return bare(kept[0].value)
    return whole.with_changes(elements=[*kept[:-1], kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)])
