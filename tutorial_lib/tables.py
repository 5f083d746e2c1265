"""The words and columns in which results are shown: one place for the terminal, the reports and the README."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tutorial_lib import timing
from tutorial_lib.passes import PASSES
from tutorial_lib.problem import Problem
from tutorial_lib.records import BASELINE, FRONT_DOOR, Physics, Survey, Sweep, Swept, Trace, Training
from tutorial_lib.results import Measurement, Run, Speedup

Column = tuple[str, Callable[[Measurement], str]]

NOTHING = "–"


def median_milliseconds(m: Measurement) -> str:
    return NOTHING if m.latency_ms is None else f"{m.latency_ms.median:.3g}"


def milliseconds(m: Measurement) -> str:
    if m.latency_ms is None:
        return NOTHING
    latency = m.latency_ms
    return f"{latency.median:.3g} ({latency.low:.3g}–{latency.high:.3g})"


def tflops(m: Measurement) -> str:
    return NOTHING if m.tflops is None else f"{m.tflops:.0f}" if m.tflops >= 10 else f"{m.tflops:.2g}"


def ceiling(m: Measurement) -> str:
    return NOTHING if m.percent_of_ceiling is None else f"{m.percent_of_ceiling:.0f} %"


def ceiling_told(run: Run, spread: bool = False) -> str:
    """What the ceiling of a run is, and how high."""
    c = run.ceiling
    rate, unit = (c.tflops, "TFLOPS") if c.gigabytes_per_s is None else (c.gigabytes_per_s, "GB/s")
    return f"{c.what}, {rate:.0f} {unit}" + (f" ({c.low:.0f}–{c.high:.0f})" if spread else "")


def factor(speedup: Speedup | None) -> str:
    return NOTHING if speedup is None else f"{speedup.median:.2f}×"


def ratio(speedup: Speedup | None, told: str | None = None) -> str:
    """Such as ``1.05× (1.03–1.07) faster``; told: other words for the verdict."""
    if speedup is None:
        return NOTHING
    median, low, high = digits(speedup)
    return f"{median}× ({low}–{high}) {told or _verdict(speedup)}"


def times_as_fast(other: str, speedup: Speedup) -> str:
    """As ``ratio``, in a sentence: with the verdict apart, as "0.50× slower" would be another number."""
    median, low, high = digits(speedup)
    return f"Times as fast as {other}: **{median}×** (p10–p90 {low}–{high}); verdict: {_verdict(speedup)}."


def _verdict(speedup: Speedup) -> str:
    return "same code" if speedup.same_code else speedup.verdict


def digits(speedup: Speedup) -> list[str]:
    """Median, low and high; more than two digits only where fewer belie the verdict."""
    found = speedup.median, speedup.low, speedup.high

    def agree(digits: int) -> bool:
        return timing.verdict(timing.Spread(*(round(x, digits) for x in found))) == speedup.verdict

    digits = 2 if speedup.same_code else next((n for n in (2, 3) if agree(n)), 4)
    return [f"{x:.{digits}f}" for x in found]


def vs_previous(m: Measurement) -> str:
    return NOTHING if m.speedup_vs_previous is None else ratio(m.speedup_vs_previous, m.verdict)


def marked(speedup: Speedup) -> str:
    """As ``ratio``, in bold where it is not the same."""
    return ratio(speedup) if speedup.verdict == "same" else f"**{ratio(speedup)}**"


def compact_vs_previous(m: Measurement) -> str:
    return NOTHING if m.speedup_vs_previous is None else f"{m.speedup_vs_previous.median:.2f}× {m.verdict}"


def least_rate(run: Run, m: Measurement) -> str:
    """TB/s, where nothing is read or written but inputs and outputs, and those once."""
    least = PASSES[run.direction].least_bytes(run.the_problem())
    return NOTHING if m.latency_ms is None else f"{least / m.latency_ms.median / 1e9:.2f}"


def error(m: Measurement) -> str:
    if m.max_error is None:
        return NOTHING
    return f"{m.max_error:.0e} ({m.reference_error:.0e})"


def error_ratio(m: Measurement) -> str:
    """The error as a multiple of SDPA's."""
    return f"{m.max_error / m.reference_error:.2f}" if m.max_error and m.reference_error else NOTHING


