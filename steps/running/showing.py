"""The table of a run as ``python -m steps.run`` shows it, what a reader must know beside it, and what was learned."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from tutorial_lib import columns, tables
from tutorial_lib.passes import PASSES
from tutorial_lib.results import Measurement, Run


def show_run(console, run: Run, recorded: Run | None) -> None:
    """The table of one run, what stands below it, and one sentence on what was learned.

    A terminal is shown the columns that fit; whatever else takes the text gets all of them. recorded: a run of the same
    problem with timings, where this one has none.
    """
    room = console.width if console.is_terminal else None
    told = f"\n{tables.subject(run)}, step by step: {tables.provenance(run)}"
    console.print(told, style="bold", soft_wrap=room is None)
    wanted = columns.chosen(run, recorded, whole=room is None)
    mine, timings = [c for c in wanted if not c.timing], [c for c in wanted if c.timing]
    parts = [(wanted, None)]
    if recorded is not None and timings:  # what is recorded stands behind what was found here, or below it
        marked = mine + [replace(c, header=f"recorded\n{c.header}") for c in timings]
        parts = [(marked, recorded)]
        if room is not None and columns.width(console, columns.drawn(run, marked, recorded)) > room:
            parts = [(mine, None), ([*(c for c in mine if c.rank == 0), *timings], recorded)]
    for number, (part, source) in enumerate(parts):
        if number:
            console.print(f"\nRecorded, not measured here: {tables.origin(recorded)}", style="bold")
        table = columns.fitting(console, run, part, source)
        usual, console.width = console.width, max(console.width, columns.width(console, table))  # a file has room
        console.print(table)
        console.width = usual
    for line in not_run(run.everybody):
        console.print(line, soft_wrap=room is None, markup=False)  # what failed may say "[/tmp]"
    if run.ceiling:
        console.print(f"Ceiling: {tables.ceiling_told(run)} in the same rounds.", soft_wrap=room is None)
    if run.sustained:
        _show_sustained(console, run)
    for note in run.told:
        console.print(f"Note: {note}", soft_wrap=room is None, markup=False)
    if not run.timed and run.ranks == 1 and {c.key for c in wanted} & {"regs", "spills", "loop"}:
        words = "regs, spills: a thread's registers, instructions that spill them. hot loop: instructions per K/V tile."
        console.print(words, soft_wrap=room is None)
    if recorded:
        console.print(f"Recorded timings were measured elsewhere: {tables.origin(recorded)}.", soft_wrap=room is None)
    elif not run.timed:
        console.print("Nothing was timed here, and no timing of this problem is recorded.", soft_wrap=room is None)
    console.print(learned(run, recorded), style="bold", soft_wrap=room is None)


def _show_sustained(console, run: Run) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    console.print("\nIn a load that goes on, without rest:", style="bold")
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    headers, lines = tables.sustained(run)
    for n, header in enumerate(headers):
        table.add_column(header, no_wrap=n == 0, justify="right" if n else "left")
    for cells in lines:
        table.add_row(*cells)
    console.print(table)


def not_run(measurements: Sequence[Measurement]) -> list[str]:
    """A line for everyone who failed, and one for each reason why some were skipped."""
    skipped: dict[str, list[str]] = defaultdict(list)
    for m in measurements:
        if m.status == "skipped":
            skipped[m.reason or "no reason is known"].append(m.label)
    lines = [f"{m.label} {tables.outcome(m)}" for m in measurements if m.reason and m.status != "skipped"]
    return lines + [f"Skipped: {', '.join(labels)}: {reason}" for reason, labels in skipped.items()]


def learned(run: Run, recorded: Run | None = None) -> str:
    """One sentence: the fastest step, against SDPA, and where the largest step came; or what was checked."""
    source = run if run.timed else recorded
    names = {m.name for m in run.everybody if m.status != "skipped"}
    ranking = [m for m in source.by_speed() if m.name in names] if source else []
    told = []
    if not run.timed:
        tried = [m for m in run.everybody if m.correct is not None or m.status == "failed"]
        checked = [m for m in tried if m.name != PASSES[run.direction].baseline]
        right = sum(bool(m.correct) and m.status != "failed" for m in checked)
        if checked:
            few = (
                "The step that was checked here is"
                if len(checked) == 1
                else f"All {len(checked)} steps checked here are"
            )
            wrong = f"{right} of {len(checked)} steps checked here are"
            told.append(f"{few if right == len(checked) else wrong} right")
        else:
            told.append("Nothing was checked here")
    if not ranking:
        return f"{'; '.join(told) or 'Nothing that was timed is known to be right'}."
    best = ranking[0]
    sentence = f"the fastest is {best.label}, {best.tflops:.0f} TFLOPS"
    if best.speedup_vs_baseline:
        sentence += f", {best.speedup_vs_baseline.median:.2f}× {PASSES[source.direction].baseline_in_tables}"
    measured = [m for m in source.steps if m.name in names and m.correct]
    if (largest := largest_gain(source, measured)) is not None:
        before = source.measurement(largest.previous)
        on = before.label if before else largest.previous
        gain = largest.speedup_vs_previous.median
        sentence += f"; the largest step was {largest.label}, {gain:.2f}× as fast as {on}"
    where = "" if run.timed else f"recorded on {recorded.machine['name']}, "
    whole = "; ".join([*told, where + sentence])
    return f"{whole[0].upper()}{whole[1:]}."


def largest_gain(run: Run, measured: Sequence[Measurement]) -> Measurement | None:
    """Of those measured the one that gained most on the step before; None where none is faster than it.

    From PyTorch's own calls to a first fused kernel is another kind of step, by far the largest: it does not count.
    """

    def from_a_kernel(m: Measurement) -> bool:
        before = run.measurement(m.previous) if m.previous else None
        return before is not None and before.resources is not None

    found = [m for m in measured if (s := m.speedup_vs_previous) and s.verdict == "faster" and from_a_kernel(m)]
    return max(found, key=lambda m: m.speedup_vs_previous.median, default=None)
