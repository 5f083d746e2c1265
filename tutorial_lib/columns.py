"""The columns of a run's table on a terminal: which there are, which fit, and how a row reads.

``--columns`` of ``steps.run`` takes their keys. Reports have columns of their own (``tables.columns``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from rich.cells import cell_len

from tutorial_lib import tables
from tutorial_lib.naming import unknown
from tutorial_lib.results import Measurement, Run
from tutorial_lib.tables import NOTHING

GAP, NARROW = 2, 1  # characters between columns; where that makes room for more
FASTEST = "fastest"


@dataclass(frozen=True)
class Column:
    """key: for ``--columns``; about: what it says. header: a line break is taken where the terminal is narrow.

    whose: "run" for what was found here, "timing" for what only a GPU tells and a record can fill in. rank: the columns
    of the highest rank leave first where there is no room; 0 stays; None: only where it is asked for, and in a file.
    """

    key: str
    header: str
    about: str
    text: Callable[[Measurement], str]
    rank: int | None = None
    whose: str = "run"
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


def _split(run: Run) -> Callable[[Measurement], str]:
    return tables.cycles_and_clock(run)[1]


def _timing(key: str, header: str, about: str, text: Callable, rank: int | None = None) -> Column:
    return Column(key, header, about, text, rank, "timing")


STEP = Column("step", "step", "number in the ladder", tables.NUMBER[1], 0)
NAME = Column("name", "name", "the name that --steps takes", lambda m: m.name, 0, left=True)

COLUMNS: dict[str, Column] = {
    column.key: column
    for column in (
        STEP,
        NAME,
        Column("title", "title", "the step in a few words", tables.titled, left=True),
        _timing("ms", "ms", "milliseconds of a call, the median over rounds", _milliseconds, 3),
        _timing("spread", "ms p10–p90", "its 10th and 90th percentile", lambda m: _spread(m)),
        _timing("tflops", "TFLOPS", "operations of the matrix products a second, on one GPU", tables.tflops, 1),
        _timing("gbs", "GB/s", "bytes a second, where they decide", tables.BYTES[1], 1),
        _timing("sdpa", "of\nSDPA", "times as fast as SDPA", lambda m: tables.factor(m.speedup_vs_baseline), 1),
        _timing(
            "before", "of the\nstep before", "times as fast as the step before, and whether that is noise", before, 2
        ),
        _timing(
            "ideal", "of\nideal", "share of what so many GPUs would do alone", lambda m: _share(m.percent_of_ideal), 2
        ),
        _timing("ceiling", "of\nceiling", "share of a matrix product's, or of a copy's, speed", tables.ceiling),
        _timing("ghz", "GHz", "the SMs' clock", tables.CLOCKED[0][1]),
        _timing("cycles", "million\ncycles", "of the SMs in a call", tables.CLOCKED[1][1]),
        _timing("split", "cycles\n× clock", "what the gain on the step before consists of", lambda m: NOTHING),
        _timing("host", "host\nµs", "that the host needs for a call", tables.CLOCKED[2][1]),
        Column("sent", "MB\nsent", "by a rank in a call", tables.sent, 2),
        _timing("sending", "sending\nms", "what is sent, timed alone", tables.of_exchange("sending_ms")),
        _timing("hidden", "of it\nhidden", "of the sending, ms that cost no time", tables.of_exchange("hidden_ms")),
        _timing("open", "not\nhidden", "of the sending, ms that do", tables.of_exchange("open_ms")),
        Column("error", "error, of\nSDPA's", "the largest error as a multiple of SDPA's", tables.error_ratio, 4),
        Column("absolute", "error (SDPA's)", "the largest error, and SDPA's", tables.error),
        Column("cosine", "cosine", "of the angle between output and float64's", tables.COSINE[1]),
        Column("correct", "correct", "whether the error is allowed", tables.correct, 1),
        Column("bits", "same\nbits", "whether calls repeat to the last bit", tables.REPEATED[1], 3),
        Column("regs", "regs", "registers of a thread", tables.resource("registers"), None),
        Column("spills", "spills", "instructions that spill them", tables.resource("spill_instructions"), None),
        Column(
            "loop",
            "hot loop",
            "instructions of an iteration of the hot loop",
            tables.resource("hot_loop_instructions"),
            None,
        ),
        Column("shared", "shared\nbytes", "shared memory of a block", tables.resource("shared_bytes")),
        Column("blocks", "blocks\nan SM", "that fit on an SM at once", tables.resource("blocks_per_sm")),
        Column("day", "on another day", "measured earlier, and when", lambda m: m.earlier or ""),
    )
}
UNTIMED_RANKS = {"regs": 3, "spills": 3, "loop": 3, "absolute": 2, "error": None}  # without a GPU


def _spread(m: Measurement) -> str:
    return NOTHING if m.latency_ms is None else f"{m.latency_ms.low:.3g}–{m.latency_ms.high:.3g}"


def _share(percent: float | None) -> str:
    return NOTHING if percent is None else f"{percent:.1f} %"


def parse(text: str) -> tuple[str, ...]:
    """The keys that ``--columns`` names, each once; raises ValueError that tells the nearest ones."""
    if text == "all":
        return tuple(COLUMNS)
    keys = [word.strip() for word in text.split(",")]
    for key in keys:
        if key not in COLUMNS:
            raise ValueError(unknown("column", key, COLUMNS, "`python -m steps.run --help` lists them"))
    return tuple(dict.fromkeys(keys))


@dataclass(frozen=True)
class Layout:
    """A table: its columns, its rows as (measurement, cells), and the keys of what was asked for and found no room."""

    columns: list[Column]
    rows: list[tuple[Measurement, list[str]]]
    fastest: str | None
    left_out: tuple[str, ...] = ()
    gap: int = GAP

    def lines(self, broken: bool) -> tuple[list[str], list[tuple[Measurement, str]]]:
        """(the lines of the head, the last of them a rule; everybody's line).

        broken: whether headers are broken where they may be.
        """
        headers = [c.header.split("\n") if broken else [c.header.replace("\n", " ")] for c in self.columns]
        height = max(map(len, headers))
        head = [list(line) for line in zip(*([""] * (height - len(h)) + h for h in headers))]
        marked = self.fastest is not None
        body = [
            [*cells, *([FASTEST] if m.name == self.fastest else [""])] if marked else cells for m, cells in self.rows
        ]
        head = [[*line, ""] if marked else line for line in head]
        widths = [max(map(cell_len, column)) for column in zip(*head, *body)]
        lefts = [c.left for c in self.columns] + [True] * marked

        def line(cells: Sequence[str]) -> str:
            told = []
            for cell, wide, left in zip(cells, widths, lefts, strict=True):
                space = " " * (wide - cell_len(cell))
                told.append(cell + space if left else space + cell)
            return (" " * self.gap).join(told).rstrip()

        rule = "─" * (sum(widths) + self.gap * (len(widths) - 1))
        return [*map(line, head), rule], [(m, line(cells)) for (m, _), cells in zip(self.rows, body, strict=True)]


def chosen(run: Run, recorded: Run | None, asked: Sequence[str] = (), whole: bool = False) -> list[Column]:
    """The columns of a run's table, in order: those asked for, else those of its kind that tell anything.

    recorded: a run that fills in timings that this one lacks. whole: with those that are for files.
    """
    available = [_of_run(column, run, recorded) for column in COLUMNS.values()]
    if asked:
        wanted = [next(c for c in available if c.key == key) for key in asked if key not in (STEP.key, NAME.key)]
        return [STEP, NAME, *(replace(column, rank=n + 1) for n, column in enumerate(wanted))]
    found = [c for c in available if c.rank is not None or whole]
    alone = run.ranks == 1
    found = [c for c in found if not (c.key == "ideal" and alone) and not (c.key == "tflops" and _by_bytes(run))]
    return [c for c in found if c.rank == 0 or c.filled(run.everybody)]


def _by_bytes(run: Run) -> bool:
    """Whether bytes a second tell more than operations."""
    return any(m.gigabytes_per_s for m in run.everybody)


def _of_run(column: Column, run: Run, recorded: Run | None) -> Column:
    """A column with what fills it in this run."""
    if not run.timed and column.key in UNTIMED_RANKS:
        column = replace(column, rank=UNTIMED_RANKS[column.key])
    source = run if run.timed else recorded
    if column.key == "split" and source:
        column = replace(column, text=_split(source))
    if column.key == "before":
        there = [m for m in run.everybody if m.status != "skipped"]
        above = {m.name: one.name for one, m in pairwise(there)}
        column = replace(column, text=lambda m: before(m, above.get(m.name)))
    if column.whose == "run" or run.timed:
        return column

    def told(m: Measurement, text=column.text) -> str:
        found = recorded and recorded.measurement(m.name)
        return text(found) if found else NOTHING

    return replace(column, text=told)


def fitting(
    columns: Sequence[Column], measurements: Sequence[Measurement], room: int | None
) -> tuple[list[Column], int]:
    """(as many of the columns as fit into ``room`` characters, those of low rank first; the gap between them).

    room: None: all of them.
    """
    if room is None or width(columns, measurements) <= room:
        return list(columns), GAP
    shown = list(columns)
    while width(shown, measurements, NARROW) > room and (droppable := [c for c in shown if c.rank != 0]):
        shown.remove(max(reversed(droppable), key=_rank))
    return shown, GAP if width(shown, measurements) <= room else NARROW


def _rank(column: Column) -> int:
    return len(COLUMNS) if column.rank is None else column.rank


def width(columns: Sequence[Column], measurements: Sequence[Measurement], gap: int = GAP) -> int:
    """Characters of a row: what each column needs, gaps between them, and a place for the mark of the fastest."""

    def needs(column: Column, cells: Sequence[str]) -> int:
        return max(map(cell_len, (*column.header.split("\n"), *cells)))

    told = zip(*(_cells(columns, m) for m in measurements)) if measurements else ((),) * len(columns)
    mark = gap + len(FASTEST) if any(column.whose == "timing" for column in columns) else 0
    return sum(map(needs, columns, told)) + gap * (len(columns) - 1) + mark


def _cells(columns: Sequence[Column], m: Measurement) -> list[str]:
    """A row; of who failed that alone."""
    cells = [column.text(m) for column in columns]
    if m.status == "failed":
        cells[2:] = [m.status, *[""] * len(cells)][: len(cells) - 2]
    return cells


def lay_out(
    run: Run, columns: Sequence[Column], room: int | None, recorded: Run | None = None, asked: bool = False
) -> Layout:
    """The table of everybody who was not skipped; who failed shows that alone, and ``tables`` tells why."""
    there = [m for m in run.everybody if m.status != "skipped"]
    shown, gap = fitting(columns, there, room)
    timed = any(column.whose == "timing" for column in shown)
    source = run if run.timed else recorded
    ranking = [m.name for m in source.by_speed()] if timed and source else []
    fastest = next((name for name in ranking if name in {m.name for m in there}), None)
    rows = [(m, _cells(shown, m)) for m in there]
    left_out = tuple(c.key for c in columns if c not in shown) if asked else ()
    return Layout(shown, rows, fastest, left_out, gap)
