"""The recorded runs of the repository, as tests use them: in today's schema, whichever they are written in.

EVERYTHING: all that were timed; RECORDED: those of them of the forward pass on one GPU. Newest first.
"""

import json
import subprocess
from pathlib import Path

from steps.migrate import OLD_SCHEMA, migrate_run
from tutorial_lib.problem import Problem
from tutorial_lib.results import Run, of_one_machine

ROOT = Path(__file__).resolve().parent.parent.parent
HEADLINE = "b4_h32_s4096_d128_fp16_causal"


def tracked(*patterns: str) -> list[Path]:
    """Files that belong to the repository; what a user measured here since is none of its claims."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", *patterns], cwd=ROOT, capture_output=True, encoding="utf-8", check=True
    )
    return [path for line in listed.stdout.split("\0") if line and (path := ROOT / line).exists()]


def read(path: Path) -> Run:
    data = json.loads(path.read_bytes())
    return migrate_run(data)[0] if data["schema"] == OLD_SCHEMA else Run.model_validate(data)


PATHS = [path for path in tracked("results/*/*/results.json") if "/trials/" not in str(path)]
EVERYTHING = sorted((run for run in map(read, PATHS) if run.timed), key=lambda run: run.date, reverse=True)
RECORDED = [run for run in EVERYTHING if run.direction == "forward" and run.ranks == 1]


def recorded(slug: str = HEADLINE, machine: str | None = None) -> Run:
    """The recorded run of a problem: on the machine with most records, unless one is named."""
    runs = RECORDED if machine else of_one_machine(RECORDED)
    return next(run for run in runs if run.the_problem().slug == slug and machine in (None, run.machine["slug"]))


def of_schema_1(run: Run) -> dict:
    """What schema 1 would have held of a run, under the names of then; what the ladder says of steps is nonsense."""
    head_dim = Problem(**run.problem).head_dim
    before = {"three_groups": "turns", "room": "early_query" if head_dim == 256 else "half_output"}
    old = json.loads(run.model_dump_json(by_alias=True))
    steps = old["steps"] + old.pop("inside")
    old.pop("direction")
    for m in [*steps, *old["peers"]]:
        for field in ("file", "part", "fork", "inside"):
            m.pop(field)
        for field in ("speedup_vs_baseline", "speedup_vs_previous"):
            if m[field]:
                m[field].pop("same_code")
        if m["resources"]:
            m["resources"].pop("code", None)
    for number, m in enumerate(steps):
        m |= {"name": before.get(m["name"], m["name"]), "number": number, "title": "?", "change": "?"}
        m |= {"key_changes": ["?"], "previous": "sdpa", "previous_number": 0}
    for r in old["rounds"]:
        for now, then in before.items():
            if now in r["latency_ms"]:
                r["latency_ms"][then] = r["latency_ms"].pop(now)
    return {**old, "schema": OLD_SCHEMA, "steps": steps}
