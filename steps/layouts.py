"""``python -m steps.layouts``: shared memory and warps of the Gluon steps, computed from their layouts, without a GPU.

For every step the wavefronts that ldmatrix takes, by our model of the banks and by Triton's, beside what ncu counted
where a run was recorded; and two drawings: plain and swizzled shared memory, split-KV and split-Q. For AMD's steps the
cycles that LDS takes for a tile of K and of V, by a model that nobody could compare with a GPU.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from steps.core.problems import few_heads
from steps.core.recorded import find_recorded
from tutorial_lib.command import as_command, check_writable, make_console, parser_of, print_table
from tutorial_lib.files import RESULTS
from tutorial_lib.problem import Problem

DRAWN = few_heads()


def gluon_steps() -> list:
    from steps import STEPS

    return [step for step in STEPS if step.backend == "gluon"]


def wavefronts(step, problem: Problem) -> tuple[int, int]:
    """Wavefronts for a matrix of Q, by our model of ldmatrix and by Triton's count for the same layouts."""
    from tutorial_lib import layouts

    v = step.variant(problem)
    panel = [v.tile.query, v.columns]
    return layouts.ldmatrix_wavefronts(v.shared, v.columns), 1 + layouts.triton_conflicts(v.left, v.shared, panel)


def draw_banks():
    """Shared memory of steps explicit and swizzle over the banks. Returns a matplotlib Figure."""
    from steps import get_step
    from tutorial_lib import drawings

    variants = {step.label: step.variant(DRAWN) for step in map(get_step, ("explicit", "swizzle"))}
    return drawings.banks([(f"step {label}", v.shared, v.columns) for label, v in variants.items()])


def draw_owners():
    """What each warp holds of S, P and O with split-KV (steps explicit, swizzle) and split-Q. Returns a Figure."""
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
        divisions.append((label, pictures, f"crosses between warps, a tile: {crossing}"))
    return drawings.owners(divisions)


def exchanged(step, problem: Problem = DRAWN) -> str:
    """What must cross between the warps of a block for one tile, in words."""
    from tutorial_lib import drawings

    v = step.variant(problem)
    return drawings.crosses(v.accumulator, v.left, (v.tile.query, v.tile.key))


def lds_cycles(step, problem: Problem, arch: str, address=None) -> tuple[tuple[int, int], tuple[int, int]]:
    """(cycles, least) that LDS takes when a wave reads a tile of K, and one of V, as a step for CDNA does.

    address(columns) -> address(row, column): where else an element of a tile with so many columns lay, in bytes.
    """
    from tutorial_lib import layouts

    v = step.variant(problem, arch)
    lies_at = address(v.head_dim) if address else partial(layouts.shared_address, v.shared, v.head_dim)
    of_keys, of_values = LDS_READS[arch]
    keys = layouts.lds_cycles(
        arch, of_keys, v.right, [v.head_dim, v.tile.key], lambda column, row: lies_at(row, column)
    )
    return keys, layouts.lds_cycles(arch, of_values, v.right, [v.tile.key, v.head_dim], lies_at)


def lds_rows(problem: Problem) -> list[list[str]]:
    """For layouts of a tile in LDS: by which factor conflicts make reads of K and of V longer, on gfx950 and gfx942."""
    from steps import get_step
    from tutorial_lib.layouts import padded_address

    mfma, direct = get_step("mfma"), get_step("direct_to_lds")
    ways = [
        ("gfx950", "in order: step mfma", mfma, None),
        (
            "gfx950",
            "16 bytes of padding after each row",
            mfma,
            lambda columns: partial(padded_address, columns, columns, 8),
        ),
        (
            "gfx950",
            "16 bytes after every 1024: what direct copies allow",
            mfma,
            lambda n: partial(padded_address, n, 512, 8),
        ),
        ("gfx950", "swizzled: step direct_to_lds", direct, None),
        ("gfx942", "in order: step mfma", mfma, None),
    ]
    rows = []
    for arch, told, step, address in ways:
        both = lds_cycles(step, problem, arch, address)
        rows.append([arch, told, *(f"{cycles / least:.3g} ({cycles} cycles)" for cycles, least in both)])
    return rows


LDS_HEADERS = ["", "a tile in LDS", "K: times as long as without conflicts", "V"]
# Which instructions read K and V there; what the compiler makes of the steps is tested against it.
LDS_READS = {"gfx950": ("ds_read_b128", "ds_read_b64_tr_b16"), "gfx942": ("ds_read_b64", "ds_read_u16")}


def run(options: argparse.Namespace) -> int:
    from tutorial_lib import plots, tables

    folder = options.output or options.results / "layouts"
    check_writable("--output", folder)
    console = make_console()
    recorded = find_recorded(DRAWN, [options.results])
    headers = ("step", "wavefronts a matrix", "by Triton", "conflicts, computed", "counted by ncu")
    rows = []
    for step in gluon_steps():
        counted = recorded and recorded.measurement(step.name)
        known = tables.counter("ldmatrix_bank_conflicts")(counted) if counted else tables.NOTHING
        numbers = *map(str, wavefronts(step, DRAWN)), f"{step.ldmatrix_conflicts(DRAWN):,}", known
        rows.append([step.label, *numbers, exchanged(step)])
    console.print(f"ldmatrix at shared memory, {DRAWN.describe()}:")
    print_table(console, [*headers, "crosses between warps"], rows)
    if recorded:
        console.print(f"Counted: {tables.provenance(recorded)}.")
    console.print(f"LDS of AMD's steps, {DRAWN.describe()}, by the model:")
    print_table(console, LDS_HEADERS, lds_rows(DRAWN))
    for name, figure in (("banks", draw_banks()), ("owners", draw_owners())):
        for path in plots.save(figure, folder, name):
            console.print(str(path), soft_wrap=True)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of("steps.layouts", __doc__)
    parser.add_argument("--results", type=Path, default=RESULTS, help="recorded runs (results)")
    parser.add_argument("--output", type=Path, metavar="DIR", help="write the drawings here (RESULTS/layouts)")
    return as_command("steps.layouts", lambda: run(parser.parse_args(arguments)))


if __name__ == "__main__":
    sys.exit(main())