def correct(m: Measurement) -> str:
    if m.status == "compiled":
        return "compiled, not run"
    return "not checked" if m.correct is None else "yes" if m.correct else "NO"


def outcome(m: Measurement) -> str:
    """The status, with the reason where there is one."""
    return f"{m.status}: {m.reason}" if m.reason else m.status


def figure(value: object) -> str:
    return NOTHING if value is None else f"{value:,.4g}" if isinstance(value, float) else str(value)


def resource(key: str) -> Callable[[Measurement], str]:
    return lambda m: NOTHING if m.resources is None else figure(m.resources.get(key))


def counter(key: str, unit: float = 1, places: int = 0) -> Callable[[Measurement], str]:
    return lambda m: f"{m.counters[key] / unit:,.{places}f}" if m.counters and key in m.counters else NOTHING


def millions(cycles: float) -> str:
    """Four digits, such as 1.250."""
    return f"{cycles / 1e6:#.4g}".rstrip(".")


def titled(m: Measurement) -> str:
    """The title, and whether the step stands beside the main path."""
    return f"{m.title} (fork)" if m.fork else m.title


def other_days(measurements: Sequence[Measurement]) -> list[Column]:
    """A column with the day of each who was not in the rounds of the record; none where everybody was."""
    return [("timed earlier, on", lambda m: m.earlier or "")] if any(m.earlier for m in measurements) else []


NUMBER: Column = ("step", lambda m: "" if m.number is None else str(m.number))

TIMING: list[Column] = [
    ("latency ms (p10–p90)", milliseconds),
    ("TFLOPS", tflops),
    ("vs SDPA", lambda m: factor(m.speedup_vs_baseline)),
    ("vs previous (p10–p90)", vs_previous),
    ("of ceiling", ceiling),
]

BYTES: Column = ("GB/s", lambda m: NOTHING if m.gigabytes_per_s is None else f"{m.gigabytes_per_s:,.0f}")

COMPACT_TIMING: list[Column] = [
    ("ms", median_milliseconds),
    TIMING[1],
    TIMING[4],
    TIMING[2],
    ("vs previous", compact_vs_previous),
]


def sent(m: Measurement) -> str:
    return NOTHING if m.exchange is None else f"{m.exchange.sent_bytes / 1e6:,.4g}"


def of_exchange(field: str) -> Callable[[Measurement], str]:
    """Milliseconds of the sending: see ``Exchange``."""

    def text(m: Measurement) -> str:
        latency = m.exchange and getattr(m.exchange, field)
        return NOTHING if latency is None else f"{latency.median:.3g}"

    return text


SENT: Column = ("MB sent", sent)

TOGETHER: list[Column] = [  # of a run over several ranks
    TIMING[0],
    ("TFLOPS a GPU", tflops),
    TIMING[2],
    ("of ideal", lambda m: NOTHING if m.percent_of_ideal is None else f"{m.percent_of_ideal:.1f} %"),
    TIMING[4],
    SENT,
    ("sending ms", of_exchange("sending_ms")),
    ("of it hidden", of_exchange("hidden_ms")),
    ("call longer by", of_exchange("open_ms")),
]

CLOCKED: list[Column] = [
    ("GHz", lambda m: NOTHING if m.clock_ghz is None else f"{m.clock_ghz:.2f}"),
    ("million cycles", lambda m: NOTHING if m.cycles is None else millions(m.cycles)),
    ("host µs", lambda m: NOTHING if m.host_us is None else f"{m.host_us:.0f}"),
]

