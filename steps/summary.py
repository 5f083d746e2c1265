"""What the first chapters and the summary call: all steps at once, over problems, lengths and grids.

As in ``steps.lesson``, what a machine without a GPU cannot measure is shown as recorded, and says so.
"""

from __future__ import annotations

import dataclasses
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Collection, Sequence
from pathlib import Path

from steps import STEPS, get_step
from steps.chapters import chapter_of
from steps.core.grids import GRIDS
from steps.core.ladder import DELETED, called, today
from steps.core.problems import HEADLINE
from steps.core.recorded import find_recorded, recorded_grid, recorded_runs, recorded_search, recorded_trainings
from steps.core.step import DEFAULT_ARCH
from steps.lesson import ROUNDS, machine
from steps.measuring.measure import Settings, measure
from steps.trials import get_trial, recorded_trial
from tutorial_lib import pictures, plots, tables, timing
from tutorial_lib.architectures import ARCHITECTURES, REFERENCE_GPUS
from tutorial_lib.display import Page, table
from tutorial_lib.files import RESULTS
from tutorial_lib.hardware import has_gpu
from tutorial_lib.problem import Problem
from tutorial_lib.records import recorded_physics
from tutorial_lib.results import Measurement, Run, Speedup, best_of, of_every_part, of_most_problems, of_one_machine

__all__ = ["machine"]  # every chapter begins with it

SHORT = 1024  # tokens
HELD_BACK = re.compile(r"The GPU said of (\S+) of the samples that it was held back (.+)\. NVML called its clock")


def recorded(problem: Problem = HEADLINE, results: Path = RESULTS) -> Run | None:
    """The newest recorded run of a problem."""
    return find_recorded(problem, [results])


def baseline(problem: Problem = HEADLINE) -> Run | None:
    """SDPA, its backends and the ceiling on a problem: measured here on a GPU, else recorded."""
    if not has_gpu():
        return recorded(problem)
    from steps.reference.peers import PEERS

    backends = [peer for peer in PEERS if peer.name.startswith("sdpa_")]
    run, _, _ = measure(problem, [STEPS[0]], backends, Settings(device="cuda", seed=0, rounds=ROUNDS))
    return run


def ceilings(run: Run | None) -> Page:
    """What a machine reaches: a large matrix product, and attention by each of SDPA's backends."""
    if run is None:
        return Page("Nothing is recorded, and there is no GPU here to measure.")
    told = "Measured here, now" if has_gpu() else "Recorded, not measured here"
    shown = {"a large matrix product": run.ceiling.tflops} if run.ceiling else {}
    for m in [run.measurement("sdpa"), *run.peers]:
        if m and m.tflops and m.name.startswith("sdpa"):
            shown[m.title] = m.tflops
    names = run.measurement("sdpa").kernels or ()
    kernels = ", ".join(f"`{name[:60]}{'…' if len(name) > 60 else ''}`" for name in names)
    chose = f"What SDPA runs by default: {kernels}." if kernels else ""
    figure = pictures.bars(shown, "TFLOPS (median)", form="{:.0f}")
    return Page(f"{told}: {tables.origin(run)}.", figure, _of_the_peak(run), chose)


def _of_the_peak(run: Run) -> str:
    """How near the matrix product comes to the tensor cores' rate: at the highest clock, and at the one that it had."""
    product, arch = run.ceiling, ARCHITECTURES.get(run.machine["arch"])
    if not arch or not product or not product.tflops or not product.clock_ghz:
        return ""
    at_1_ghz = arch.tensor_flops * run.machine["multiprocessors"] / 1000
    own, highest = product.clock_ghz, run.machine["max_sm_clock_mhz"] / 1000
    at_own, at_highest = (f"{product.tflops / (at_1_ghz * ghz):.0%}" for ghz in (own, highest))
    return (
        f"The matrix product reaches {at_highest} of the tensor cores' rate at the highest clock, {highest:.2f} GHz, "
        f"and {at_own} of their rate at the clock that it ran at, {own:.2f} GHz."
    )


