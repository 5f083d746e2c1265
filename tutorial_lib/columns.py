"""The table of a run on a terminal: which columns there are, which fit, and how they are drawn.

Reports have columns of their own (``tables.columns``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from rich.box import SIMPLE_HEAD
from rich.measure import Measurement as Width
from rich.table import Table

from tutorial_lib import tables
from tutorial_lib.passes import PASSES
from tutorial_lib.results import Measurement, Run
from tutorial_lib.tables import NOTHING

GAP, NARROW = 2, 1  # characters between columns; where that makes room for more
FASTEST = "fastest"
ENDLESS = 10_000  # characters of a line in a file


@dataclass(frozen=True)
class Column:
    """header: a line break is taken on a terminal. rank: the columns of the highest rank leave first where there is no
    room; 0 stays; None: only in a file. timing: what only a GPU tells and a record can fill in.
    """

    key: str
    header: str
    text: Callable[[Measurement], str]
    rank: int | None = None
    timing: bool = False
    left: bool = False

    def filled(self, measurements: Sequence[Measurement]) -> bool:
        """Whether it tells anything of any of them."""
        return any(self.text(m) not in (NOTHING, "") for m in measurements)


def before(m: Measurement, above: str | None = None) -> str:
    """Such as ``1.05× faster``; ``than 1``, or a variant's name, where that is not the row above."""
    ratio = m.speedup_vs_previous
    if ratio is None:
        return NOTHING
    told = f"{ratio.median:.2f}× {'same code' if ratio.same_code else ratio.verdict}"
    if m.previous is None or m.previous == above:
        return told
    on = m.previous if m.previous_number is None else m.previous_number
    return f"{told} {'as' if ratio.same_code or ratio.verdict == 'same' else 'than'} {on}"


def _milliseconds(m: Measurement) -> str:
    """Three digits, zeros and all, so that they align."""
    return NOTHING if m.latency_ms is None else f"{m.latency_ms.median:#.3g}".rstrip(".")


def _spread(m: Measurement) -> str:
    return NOTHING if m.latency_ms is None else f"{m.latency_ms.low:.3g}–{m.latency_ms.high:.3g}"


def _share(m: Measurement) -> str:
    return NOTHING if m.percent_of_ideal is None else f"{m.percent_of_ideal:.1f} %"


COLUMNS = (
    Column("step", "step", tables.NUMBER[1], 0),
    Column("name", "name", lambda m: m.name, 0, left=True),
    Column("title", "title", tables.titled, left=True),
    Column("ms", "ms", _milliseconds, 3, timing=True),
    Column("spread", "ms p10–p90", _spread, timing=True),
    Column("tflops", "TFLOPS", tables.tflops, 1, timing=True),
    Column("gbs", "GB/s", tables.BYTES[1], 1, timing=True),
    Column("sdpa", "of\nSDPA", lambda m: tables.factor(m.speedup_vs_baseline), 1, timing=True),
    Column("before", "of the\nstep before", before, 2, timing=True),
    Column("ideal", "of\nideal", _share, 2, timing=True),
    Column("ceiling", "of\nceiling", tables.ceiling, timing=True),
    Column("ghz", "GHz", tables.CLOCKED[0][1], timing=True),
    Column("cycles", "million\ncycles", tables.CLOCKED[1][1], timing=True),
    Column("split", "cycles\n× clock", lambda m: NOTHING, timing=True),
    Column("host", "host\nµs", tables.CLOCKED[2][1], timing=True),
    Column("sent", "MB\nsent", tables.sent, 2),
    Column("sending", "sending\nms", tables.of_exchange("sending_ms"), timing=True),
    Column("hidden", "of it\nhidden", tables.of_exchange("hidden_ms"), timing=True),
    Column("open", "longer\nby", tables.of_exchange("open_ms"), timing=True),
    Column("error", "error, of\nSDPA's", tables.error_ratio, 4),
    Column("absolute", "error (SDPA's)", tables.error),
    Column("cosine", "cosine", tables.COSINE[1]),
    Column("correct", "correct", tables.correct, 1),
    Column("bits", "same\nbits", tables.REPEATED[1], 3),
    Column("regs", "regs", tables.resource("registers")),
    Column("spills", "spills", tables.resource("spill_instructions")),
    Column("loop", "hot loop", tables.resource("hot_loop_instructions")),
    Column("shared", "shared\nbytes", tables.resource("shared_bytes")),
    Column("blocks", "blocks\nper SM", tables.resource("blocks_per_sm")),
    Column("day", "timed earlier, on", lambda m: m.earlier or ""),
)
UNTIMED_RANKS = {"regs": 3, "spills": 3, "loop": 3, "absolute": 2, "error": None}  # without a GPU


