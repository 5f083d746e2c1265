"""The front door: which step to use for a problem, from what was measured.

``steps.best(problem, "cuda").step.attention(q, k, v, causal=True)`` runs the step that is expected to be the fastest;
``.why`` says in one line what that stands on. What was measured is answered by its record, anything else by a model
that is fitted to all records (``steps.core.cost``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from steps.core import ladder
from steps.core.cost import HEARD, Estimate, Model, apart
from steps.core.ladder import get_step, line
from steps.core.recorded import recorded_timings
from steps.core.step import Step, Unsupported, target_of
from tutorial_lib import timing
from tutorial_lib.architectures import ARCHITECTURES
from tutorial_lib.files import RESULTS
from tutorial_lib.passes import PASSES
from tutorial_lib.problem import FEATURES, Problem
from tutorial_lib.results import Run, best_of, of_most_problems
from tutorial_lib.tables import provenance

NEAR = 1.03  # times the shortest expected time: nearer than that no model tells steps apart, and the latest is taken
PLAUSIBLE = 1.25  # times the shortest expected time: a step that should take longer is no candidate
MOST_MODELS = 8  # that are kept
_models: dict[tuple[int, ...], tuple[list[Run], Model]] = {}  # with the runs, which their numbers are the names of


@dataclass(frozen=True)
class Choice:
    """step: the one to use; why: one line on what that stands on; record: that of the step which is nearest.

    of_baseline: how many times as fast as PyTorch's own attention the step was, or is expected to be; None: not known.
    Where both are level by our verdict, it is not below 1 if the step was measured, or if the host's time decides.
    """

    step: Step
    why: str
    record: Run = field(repr=False)
    of_baseline: float | None = None

    def beats_sdpa(self, arch: str) -> bool:
        """Whether PyTorch's own attention is not faster on this architecture, of which the record is."""
        ratio = self.of_baseline
        return self.record.machine["arch"] == arch and ratio is not None and ratio >= 1


def best(
    problem: Problem,
    device: str,
    results: Path | Sequence[Run] = RESULTS,
    direction: str = "forward",
    among: Callable[[Step], bool] | None = None,
) -> Choice:
    """The step of the ladder that is the fastest for ``problem`` on ``device``, by the records.

    device: "cuda" (this machine's GPU), or an architecture such as "sm_90". results: recorded runs, or their folder,
    of which the rows of sweeps count, too.
    direction: "backward" for the fastest backward step. among: which steps may be named (None: all).
    Where the problem was measured on this architecture, it is the earliest step that none is faster than by the verdict
    (``best_of``): no answer flips within the noise. The record must hold every kind of kernel that takes the problem,
    or go as far as what is expected to be the fastest. Of several the one of the GPU of which most are recorded counts,
    then the newest. Elsewhere it is the step that ``steps.core.cost.Model`` expects to be the fastest. The model is
    made of the records of this architecture (where there are none, of others), which ask for the same beside plain
    attention, a window and the like. Where there are none, it is made of those that ask for as little else as can be,
    and whose fastest step takes the problem, and of them of the kind of which most are recorded. PyTorch's own is no
    candidate: it is what the choice is compared with.

    Raises ValueError for a device that is neither; Unsupported when no recorded step takes the problem there.
    """
    if not isinstance(problem, Problem):
        raise ValueError(f"problem must be a Problem, got {type(problem).__name__}")
    if direction not in tuple(PASSES):
        raise ValueError(f"direction must be one of {', '.join(PASSES)}, got {direction!r}")
    arch = _architecture(device)
    runs = recorded_timings(Path(results), direction) if isinstance(results, str | Path) else list(results)
    runs = [run for run in runs if run.machine["arch"][:2] == arch[:2]]  # "sm", of NVIDIA's; other makers' tell nothing

    def may(name: str) -> bool:
        step = get_step(name)
        return step.unsupported(problem, arch) is None and (among is None or among(step))

    of_most = {id(run) for run in of_most_problems(runs)}
    own = [run for run in runs if run.machine["arch"] == arch and _same(run.the_problem(), problem)]
    own = sorted(own, key=lambda run: (_has_every_kind(run), id(run) in of_most, run.date), reverse=True)
    able = [m for m in own[0].by_speed() if may(m.name)] if own else []
    if able and _has_every_kind(own[0]):
        return _as_recorded(own[0], best_of(own[0], able), able[0])
    asked = (_as_modelled(problem, arch, kind, direction, may) for kind in _alike(problem, arch, runs, may))
    if (expected := next(filter(None, asked), None)) is None:
        raise Unsupported(f"no recorded step takes {problem.describe()} on {arch}: measure with python -m steps.run")
    if able and _goes_as_far(own[0], expected.step):
        return _as_recorded(own[0], best_of(own[0], able), able[0])
    return expected


