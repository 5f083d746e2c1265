"""Dependencies point one way, there is no circle, and importing costs nothing."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for folder in ("steps", "tutorial_lib")
    for path in sorted((ROOT / folder).rglob("*.py"))
}
SKELETONS = (
    "steps.cutile",
    "steps.gluon",
    "steps.hopper",
    "steps.blackwell",
    "steps.parallel",
    "steps.reference",
)


@cache
def imports(module: str) -> frozenset[str]:
    """Modules of the project that a module imports, wherever in it; what is for type checkers alone is left out."""
    found: set[str] = set()

    def look(node):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add(whole if whole in FILES else node.module)
        for child in ast.iter_child_nodes(node):
            look(child)

    look(ast.parse(FILES[module].read_text(encoding="utf-8")))
    # ``from steps import get_step`` comes from steps.core, as steps/__init__.py says.
    named = {"steps.core.ladder" if name == "steps" else name for name in found}
    return frozenset(name for name in named if name in FILES and name != module)


def inside(module: str, *rooms: str) -> bool:
    return any(module == room or module.startswith(room + ".") for room in rooms)


def test_no_module_leads_back_to_itself():
    def reached(module: str) -> set[str]:
        seen, todo = set(), [module]
        while todo:
            for other in imports(todo.pop()) - seen:
                seen.add(other)
                todo.append(other)
        return seen

    assert not [module for module in FILES if module in reached(module)]


def test_dependencies_point_one_way():
    for module in FILES:
        for other in imports(module):
            where = f"{module} imports {other}"
            if inside(module, "tutorial_lib"):
                assert inside(other, "tutorial_lib"), where
            if inside(module, "steps.core"):
                assert inside(other, "tutorial_lib", "steps.core"), where
            if inside(module, *SKELETONS):
                assert inside(other, "tutorial_lib", "steps.core", *SKELETONS), where
            if inside(module, "steps.writing"):
                assert inside(other, "tutorial_lib", "steps.core", "steps.writing"), where
            if inside(module, "steps.measuring"):
                assert inside(other, "tutorial_lib", "steps.core", "steps.measuring", *SKELETONS), where


def test_importing_costs_nothing():
    asked = (
        "import sys, steps; print([m for m in ('torch', 'triton', 'cuda', 'libcst', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", asked], cwd=ROOT, capture_output=True, encoding="utf-8", check=True)
    assert done.stdout.strip() == "[]"