SUSTAINED: list[Column] = [
    ("name", lambda m: m.label),
    ("ms", lambda m: f"{m.sustained.latency_ms.median:.3g}"),
    ("TFLOPS", lambda m: f"{m.sustained.tflops:.0f}"),
    ("GHz", lambda m: NOTHING if m.sustained.clock_ghz is None else f"{m.sustained.clock_ghz:.2f}"),
    ("million cycles", lambda m: NOTHING if m.sustained.cycles is None else millions(m.sustained.cycles)),
    ("mJ a call", lambda m: NOTHING if m.sustained.joules is None else f"{1000 * m.sustained.joules:.0f}"),
    ("W", lambda m: NOTHING if m.sustained.watts is None else f"{m.sustained.watts:.0f}"),
    (
        "GFLOPS a watt",
        lambda m: NOTHING if m.sustained.watts is None else f"{1000 * m.sustained.tflops / m.sustained.watts:.0f}",
    ),
]


def sustained(run: Run, names: Sequence[str] = ()) -> tuple[list[str], list[list[str]]]:
    """Headers and cells of ``SUSTAINED`` for everybody who lasted, or those of ``names``."""
    lasted = [m for m in run.everybody if m.sustained and (not names or m.name in names)]
    columns = [*SUSTAINED, *other_days(lasted)]
    return [header for header, _ in columns], [[text(m) for _, text in columns] for m in lasted]


RATE_HEADERS = ("what an SM does", "in a clock (p10–p90)", "GHz")


def rate_rows(physics: Physics) -> list[list[str]]:
    """The rates of an SM's units: multiplications and additions count apart, exponentials and fused ones as one."""
    return [
        [r.what, f"{r.a_clock.median:.4g} ({r.a_clock.low:.4g}–{r.a_clock.high:.4g})", f"{r.clock_ghz:.2f}"]
        for r in physics.rates
    ]


SDPA, STEPS = "SDPA", "steps"  # who computes attention in a training
LOSS_HEADERS = ("trained with", "loss at the end, nats a token")
TRAINING_HEADERS = (
    *("attention with its gradients, eager", "by", "called through"),
    *("SDPA, ms", "steps, ms", "times as fast (p10–p90)"),
)
AT_THE_END = 0.1  # of the training steps


def about_training(record: Training) -> str:
    """Who computed what, where and when."""
    count = len(record.losses[STEPS])
    return (
        f"{record.machine['name']}, {record.day}, {count} training steps: attention by step {record.forward}, its "
        f"gradients by step {record.backward}."
    )


def loss_rows(record: Training) -> list[list[str]]:
    """The mean loss of the last tenth of every training, and the least that the data allow."""
    ends = {name: curve[-max(1, int(AT_THE_END * len(curve))) :] for name, curve in record.losses.items()}
    rows = [[name, f"{sum(end) / len(end):.4f}"] for name, end in ends.items()]
    return [*rows, ["the least that the data allow", f"{record.floor:.4f}"]]


def training_rows(record: Training) -> list[list[str]]:
    """Attention with its gradients, by SDPA and by steps."""
    rows = []
    for one in record.timed:
        ratio = timing.speedup(one.milliseconds[SDPA], one.milliseconds[STEPS])
        times = [f"{timing.spread(one.milliseconds[name]).median:.3g}" for name in (SDPA, STEPS)]
        told = f"{ratio.median:.2f}× ({ratio.low:.2f}–{ratio.high:.2f})"
        by = [" and ".join(one.steps), "steps.attention" if one.front_door else "the steps themselves"]
        rows.append([one.the_problem().describe(), *by, *times, told])
    return rows


TIMED = {  # the passes of a sweep, and what a call's time is
    "forward": "attention without gradients, on the GPU",
    "backward": "the gradients alone, on the GPU",
    "training": "attention and its gradients, as a caller waits",
}
BEHIND = 0.97  # times as fast as the best of the others: what is less is counted
SWEPT_HEADERS = (
    "times as fast as the best of the others (p10–p90)",
    "which",
    "as SDPA",
    "problem",
    "model",
    "ms",
    "by",
)
FAMILY_HEADERS = (
    *("family", "problems", "times as fast as the best of the others", "least", f"below {BEHIND}", "as SDPA"),
    *("left to SDPA", "without these", "eager"),
)


