"""``python -m steps.layouts``: shared memory and warps of the Gluon steps, computed from their layouts, without a GPU.

For every step the turns that ldmatrix takes, by our model of the banks and by Triton's, beside what ncu counted where a
run was recorded; and two drawings: plain and swizzled shared memory, split-KV and split-Q.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from steps.core.problems import few_heads
from steps.core.recorded import find_recorded
from tutorial_lib.command import OneLineParser, as_command, check_writable, make_console
from tutorial_lib.files import RESULTS
from tutorial_lib.problem import Problem

DRAWN = few_heads()


def gluon_steps() -> list:
    from steps import STEPS

    return [step for step in STEPS if step.backend == "gluon"]


def turns(step, problem: Problem) -> tuple[int, int]:
    """Turns for a matrix of Q, by our model of ldmatrix and by Triton's count for the same layouts."""
    from tutorial_lib import layouts

    v = step.variant(problem)
    panel = [v.tile.query, v.columns]
    return layouts.ldmatrix_turns(v.shared, v.columns), 1 + layouts.triton_conflicts(v.left, v.shared, panel)


def draw_banks():
    """Shared memory of steps explicit and swizzle over the banks. Returns a matplotlib Figure."""
    from steps import get_step
    from tutorial_lib import drawings

    variants = {name: get_step(name).variant(DRAWN) for name in ("explicit", "swizzle")}
    return drawings.banks([(f"step {name}", v.shared, v.columns) for name, v in variants.items()])


def draw_owners():
    """What each warp holds of S, P and O in steps swizzle (split-KV) and split_q. Returns a matplotlib Figure."""
    from steps import get_step
    from tutorial_lib import drawings

    divisions = []
    for label, name in (("split-KV", "swizzle"), ("split-Q", "split_q")):
        v = get_step(name).variant(DRAWN)
        scores, output = (v.tile.query, v.tile.key), (v.tile.query, v.head_dim)
        pictures = [
            ("scores S [query, key]", v.accumulator, scores),
            ("weights P, as the product needs them", v.left, scores),
            ("output O [query, head_dim]", v.accumulator, output),
        ]
        crossing = drawings.crosses(v.accumulator, v.left, scores)
        divisions.append((f"{label} (step {name})", pictures, f"crosses between warps, a tile: {crossing}"))
    return drawings.owners(divisions)


def exchanged(step, problem: Problem = DRAWN) -> str:
    """What must cross between the warps of a block for one tile, in words."""
    from tutorial_lib import drawings

    v = step.variant(problem)
    return drawings.crosses(v.accumulator, v.left, (v.tile.query, v.tile.key))


def run(options: argparse.Namespace) -> int:
    from rich.table import Table

    from tutorial_lib import plots, tables

    folder = options.output or options.results / "layouts"
    check_writable("--output", folder)
    console = make_console()
    recorded = find_recorded(DRAWN, [options.results])
    table = Table(title=f"ldmatrix at shared memory, {DRAWN.describe()}", title_justify="left")
    table.add_column("step")
    for header in ("turns a matrix", "by Triton", "conflicts, computed", "counted by ncu"):
        table.add_column(header, justify="right")
    table.add_column("crosses between warps")
    for step in gluon_steps():
        ours, tritons = turns(step, DRAWN)
        counted = recorded and recorded.measurement(step.name)
        table.add_row(
            step.label,
            str(ours),
            str(tritons),
            f"{step.ldmatrix_conflicts(DRAWN):,}",
            tables.counter("ldmatrix_bank_conflicts")(counted) if counted else tables.NOTHING,
            exchanged(step),
        )
    console.print(table)
    if recorded:
        console.print(f"Counted: {tables.provenance(recorded)}.")
    for name, figure in (("banks", draw_banks()), ("owners", draw_owners())):
        for path in plots.save(figure, folder, name):
            console.print(str(path), soft_wrap=True)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = OneLineParser(prog="python -m steps.layouts", description=__doc__.split("\n\n")[1])
    parser.add_argument("--results", type=Path, default=RESULTS, help="recorded runs (results)")
    parser.add_argument("--output", type=Path, metavar="DIR", help="write the drawings here (RESULTS/layouts)")
    return as_command("steps.layouts", lambda: run(parser.parse_args(arguments)))


if __name__ == "__main__":
    sys.exit(main())
