"""The search for tiles: ``python -m steps.search`` times cuTile's kernels over tiles, warps and clusters, on a GPU.

The kernel is step approx_division's, with the hints of steps latency and occupancy left to be found; with
``--direction backward`` they are those of the backward pass, each searched alone. ``cuda.tile.tune`` times every
combination. Recorded as ``results/<machine>/search.json``, or ``search_backward.json``, failures included. The file is
written after every problem that was timed, so that an interrupted search keeps what it has. ``--head-dim`` and
``--kernel`` search a part, which takes the place of what the file had of it with the same compilers. No kernel reads
that file: what is to be used is written into ``steps/core/rules.toml`` by hand. Exit status: 0 done; 1 it cannot be
written; 2 bad request; 130 interrupted.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import ClassVar

from steps.core.ladder import today
from steps.core.problems import standard
from steps.core.tiles import BlockShape, Tile
from tutorial_lib.command import BadRequest, as_command, check_writable, make_console, parser_of, whole_number
from tutorial_lib.files import RESULTS
from tutorial_lib.passes import PASSES
from tutorial_lib.problem import Problem
from tutorial_lib.records import Configuration, Found, Search, Searched, read_search
from tutorial_lib.results import as_json, folder_name, now

TILES = ((64, 64), (64, 128), (128, 64), (128, 128))
SMALL_TILES = ((32, 64), (64, 32), (32, 128), (128, 32))  # backward, where a block holds two sums
TOGETHER = ((None, None), (8, None), (None, 2))  # warps, cluster
BLOCKS = (1, 2, 4)  # an SM, as a hint


HEAD_DIMS = (64, 128, 256)
COMPILERS = ("cuda-tile", "nvidia-cuda-tileiras")


def problems(seq_len: int, masks: Sequence[bool], head_dims: Sequence[int] = HEAD_DIMS) -> list[Problem]:
    return [standard(seq_len, head_dim, causal) for head_dim in head_dims for causal in masks]


def as_shape(c: Configuration) -> BlockShape:
    """A configuration as the launch rules hold it."""
    return BlockShape(Tile(c.query, c.key), warps=c.warps, cluster=c.cluster, occupancy=c.occupancy)


class AttentionKernel:
    """Step approx_division's kernel."""

    name, step, direction = None, "approx_division", "forward"
    masks = (True, False)

    def space(self) -> list[Configuration]:
        """Every combination; four blocks an SM are asked for where they are small."""
        return [
            Configuration(query=query, key=key, warps=warps, cluster=cluster, occupancy=occupancy)
            for (query, key), (warps, cluster), occupancy in product(TILES, TOGETHER, BLOCKS)
            if occupancy < 4 or (query == 64 and warps is None and cluster is None)
        ]

    def configured(self, configuration: Configuration):
        """The step with a configuration in its holes."""
        from steps import get_step
        from steps.cutile.skeleton import configured_as

        return configured_as(get_step(self.step), as_shape(configuration))

    def compile(self, step, problem: Problem, arch: str):
        return step.compile(problem, arch)

    def prepared(self, step, problem: Problem, inputs: tuple, outputs: tuple, arch: str) -> tuple:
        """(blocks, kernel, arguments), as a launch takes them."""
        from steps.core.fused import grid

        variant = step.variant(problem, arch)
        kernel = step.compiled_when_launched(step.kernel_function(variant))
        return grid(problem, variant.tile), kernel, (*inputs, *outputs, problem.effective_scale)


