"""The front door: which step to use for a problem, from what was measured.

``steps.best(problem, "cuda").step.attention(q, k, v, causal=True)`` runs the fastest recorded step; ``.why`` says in
one line which record the choice stands on, and whether that is what was asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from steps.core import ladder
from steps.core.ladder import get_step, line
from steps.core.recorded import recorded_runs
from steps.core.step import Step, Unsupported, target_of
from tutorial_lib.architectures import ARCHITECTURES, REFERENCE_GPUS
from tutorial_lib.files import RESULTS
from tutorial_lib.passes import PASSES
from tutorial_lib.problem import Problem
from tutorial_lib.results import Run, best_of, of_one_machine
from tutorial_lib.tables import provenance

ROWS = 128  # of the tiles that most steps have
MANY_WAVES = 8  # of blocks: with more the last one, which leaves SMs idle, counts little


@dataclass(frozen=True)
class Choice:
    """step: the one to use; why: one line on the record behind it; record: that record."""

    step: Step
    why: str
    record: Run = field(repr=False)

    def beats_sdpa(self, arch: str) -> bool:
        """Whether the record is of this architecture, and PyTorch's own attention is not faster there."""
        ratio = self.record.measurement(self.step.name).speedup_vs_baseline
        return self.record.machine["arch"] == arch and ratio is not None and ratio.verdict != "slower"


def best(
    problem: Problem,
    device: str,
    results: Path | Sequence[Run] = RESULTS,
    direction: str = "forward",
    among: Callable[[Step], bool] | None = None,
) -> Choice:
    """The fastest recorded step of the ladder that takes ``problem`` on ``device``.

    It is the earliest that none is faster than by the verdict (``best_of``): no answer flips within the noise.

    device: "cuda" (this machine's GPU), or an architecture such as "sm_90". results: recorded runs, or their folder.
    direction: "backward" for the fastest backward step. among: which steps may be named (None: all).
    Of the recorded problems the nearest counts: same architecture before what is asked for beside plain attention (a
    window and the like), whether bytes or operations decide, head_dim, mask, size, dtype, and the number of heads in
    all sequences. Size is lengths, query heads a key/value head and ``waves`` together: how few blocks there are
    decides as much as how long each runs. Records in which a kind of kernel is missing may not know the fastest. They
    come behind all others of their head_dim, unless they hold the step of the main path that the fastest by those
    others is or goes on from, or another that goes on from it. Of several as near the problem's own counts, then those
    with every kind, then those of the GPU of which most are recorded, and then the newest. PyTorch's own is no
    candidate: it is what the choice is compared with.

    Raises ValueError for a device that is neither; Unsupported when no recorded step takes the problem there.
    """
    if not isinstance(problem, Problem):
        raise ValueError(f"problem must be a Problem, got {type(problem).__name__}")
    if direction not in tuple(PASSES):
        raise ValueError(f"direction must be one of {', '.join(PASSES)}, got {direction!r}")
    arch = _architecture(device)
    runs = recorded_runs(Path(results), direction) if isinstance(results, str | Path) else list(results)
    runs = [run for run in runs if run.machine["arch"][:2] == arch[:2]]  # "sm", of NVIDIA's; other makers' tell nothing
    of_most = {id(run) for run in of_one_machine(runs)}
    runs = sorted(runs, key=lambda run: (id(run) in of_most, run.date), reverse=True)
    whole = {id(run): _has_every_kind(run) for run in runs}

    def may(step: Step) -> bool:
        return step.unsupported(problem, arch) is None and (among is None or among(step))

    def of_the_nearest(knows: Callable[[Run], bool]) -> Choice:
        for run in sorted(runs, key=lambda run: _distance(problem, arch, run, whole[id(run)], knows(run))):
            able = [m for m in run.by_speed() if may(get_step(m.name))]
            if able:
                chosen = best_of(run, able)
                tried = any(r.the_problem() == problem and r.machine["arch"] == arch for r in runs)
                return Choice(get_step(chosen.name), _word(problem, arch, run, chosen, able[0], tried), run)
        raise Unsupported(f"no recorded step takes {problem.describe()} on {arch}: measure with python -m steps.run")

    usual = of_the_nearest(lambda run: whole[id(run)]).step
    while (usual.fork or usual.inside) and usual.previous is not None:
        usual = usual.previous
    return of_the_nearest(
        lambda run: whole[id(run)] or any(usual.name in line(get_step(m.name)) for m in run.by_speed())
    )