def ladder(problem: Problem) -> Page:
    """All recorded steps on a problem, without their variants."""
    run = recorded(problem)
    if run is None:
        return Page(f"No run of {problem.describe()} is recorded.")
    columns = tables.columns(run, compact=True)
    cells = tables.rows([m for m in [*run.steps, *run.peers] if m.tflops], columns)
    return Page(
        f"Recorded: {tables.origin(run)}.",
        plots.tflops_by_step(run),
        tables.markdown([header for header, _ in columns], cells),
    )


def over(name: str, before: str) -> Page:
    """How many times as fast a step, or one that is no more, is as another, on every problem recorded with both."""
    new, old = f"variant {name}" if name in DELETED else called(get_step(name)), called(get_step(before))
    if not (found := _compared(name, before)):
        return Page(f"No record compares {new} with {old}.")
    cells = []
    for run, speedup in found:
        told = tables.ratio(speedup)
        cells.append((run, told if speedup.same_code or speedup.verdict == "same" else f"**{told}**"))
    told = f"{new[0].upper()}{new[1:]}, times as fast as {old}, as recorded (p10–p90, and our verdict):"
    return Page(told, tables.by_problem(cells))


def verdicts(*names: str) -> Page:
    """Of variants, each against what it stands on: on how many recorded problems it is faster, the same, or slower."""
    rows = []
    for name in names:
        before = get_step(name).previous
        found = [speedup.verdict for _, speedup in _compared(name, before.name)]
        rows.append([name, before.label, len(found), *(found.count(one) for one in ("faster", "same", "slower"))])
    return Page(table(["variant", "stands on", "recorded problems", "faster", "same", "slower"], rows))


def _compared(name: str, before: str) -> list[tuple[Run, Speedup]]:
    found = []
    for run in recorded_runs(RESULTS, get_step(before).direction):
        now, then = run.measurement(name), run.measurement(before)
        speedup = now and then and run.speedup(now, then)
        if now and not speedup and now.previous == before:
            speedup = now.speedup_vs_previous  # of rounds that were not kept
        if speedup:
            found.append((run, speedup))
    return found


def families(rivals: Sequence[str] = ("sdpa", "sdpa_cudnn", "flash_attn_4"), gradients: bool = False) -> Page:
    """Of each grid's records the best steps, and how many times as fast they are as others: the mean, and the lowest.

    The mean is the geometric one. Best is, in each record, the earliest step that none is faster than, by the
    verdict; a record that lacks a rival says nothing of it. gradients: of the grids of the backward pass; else of all
    others.
    """
    rows = []
    for name, grid in _grids(gradients):
        found = [run for run in recorded_grid(name) if run.by_speed()]
        best = [best_of(run, run.by_speed()) for run in found]
        cells = [", ".join(dict.fromkeys(_with_chapter(m, m.label.split()[0]) for m in best))]
        for rival in rivals:
            pairs = [(run, m, run.measurement(rival)) for run, m in zip(found, best)]
            ahead = [run.speedup(m, other) for run, m, other in pairs if other]
            cells.append(_mean_and_lowest([speedup.median for speedup in ahead if speedup]))
        rows.append([name, grid.about, f"{len(found)} of {len(grid.problems)}", *cells])
    headers = ["grid", "what it holds", "recorded", "best steps", *(f"vs {rival}" for rival in rivals)]
    return Page(table(headers, rows))


def _grids(gradients: bool) -> list:
    """(name, grid) of the backward pass, which has a chapter of its own as fp8 has, or of all others."""
    asked = ("backward",) if gradients else ("forward", "paged")
    return [(name, grid) for name, grid in GRIDS.items() if grid.direction in asked]