@dataclass(frozen=True)
class GradientKernel:
    """One kernel of a backward step. kernel: whether its blocks own "keys" or "queries"."""

    name: str
    step: str
    kernel: str
    direction: ClassVar[str] = "backward"
    masks: ClassVar[tuple] = (True, False)

    def space(self) -> list[Configuration]:
        """Every combination; eight warps only where tiles are not small, two blocks only where they are not large."""
        return [
            Configuration(query=query, key=key, warps=warps, cluster=None, occupancy=occupancy)
            for (query, key), warps, occupancy in product((*SMALL_TILES, *TILES), (None, 8), (1, 2))
            if (warps is None or min(query, key) > 32) and (occupancy == 1 or min(query, key) < 128)
        ]

    def configured(self, configuration: Configuration):
        from steps import get_step

        found = as_shape(configuration)
        return dataclasses.replace(get_step(self.step), keys=found, queries=found)

    def compile(self, step, problem: Problem, arch: str):
        return step.compile_one(self.kernel, problem, arch)

    def prepared(self, step, problem: Problem, inputs: tuple, outputs: tuple, arch: str) -> tuple:
        import torch

        from steps.cutile.launching import compiled_when_launched

        q, k, v, _, lse, do = inputs
        dq, dk, dv = outputs
        written = [dq]
        if self.kernel == "keys":
            written = [torch.zeros(q.shape, dtype=torch.float32, device=q.device)] * step.adds + [dk, dv]
        blocks, function, shape = step.kernel(self.kernel, problem)
        # The log-sum-exp stands for the row sums and for what is prepared of it: a kernel takes as long on any numbers.
        arguments = (q, k, v, do, lse, lse, *written, problem.effective_scale)
        return blocks, compiled_when_launched(function, shape), arguments


SEARCHED = (
    AttentionKernel(),
    GradientKernel("keys, adding to dQ", "folded_lse", "keys"),
    GradientKernel("keys", "preprocess_kernel", "keys"),
    GradientKernel("queries", "preprocess_kernel", "queries"),
)


def compile_one(kernel, configuration: Configuration, problem: Problem) -> dict | str:
    """What the compiler makes of a configuration, or why nothing; and cuTile's cache has the code from then on."""
    import cuda.tile as ct
    import torch

    from steps.core.step import target_of

    try:
        step, arch = kernel.configured(configuration), target_of(torch.device("cuda"))
        made = kernel.compile(step, problem, arch).as_dict()
        inputs = PASSES[kernel.direction].inputs(dataclasses.replace(problem, batch=1), 0, "cuda")
        outputs = PASSES[kernel.direction].poisoned(inputs)
        _, function, arguments = kernel.prepared(step, problem, inputs, outputs, arch)
        ct.launch(torch.cuda.current_stream(), (1, 1, 1), function, arguments)
        torch.cuda.synchronize()
    except Exception as error:  # whatever a compiler or a GPU may say: it is this configuration's result
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return made


def compile_all(asked: Sequence[tuple]) -> dict:
    """(kernel's name, problem) -> configuration -> what ``compile_one`` says, on all CPU cores at once.

    asked: pairs of a kernel and a problem.
    """
    jobs = [(kernel, c, problem) for kernel, problem in asked for c in kernel.space()]
    made = {(kernel.name, problem): {} for kernel, problem in asked}
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:  # it ends before anything is timed
        for (kernel, c, problem), said in zip(jobs, pool.map(compile_one, *zip(*jobs)), strict=True):
            made[kernel.name, problem][c] = said
    return made


def search(kernel, problem: Problem, made: dict, console) -> Searched:
    """Time every configuration on a problem. made: what ``compile_one`` said of each."""
    import cuda.tile as ct
    import torch

    from steps.core.step import target_of

    arch = target_of(torch.device("cuda"))
    failed = {c: reason for c, reason in made.items() if isinstance(reason, str)}
    if len(failed) == len(made):
        raise BadRequest(f"{problem.describe()}: no configuration runs; the first says {next(iter(failed.values()))}")
    inputs = PASSES[kernel.direction].inputs(problem, 0, "cuda")
    outputs = PASSES[kernel.direction].poisoned(inputs)
    prepared = {
        c: kernel.prepared(kernel.configured(c), problem, inputs, outputs, arch) for c in made if c not in failed
    }
    tuned = ct.tune.exhaustive_search(
        list(prepared),
        torch.cuda.current_stream(),
        lambda c: prepared[c][0],
        lambda c: prepared[c][1],
        lambda c: prepared[c][2],
        quiet=True,
    )
    failed |= {c: f"{kind.__name__}: {message.splitlines()[0]}" for c, kind, message in tuned.failures}
    found = [
        Found(
            configuration=m.config,
            microseconds=m.mean_us,
            margin=m.error_margin_us,
            samples=m.num_samples,
            tflops=PASSES[kernel.direction].operations(problem) / m.mean_us / 1e6,
            registers=made[m.config]["registers"],
            spill_instructions=made[m.config]["spill_instructions"],
            shared_bytes=made[m.config]["shared_bytes"],
        )
        for m in sorted(tuned.successes, key=lambda m: m.mean_us)
    ]
    told = f"{kernel.name}: " if kernel.name else ""
    console.print(f"{told}{problem.describe()}: {found[0].configuration.label}, {found[0].tflops:.0f} TFLOPS")
    return Searched(
        problem=problem.as_dict(),
        kernel=kernel.name,
        step=kernel.step,
        date=now(),
        found=found,
        failed={c.label: why for c, why in failed.items()},
    )


