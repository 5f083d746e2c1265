"""The search for tiles: ``python -m steps.search`` times cuTile's kernel over tiles, warps and clusters, on a GPU.

The kernel is step approx_division's, with the hints of steps latency and occupancy left to be found; ``cuda.tile.tune``
times every combination. Recorded as ``results/<machine>/search.json``, failures included. No kernel reads that file:
what is to be used is written into ``FOUND`` of ``steps/core/tiles.py``, and the lines for it are printed. Exit status:
0 done; 1 it cannot be written; 2 bad request.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from pathlib import Path

from steps.core import tiles
from steps.core.problems import standard
from tutorial_lib.command import BadRequest, OneLineParser, as_command, check_writable, make_console, whole_number
from tutorial_lib.files import RESULTS
from tutorial_lib.passes import FORWARD
from tutorial_lib.problem import Problem
from tutorial_lib.results import Configuration, Found, Search, Searched, as_json

TILES = ((64, 64), (64, 128), (128, 64), (128, 128))
TOGETHER = ((None, None), (8, None), (None, 2))  # warps, cluster
BLOCKS = (1, 2, 4)  # an SM, as a hint


def space() -> list[Configuration]:
    """Every combination; four blocks an SM are asked for where they are small."""
    return [
        Configuration(query=query, key=key, warps=warps, cluster=cluster, occupancy=occupancy)
        for (query, key), (warps, cluster), occupancy in product(TILES, TOGETHER, BLOCKS)
        if occupancy < 4 or (query == 64 and warps is None and cluster is None)
    ]


def problems(seq_len: int) -> list[Problem]:
    return [standard(seq_len, head_dim, causal) for head_dim in (64, 128, 256) for causal in (True, False)]


def configured(configuration: Configuration):
    """Step approx_division with a configuration in its holes."""
    from steps import get_step
    from steps.cutile.skeleton import configured_as

    return configured_as(get_step("approx_division"), as_table(configuration))


def as_table(c: Configuration) -> tiles.Found:
    """A configuration as ``steps.core.tiles`` holds it."""
    return tiles.Found(tiles.Tile(c.query, c.key), warps=c.warps, cluster=c.cluster, occupancy=c.occupancy)


def compile_one(configuration: Configuration, problem: Problem) -> dict | str:
    """What the compiler makes of a configuration, or why nothing; and cuTile's cache has the code from then on."""
    import torch

    from steps.core.step import target_of

    try:
        step = configured(configuration)
        made = step.compile(problem, target_of(torch.device("cuda"))).as_dict()
        FORWARD.call(step, problem, FORWARD.inputs(problem, 0, "cuda"))
        torch.cuda.synchronize()
    except Exception as error:  # whatever a compiler or a GPU may say: it is this configuration's result
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return made


def compile_all(asked: Sequence[Problem]) -> list[dict]:
    """For every problem: configuration -> what ``compile_one`` says, on all CPU cores at once."""
    configurations = space()
    jobs = [(configuration, problem) for problem in asked for configuration in configurations]
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        made = dict(zip(jobs, pool.map(compile_one, *zip(*jobs))))
    return [{c: made[c, problem] for c in configurations} for problem in asked]


def search(problem: Problem, made: dict, console) -> Searched:
    """Time every configuration on a problem. made: what ``compile_one`` said of each."""
    import cuda.tile as ct
    import torch

    from steps.core.fused import grid
    from steps.core.step import target_of

    arch = target_of(torch.device("cuda"))
    failed = {c: reason for c, reason in made.items() if isinstance(reason, str)}
    if len(failed) == len(made):
        raise BadRequest(f"{problem.describe()}: no configuration runs; the first says {next(iter(failed.values()))}")
    q, k, v = FORWARD.inputs(problem, 0, "cuda")
    out = torch.empty_like(q)
    steps = {c: configured(c) for c in made if c not in failed}
    variants = {c: step.variant(problem, arch) for c, step in steps.items()}
    tuned = ct.tune.exhaustive_search(
        list(steps),
        torch.cuda.current_stream(),
        lambda c: grid(problem, variants[c].tile),
        lambda c: steps[c].compiled_when_launched(steps[c].kernel_function(variants[c])),
        lambda c: (q, k, v, out, problem.effective_scale),
        quiet=True,
    )
    failed |= {c: f"{kind.__name__}: {message.splitlines()[0]}" for c, kind, message in tuned.failures}
    found = [
        Found(
            configuration=m.config,
            microseconds=m.mean_us,
            margin=m.error_margin_us,
            samples=m.num_samples,
            tflops=FORWARD.operations(problem) / m.mean_us / 1e6,
            registers=made[m.config]["registers"],
            spill_instructions=made[m.config]["spill_instructions"],
            shared_bytes=made[m.config]["shared_bytes"],
        )
        for m in sorted(tuned.successes, key=lambda m: m.mean_us)
    ]
    console.print(f"{problem.describe()}: {found[0].configuration.label}, {found[0].tflops:.0f} TFLOPS")
    return Searched(problem=problem.as_dict(), found=found, failed={c.label: why for c, why in failed.items()})


def make_parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="python -m steps.search", description=__doc__.split("\n\n")[0])
    parser.add_argument("--seq-len", default=4096, type=whole_number, metavar="N", help="(4096)")
    parser.add_argument("--output-dir", type=Path, default=RESULTS, metavar="DIR", help="where to write (results)")
    return parser


def run(options: argparse.Namespace) -> int:
    from datetime import UTC, datetime

    from tutorial_lib.files import write_whole
    from tutorial_lib.hardware import describe_machine, describe_versions, has_gpu

    check_writable("--output-dir", options.output_dir)
    if not has_gpu():
        raise BadRequest("a search is timed, and PyTorch finds no CUDA GPU here: chapter 15 shows what is recorded")
    console = make_console()
    machine = describe_machine("cuda")
    asked = problems(options.seq_len)
    with console.status("compiling"):
        made = compile_all(asked)
    with console.status("searching"):
        searched = [search(problem, configurations, console) for problem, configurations in zip(asked, made)]
    record = Search(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=machine,
        versions=describe_versions(),
        searched=searched,
    )
    path = options.output_dir / machine["slug"] / "search.json"
    write_whole(path, as_json(record))
    console.print(f"Written: {path}", soft_wrap=True)
    console.print("For FOUND in steps/core/tiles.py:")
    for key, found in table_of(record).items():
        console.print(f"    {key}: {found},", soft_wrap=True, markup=False)
    return 0


def table_of(record: Search) -> dict[tuple[str, int, bool], tiles.Found]:
    """What ``FOUND`` holds when it follows this search."""
    searched = [(s.the_problem(), s.found[0].configuration) for s in record.searched]
    return {(record.machine["arch"], p.head_dim, p.causal): as_table(c) for p, c in searched}


def main(arguments: Sequence[str] | None = None) -> int:
    told = "Interrupted: nothing was written."
    return as_command("steps.search", lambda: run(make_parser().parse_args(arguments)), interrupted=told)


if __name__ == "__main__":
    sys.exit(main())