def beside(rival: str, grid: str) -> Page:
    """Of each recorded problem of a grid how many times as fast the fastest step is as another, and their errors.

    For each head_dim what that is made of: how many times fewer cycles, and how much of the clock. The root of the mean
    square is that of the cosine, which does not see a factor that all numbers have.
    """
    found = [(run, run.by_speed()[0], run.measurement(rival)) for run in recorded_grid(grid) if run.by_speed()]
    found = [(run, best, other, run.speedup(best, other)) for run, best, other in found if other and other.tflops]
    if not found:
        return Page(f"No record of this grid holds {rival}.")
    mean = statistics.geometric_mean(ratio.median for *_, ratio in found)
    of_width: dict[int, list[tuple[float, ...]]] = defaultdict(list)
    for run, best, other, ratio in found:
        of_width[run.the_problem().head_dim].append((ratio.median, *(run.split(best, other) or (math.nan, math.nan))))
    means = []
    for width, ratios in sorted(of_width.items()):
        whole, cycles, clock = map(statistics.geometric_mean, zip(*ratios))
        means.append(f"{whole:.2f} at head_dim {width} ({cycles:.2f} in cycles, {clock:.2f} in clock)")
    error = max(best.max_error / other.max_error for _, best, other, _ in found)
    square = max(((1 - best.cosine) / (1 - other.cosine)) ** 0.5 for _, best, other, _ in found)
    told = (
        f"Of {len(GRIDS[grid].problems)} problems {len(found)} have been recorded. On these the fastest step is "
        f"{mean:.2f} times as fast as {rival} in the geometric mean: {', '.join(means)}. Its largest error is at most "
        f"{error:.2f} times as large, and the root of the mean square at most {square:.3f} times. A cell names the "
        "step."
    )
    cells = [(run, f"{ratio.median:.2f}× {best.label.split()[0]}") for run, best, _, ratio in found]
    return Page(told, tables.by_problem(cells))


def in_8_bits(machine: str) -> Page:
    """Of a machine's records with a causal mask the fastest steps in fp16 and in fp8; and a short call's two times."""
    half, full = (
        {run.the_problem(): run for run in recorded_runs(RESULTS, kind) if run.machine["name"] == machine}
        for kind in ("forward", "fp8")
    )
    rows, times = [], []
    for shape, run in sorted(full.items(), key=lambda item: (item[0].head_dim, item[0].seq_len_q)):
        if not shape.fp8 or not run.by_speed():
            continue
        best, cutile, other = (
            run.by_speed()[0],
            run.measurement("cutile_fp8"),
            half.get(dataclasses.replace(shape, dtype="float16")),
        )
        if shape.seq_len_q == SHORT and best.host_us:
            times.append((1000 * best.latency_ms.median, best.host_us))
        if shape.causal and other and other.by_speed():
            slow = other.by_speed()[0]
            tflops = (f"{m.tflops:.0f}" if m and m.tflops else tables.NOTHING for m in (slow, best, cutile))
            ratio = f"{slow.latency_ms.median / best.latency_ms.median:.2f}"
            errors = (f"{m.max_error:.1e}" for m in (slow, best))
            rows.append([shape.head_dim, shape.seq_len_q, *tflops, ratio, *errors])
    names = [
        "head_dim",
        "tokens",
        "TFLOPS in fp16",
        "in fp8",
        "step 306",
        "fp8 over fp16",
        "largest error in fp16",
        "in fp8",
    ]
    told = ""
    if times:
        of_gpu, of_host = (f"{min(its):.0f} to {max(its):.0f} µs" for its in zip(*times))
        longer = sum(host > gpu for gpu, host in times)
        told = (
            f"With {SHORT:,} tokens a call in fp8 takes the GPU {of_gpu} and the host {of_host}, which is the longer "
            f"in {longer} of {len(times)} records."
        )
    return Page(table(names, rows), told)


def transposing(grid: str, bandwidth: float) -> Page:
    """Of a grid's records in fp8: which share of the fastest step's time reading V and writing it takes, by length.

    bandwidth: in bytes a second, of which no more can be moved.
    """
    shares: dict[int, list[float]] = defaultdict(list)
    machines = set()
    for run in recorded_grid(grid):
        if fastest := next(iter(run.by_speed()), None):
            shape = run.the_problem()
            moved = 2 * shape.batch * shape.kv_heads * shape.seq_len_kv * shape.head_dim * shape.kv_bytes
            shares[shape.seq_len_kv].append(1000 * moved / bandwidth / fastest.latency_ms.median)
            machines.add(run.machine["name"])
    rows = [[of(shares[n]) for n in sorted(shares)] for of in (min, max)]
    told = [[name, *(f"{share:.0%}" for share in row)] for name, row in zip(("least", "most"), rows)]
    return Page(table([f"{', '.join(sorted(machines))}, keys", *map(str, sorted(shares))], told))