def make_parser() -> argparse.ArgumentParser:
    parser = parser_of("steps.search", __doc__)
    parser.add_argument("--direction", default="forward", choices=PASSES, help="attention, or its gradients (forward)")
    parser.add_argument(
        "--head-dim",
        type=int,
        choices=HEAD_DIMS,
        action="append",
        metavar="N",
        help="64, 128 or 256; again for more (all)",
    )
    parser.add_argument(
        "--kernel",
        choices=[kernel.name for kernel in SEARCHED if kernel.name],
        action="append",
        metavar="NAME",
        help='of --direction backward: "keys", "queries" or "keys, adding to dQ"; again for more (all)',
    )
    parser.add_argument("--seq-len", default=4096, type=whole_number, metavar="N", help="(4096)")
    parser.add_argument("--output-dir", type=Path, default=RESULTS, metavar="DIR", help="where to write (results)")
    return parser


def run(options: argparse.Namespace) -> int:
    from tutorial_lib.files import write_whole
    from tutorial_lib.hardware import describe_machine, describe_versions, why_no_gpu

    check_writable("--output-dir", options.output_dir)
    if why := why_no_gpu():
        raise BadRequest(f"a search is timed, and {why}: chapter 15 shows what is recorded")
    console = make_console()
    machine = describe_machine("cuda")
    kernels = [kernel for kernel in SEARCHED if kernel.direction == options.direction]
    if options.kernel:
        kernels = [kernel for kernel in kernels if kernel.name in options.kernel]
        if not kernels:
            raise BadRequest("--kernel is for the kernels of --direction backward, and the direction is forward")
    dims = options.head_dim or HEAD_DIMS
    asked = [(kernel, problem) for kernel in kernels for problem in problems(options.seq_len, kernel.masks, dims)]
    path = options.output_dir / machine["slug"] / f"{folder_name('search', options.direction)}.json"
    versions = describe_versions()
    kept = _on_record(path, versions)
    with console.status("compiling"):
        made = compile_all(asked)
    for number, (kernel, problem) in enumerate(asked, 1):
        with console.status(f"searching: {number} of {len(asked)}"):
            searched = search(kernel, problem, made[kernel.name, problem], console)
        kept = [*(s for s in kept if (s.kernel, s.problem) != (searched.kernel, searched.problem)), searched]
        record = Search(
            date=now(),
            machine=machine,
            versions=versions,
            searched=kept,
        )
        write_whole(path, as_json(record))
    console.print(f"Written: {path}", soft_wrap=True)
    console.print("The fastest, for steps/core/rules.toml:")
    for key, found in fastest(record).items():
        console.print(f"    {key}: {found}", soft_wrap=True, markup=False)
    return 0


def _on_record(path: Path, versions: dict[str, str]) -> list[Searched]:
    """What was searched on this machine before, of the same steps and with the same compilers."""
    record = read_search(path, today)
    if record is None or any(record.versions.get(name) != versions.get(name) for name in COMPILERS):
        return []
    steps = {kernel.name: kernel.step for kernel in SEARCHED}
    return [searched for searched in record.searched if searched.step == steps.get(searched.kernel)]


def fastest(record: Search) -> dict[tuple[str | None, int, bool], BlockShape]:
    """Kernel, head_dim and causal -> the fastest shape of a block, as the launch rules hold it."""
    found = [(s.kernel, s.the_problem(), s.found[0].configuration) for s in record.searched]
    return {(kernel, p.head_dim, p.causal): as_shape(c) for kernel, p, c in found}


def main(arguments: Sequence[str] | None = None) -> int:
    told = "Interrupted: what was searched before is kept."
    return as_command("steps.search", lambda: run(make_parser().parse_args(arguments)), interrupted=told)


if __name__ == "__main__":
    sys.exit(main())
