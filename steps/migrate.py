"""``python -m steps.migrate DIR``: rewrites the records under DIR that are of schema 1 in today's schema.

Everything measured stays as it is. What stands for a step today comes from today's ladder: number, title, what it
changes, its file, part and predecessor; how it compares with that one is computed anew from the recorded rounds. A step
without a record stays out, and so do the records of steps that are no more, but for their latencies in the rounds.
Either every file is rewritten or, where one cannot be, none. Exit status: 0 done; 1 they cannot be written; 2 bad
request.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from pydantic import ValidationError

from steps.core import ladder
from steps.core.ladder import OLD_NAMES, OLD_NUMBERS, get_step, module_file, part_of
from tutorial_lib.command import BadRequest, as_command, check_writable, parser_of
from tutorial_lib.files import write_whole
from tutorial_lib.problem import Problem
from tutorial_lib.results import SCHEMA, Measurement, ResultsError, Run, Search, Survey, as_json

OLD_SCHEMA = 1


def _up_to_128(problem: Problem) -> bool:
    return problem.head_dim <= 128


def _at_256(problem: Problem) -> bool:
    return problem.head_dim == 256


# Which old record a step takes, and on which problems; a step that is not here takes the one of its own name, always.
# Elsewhere the code of these steps was not what they are today, or nobody measures them there.
TAKES: dict[str, Sequence[tuple[str, Callable[[Problem], bool]]]] = {
    "three_groups": [("turns", lambda problem: True)],
    "room": [("early_query", _at_256), ("half_output", _up_to_128)],  # one code under both names
    "lean_sum": [("lean_sum", _up_to_128)],
    "half_output": [("half_output", _at_256)],
    "half_query": [("half_query", _at_256)],
    "late_wait": [("late_wait", lambda problem: problem.head_dim == 128 and problem.causal)],
}

Codes = dict[str, tuple[str, int, int, int]]  # "name|slug" -> fingerprint, instructions, registers, shared_bytes


def old_name(name: str, problem: Problem) -> str | None:
    """The name under which a step's record on a problem stands in schema 1, or None where there can be none."""
    takes = TAKES.get(name, [(name, lambda problem: True)])
    return next((old for old, where in takes if where(problem)), None)


def migrate_run(old: dict, codes: Codes | None = None) -> tuple[Run, list[str]]:
    """A run of schema 1 in today's schema, and warnings: codes that are not of what was measured."""
    problem = Problem(**old["problem"])
    records = {m["name"]: m for m in old["steps"]}
    rounds = [{**r, "latency_ms": dict(r["latency_ms"])} for r in old["rounds"]]
    warnings: list[str] = []
    found: dict[str, Measurement] = {}
    for step in (*ladder.STEPS, *ladder.INSIDE):
        record = records.get(old_name(step.name, problem))
        if record is None:
            continue
        for r in rounds:
            if record["name"] in r["latency_ms"]:
                r["latency_ms"][step.name] = r["latency_ms"][record["name"]]
        resources, warning = _with_code(record["resources"], f"{step.name}|{problem.slug}", codes or {})
        warnings += warning
        told = {**_from_the_ladder(step), "resources": resources, "speedup_vs_previous": None}
        found[step.name] = Measurement.model_validate({**record, **told})
    run = Run.model_validate(
        {
            **old,
            "schema": SCHEMA,
            "steps": [found[step.name] for step in ladder.STEPS if step.name in found],
            "inside": [found[step.name] for step in ladder.INSIDE if step.name in found],
            "rounds": rounds,
            "notes": [_by_name(note) for note in old["notes"]],
        }
    )
    return run.model_copy(
        update={"steps": [_compared(run, m) for m in run.steps], "inside": [_compared(run, m) for m in run.inside]}
    ), warnings


def _from_the_ladder(step) -> dict:
    owner = get_step(step.inside) if step.inside else step
    return {
        "number": step.number,
        "name": step.name,
        "title": step.title,
        "change": step.change,
        "key_changes": step.key_changes(),
        "file": module_file(step),
        "part": part_of(owner.number).name,
        "fork": step.fork,
        "inside": step.inside,
        "previous": step.previous.name if step.previous else None,
        "previous_number": step.previous.number if step.previous else None,
    }


def _compared(run: Run, m: Measurement) -> Measurement:
    """A measurement, compared with its predecessor in the rounds of the same run, where both were timed."""
    previous = run.measurement(m.previous) if m.previous else None
    both = previous is not None and m.status == previous.status == "measured"
    return m.model_copy(update={"speedup_vs_previous": run.speedup(m, previous) if both else None})