def behind(rival: str, gradients: bool = False) -> Page:
    """The problems of all grids on which a peer is faster than the best step, by the rule of this course.

    Beside how many times as fast the step is: how many times fewer cycles it takes, times how much of the clock.
    gradients: of the grids of the backward pass; else of all others.
    """
    rows, compared = [], 0
    for name, _ in _grids(gradients):
        for run in recorded_grid(name):
            best = best_of(run, run.by_speed()) if run.by_speed() else None
            other = run.measurement(rival)
            if not best or not other or not (speedup := run.speedup(best, other)):
                continue
            compared += 1
            if speedup.verdict == "slower":
                split = run.split(best, other)
                cycles = f"{split[0]:.2f} × {split[1]:.2f}" if split else tables.NOTHING
                rows.append([name, run.the_problem().describe(), _with_chapter(best), tables.ratio(speedup), cycles])
    told = f"On {len(rows)} of {compared} recorded problems that {rival} takes it is faster than the best step."
    headers = ["grid", "problem", "best step", f"vs {rival} (p10–p90)", tables.CYCLES_AND_CLOCK]
    return Page(told, table(headers, rows) if rows else "")


def _mean_and_lowest(factors: list[float]) -> str:
    if not factors:
        return tables.NOTHING
    return f"{statistics.geometric_mean(factors):.2f}× ({min(factors):.2f}×)"


def _with_chapter(m: Measurement, told: str | None = None) -> str:
    """A step's label, or what is told in its place, with a link to its chapter if it has one."""
    told = told or m.label
    try:
        return f"[{told}]({chapter_of(get_step(m.name))}.ipynb)"
    except ValueError:
        return told


def lengths(causal: bool = True) -> Page:
    """Recorded TFLOPS over sequence length."""
    family = dataclasses.replace(HEADLINE, causal=causal).family
    runs = of_most_problems([run for run in recorded_runs(RESULTS) if run.the_problem().family == family])
    runs = of_every_part(runs)
    return Page(plots.tflops_by_length(runs)) if runs else Page(f"Nothing is recorded of {family}.")


def wall(arch: str = DEFAULT_ARCH) -> Page:
    """Tensor cores and exponentials as ceilings over head_dim, and the best recorded step and peer under them."""
    ours, others = "the best step", "the best other library"
    best: dict[str, dict[int, float]] = {ours: {}, others: {}}
    runs = [run for run in recorded_runs(RESULTS) if run.machine["arch"] == arch]
    for run in of_most_problems(runs):
        if run.the_problem().features:
            continue
        for label, measured in ((ours, [*run.steps[1:], *run.inside]), (others, run.peers)):
            head_dim, reached = run.problem["head_dim"], max((m.tflops or 0 for m in measured), default=0)
            if head_dim <= 256:
                best[label][head_dim] = max(reached, best[label].get(head_dim, 0))
    points = {label: sorted(reached.items()) for label, reached in best.items() if reached}
    return Page(pictures.exponential_wall(REFERENCE_GPUS[arch], points))


def searched(head_dim: int, causal: bool, arch: str = DEFAULT_ARCH, best: int = 8, kernel: str | None = None) -> Page:
    """The fastest configurations of the recorded search, and of those like step 7's the fastest.

    kernel: one of the backward pass, by its name in ``steps.search``.
    """
    direction = "backward" if kernel else "forward"
    search = recorded_search(arch, direction=direction)
    for one in search.searched if search else ():
        problem = one.the_problem()
        if (one.kernel, problem.head_dim, problem.causal) != (kernel, head_dim, causal):
            continue
        plain = next(f for f in one.found if f.configuration.warps is None and f.configuration.cluster is None)
        shown = [(n, f) for n, f in enumerate(one.found, 1) if n <= best or (f is plain and not kernel)]
        rows = [
            [
                n,
                f.configuration.label,
                f"{f.tflops:.0f}",
                f"{100 * f.margin / f.microseconds:.1f} %",
                f.registers,
                f.spill_instructions,
                f.shared_bytes,
            ]
            for n, f in shown
        ]
        headers = ["", "queries x keys", "TFLOPS", "± (95 %)", "registers", "spills", "shared memory, bytes"]
        day = (one.date or search.date)[:10]
        where = f"{search.machine['name']}, {day}, cuda-tile {search.versions['cuda-tile']}"
        failed = f", {len(one.failed)} failed" if one.failed else ""
        of = f"kernel *{kernel}* of {called(get_step(one.step))}, " if kernel and one.step else ""
        told = f"Recorded on {where}: {of}{problem.describe()}, the fastest of {len(one.found)} configurations{failed}."
        if not kernel:
            told += f" The best of four warps without a cluster is number {one.found.index(plain) + 1}."
        return Page(told, table(headers, rows))
    command = f"python -m steps.search --direction {direction}" + (f' --kernel "{kernel}"' if kernel else "")
    mask = "under a mask" if causal else "without a mask"
    return Page(f"No search is recorded for {arch} at head_dim {head_dim}, {mask}: `{command}`.")