def _architecture(device: str) -> str:
    if device in tuple(ARCHITECTURES):  # which compares what no dictionary can look up
        return device
    import torch

    try:
        asked = torch.device(device)
    except (RuntimeError, TypeError):
        asked = None
    if asked is None or asked.type != "cuda" or not torch.cuda.is_available():
        raise ValueError(
            f"device must be a CUDA device that is here, or one of {', '.join(ARCHITECTURES)}, got {device!r}"
        )
    return target_of(asked)


def _distance(problem: Problem, arch: str, run: Run, whole: bool, knows: bool) -> tuple:
    """What differs, most important first; lengths, windows, heads of a group, waves and heads as factors.

    whole: whether the run has every kind of kernel. knows: whether it is taken to know the fastest.
    """
    recorded, by_bytes = run.the_problem(), PASSES[run.direction].by_bytes

    def apart(a: float, b: float) -> float:
        return abs(math.log2(a / b))

    return (
        run.machine["arch"] != arch,
        len({*problem.features} ^ {*recorded.features}),
        by_bytes(problem) != by_bytes(recorded),
        apart(problem.head_dim, recorded.head_dim),
        not knows,
        problem.causal != recorded.causal,
        apart(problem.seq_len_kv, recorded.seq_len_kv)
        + apart(problem.seq_len_q, recorded.seq_len_q)
        + apart(problem.group_size, recorded.group_size)
        + apart(problem.window or 1, recorded.window or 1)
        + apart(waves(problem, arch), waves(recorded, arch)),
        problem.dtype != recorded.dtype,
        apart(problem.batch * problem.heads, recorded.batch * recorded.heads),
        (problem.batch, problem.heads) != (recorded.batch, recorded.heads),  # as many in all, in other batches
        problem != recorded,  # such as sequences of other lengths, as many and with as many tokens
        not whole,
    )


def waves(problem: Problem, arch: str) -> float:
    """How often the SMs of the reference GPU get a block each, if a block has ``ROWS`` queries of a head.

    At most ``MANY_WAVES``; 1 where no reference GPU of ``arch`` is known.
    """
    gpu = REFERENCE_GPUS.get(arch)
    tiles = problem.batch * problem.heads * -(-problem.seq_len_q // ROWS)
    return min(MANY_WAVES, tiles / (gpu.multiprocessors if gpu else tiles))


def _has_every_kind(run: Run) -> bool:
    """Whether of every skeleton that takes the run's problem there, some step was measured, now or earlier."""
    problem, arch = run.the_problem(), run.machine["arch"]
    kinds = {
        step.backend
        for step in ladder.steps_of(run.direction)
        if step.backend != "torch" and step.unsupported(problem, arch) is None
    }
    return kinds <= _kinds(run)


def _kinds(run: Run) -> set[str]:
    """Of which skeletons steps were measured: in its rounds, or earlier, and slower than its fastest."""
    return {get_step(m.name).backend for m in run.known()}


def _word(problem: Problem, arch: str, run: Run, m, fastest, tried: bool) -> str:
    recorded = run.the_problem()
    asked = f"{problem.describe()} on {arch}"
    first = f"the earliest that none is faster than, by our verdict: the fastest, {fastest.label}, is the same"
    which = "the fastest" if m is fastest else first
    told = f"Of the steps that were measured {m.label} is {which}. {m.tflops:.0f} TFLOPS, {provenance(run)}"
    if recorded == problem and run.machine["arch"] == arch:
        return f"{told}."
    lacking = "of which only some kinds of kernels were measured" if tried else "which was not measured"
    return f"{told}. That is the nearest record to {asked}, {lacking}."
