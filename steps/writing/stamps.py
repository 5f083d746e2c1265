"""A kernel's text with stamps: every role notes the SM's clock wherever it has waited or is about to wait.

Works on a kernel that is written out as one module, such as ``steps.show`` prints. What lies between two stamps is a
*segment*: a wait for a barrier, for a product or for a store, or what is computed between two waits. The stamps are
compiled in only here: a step's own kernel has none.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from steps.core.launch import LAST

WAITS = {"wait": "wait", "warpgroup_mma_wait": "product", "store_wait": "store", "wait_group": "wait"}
ID_BITS = 6  # of a stamp, for its segment: the clock is in the bits above
STAMP = f'''
@gluon.jit
def stamp(stamps, stamp_count, what: gl.constexpr):
    """Note that segment ``what`` ends now."""
    clock = gl.inline_asm_elementwise("mov.u64 $0, %clock64;", "=l", [], dtype=gl.int64, is_pure=False, pack=1)
    gl.store(stamps + stamp_count, clock << {ID_BITS} | what, mask=stamp_count < STAMPS_A_ROLE)
    return stamp_count + 1
'''


@dataclass(frozen=True)
class Segment:
    """kind: begin, wait, product, store, softmax, issue or other; label: what for; line: of the plain text."""

    kind: str
    label: str
    line: int


@dataclass(frozen=True)
class Stamped:
    """A kernel that takes one more argument, ``trace`` [blocks, roles, stamps], int64: clock and segment of each."""

    text: str
    segments: tuple[Segment, ...]
    roles: tuple[str, ...]


def with_stamps(text: str, blocks: int, stamps: int) -> Stamped:
    """The kernel with stamps of its first blocks, at most so many a role.

    Raises ValueError for a kernel with more segments than a stamp can name.
    """
    return _Stamping(text, blocks, stamps).stamped


class _Stamping:
    def __init__(self, text: str, blocks: int, stamps: int):
        tree = ast.parse(text)
        self.functions = {f.name: f for f in tree.body if isinstance(f, ast.FunctionDef)}
        self.segments = [Segment("begin", "begin", 0)]
        entry = list(self.functions.values())[-1]
        self.roles: list[str] = []
        self.inside: set[str] = set()  # functions that stamp: the roles, and those with loops that they call
        dealt = self._specialized(entry)
        roots = {function for function, _ in dealt} or {entry.name}
        for name in roots:
            self._enter(name)
        for name in sorted(self.inside):
            self._stamp_function(self.functions[name], is_root=name in roots)
        behind = sum(parameter.arg in LAST for parameter in entry.args.args)
        entry.args.args.insert(len(entry.args.args) - behind, ast.arg("trace"))
        if dealt:
            for n, (function, call) in enumerate(dealt):
                call.elts += [ast.Name("trace"), ast.Constant(n)]
                self.roles.append(f"{function} {n}")
        else:
            entry.body.insert(0, ast.parse("role: gl.constexpr = 0").body[0])
            self.roles.append("all warps")
        if len(self.segments) > 2**ID_BITS:
            raise ValueError(f"the kernel has {len(self.segments)} segments, of which a stamp names {2**ID_BITS}")
        made = [
            f"STAMPS_A_ROLE: gl.constexpr = gl.constexpr({stamps})",
            f"STAMPED_BLOCKS: gl.constexpr = gl.constexpr({blocks})",
            f"STAMPED_ROLES: gl.constexpr = gl.constexpr({len(self.roles)})",
            STAMP,
        ]
        where = next(i for i, node in enumerate(tree.body) if isinstance(node, ast.FunctionDef))
        tree.body[where:where] = ast.parse("\n".join(made)).body
        written = ast.unparse(ast.fix_missing_locations(tree)) + "\n"
        self.stamped = Stamped(written, tuple(self.segments), tuple(self.roles))

    @staticmethod
    def _specialized(entry: ast.FunctionDef) -> list[tuple[str, ast.Tuple]]:
        """(function, tuple of its arguments) of every role."""
        for call in ast.walk(entry):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "gl.warp_specialize":
                return [(pair.elts[0].id, pair.elts[1]) for pair in call.args[0].elts]
        return []

    def _own(self, node: ast.AST) -> set[str]:
        """The functions of the kernel's own that are called; a method may have the name of one."""
        named = {n.func.id for n in ast.walk(node) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
        return named & self.functions.keys()

    def _calls(self, node: ast.AST) -> set[str]:
        """Last parts of the names that are called, also by functions of the kernel's own."""
        found = {ast.unparse(n.func).rsplit(".", 1)[-1] for n in ast.walk(node) if isinstance(n, ast.Call)}
        for name in self._own(node):
            found |= self._calls(self.functions[name])
        return found

    def _loops(self, function: ast.FunctionDef) -> bool:
        """Whether a function has a loop, or calls one that does."""
        own = any(isinstance(node, ast.For | ast.While) for node in ast.walk(function))
        return own or any(self._loops(self.functions[name]) for name in self._own(function))

    def _enter(self, name: str) -> None:
        self.inside.add(name)
        for called in self._own(self.functions[name]) - self.inside:
            function = self.functions[called]
            if self._loops(function) and self._calls(function) & WAITS.keys():
                self._enter(called)

    def _stamp_function(self, function: ast.FunctionDef, is_root: bool) -> None:
        docstring = function.body[:1] if ast.get_docstring(function) is not None else []
        body = self._stamped(function.body[len(docstring) :], is_root)
        if is_root:
            begin = ast.parse(
                "stamp_block = gl.program_id(0) + gl.num_programs(0) * (gl.program_id(1) + gl.num_programs(1) * "
                "gl.program_id(2))\n"
                "stamps = trace + (stamp_block * STAMPED_ROLES + role) * STAMPS_A_ROLE\n"
                "stamp_count = stamp_block // STAMPED_BLOCKS * STAMPS_A_ROLE\n"
                "stamp_count = stamp(stamps, stamp_count, 0)"
            ).body
            if self._specialized(list(self.functions.values())[-1]):
                function.args.args += [ast.arg("trace"), ast.arg("role", ast.parse("gl.constexpr").body[0].value)]
        else:
            begin = []
            function.args.args += [ast.arg("stamps"), ast.arg("stamp_count")]
            if not isinstance(body[-1], ast.Return):
                body.append(ast.Return(ast.Name("stamp_count")))
        function.body = [*docstring, *begin, *body]

    def _stamped(self, statements: list[ast.stmt], is_root: bool) -> list[ast.stmt]:
        made: list[ast.stmt] = []
        plain: list[ast.stmt] = []

        def end_plain() -> None:
            made.extend(plain)
            if any(self._calls(s) for s in plain if not isinstance(s, ast.AnnAssign)):
                made.append(self._stamp(self._kind_of_plain(plain), plain[0]))
            plain.clear()

        for statement in statements:
            called = self._calls(statement)
            if self._own(statement) & self.inside and not isinstance(statement, ast.For | ast.If | ast.While):
                end_plain()
                made.append(self._passing_on(statement))
            elif isinstance(statement, ast.For | ast.If | ast.While) and called & WAITS.keys():
                end_plain()
                statement.body = self._stamped(statement.body, is_root)
                if isinstance(statement, ast.If):
                    statement.orelse = self._stamped(statement.orelse, is_root)
                made.append(statement)
            elif isinstance(statement, ast.Return):
                end_plain()
                made.append(statement if is_root else self._returning(statement))
            elif called & WAITS.keys():
                end_plain()
                made += [statement, self._stamp(self._kind_of_wait(statement, called), statement)]
            else:
                plain.append(statement)
        end_plain()
        return made

    def _stamp(self, kind_and_label: tuple[str, str], statement: ast.stmt) -> ast.stmt:
        kind, label = kind_and_label
        self.segments.append(Segment(kind, label, statement.lineno))
        return ast.parse(f"stamp_count = stamp(stamps, stamp_count, {len(self.segments) - 1})").body[0]

    def _kind_of_plain(self, statements: list[ast.stmt]) -> tuple[str, str]:
        called = {name for s in statements for name in self._calls(s)}
        if called & {"exp2", "softmax"}:
            return "softmax", "products and softmax" if "mma_v2" in called else "softmax"
        if called & {"warpgroup_mma", "mma_v2"}:
            return "issue", "products are issued" if "warpgroup_mma" in called else "products"
        if called & {"async_store", "store"}:
            return "other", "output"
        return "other", "other"

    def _kind_of_wait(self, statement: ast.stmt, called: set[str]) -> tuple[str, str]:
        kind = WAITS[min(called & WAITS.keys(), key=list(WAITS).index)]
        if kind != "wait":
            return kind, f"wait for a {kind}"
        return kind, f"wait for {'copies' if 'wait_group' in called else self._barrier(statement)}"

    def _barrier(self, statement: ast.stmt) -> str:
        """The barrier that is waited for, by its name among the kernel's: here, where a variable got it, or inside.

        Of a function that waits for several, its own name.
        """
        variables = {n.id for n in ast.walk(statement) if isinstance(n, ast.Name)}
        assigned = [
            line
            for function in self.functions.values()
            for line in ast.walk(function)
            if isinstance(line, ast.Assign) and {t.id for t in line.targets if isinstance(t, ast.Name)} & variables
        ]
        for place in (statement, *assigned, *(self.functions[name] for name in self._own(statement))):
            named = [n for n in ast.walk(place) if isinstance(n, ast.Attribute) and ast.unparse(n.value) == "barriers"]
            if isinstance(place, ast.FunctionDef) and len({node.attr for node in named}) > 1:
                return place.name  # which of them takes long it does not tell
            if named:
                return named[0].attr
        return ast.unparse(statement)

    @staticmethod
    def _passing_on(statement: ast.stmt) -> ast.stmt:
        """A call of a function that stamps: it gets the stamps so far, and returns how many there are."""
        call = statement.value
        call.args += [ast.Name("stamps"), ast.Name("stamp_count")]
        targets = [] if isinstance(statement, ast.Expr) else statement.targets[0]
        elements = targets.elts if isinstance(targets, ast.Tuple) else [targets] if targets else []
        names = [*elements, ast.Name("stamp_count")]
        return ast.Assign([ast.Tuple(names) if len(names) > 1 else names[0]], call, lineno=statement.lineno)

    @staticmethod
    def _returning(statement: ast.Return) -> ast.stmt:
        value = statement.value
        elements = value.elts if isinstance(value, ast.Tuple) else [value] if value else []
        names = [*elements, ast.Name("stamp_count")]
        return ast.Return(ast.Tuple(names) if len(names) > 1 else names[0], lineno=statement.lineno)