def trial(name: str) -> Page:
    """A trial's recorded speed and error."""
    found = get_trial(name)
    runs = recorded_trial(found, RESULTS)
    if not runs:
        return Page(f"No trial of it is recorded: `python -m steps.trials {name}`.")
    where = f"Recorded: {called(get_step(found.base))}, {runs[0].where}."
    if found.is_switch:
        return Page(f"*{found.question}*", where, _switched(runs, name))
    return Page(f"*{found.question}*", where, plots.trial(runs, list(found.values), found.axis))


UNITS = (
    "time µs",
    "tensor pipe %",
    "MUFU (xu) pipe %",
    "shared memory %",
    "shared wavefronts, million",
    "issue active %",
    "L2 %",
)


def counters(problem: Problem, names: Sequence[str], gradients: bool = False, units: Collection[str] = UNITS) -> Page:
    """What ncu counted in the large kernels of these steps and peers on a problem.

    units: which columns of ``tables.COUNTED``, by default those that tell how busy each unit was.
    """
    run = find_recorded(problem, [RESULTS], "backward" if gradients else "forward")
    counted = [m for name in names if run and (m := run.measurement(name)) and m.counters]
    if not counted:
        return Page(f"No counters are recorded of {problem.describe()}: measure with --profile.")
    columns: list[tables.Column] = [
        ("of the large kernel", lambda m: m.label if m.part else m.title),
        *((header, show) for header, show in tables.counted(counted) if header in units),
        ("million cycles of a call", dict(tables.CLOCKED)["million cycles"]),
        *tables.other_days(counted),
    ]
    where = f"Recorded: {tables.origin(run)}."
    return Page(where, table([header for header, _ in columns], [[show(m) for _, show in columns] for m in counted]))


def _switched(runs: list[Run], trial: str = "") -> str:
    """The table of a trial that was off and on, maybe for several steps; columns that no run can fill are left out."""
    rows = []
    for run, (off, on) in ((one, pair) for one in runs for pair in _pairs(one)):
        which = f", {off.name.removeprefix(f'{trial}_')}" if len(_pairs(run)) > 1 else ""
        problem = run.the_problem().describe() + which
        if not (off.tflops and on.tflops):
            told = [tables.tflops(m) if m.tflops else tables.outcome(m) for m in (off, on)]
            rows.append([problem, *told, "", "", "", "", ""])
            continue
        ratio = timing.speedup(*([r.latency_ms[m.name] for r in run.rounds] for m in (off, on)))
        change = f"{ratio.median:.3f}× ({ratio.low:.3f}–{ratio.high:.3f})"
        cycles = f"{on.cycles / off.cycles:.3f}" if off.cycles and on.cycles else ""
        lasting = [m.sustained.joules for m in (off, on) if m.sustained and m.sustained.joules]
        energy = f"{lasting[1] / lasting[0]:.3f}" if len(lasting) == 2 else ""
        errors = [f"{m.max_error / m.reference_error:.2f}" if m.max_error else "" for m in (off, on)]
        rows.append([problem, tables.tflops(off), tables.tflops(on), change, cycles, energy, *errors])
    headers = ["problem", "off, TFLOPS", "on, TFLOPS", "on vs off", "cycles, on / off", "energy a call, on / off"]
    headers += ["error over SDPA's, off", "on"]
    filled = [i for i in range(len(headers)) if any(row[i] for row in rows)]
    return table([headers[i] for i in filled], [[row[i] for i in filled] for row in rows])


