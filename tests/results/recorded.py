"""The recorded runs of the repository, as tests use them.

EVERYTHING: all that were timed; RECORDED: those of them of the forward pass on one GPU. Newest first.
"""

import subprocess
from pathlib import Path

from steps.core.recorded import read_run
from tests.selection import ROOT
from tutorial_lib.results import Run, of_one_machine

HEADLINE = "b4_h32_s4096_d128_fp16_causal"


def tracked(*patterns: str) -> list[Path]:
    """Files that belong to the repository; what a user measured here since is none of its claims."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", *patterns], cwd=ROOT, capture_output=True, encoding="utf-8", check=True
    )
    return [path for line in listed.stdout.split("\0") if line and (path := ROOT / line).exists()]


PATHS = [path for path in tracked("results/*/*/results.json") if "/trials/" not in str(path)]
EVERYTHING = sorted((run for run in map(read_run, PATHS) if run.timed), key=lambda run: run.date, reverse=True)
RECORDED = [run for run in EVERYTHING if run.direction == "forward" and run.ranks == 1]


def recorded(slug: str = HEADLINE, machine: str | None = None) -> Run:
    """The recorded run of a problem: on the machine of the headline, unless one is named."""
    runs = RECORDED if machine else of_one_machine(RECORDED)
    return next(run for run in runs if run.the_problem().slug == slug and machine in (None, run.machine["slug"]))