@dataclass(frozen=True)
class Means:
    """How fast ``steps.attention`` is on some problems of a sweep, in geometric means over them.

    best, sdpa: times as fast as the best of the others, and as SDPA; least: of best. behind: on how many problems it is
    less than ``BEHIND``. fell_back: how many it leaves to SDPA; by_steps: best without these, None where none is left.
    eager: best, where no call takes less than the host needs for it.
    """

    count: int
    best: float
    least: float
    behind: int
    sdpa: float
    fell_back: int
    by_steps: float | None
    eager: float

    @classmethod
    def of(cls, rows: Sequence[Swept]) -> Means:
        """Of at least one timed row."""
        best = [row.ratio(row.best_peer).median for row in rows]
        own = [ratio for row, ratio in zip(rows, best) if not row.fell_back]
        return cls(
            count=len(rows),
            best=statistics.geometric_mean(best),
            least=min(best),
            behind=sum(ratio < BEHIND for ratio in best),
            sdpa=statistics.geometric_mean(row.ratio(BASELINE).median for row in rows),
            fell_back=len(rows) - len(own),
            by_steps=statistics.geometric_mean(own) if own else None,
            eager=statistics.geometric_mean(map(_eager, rows)),
        )


def _eager(row: Swept) -> float:
    """How many times as long who calls eagerly waits for the one of the others that is waited for least."""
    waits = {name: timing.spread(row.waited(name)).median for name in row.milliseconds}
    own = waits.pop(FRONT_DOOR)
    return min(waits.values()) / own


def about_sweep(record: Sweep) -> str:
    """Where and when, and how many problems were drawn."""
    failed = [row for row in record.rows if not row.timed]
    told = f", of which {len(failed)} failed" if failed else ""
    return f"{record.machine['name']}, {record.day}: {len(record.rows)} problems from models that people run{told}."


def swept_rows(rows: Sequence[Swept]) -> list[list[str]]:
    """A line for each timed row."""
    made = []
    for row in rows:
        ratio, sdpa = row.ratio(row.best_peer), row.ratio(BASELINE)
        times = [f"{ratio.median:.2f} ({ratio.low:.2f}–{ratio.high:.2f})", row.best_peer, f"{sdpa.median:.2f}"]
        own = f"{timing.spread(row.milliseconds[FRONT_DOOR]).median:.3g}"
        made.append([*times, row.the_problem().describe(), row.model, own, " and ".join(row.steps)])
    return made


def family_rows(rows: Sequence[Swept]) -> list[list[str]]:
    """A line for each family, by name, and one for all of them together."""
    families: dict[str, list[Swept]] = {}
    for row in rows:
        families.setdefault(row.family, []).append(row)
    made = []
    for name, members in [*sorted(families.items()), ("all", rows)]:
        means = Means.of(members)
        by_steps = NOTHING if means.by_steps is None else f"{means.by_steps:.2f}"
        made.append([name, str(means.count), f"{means.best:.2f}", f"{means.least:.2f}", str(means.behind)])
        made[-1] += [f"{means.sdpa:.2f}", str(means.fell_back), by_steps, f"{means.eager:.2f}"]
    return made


def swept_in_words(record: Sweep) -> str:
    """What a sweep comes to, pass by pass, as a paragraph; empty where nothing was timed."""
    told = []
    for timed, title in TIMED.items():
        if rows := record.of(timed):
            m = Means.of(rows)
            told.append(
                f"{m.best:.2f} times as fast as the fastest of them on each problem, and {m.sdpa:.2f} times as fast as "
                f"SDPA, for {title} ({m.count} problems, the least {m.least:.2f}, {m.fell_back} left to SDPA)"
            )
    return (
        ""
        if not told
        else (
            f"On problems drawn from models that people run (`python -m steps.sweep`; {record.machine['name']}, "
            f"{record.day}) `steps.attention` was set beside SDPA, its backends and FlashAttention-3 and 4. In the "
            f"geometric mean it is {'; '.join(told)}."
        )
    )