def _pairs(run: Run) -> list[tuple]:
    """The versions of a trial, off and on; in front of them stands SDPA."""
    tried = run.steps[len(run.steps) % 2 :]
    return list(zip(tried[::2], tried[1::2], strict=True))


def training(results: Path = RESULTS) -> Page:
    """The loss of a small transformer that was trained with the steps and with SDPA, as recorded."""
    if not (found := recorded_trainings(results)):
        return Page("No training is recorded: `python -m steps.train` trains a small transformer on a GPU.")
    tables_shown = [
        table(tables.LOSS_HEADERS, tables.loss_rows(found[0])),
        table(tables.TRAINING_HEADERS, tables.training_rows(found[0])),
    ]
    return Page(tables.about_training(found[0]), plots.training(found[0]), *tables_shown)


# --- the clock and the power ---


def clocked(problem: Problem = HEADLINE, lasting: bool = False) -> Run | None:
    """The recorded run of a problem in which the SMs' clock was read, or None; of several that of most steps.

    lasting: one that also has a load which goes on without rest.
    """
    runs = [run for run in recorded_runs(RESULTS) if run.the_problem() == problem]
    runs = [run for run in runs if any(m.clock_ghz for m in run.steps) and (run.sustained or not lasting)]
    return next(iter(of_one_machine(runs)), None)


def cycles(problem: Problem = HEADLINE, names: Sequence[str] = ()) -> Page:
    """Cycles and clock of every recorded step that has a number, and what its gain on the step before consists of.

    names: of steps and peers, of which alone the table shall tell; then there is no picture.
    """
    if (run := clocked(problem)) is None:
        return Page(f"No run of {problem.describe()} is recorded with the SMs' clock.")
    columns = [tables.NUMBER, ("name", lambda m: m.name), ("TFLOPS", tables.tflops), *tables.CLOCKED[:2]]
    columns += [("vs previous", tables.compact_vs_previous), tables.cycles_and_clock(run)]
    asked = [run.measurement(name) for name in names] or [*run.steps, *run.peers]
    shown = [m for m in asked if m and m.clock_ghz]
    columns += tables.other_days(shown)
    cells = tables.markdown([header for header, _ in columns], tables.rows(shown, columns))
    picture = [] if names else [pictures.cycles_and_clock(run)]
    return Page(f"Recorded: {tables.origin(run)}.", *picture, cells)


def going_on(problem: Problem = HEADLINE, names: Sequence[str] = ()) -> Page:
    """What a load that goes on without rest shows, as recorded.

    names: of steps and peers, of which alone the table shall tell.
    """
    if (run := clocked(problem, lasting=True)) is None:
        return Page(f"No load that goes on is recorded of {problem.describe()}.")
    told = f"Recorded: {tables.origin(run)}."
    if run.ceiling and (ceiling := run.ceiling.sustained):
        told += f" The matrix product reaches {ceiling.tflops:.0f} TFLOPS at {ceiling.clock_ghz:.2f} GHz there."
    return Page(told, tables.markdown(*tables.sustained(run, names)), "\n\n".join(map(_as_noted_now, run.notes)))


def _as_noted_now(note: str) -> str:
    """What a run notes of the GPU's clock; older records say it in other words."""
    return HELD_BACK.sub(
        r"In \1 of all samples the GPU reported that it was held back \2. NVML reported clock rates of", note
    )


def loads() -> Page:
    """What power does to the clock of a matrix product and of attention: with random numbers, and with zeros."""
    found = recorded_physics(RESULTS)
    if not found:
        return Page("Nothing is recorded: `python -m steps.physics` measures it on a GPU.")
    named = [load.model_copy(update={"name": today(load.name)}) for load in found[0].loads]
    rows = tables.load_rows(found[0].model_copy(update={"loads": named}))
    told = f"Recorded: {found[0].machine['name']}, {found[0].day}."
    return Page(told, tables.markdown(tables.LOAD_HEADERS, rows), "\n\n".join(found[0].notes))