def chosen(run: Run, recorded: Run | None, whole: bool = False) -> list[Column]:
    """The columns of a run's table, in order: those of its kind that tell anything.

    recorded: a run that fills in timings that this one lacks. whole: with those that are for files.
    """
    found = [c for c in (_of_run(column, run, recorded) for column in COLUMNS) if c.rank is not None or whole]
    by_bytes = any(m.gigabytes_per_s for m in run.everybody)  # they tell more than operations
    found = [c for c in found if not (c.key == "ideal" and run.ranks == 1) and not (c.key == "tflops" and by_bytes)]
    return [c for c in found if c.rank == 0 or c.filled(run.everybody)]


def _of_run(column: Column, run: Run, recorded: Run | None) -> Column:
    """A column with what fills it in this run."""
    if not run.timed and column.key in UNTIMED_RANKS:
        column = replace(column, rank=UNTIMED_RANKS[column.key])
    column = replace(column, header=PASSES[run.direction].worded(column.header))
    source = run if run.timed else recorded
    if column.key == "split" and source:
        column = replace(column, text=tables.cycles_and_clock(source)[1])
    if column.key == "before":
        above = {m.name: one.name for one, m in pairwise(there(run))}
        column = replace(column, text=lambda m: before(m, above.get(m.name)))
    if not column.timing or run.timed:
        return column

    def told(m: Measurement, text=column.text) -> str:
        found = recorded and recorded.measurement(m.name)
        return text(found) if found else NOTHING

    return replace(column, text=told)


def there(run: Run) -> list[Measurement]:
    """Everybody who was not skipped."""
    return [m for m in run.everybody if m.status != "skipped"]


def width(console, table: Table) -> int:
    """Characters of its rows."""
    return Width.get(console, console.options.update(max_width=ENDLESS), table).maximum


def fitting(console, run: Run, columns: Sequence[Column], recorded: Run | None = None) -> Table:
    """The table with as many of the columns as a terminal has room for, those of low rank first; a file gets all.

    recorded: a run whose timings the columns tell.
    """
    shown, room = list(columns), console.width if console.is_terminal else None
    if room is None:
        return drawn(run, shown, recorded, broken=False)
    if width(console, made := drawn(run, shown, recorded)) > room:
        while width(console, drawn(run, shown, recorded, NARROW)) > room:
            if not (others := [c for c in shown if c.rank != 0]):
                break
            shown.remove(max(reversed(others), key=lambda c: len(COLUMNS) if c.rank is None else c.rank))
        made = drawn(run, shown, recorded)
    return made if width(console, made) <= room else drawn(run, shown, recorded, NARROW)


def drawn(run: Run, columns: Sequence[Column], recorded: Run | None, gap: int = GAP, broken: bool = True) -> Table:
    """The table of everybody who was not skipped; who failed shows that alone, and ``tables`` tells why.

    broken: whether headers are broken where they may be.
    """
    source = run if run.timed else recorded
    ranking = source.by_speed() if source and any(column.timing for column in columns) else []
    names = {m.name for m in there(run)}
    fastest = next((m.name for m in ranking if m.name in names), None)
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, gap - 1, 0, 0))
    for c in columns:
        header = c.header if broken else c.header.replace("\n", " ")
        table.add_column(header, justify="left" if c.left else "right", no_wrap=True, vertical="bottom")
    for m in there(run):
        cells = [column.text(m) for column in columns]
        if m.status == "failed":
            cells[2:] = [m.status, *[""] * (len(cells) - 3)]
        style = "bold green" if m.name == fastest else "red" if m.status == "failed" else ""
        table.add_row(*cells, *([FASTEST] if m.name == fastest else []), style=style)
    return table
