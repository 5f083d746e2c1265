"""The ladder as ``python -m steps.run --list`` shows it: on one screen, or a part with what each step changes."""

from __future__ import annotations

from collections.abc import Sequence

from tutorial_lib.architectures import AMD_GPUS, REFERENCE_GPUS
from tutorial_lib.needs import is_missing

EVERY, SINCE_AMPERE, SEVERAL = "any GPU", "NVIDIA since Ampere", "several GPUs, or processes on a CPU"


def gpus_of(step) -> str:
    """On which GPUs a step runs what it is for: words for a step's line, such as ``H100 (sm_90)``.

    One GPU stands for its architecture (``REFERENCE_GPUS``, ``AMD_GPUS``).
    """
    if step.several:
        return SEVERAL
    if is_missing(step.package):
        return f"Here without {step.package}, none"
    known = {**REFERENCE_GPUS, **AMD_GPUS}
    able = [arch for arch in known if step.unsupported(step.default_problem, arch) is None]
    if len(able) == len(known):
        return EVERY
    if able == list(REFERENCE_GPUS):
        return SINCE_AMPERE
    return ", ".join(f"{known[arch].name.split()[0]} ({arch})" for arch in able) or "no GPU that is known here"


def steps_of_part(part) -> list:
    """All steps of a part, of every pass, by their numbers."""
    from steps import GRADIENTS, PAGED, PARALLEL, QUANTIZED, STEPS

    found = (step for step in (*STEPS, *GRADIENTS, *PAGED, *QUANTIZED, *PARALLEL) if step.number in part.numbers)
    return sorted(found, key=lambda step: step.number)


def list_parts(console) -> None:
    """Every part with its steps, by the GPUs that they run on; forks in brackets."""
    from steps.core.ladder import PARTS

    told = "Steps by part and GPU, (forks) in brackets. --list PART says what each changes."
    console.print(told, soft_wrap=True)
    for part in PARTS:
        named = part.title.lower().startswith(f"{part.name}: ")
        title = part.title[len(part.name) + 2 :] if named else part.title
        console.print(f"{part.name}: {title}", style="bold", soft_wrap=True)
        groups: dict[str, list[str]] = {}
        for step in steps_of_part(part):
            groups.setdefault(gpus_of(step), []).append(f"({step.label})" if step.fork else step.label)
        for where, labels in groups.items():
            for line in _lines(f"{where}: ", labels, console.width - 2):
                console.print(f"  {line}", soft_wrap=True)


def _lines(begin: str, labels: Sequence[str], room: int) -> list[str]:
    """The labels in lines of up to ``split_epilogue`` characters, none of them broken."""
    lines = [begin]
    for n, label in enumerate(labels):
        word = label + (", " if n + 1 < len(labels) else "")
        if len(lines[-1]) + len(word.rstrip()) > room:
            lines.append("")
        lines[-1] += word
    return [line.rstrip() for line in lines]


def list_part(console, part) -> None:
    """The steps of a part, what each stands on, where it runs, and what it changes; below it what it was made of."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from steps import INSIDE

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), title=f"{part.name}: {part.title}", title_justify="left")
    for header in ("step", "name", "stands on"):
        table.add_column(header, no_wrap=True, justify="right" if header == "step" else "left")
    table.add_column("what changes, and the GPUs it runs on", overflow="fold")
    for step in steps_of_part(part):
        on = step.previous.name if step.previous else ""
        name = f"{step.name} (fork)" if step.fork else step.name
        table.add_row(str(step.number), name, on, f"{step.change} [{gpus_of(step)}]".replace("[", "\\["))
        for piece in (piece for piece in INSIDE if piece.inside == step.name):
            on = piece.previous.name if piece.previous else ""
            table.add_row("", f"  {piece.name}", on, piece.change.replace("[", "\\["))
    console.print(table)