def failed_rows(record: Sweep) -> list[str]:
    """A line for each row that is wrong or was not timed."""
    return [
        f"{row.pass_}, {row.the_problem().describe()}: {row.failure or 'wrong'}" for row in record.rows if not row.timed
    ]


LOAD_HEADERS = (
    *("load", "inputs", "TFLOPS after a rest", "GHz after a rest"),
    *("TFLOPS sustained", "GHz sustained", "W", "GFLOPS a watt"),
)


def load_rows(physics: Physics) -> list[list[str]]:
    """What power does to a load's clock, after a rest and in a sustained load."""

    def cell(value: float | None, digits: int = 0) -> str:
        return NOTHING if value is None else f"{value:.{digits}f}"

    rows = []
    for load in physics.loads:
        on = load.sustained
        efficiency = 1000 * on.tflops / on.watts if on.watts else None
        rested = [cell(load.rested_tflops), cell(load.rested_ghz, 2)]
        rows.append([load.name, load.inputs, *rested, cell(on.tflops), cell(on.clock_ghz, 2)])
        rows[-1] += [cell(on.watts), cell(efficiency)]
    return rows


def trace_table(trace: Trace, simulated: dict | None = None) -> tuple[list[str], list[list[str]]]:
    """(headers, rows): what each role spent its time on, in percent. simulated: the same shares on the simulator."""
    labels = list(dict.fromkeys(label for its in trace.shares.values() for label in its))
    pairs = [(its, simulated and simulated[role]) for role, its in trace.shares.items()]

    def percent(its: dict, label: str) -> str:
        return f"{100 * its[label]:.0f} %" if label in its else NOTHING

    rows = []
    for label in labels:
        rows.append([label])
        for its, other in pairs:
            rows[-1].append(percent(its, label) + (f" ({percent(other, label)})" if other and label in its else ""))
    return ["time spent on" + (", and simulated" if simulated else ""), *trace.shares], rows


def about_trace(trace: Trace) -> str:
    """Of which blocks a trace tells, and what it cost."""
    slowed = trace.slowed
    return (
        f"{trace.blocks} blocks, of {trace.clocks:,.0f} clocks in the median. With the stamps the kernel took "
        f"{slowed.median:.2f} times as long ({slowed.low:.2f}–{slowed.high:.2f})."
    )


CYCLES_AND_CLOCK = "gain in cycles × in clock"


def cycles_and_clock(run: Run) -> Column:
    """What a gain on the previous step consists of: times fewer cycles, times the clock."""

    def text(m: Measurement) -> str:
        before = run.measurement(m.previous) if m.previous and m.speedup_vs_previous else None
        parts = run.split(m, before) if before else None
        return NOTHING if parts is None else f"{parts[0]:.2f} × {parts[1]:.2f}"

    return CYCLES_AND_CLOCK, text


CHECKING: list[Column] = [("error (SDPA's)", error), ("correct", correct)]

# As others publish results, in the reports: beside SDPA's error, and the cosine where it is known.
ERROR_RATIO: Column = ("error / SDPA's", error_ratio)
COSINE: Column = ("cosine", lambda m: NOTHING if m.cosine is None else f"{m.cosine:.8f}")

REPEATED: Column = (
    "same bits",
    lambda m: (
        NOTHING if m.repeat_difference is None else f"± {m.repeat_difference:.0e}" if m.repeat_difference else "yes"
    ),
)

RESOURCES: list[Column] = [
    ("regs", resource("registers")),
    ("spills", resource("spill_instructions")),
    ("hot loop", resource("hot_loop_instructions")),
]