def _with_code(resources: dict | None, key: str, codes: Codes) -> tuple[dict | None, list[str]]:
    """Resources with the fingerprint of their code, if it is known to be of this code; else a warning."""
    if resources is None or key not in codes:
        return resources, []
    code, *figures = codes[key]
    recorded = [resources[name] for name in ("instructions", "registers", "shared_bytes")]
    if figures != recorded:
        told = f"{figures} instructions, registers and bytes of shared memory, recorded {recorded}: no fingerprint"
        return resources, [f"{key.replace('|', ', ')}: {told}"]
    return {**resources, "code": code}, []


def _by_name(note: str) -> str:
    """A note with the names of the steps in place of the numbers that they once had."""

    def name(number: re.Match) -> str:
        old = OLD_NUMBERS[int(number[0])]
        return OLD_NAMES.get(old, old)

    numbers = r"\bsteps? \d+(?:(?:, | and | to )\d+)*"
    return re.sub(numbers, lambda found: re.sub(r"\d+", name, found[0]), note)


def migrate_survey(old: dict) -> Survey:
    """A survey of schema 1 under today's labels."""
    problem = Problem(**old["problem"])
    labels = {label.split()[-1]: label for label in old["steps"]}
    found = {
        step.label: old["compiled"][labels[name]]
        for step in (*ladder.STEPS, *ladder.INSIDE)
        if (name := old_name(step.name, problem)) in labels
    }
    return Survey.model_validate({**old, "schema": SCHEMA, "steps": list(found), "compiled": found})


def migrated(path: Path, codes: Codes | None = None) -> tuple[str, list[str]] | None:
    """What is to stand in a record's file, and warnings; None for a file that is none, or not of schema 1.

    Raises ResultsError for one that says it is of schema 1 and is not.
    """
    kind = path.parent.parent.name if path.parent.parent.name == "trials" else path.name
    if kind not in ("results.json", "trials", "survey.json", "search.json"):
        return None
    try:
        old = json.loads(path.read_bytes())
        if not isinstance(old, dict) or old.get("schema") != OLD_SCHEMA:
            return None
        if kind == "results.json":
            run, warnings = migrate_run(old, codes)
            return as_json(run), [f"{path}: {warning}" for warning in warnings]
        if kind == "survey.json":
            return as_json(migrate_survey(old)), []
        # A trial's versions are no steps of the ladder, whatever their names.
        record = (Run if kind == "trials" else Search).model_validate({**old, "schema": SCHEMA})
        return as_json(record), []
    except (ValidationError, ValueError, KeyError, TypeError) as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ResultsError(f"{path} is not of schema {OLD_SCHEMA}: {why}") from None


def read_codes(path: Path) -> Codes:
    """A JSON file of fingerprints; raises ResultsError."""
    try:
        codes = {key: tuple(figures) for key, figures in json.loads(path.read_bytes()).items()}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise ResultsError(f"cannot read fingerprints from {path}: {error}") from None
    if wrong := [key for key, figures in codes.items() if "|" not in key or len(figures) != 4]:
        raise ResultsError(f'{path}: must hold "name|problem": [code, instructions, registers, shared], got {wrong[0]}')
    return codes


def run(options: argparse.Namespace) -> int:
    if not options.folder.is_dir():
        raise BadRequest(f"argument DIR: must be a folder of records, got {options.folder}")
    check_writable("DIR", options.folder)
    codes = read_codes(options.code) if options.code else {}
    paths = sorted(options.folder.rglob("*.json"))
    made = {path: found for path in paths if (found := migrated(path, codes))}  # all of them, before any is written
    for path, (text, warnings) in made.items():
        write_whole(path, text)
        for warning in warnings:
            print(warning)
        print(f"{path}: schema {OLD_SCHEMA} to {SCHEMA}")
    total = sum(len(warnings) for _, warnings in made.values())
    told = f", {total} fingerprints left out" if total else ""
    print(f"{len(made)} records under {options.folder} rewritten in schema {SCHEMA}{told}.")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of("steps.migrate", __doc__)
    parser.add_argument("folder", type=Path, metavar="DIR", help="where the records are, such as results")
    codes = "fingerprints of the machine code by step and problem: a step with the code of another is never faster"
    parser.add_argument("--code", type=Path, metavar="FILE", help=codes)
    return as_command("steps.migrate", lambda: run(parser.parse_args(arguments)), wrong=(ValueError,))


if __name__ == "__main__":
    sys.exit(main())
