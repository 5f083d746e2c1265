"""The lesson of a step over several GPUs: its ranks are processes on the CPU; of time a record tells, and a model."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from steps import get_step
from steps.core.ladder import PARALLEL, called
from steps.core.recorded import read_run, recorded_runs
from steps.lesson import AROUND, Lesson
from steps.parallel import model
from steps.parallel.copying import CopyEngines
from tutorial_lib import pictures, tables
from tutorial_lib.display import Html, Page, code, difference, in_any_theme, table
from tutorial_lib.files import RESULTS
from tutorial_lib.problem import Problem
from tutorial_lib.results import Measurement, Run

ONE_GPU = "one_gpu"  # the peer that has the whole sequence
RANKS = 4  # processes of a check
CHECKED = Problem(batch=1, heads=8, kv_heads=4, seq_len_q=264, seq_len_kv=264, head_dim=64, causal=True)
GPUS = 8  # of a prediction
RANK_SAYS = re.compile(r"steps\.run(, rank \d+ of \d+)?: ")


class LessonTogether(Lesson):
    """As ``Lesson``, of a step whose ranks each hold a part of the sequence."""

    def __init__(self, name: str, problem: Problem | None = None, results: Path = RESULTS):
        super().__init__(name, problem, results)
        runs = recorded_runs(results, self.step.direction, several=True)
        found = [run for run in runs if run.the_problem() == self.problem and run.measurement(name)]
        self.recorded = found[0] if found else None  # the newest

    def machine(self) -> Page:
        where = "**Executed on a CPU, in several processes."
        if self.recorded is None:
            return in_any_theme(f"{where} Not timed. All times in this chapter come from a model.**")
        return in_any_theme(
            f"{where} Timings shown were recorded on {self.recorded.where}, unless a table names others. Times for "
            "other numbers of GPUs, and for other links, come from a model.**"
        )

    def _kernels(self) -> list[str | Html]:
        where = f"`python -m steps.show {self.step.name}` prints it."
        if self.previous is None:
            return [where, code(self.step.source())]
        told = f"Compared with {self.previous.label}: + is new, - is gone. {where}"
        return [told, difference(self.previous.source(), self.step.source(), AROUND)]

    def predict(self, guess: float | None = None) -> Page:
        """Your prediction, and the model's answer; with a record the measurement comes below."""
        before = self.previous
        on = self.recorded.machine["name"] if self.recorded else f"{GPUS} GPUs over NVLink"
        question = f"On {on}, on {self.problem.describe()}"
        if guess is None:
            answer = (
                "Then the model gives its answer, and both are compared with the measurement below."
                if self.recorded
                else "Nobody has timed either, so that the model answers."
            )
            return Page(
                f"{question}: how many times as fast as {called(before)} will {called(self.step)} be? Write your "
                f"guess between the parentheses, as in `lesson.predict(1.5)`, and run the cell again. {answer}"
            )
        if isinstance(guess, bool) or not isinstance(guess, int | float) or not 0 < guess < 1000:
            return Page(f"A guess is a number such as 1.5: times as fast as {called(before)}. This came: `{guess!r}`.")
        self.guess = float(guess)
        _, where = self._rate()
        return Page(
            f"Your guess: {guess:g}. {question} the model says {self._modelled():.2f} times as fast, for GPUs as fast "
            f"as the one that was recorded ({where})."
        )

    def _rate(self) -> tuple[float, str]:
        """Operations a second of one GPU: that of the same rounds with the whole sequence, or of another record."""
        one = self.recorded and self.recorded.measurement(ONE_GPU)
        return (1e12 * one.tflops, tables.provenance(self.recorded)) if one else model.recorded_rate()

    def _modelled(self) -> float:
        ranks, (rate, _) = self.recorded.ranks if self.recorded else GPUS, self._rate()
        took = [model.seconds(s.name, self.problem, ranks, rate, model.LINKS[1]) for s in (self.previous, self.step)]
        return took[0] / took[1]

    def check(self, *also: Problem) -> Page:
        """Every step of the part, in processes that torchrun starts here: against float64, and what they send."""
        told = f"{RANKS} processes on a CPU, on {CHECKED.describe()}. PyTorch computes the parts. Gloo, its library to "
        told += "send between CPUs, sends them:"
        rows = []
        for direction in ("forward", "backward"):
            rows += [
                [_as_checked(m), f"{m.exchange.sent_bytes:,}", tables.error(m), tables.correct(m)]
                for m in checked(direction).steps
            ]
        return Page(told, table(["step", "bytes that a rank sends", "error (SDPA's)", "correct"], rows))

    def time(self) -> Page:
        """The steps as recorded, beside the model's; and what to run where there are several GPUs."""
        names = ",".join(step.asked_as for step in PARALLEL if step.direction == self.step.direction)
        shape = f"--seq-len {self.problem.seq_len_q} --heads {self.problem.heads} --kv-heads {self.problem.kv_heads}"
        backward = " --direction backward" if self.step.direction == "backward" else ""
        measures = (
            "On a machine with several GPUs, `torchrun --nproc-per-node 2 -m steps.run --parallel "
            f"{names} {shape} --dtype bfloat16{backward}` measures these steps, PyTorch's own context parallelism and "
            "one GPU alone, in the same rounds."
        )
        if (run := self.recorded) is None:
            return Page(f"Checked on CPUs, not timed. {measures}")
        timed = [m for m in run.everybody if m.tflops]
        columns = [("", lambda m: m.label if m.part else m.title), *tables.TOGETHER[:1], *tables.TOGETHER[3:-2]]
        columns += [(header, _unless_lost(text)) for header, text in tables.TOGETHER[-2:]]
        columns.insert(3, ("by the model", self._share_by_the_model))
        shares = {m.name.replace("_", "\n"): m.percent_of_ideal for m in timed if m.gpus > 1}
        now = run.measurement(self.step.name)
        return Page(
            f"Recorded, not measured here: {tables.origin(run)}, {len(run.rounds)} rounds. The ideal is the time of "
            f"one GPU alone with the whole sequence, divided by {run.ranks}. A share is the median of those inside "
            "each round:",
            pictures.bars(shares, "% of ideal", form="{:.0f}"),
            table([header for header, _ in columns], tables.rows(timed, columns)),
            *self._beside_the_step_before(now),
            measures,
        )

    def _beside_the_step_before(self, now: Measurement | None) -> tuple[str, ...]:
        """How many times as fast as the step before, where both were measured in these rounds."""
        if now is None or now.speedup_vs_previous is None:
            return ()
        told = tables.times_as_fast(called(get_step(now.previous)), now.speedup_vs_previous)
        return (f"{told} {self._scored(now.speedup_vs_previous)}",)

    def _share_by_the_model(self, m: Measurement) -> str:
        if m.part is None:  # a peer
            return tables.NOTHING
        share = model.share_of_ideal(m.name, self.problem, self.recorded.ranks, self._rate()[0], model.LINKS[1])
        return f"{100 * share:.1f} %"