COMPILED: list[Column] = [
    ("registers", resource("registers")),
    ("threads per block", resource("threads")),
    ("shared memory, bytes", resource("shared_bytes")),
    ("spilled, bytes", resource("spilled_bytes")),
    ("blocks per SM", resource("blocks_per_sm")),
    ("limited by", resource("limited_by")),
    ("occupancy %", resource("occupancy_pct")),
    ("instructions", resource("instructions")),
    ("hot loop, per K/V tile", resource("hot_loop_instructions")),
]

COUNTED: list[Column] = [
    ("time µs", counter("time_us")),
    ("tensor pipe %", counter("tensor_pct", places=1)),
    ("MUFU (xu) pipe %", counter("xu_pct")),
    ("FMA pipe %", counter("fma_pct")),
    ("shared memory %", counter("shared_pct")),
    ("shared wavefronts, million", counter("shared_wavefronts", 1e6)),
    ("issue active %", counter("issue_active_pct")),
    ("L2 hits %", counter("l2_hit_pct")),
    ("L2 %", counter("l2_pct")),
    ("DRAM read MB", counter("dram_read_bytes", 1e6)),
    ("DRAM written MB", counter("dram_written_bytes", 1e6)),
    ("shared bank conflicts", counter("shared_bank_conflicts")),
    ("of them by ldmatrix", counter("ldmatrix_bank_conflicts")),
    ("achieved occupancy %", counter("achieved_occupancy_pct")),
]


def counted(measurements: Sequence[Measurement]) -> list[Column]:
    """The columns of ``COUNTED`` that any of these can fill."""
    return [(header, show) for header, show in COUNTED if any(show(m) != NOTHING for m in measurements)]


def recorded_columns(recorded: Run) -> list[Column]:
    """Columns for timings that were not taken now: those of ``recorded``, looked up by a measurement's name."""

    def show(text: Callable[[Measurement], str]) -> Callable[[Measurement], str]:
        return lambda m: text(found) if (found := recorded.measurement(m.name)) else NOTHING

    return [(f"recorded {header}", show(text)) for header, text in COMPACT_TIMING if header != "of ceiling"]


def columns(run: Run, recorded: Run | None = None, compact: bool = False) -> list[Column]:
    """The columns for a run: its timings, or else the compiler's figures and, marked as such, recorded timings.

    compact: for a terminal; short names, and no spreads.
    """
    worded = PASSES[run.direction].worded
    return [(worded(header), text) for header, text in _columns(run, recorded, compact)]


def _columns(run: Run, recorded: Run | None, compact: bool) -> list[Column]:
    label = [NUMBER, ("name", lambda m: m.name if compact else titled(m))]
    if run.ranks > 1:
        return label + (TOGETHER if run.timed else [SENT]) + CHECKING
    if run.timed:
        known = any(m.clock_ghz for m in run.everybody)
        clocked = [*CLOCKED, *([] if compact else [cycles_and_clock(run)])] if known else []
        repeated = [REPEATED] if any(m.repeat_difference is not None for m in run.everybody) else []
        published = [ERROR_RATIO, *([COSINE] if any(m.cosine for m in run.everybody) else [])]
        timing = COMPACT_TIMING if compact else TIMING
        if any(m.gigabytes_per_s for m in run.everybody):
            timing = [*timing[:2], BYTES, *timing[2:]]
        if compact:
            return label + timing + clocked + CHECKING + repeated + other_days(run.everybody)
        wrong, right = CHECKING
        return [*label, right, *timing, *clocked, wrong, *published, *repeated, *other_days(run.everybody)]
    return label + CHECKING + RESOURCES + (recorded_columns(recorded) if recorded else [])


def rows(measurements: Sequence[Measurement], columns: Sequence[Column]) -> list[list[str]]:
    """The cells; a step that was skipped or failed shows that alone, and ``reasons`` says why."""
    table = []
    for m in measurements:
        cells = [text(m) for _, text in columns]
        if m.reason:
            cells[2:] = [m.status] + [""] * (len(cells) - 3)
        table.append(cells)
    return table


