"""The lesson of a step over several GPUs: its ranks are processes on the CPU, and of time a model tells."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from steps.core.ladder import select
from steps.core.problems import LONG
from steps.lesson import Lesson
from steps.parallel import model
from tutorial_lib import tables
from tutorial_lib.display import Html, Page, code, difference, table
from tutorial_lib.problem import Problem
from tutorial_lib.results import Run, read_run

RANKS = 4  # processes of a check
CHECKED = Problem(batch=1, heads=8, kv_heads=4, seq_len_q=264, seq_len_kv=264, head_dim=64, causal=True)
GPUS = 8  # of a prediction
RANK_SAYS = re.compile(r"steps\.run(, rank \d+ of \d+)?: ")


class LessonTogether(Lesson):
    """As ``Lesson``, of a step whose ranks each hold a part of the sequence."""

    def machine(self) -> Page:
        return Page(
            "**Executed on a CPU, in several processes. Not timed: no machine with several GPUs was at hand. What this "
            "chapter says of time is a model's word.**"
        )

    def _kernels(self) -> list[str | Html]:
        where = f"`python -m steps.show {self.step.name}` prints it."
        if self.previous is None:
            return [where, code(self.step.source())]
        told = f"+ is new, - is gone, against {self.previous.label}. {where}"
        return [told, difference(self.previous.source(), self.step.source())]

    def predict(self, guess: float | None = None) -> Page:
        """Your prediction, and the model's answer: nobody has measured it."""
        before, question = self.previous, f"On {GPUS} GPUs over NVLink, on {LONG.describe()}"
        if guess is None:
            return Page(
                f"{question}: how many times as fast as step {before.label} will step {self.step.label} be? Nobody has "
                "timed either, so that the model answers. Write your guess between the brackets, such as "
                "`lesson.predict(1.5)`, and run the cell again."
            )
        if isinstance(guess, bool) or not isinstance(guess, int | float) or not 0 < guess < 1000:
            return Page(
                f"A guess is a number such as 1.5: times as fast as step {before.label}. This came: `{guess!r}`."
            )
        rate, where = model.recorded_rate()
        took = [model.seconds(step.name, LONG, GPUS, rate, model.LINKS[1]) for step in (before, self.step)]
        return Page(
            f"Your guess: {guess:g}. {question} the model says {took[0] / took[1]:.2f} times as fast, for GPUs as fast "
            f"as the one that was recorded ({where})."
        )

    def check(self, *also: Problem) -> Page:
        """Every step of the part, in processes that torchrun starts here: against float64, and what they send."""
        told = f"{RANKS} processes on a CPU, over gloo, on {CHECKED.describe()}. PyTorch computes the parts:"
        rows = []
        for direction in ("forward", "backward"):
            rows += [
                [m.label, f"{m.exchange.sent_bytes:,}", tables.error(m), tables.correct(m)]
                for m in checked(direction).steps
            ]
        return Page(told, table(["step", "bytes that a rank sends", "error (SDPA's)", "correct"], rows))

    def time(self) -> Page:
        """What to run where there are several GPUs."""
        names = ",".join(step.name for step in select("parallel", None) if step.direction == "forward")
        return Page(
            "Checked on CPUs, not timed. On a machine with several GPUs, `torchrun --nproc-per-node 2 -m steps.run "
            f"--parallel {names} --seq-len {LONG.seq_len_q} --dtype bfloat16` measures these steps, PyTorch's own "
            "context parallelism and one GPU alone, in the same rounds."
        )


def checked(direction: str) -> Run:
    """What ``steps.run --parallel`` finds on the CPU here; raises RuntimeError with what a rank said last."""
    asked = ["--parallel", "--direction", direction, "--device", "cpu", "--seq-len", CHECKED.seq_len_q]
    asked += ["--head-dim", CHECKED.head_dim, "--heads", CHECKED.heads, "--kv-heads", CHECKED.kv_heads]
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", RANKS]
    with TemporaryDirectory() as folder:
        command = [*launch, "-m", "steps.run", *asked, "--output-dir", folder]
        here = Path(__file__).resolve().parent.parent
        done = subprocess.run(list(map(str, command)), cwd=here, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(last_words(done.stderr))
        [path] = Path(folder).glob("*/*/results.json")
        return read_run(path)


def last_words(stderr: str) -> str:
    """The last line in which a rank says why it ended, else the last line: torchrun puts a report of its own behind."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    said = [line for line in lines if RANK_SAYS.match(line)]
    return (said or lines or ["the processes ended without a word"])[-1]