def candidates(
    problem: Problem, arch: str, results: Path | Sequence[Run] = RESULTS, direction: str = "forward"
) -> list[Step]:
    """The steps that may be the fastest for ``problem``: expected to take ``PLAUSIBLE`` times the least, or less.

    Of those that launch the same kernels for the problem the latest. results: as ``best`` takes them; only those of
    this architecture count.
    """
    runs = recorded_timings(Path(results), direction) if isinstance(results, str | Path) else list(results)
    runs = [run for run in runs if run.machine["arch"] == arch]

    def may(name: str) -> bool:
        return get_step(name).unsupported(problem, arch) is None

    for kind in _alike(problem, arch, runs, may):
        if known := _known(_model_of(kind), problem, arch, may):
            known = _of_kernels(known, problem, arch)
            most = PLAUSIBLE * min(_heard(known).values())
            plausible = [get_step(name) for name in sorted(known, key=_how_late) if known[name].seconds <= most]
            return list({step.kernels_for(problem, arch): step for step in plausible}.values())
    return []


def _alike(problem: Problem, arch: str, runs: Sequence[Run], may: Callable[[str], bool]) -> list[list[Run]]:
    """Runs by what they ask for beside plain attention: those first that tell most of the problem."""
    alike: dict[tuple, list[Run]] = {}
    for run in runs:
        alike.setdefault((run.machine["arch"] != arch, run.the_problem().features), []).append(run)

    def distance(kind: tuple) -> tuple:
        elsewhere, features = kind
        knows = any(may(run.by_speed()[0].name) for run in alike[kind] if run.by_speed())
        return elsewhere, len({*problem.features} ^ {*features}), not knows, -len(alike[kind])

    return [alike[kind] for kind in sorted(alike, key=distance)]


def _known(model: Model, problem: Problem, arch: str, may: Callable[[str], bool]) -> dict[str, Estimate]:
    """What a model knows of the steps that may be named."""
    names = (name for name in model.timed if name != model.baseline and may(name))
    return {name: found for name in names if (found := model.estimate(name, problem, arch))}


def _heard(known: dict[str, Estimate]) -> dict[str, float]:
    """Seconds of the steps that near enough records hold."""
    least = HEARD * max(found.weight for found in known.values())
    return {name: found.seconds for name, found in known.items() if found.weight >= least}


def _goes_as_far(run: Run, step: Step) -> bool:
    """Whether a run holds this step, or one that goes on from where it stands on the main path.

    A run of a single step, such as a row of a sweep, compares nothing, and tells of this step alone.
    """
    timed = [m.name for m in run.by_speed()]
    if len(timed) == 1:
        return timed == [step.name]
    while (step.fork or step.inside) and step.previous is not None:
        step = step.previous
    return any(step.name in line(get_step(name)) for name in timed)


def _same(a: Problem, b: Problem) -> bool:
    """Whether two problems cost the same: the scale is a number that a kernel multiplies with."""
    return replace(a, scale=None) == replace(b, scale=None)


def _as_recorded(run: Run, m, fastest) -> Choice:
    first = f"the earliest that none is faster than, by our verdict (the fastest, {fastest.label}, is the same)"
    which = "the fastest" if m is fastest else first
    why = f"Of the steps that were measured, {m.label} is {which}: {m.tflops:.0f} TFLOPS, {provenance(run)}."
    ratio = m.speedup_vs_baseline
    level = ratio and ratio.verdict != "slower"
    return Choice(get_step(m.name), why, run, max(1.0, ratio.median) if level else ratio and ratio.median)