def reasons(measurements: Sequence[Measurement]) -> list[str]:
    """A line for everyone who was skipped or failed."""
    return [f"{m.label} {outcome(m)}" for m in measurements if m.reason]


@dataclass(frozen=True)
class Readings:
    """What a survey tells of steps on the architectures of one maker: the figures that kernels have there.

    figures: name -> what it is, of ``Compiled.as_dict()``. several: whether there are so many architectures that each
    figure is drawn by itself.
    """

    title: str
    steps: list[str]
    architectures: list[str]
    figures: dict[str, Callable[[dict], float | None]]
    several: bool = False

    def values(self, survey: Survey, step: str, arch: str) -> list[float | None]:
        """The figures of a step, None where there is no kernel or no figure."""
        made = survey.compiled[step].get(arch)
        return [get(made) if isinstance(made, dict) else None for get in self.figures.values()]


EVERYWHERE = {
    "registers per thread": lambda made: made["registers"],
    "spilled bytes per thread": lambda made: made["spilled_bytes"],
    "instructions": lambda made: made["instructions"],
}
COLUMNS = "tensor_columns"
IN_TENSOR_MEMORY = {
    "tensor columns": lambda made: made.get(COLUMNS),
    "shared KiB": lambda made: made["shared_bytes"] / 1024,
    "threads": lambda made: made["threads"],
}
OF_AMD = {
    "VGPRs": lambda made: made["amd"]["vgprs"],
    "AGPRs": lambda made: made["amd"]["agprs"],
    "SGPRs": lambda made: made["amd"]["sgprs"],
    "scratch bytes": lambda made: made["amd"]["scratch_bytes"],
    "LDS KiB": lambda made: made["shared_bytes"] / 1024,
    "waves per SIMD": lambda made: made["amd"]["occupancy"],
    "code, instr.": lambda made: made["instructions"],
}


def readings(survey: Survey) -> list[Readings]:
    """What there is to read in a survey: of NVIDIA's architectures, of tensor memory, of AMD's."""

    def those(architectures: list[str], key: str | None = None) -> list[str]:
        made = {step: [survey.compiled[step].get(arch) for arch in architectures] for step in survey.steps}
        return [s for s, all_of in made.items() if any(isinstance(m, dict) and (not key or m.get(key)) for m in all_of)]

    amds = [arch for arch in survey.architectures if arch.startswith("gfx")]
    nvidias = [arch for arch in survey.architectures if arch not in amds]
    having = [arch for arch in nvidias if any(those([arch], COLUMNS))]
    not_amds = [step for step in survey.steps if step not in those(amds)]
    found = [
        Readings("NVIDIA: registers and spilled bytes of a thread", not_amds, nvidias, EVERYWHERE, several=True),
        Readings("Blackwell: tensor and shared memory of a block", those(having, COLUMNS), having, IN_TENSOR_MEMORY),
        Readings("AMD: registers of a lane or wave, LDS of a block", those(amds), amds, OF_AMD),
    ]
    return [one for one in found if one.steps and one.architectures]