def _as_checked(m: Measurement) -> str:
    """Its label, and what of it a CPU cannot check."""
    return m.label + (", without copy engines" if get_step(m.name).ranks is CopyEngines else "")


def _unless_lost(text: Callable[[Measurement], str]) -> Callable[[Measurement], str]:
    """Nothing of a step whose calls took no longer than without sending: what is hidden is lost in their spread."""
    return lambda m: text(m) if m.exchange and m.exchange.open_ms and m.exchange.open_ms.median else tables.NOTHING


def checked(direction: str) -> Run:
    """What ``steps.run --parallel`` finds on the CPU here; raises RuntimeError with what a rank said last."""
    names = ",".join(step.asked_as for step in PARALLEL if step.direction == direction)
    asked = ["--parallel", names, "--direction", direction, "--device", "cpu", "--seq-len", CHECKED.seq_len_q]
    asked += ["--head-dim", CHECKED.head_dim, "--heads", CHECKED.heads, "--kv-heads", CHECKED.kv_heads]
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", RANKS]
    with TemporaryDirectory() as folder:
        command = [*launch, "-m", "steps.run", *asked, "--output-dir", folder]
        here = Path(__file__).resolve().parent.parent
        done = subprocess.run(
            list(map(str, command)), cwd=here, capture_output=True, encoding="utf-8", errors="replace"
        )
        if done.returncode:
            raise RuntimeError(last_words(done.stderr))
        [path] = Path(folder).glob("*/*/results.json")
        return read_run(path)


def last_words(stderr: str) -> str:
    """The last line in which a rank says why it ended, else the last line: torchrun puts a report of its own behind."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    said = [line for line in lines if RANK_SAYS.match(line)]
    return (said or lines or ["the processes ended without a word"])[-1]