def _as_modelled(
    problem: Problem, arch: str, runs: list[Run], direction: str, may: Callable[[str], bool]
) -> Choice | None:
    """What the model of these records expects to be the fastest; None where none of their steps may be named."""
    model = _model_of(runs)
    if not (known := _known(model, problem, arch, may)):
        return None
    baseline = get_step(model.baseline)
    known = _of_kernels(known, problem, arch)
    heard = _heard(known)
    near = (name for name in heard if heard[name] <= NEAR * min(heard.values()))
    name = max(near, key=_how_late)
    record = min((run for run in runs if _timed(run, name)), key=lambda run: apart(problem, run.the_problem()))
    seconds, step = known[name].seconds, get_step(name)
    ratio = None if baseline.unsupported(problem, arch) else model.of_baseline(problem, arch, seconds)
    compared = f", {ratio:.2f} times as fast as PyTorch's attention" if ratio else ""
    if ratio and ratio < 1 and _host_decides(ratio, seconds, problem, arch, runs, step, baseline):
        compared += "; but the host needs longer for a call of that, and less for one of this step"
        ratio = 1.0
    asked = runs[0].the_problem().features  # of all of them
    lacking = [FEATURES[name] for name in problem.features if name not in asked]
    which = f"{len(runs)} record{'s' * (len(runs) > 1)}{' without ' * bool(lacking)}{' or '.join(lacking)}"
    why = (
        f"Not measured: {problem.describe()} on {arch}. By a model of {which}, {step.label} is the fastest of the "
        f"steps. It should take {1000 * seconds:.3g} ms{compared}. Its nearest record: {provenance(record)}."
    )
    return Choice(step, why, record, ratio)


def _host_decides(
    ratio: float, seconds: float, problem: Problem, arch: str, runs: list[Run], step: Step, baseline: Step
) -> bool:
    """Whether calls take the GPU as long, by our verdict, and a caller waits less for one of this step than of PyTorch.

    ratio: how many times as fast the step is on the GPU. seconds: that it takes there. A call takes as long as the
    GPU or the host, whichever needs longer. The nearest record that tells says what the host needs: for PyTorch's call,
    and for one of this step, or of another that has as many kernels of the same backend.
    """
    if timing.verdict(timing.Spread(ratio, ratio, ratio)) != "same":
        return False
    told = sorted(runs, key=lambda run: apart(problem, run.the_problem()))
    kernels = step.work(problem, arch).kernels

    def of_ours(run: Run) -> float:
        timed = ((m.host_us, get_step(m.name)) for m in [*run.steps, *run.inside] if m.host_us)
        alike = ((us, other) for us, other in timed if other.backend == step.backend)
        return min((us for us, other in alike if other.work(run.the_problem(), arch).kernels == kernels), default=0.0)

    both = ((of_ours(run), (m := run.measurement(baseline.name)) and m.host_us) for run in told)
    ours, its = next(filter(all, both), (math.inf, 0.0))
    return max(1e6 * seconds, ours) < its


def _of_kernels(known: dict[str, Estimate], problem: Problem, arch: str) -> dict[str, Estimate]:
    """What is known of steps; of those that launch the same kernels for the problem, what is known best of one."""
    alike: dict[tuple, list[str]] = {}
    for name in known:
        alike.setdefault(get_step(name).kernels_for(problem, arch), []).append(name)
    return {name: known[max(names, key=lambda n: known[n].weight)] for names in alike.values() for name in names}


def _how_late(name: str) -> tuple:
    """Later of two steps is the one off the forks; then by its number, and what stands inside a step before it."""
    step, order = get_step(name), [step.name for step in ladder.whole_ladder()]
    owner = ladder.owner_of(step)
    return not owner.fork, order.index(owner.name), step is owner, order.index(name)


def _timed(run: Run, name: str) -> bool:
    m = run.measurement(name)
    return m is not None and m.tflops is not None


def _model_of(runs: list[Run]) -> Model:
    key = tuple(map(id, runs))
    if key not in _models:
        while len(_models) >= MOST_MODELS:
            _models.pop(next(iter(_models)), None)
        _models[key] = runs, Model(runs)
    return _models[key][1]


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