def markdown(headers: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [headers, ["---"] * len(headers), *cells]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


SHAPE = ("B", "H", "KV heads", "D", "dtype", "mask")  # what tells a family of problems from others

Lengths = tuple[int, int]  # of queries and keys


def by_problem(cells: Sequence[tuple[Run, str]], filled: float = 0.0) -> str:
    """Markdown: for each machine tables with a row for each family of problems and a column for each length.

    Families share a table where the lengths of one are among those of another, and fill so large a share of its
    columns. No table mixes compilers.
    """
    machines: dict[tuple[str, str], list[tuple[Run, str]]] = {}
    for run, cell in sorted(cells, key=lambda item: item[0].the_problem().order):
        machines.setdefault(run.made_by, []).append((run, cell))
    made = []
    for (machine, compilers), found in machines.items():
        made.append(f"{', '.join(filter(None, [machine, days([run for run, _ in found]), compilers]))}:")
        families: dict[str, tuple[Problem, dict[Lengths, str]]] = {}
        for run, cell in found:
            problem = run.the_problem()
            _, by_length = families.setdefault(problem.family, (problem, {}))
            by_length[problem.seq_len_q, problem.seq_len_kv] = cell
        made += [_table_of(rows) for rows in _sharing_lengths(list(families.values()), filled)]
    return "\n\n".join(made)


def _sharing_lengths(
    rows: list[tuple[Problem, dict[Lengths, str]]], filled: float
) -> list[list[tuple[Problem, dict[Lengths, str]]]]:
    """The rows of every table, in their order; the first table is that of the most lengths."""

    def fits(lengths: set[Lengths], wide: set[Lengths]) -> bool:
        return lengths <= wide and len(lengths) >= filled * len(wide)

    widest: list[set[Lengths]] = []
    for lengths in sorted((set(by_length) for _, by_length in rows), key=len, reverse=True):
        if not any(fits(lengths, other) for other in widest):
            widest.append(lengths)
    shared: list[list] = [[] for _ in widest]
    for problem, by_length in rows:
        first = next(n for n, lengths in enumerate(widest) if fits(set(by_length), lengths))
        shared[first].append((problem, by_length))
    return shared


def _table_of(rows: list[tuple[Problem, dict[Lengths, str]]]) -> str:
    lengths = sorted({each for _, by_length in rows for each in by_length})
    headers = [*SHAPE, *(f"S={q}" if q == kv else f"S={q}x{kv}" for q, kv in lengths)]
    return markdown(headers, [[*_shape(p), *(cells.get(each, NOTHING) for each in lengths)] for p, cells in rows])


def _shape(problem: Problem) -> list[str]:
    counts = problem.batch, problem.heads, problem.kv_heads, problem.head_dim
    packed = f", packed: {packed_lengths(problem)}" if problem.lengths else ""
    return [*map(str, counts), problem.short_dtype, f"{problem.mask}{packed}"]


def packed_lengths(problem: Problem) -> str:
    """How many sequences are packed, and of which lengths, such as ``16 of 44 to 8,192``."""
    shortest, longest = min(problem.lengths), max(problem.lengths)
    told = f"{shortest:,}" if shortest == longest else f"{shortest:,} to {longest:,}"
    return f"{len(problem.lengths)} of {told}"


def subject(run: Run) -> str:
    """What was computed."""
    return PASSES[run.direction].title


def days(runs: Sequence[Run]) -> str:
    """When runs were measured: the day, or the first and the last."""
    found = sorted({run.day for run in runs})
    return " to ".join(dict.fromkeys((found[0], found[-1])))


def provenance(run: Run) -> str:
    """Where and when, in one line: what must stand beside every recorded number."""
    return f"{run.machine['name']}, {run.the_problem().describe()}, {run.day}"


def origin(run: Run) -> str:
    """As ``provenance``, and which compilers the code is of: where code may stand beside that others have made."""
    return ", ".join(filter(None, [provenance(run), run.compilers]))


def most_changed(rows: list[list], count: int) -> list[list]:
    """Of rows ``[name, what was, what is]`` so many as changed most, in their order."""

    def change(row: list) -> float:
        before, now = (cell if isinstance(cell, int | float) else _number(cell) for cell in row[1:])
        if before is None or now is None:
            return float(row[1] != row[2])
        return abs(now - before) / max(abs(now), abs(before), 1e-9)

    compared = [row for row in rows if row[1] != row[2] and not {None, NOTHING} & set(row)]  # both are known
    changed = sorted(compared, key=change, reverse=True)[:count]
    return [row for row in rows if row in changed]


def _number(cell: object) -> float | None:
    found = re.match(r"[\d.,]+", str(cell))
    try:
        return float(found[0].replace(",", "")) if found else None
    except ValueError:
        return None
