"""What the notebooks call: one step's lesson, in the order in which it is taught.

With a GPU that runs its step a lesson measures; without one it runs the kernels on the CPU, compiles all of them, and
shows recorded timings, marked as such. Every method returns a ``Page`` that a notebook shows.
"""

from __future__ import annotations

import dataclasses
import inspect
from functools import cached_property
from pathlib import Path

from steps import INSIDE, get_step
from steps.core.fused import FusedStep
from steps.core.ladder import DELETED, Part, called, line, module_file, owner_of, part_of, program_file
from steps.core.problems import HEADLINE
from steps.core.recorded import find_recorded, recorded_runs
from steps.core.step import Step, Unsupported
from steps.exercises import exercise
from steps.measuring.ahead import compile_quietly
from steps.measuring.measure import Settings, measure
from steps.simulate import Examination
from steps.writing.written import edited, shown, without_title, write_step
from tutorial_lib import drawings, limits, pictures, plots, tables
from tutorial_lib.architectures import REFERENCE_GPUS
from tutorial_lib.compiled import Compiled
from tutorial_lib.compiler import CompilerError
from tutorial_lib.display import Html, Page, code, difference, in_any_theme, table
from tutorial_lib.exercises import clean
from tutorial_lib.files import RESULTS
from tutorial_lib.hardware import NO_GPU, describe_machine, describe_versions, gpu_turn, has_gpu, why_no_gpu
from tutorial_lib.needs import left_out
from tutorial_lib.passes import pass_of
from tutorial_lib.problem import FEATURES, FP8, Problem
from tutorial_lib.records import recorded_traces
from tutorial_lib.results import Measurement, Run, Speedup, compilers, of_most_problems
from tutorial_lib.simulator.breaking import without

SIMULATED_LENGTH = 640  # a few tiles of keys
CHECKED = [  # small enough for the CPU: even, ragged and grouped, one token
    Problem(batch=1, heads=2, seq_len_q=128, seq_len_kv=128, head_dim=64, causal=True),
    Problem(batch=1, heads=2, kv_heads=1, seq_len_q=77, seq_len_kv=200, head_dim=64, dtype="bfloat16"),
    Problem(batch=1, heads=1, seq_len_q=1, seq_len_kv=65, head_dim=128),
]
CHECKED_LENGTH = 300  # of the problem that is like the step's own, but small
ROUNDS = 5  # a reader waits for them


class Lesson:
    """A step beside its predecessor, on one problem.

    name: the step's; problem: what it is timed on (its own). before: the variant that it is compared with, where it
    was put together from several; else its predecessor. A GPU that the step does not run on is as none.
    """

    def __init__(
        self, name: str, problem: Problem | None = None, results: Path = RESULTS, *, before: str | None = None
    ):
        self.step = get_step(name)
        self.previous: Step | None = get_step(before) if before else self.step.previous
        self.problem = problem or self.step.default_problem
        self.results = results
        self.refused = self._refused_here() if has_gpu() else None
        self.on_gpu = has_gpu() and not self.refused
        self.guess: float | None = None  # the reader's, until the number appears
        self._made: dict[tuple[int, str], tuple[Step, Compiled]] = {}
        self.recorded = find_recorded(self.problem, [results], self.step.direction, name)
        if not _part(self.step).timed and not self._timed():
            self.recorded = None  # what is recorded of other steps, on other GPUs, says nothing of it

    @property
    def rival(self) -> Step | None:
        """Who this step is compared with: its predecessor, or SDPA where that one does not take the problem.

        SDPA, too, where the record that holds this step does not compare it with its predecessor.
        """
        if (before := self.previous) is None:
            return None
        m = None if self.on_gpu else self._timed()
        alone = m is not None and m.speedup_vs_previous is None
        refused = before.unsupported(self.problem, self.arch)
        return get_step(pass_of(self.step).baseline) if alone or refused else before

    @property
    def never_timed(self) -> bool:
        """Whether no record of this problem holds this step, and this machine cannot time it."""
        return not (self.on_gpu or self._timed())

    def _timed(self) -> Measurement | None:
        """What the record of this problem holds of this step, where it was timed."""
        m = self.recorded and self._mine(self.recorded)
        return m if m and m.tflops else None

    def _mine(self, run: Run) -> Measurement | None:
        """What a run holds of this step, compared with what this chapter compares it with."""
        m = run.measurement(self.step.name)
        if m is None or self.previous is None or m.previous == self.previous.name:
            return m
        other = run.measurement(self.previous.name)
        ratio = run.speedup(m, other) if m.tflops and other and other.tflops else None
        return m.model_copy(update={"previous": self.previous.name, "speedup_vs_previous": ratio})

    def _refused_here(self) -> str | None:
        """Why this step does not run on the GPU here, as a clause; None where it does."""
        reason = self.step.unsupported(self.problem, describe_machine("cuda")["arch"])
        return f"step {self.step.label} does not run on the GPU here ({reason})" if reason else None

    def machine(self) -> Page:
        """One line: where this chapter was executed, and what of it is timed."""
        if not (self.never_timed and (why := _part(self.step).untimed)):
            return machine(None if self.never_timed else self.recorded, self.refused)
        return in_any_theme(
            f"**Compiled for {self.step.made_for} and simulated on the CPU, not timed: {why}. What this "
            "chapter says about speed comes from a model and from the simulator.**"
        )

    def _ipython_display_(self) -> None:
        self.machine()._ipython_display_()

    # --- a part on one screen ---

    def block(self, *who: str) -> Page:
        """Which scores one block computes, and who of it: strips of its tile, in the order of its queries or keys."""
        tile, backward = self.step.variant(self.problem, self.arch).tile, self.step.direction == "backward"
        own, length = tile.key if backward else tile.query, BLOCKS * max(tile.query, tile.key)
        first, size = length // 2, own // len(who)
        strips = [(first + n * size, first + (n + 1) * size) for n in range(len(who))]
        if backward:
            queries, beside = (first if self.problem.causal else 0, length), ("← Q, dO; adds to dQ", "K, V, dK, dV")
            shares = [(name, queries, keys) for name, keys in zip(who, strips)]
        else:
            keys, beside = (0, first + own if self.problem.causal else length), ("Q, O", "K, V →")
            shares = [(name, queries, keys) for name, queries in zip(who, strips)]
        title = {f"One block of {called(self.step)}": shares}
        return in_any_theme(drawings.work(title, length, (tile.query, tile.key), self.problem.causal, beside))

    def barriers(self) -> Page:
        """The kernel's barriers, as the simulator sees one block use them: who arrives how often, and who waits."""
        from steps.exporting.tables import backward_notes, barrier_rows, forward_notes, fp8_notes, with_purposes

        notes = {"backward": backward_notes, "fp8": fp8_notes}.get(self.step.direction, forward_notes)
        seen = notes(self.step, self.problem)
        headers, *rows = with_purposes(barrier_rows(seen), seen)
        told = (
            f"The barriers of {called(self.step)}. A role has the name of its function, and a number. TMA brings "
            "bytes, which do not count as an arrival: a phase also waits for all bytes that were announced."
        )
        return Page(told, table(headers, rows))

    # --- the change ---

    def change(self) -> Page:
        """What differs between this kernel and the one before, three lines around it; of a part's first, all."""
        return Page(f"**{self.step.title}.** {self.step.change}", *self._kernels())

    def _kernels(self) -> list[str | Html]:
        if now := getattr(self.step, "function", None):  # made of PyTorch calls
            before = getattr(self.previous, "function", None)
            return [difference(*map(inspect.getsource, (before, now))) if before else code(inspect.getsource(now))]
        where = f"`python -m steps.show {self.step.name}` prints all of it. It is made from `{module_file(self.step)}`"
        if (path := program_file(self.step)).exists():
            name = f"steps/kernels/{path.name}"
            where = f"[{name}](../{name}) is a whole program with it. {where}"
        try:
            text = without_title(shown(self.step, self.problem, self.arch))
        except Unsupported as error:
            return [f"{error}."]
        if self.step.begins_a_skeleton:
            return [f"{self.step.shown}, for {self.problem.describe()}. {where}, and what that imports.", code(text)]
        problem, without = self._taken_before()
        try:
            before = without_title(shown(self.previous, problem, self.arch))
        except Unsupported:
            told = f"{self.step.shown}, because {called(self.previous)} does not run {self.problem.describe()}. "
            return [told + where + ".", code(text)]
        holes = [f"- `{change}`" for change in dataclasses.replace(self.step, previous=self.previous).key_changes()]
        changes = "\n".join(["What changes:", "", *holes])
        if without or (self.step.backend == "hopper" and before != text):
            changes = ""  # names of functions, or what a step takes, which the difference shows
        if before == text:
            told = "For this problem the kernel reads as before: what changes is how it is compiled or launched. "
            return [changes, told + where + "."]
        told = (
            f"Its kernel for {self.problem.describe()}, compared with {self.previous.label}{without}: + is new, - is "
        )
        told += "gone. "
        return [changes, told + where + ".", difference(before, text, AROUND)]

    def _taken_before(self) -> tuple[Problem, str]:
        """This problem without what the step before does not take, and words for what that is."""
        asked = self.problem.features if isinstance(self.previous, FusedStep) else ()
        new = [name for name in asked if name in PLAIN and name not in self.previous.takes]
        words = f", which takes no {' and no '.join(FEATURES[name] for name in new)}" if new else ""
        plain = {field: value for name in new for field, value in PLAIN[name].items()}
        return dataclasses.replace(self.problem, **plain), words

    def inside(self) -> Page:
        """The variants inside this step, each against what it stands on: its pieces, the step, what else was tried.

        Of a variant those beside it: that stand on it, or on what it stands on.
        """
        on, owner = (self.step, self.step.previous), self.step.inside or self.step.name
        pieces = [
            piece
            for piece in INSIDE
            if piece.inside == owner and (not self.step.inside or (piece is not self.step and piece.previous in on))
        ]
        if not pieces:
            return Page(f"Step {self.step.label} is one piece.")
        rows = []
        tried = [piece for piece in pieces if self.step.name in line(piece)]
        for piece in (*(piece for piece in pieces if piece not in tried), self.step, *tried):
            m, made = self.known(piece), self.compiled(piece) or {}
            figures = [made.get("registers"), made.get("spilled_bytes")]
            timed = [tables.tflops(m), tables.vs_previous(m)] if m and m.tflops else [None, None]
            rows.append([piece.name, piece.change, piece.previous.name, *figures, *timed])
        for name, gone in DELETED.items():
            if gone.nearest == owner and (m := self._gone(name)):
                rows.append(
                    [f"{name} (deleted)", gone.change, m.previous, None, None, tables.tflops(m), tables.vs_previous(m)]
                )
        headers = ["", "what it does", "builds on", "registers at launch", "spilled, bytes", "TFLOPS"]
        headers.append("against the step named, or what it builds on")
        where = f"TFLOPS were recorded: {tables.origin(self.recorded)}." if self.recorded else ""
        ratios = [m.speedup_vs_previous for piece in (self.step, *pieces) if (m := self.known(piece)) and m.tflops]
        if where and any(ratio and ratio.earlier for ratio in ratios):
            where += " " + EARLIER
        return Page(table(headers, rows), where)

    def _gone(self, name: str) -> Measurement | None:
        """What was recorded of a step that is no more."""
        found = self.recorded.peers if self.recorded else []
        return next((m for m in found if m.name == name and m.tflops), None)

    # --- what to expect ---

    @cached_property
    def arch(self) -> str:
        """What is compiled for: this machine's GPU, or the one that was recorded."""
        if self.on_gpu:
            return describe_machine("cuda")["arch"]
        return self.recorded.machine["arch"] if self.recorded else self.step.made_for

    def compile(self, step: Step) -> Compiled:
        """What the compiler makes of a step for this lesson's problem: asked once, as even to look it up takes time."""
        key = id(step), self.arch
        if key not in self._made:
            self._made[key] = step, step.compile(self.problem, self.arch)
        return self._made[key][1]

    def compiled(self, step: Step) -> dict | None:
        """Its figures; None where the step has no kernel, or does not fit."""
        try:
            return self.compile(step).as_dict()
        except (Unsupported, CompilerError):
            return None

    def limit(self, step: Step):
        """The least time of a step's kernel on the recorded GPU, or another of its architecture, or None."""
        resources = self.compiled(step)
        here = self.recorded is not None and self.recorded.machine["arch"] == self.arch
        m = (self._clock or self.known(step)) if here else None  # for a step that was not timed, too
        gpu = limits.gpu_of(self.recorded.machine, m) if m else None
        gpu = gpu or REFERENCE_GPUS.get(self.arch)
        return limits.limit(self.problem, resources, gpu, pass_of(step)) if resources and gpu else None

    @property
    def _clock(self) -> Measurement | None:
        """Whose clock the model takes for every step of a page: SDPA's, in the same run."""
        return self.recorded.measurement(pass_of(self.step).baseline)

    def known(self, step: Step) -> Measurement | None:
        """What was recorded of a step on the architecture that this lesson compiles for."""
        if self.recorded is None or self.recorded.machine["arch"] != self.arch:
            return None
        return self.recorded.measurement(step.name)

    def stand(self) -> Page:
        """The steps that this one stands on, on its problem, and where the last of them loses its time."""
        if self.previous is None:
            return self.traffic()
        before = [m for name in line(self.previous) if get_step(name).number and (m := self.known(get_step(name)))]
        timed = [m for m in reversed(before) if m.tflops]
        sdpa = self.recorded and self.recorded.measurement(pass_of(self.step).baseline)
        if not timed or not sdpa or not sdpa.tflops:
            return self.lost()
        run = self.recorded.as_together(timed[-1], sdpa)  # bars and line of the same rounds
        timed = [there for m in timed if (there := run.measurement(m.name))]
        told = f"The steps so far on {tables.origin(run)}, as recorded. Step {timed[-1].label} has "
        told += f"{plots.share(timed[-1], sdpa):.0%} of {(against := pass_of(self.step).baseline_in_tables)}'s speed."
        figure = plots.path(timed, run.measurement(sdpa.name), against=against)
        return Page(told, figure, *self.lost().parts)

    def lost(self) -> Page:
        """Where the previous step lost its time: what each unit needed at least, what it took, what counters say."""
        before = self.known(self.previous)
        limit = self.limit(self.previous)
        if not limit:
            return self.traffic(self.previous) if self.previous.backend == "torch" else Page()
        taken = before.latency_ms.median / 1000 if before and before.latency_ms else None
        parts = [
            f"The least time of each unit for {called(self.previous)}, from the instructions of its hot loop:",
            pictures.units([(self.previous.label, limit, taken)]),
        ]
        if taken:
            why = limits.explain(taken, limit.seconds, before.counters)
            added = " + ".join(f"{1000 * time:.3g} for {what}" for what, time in limit.terms.items())
            added = f" ({added})" if len(limit.terms) > 1 else ""
            parts.append(
                f"At least {1000 * limit.seconds:.3g} ms by the model{added}, at "
                f"{pass_of(self.step).baseline_in_tables}'s clock, and {1000 * taken:.3g} ms measured: {why}."
            )
        return Page(*parts)

    def traffic(self, step: Step | None = None) -> Page:
        """What a step made of PyTorch calls moves through device memory, beside what attention must move."""
        step = step or self.step
        held = step.intermediate_bytes(self.problem)
        gpu = REFERENCE_GPUS.get(self.arch)
        least = pass_of(step).least_bytes(self.problem)
        shown = {"inputs and outputs": least / 1e9, "intermediate matrices": held / 1e9}
        parts = [f"Step {step.label} on {self.problem.describe()}:", pictures.bars(shown, "GB")]
        if gpu:
            moved, read = 2000 * held / gpu.bandwidth, 1000 * least / gpu.bandwidth
            done = dataclasses.replace(self.problem, causal=False) if held else self.problem  # of hidden scores, too
            products = 1000 * limits.floor(done, gpu, pass_of(step)).units["tensor cores"]
            told = f"At {gpu.bandwidth / 1e12:.3g} TB/s ({gpu.name}), reading all inputs and writing all outputs takes "
            told += f"{read:.2g} ms, and the matrix products on the tensor cores take {products:.2g} ms."
            if held:
                hidden = ", hidden scores included," if self.problem.causal else ""
                told += f" Each intermediate matrix{hidden} is written and read at least once, which takes another "
                told += f"{moved:.3g} ms."
            parts.append(told)
        return Page(*parts)

    def predict(self, guess: float | str | None = None) -> Page:
        """Your prediction, before the number; then the model's. guess: times as fast as ``rival``.

        Of a step that nobody has timed on this problem: the unit that needs longest, which the model knows.
        """
        if self.never_timed:
            return self._predict_unit(guess)
        before = called(self.rival)
        if guess is None:
            answer = "the model gives its answer, and both are" if self._modelled() else "it is"
            return Page(
                f"How many times as fast as {before} will this be? Write your guess between the parentheses, as "
                f"in `lesson.predict(1.5)`, and run the cell again: then {answer} compared with the measurement below."
            )
        if isinstance(guess, bool) or not isinstance(guess, int | float) or not 0 < guess < 1000:
            return Page(f"A guess is a number such as 1.5: times as fast as {before}. This came: `{guess!r}`.")
        self.guess = float(guess)
        parts = [f"Your guess: {guess:g} times as fast as {before}."]
        if kernels := self._limits():
            parts.append(pictures.units([(label, limit, None) for label, limit in kernels]))
        if modelled := self._modelled():
            parts.append(f"By the least times of the units, the model allows {modelled:.2f} times.")
        return Page(*parts)

    def _predict_unit(self, guess: str | None) -> Page:
        """The unit that needs longest: the reader's guess, and the model's answer, without any time in seconds."""
        nobody = "Nobody has timed this step on this problem, so there is no measurement to compare a guess with."
        kernels = self._limits()
        if not self.limit(self.step):
            return Page(
                f"{nobody} The model gives no answer either: no source states the rates of all units of {self.arch}."
            )
        units = self.limit(self.step).units
        known = ", ".join(f'"{unit}"' for unit in units)
        if guess is None:
            return Page(
                f"{nobody} The model can answer another question: which unit takes longest in this step? Write one of "
                f'{known} between the parentheses, as in `lesson.predict("memory")`, and run the cell again.'
            )
        if guess not in units:
            return Page(f"A guess is one of {known}. This came: `{guess!r}`.")
        longest = self.limit(self.step).bound
        rows = [
            [unit, *(f"{limit.units.get(unit, 0) / limit.units[longest]:.0%}" for _, limit in kernels)]
            for unit in units
        ]
        turns = [
            f"In step {label} products and softmax take turns: their times add."
            for label, limit in kernels
            if not limit.overlapped
        ]
        return Page(
            f"Your guess: {guess}. By the model it is {longest}. The least time of each unit, as a share of that:",
            table(["unit", *(f"step {label}" for label, _ in kernels)], rows),
            " ".join(turns),
            "The model knows the rates of the units, but nothing about waiting. "
            "`tutorial_lib/architectures.py` has the rates and their sources.",
        )

    def _limits(self) -> list[tuple]:
        return [(s.label, limit) for s in (self.rival, self.step) if s and (limit := self.limit(s))]

    def _modelled(self) -> float | None:
        """How many times as fast the model allows this step to be."""
        both = self._limits()
        return both[0][1].seconds / both[1][1].seconds if len(both) == 2 else None

    def _scored(self, measured: Speedup) -> str:
        """How far the guess and the model were from the measurement, by the digits that a page shows of each."""
        guesses = [(who, f"{n:.2f}") for who, n in (("Your guess", self.guess), ("The model", self._modelled())) if n]
        shown = float(tables.digits(measured)[0])
        return " ".join(f"{who} said {said}, {_off(float(said), shown)}." for who, said in guesses)

    # --- the run ---

    def check(self, *also: Problem) -> Page:
        """Against attention in float64, on fresh random inputs: here where this machine can run the kernel.

        also: problems besides those that every chapter checks, and a short one like this lesson's.
        """
        like_this = dataclasses.replace(
            self.problem,
            batch=1,
            heads=2,
            kv_heads=2 if self.problem.group_size == 1 else 1,
            seq_len_q=min(self.problem.seq_len_q, CHECKED_LENGTH),
            seq_len_kv=CHECKED_LENGTH,
        )
        everywhere = [dataclasses.replace(p, dtype=FP8) for p in CHECKED] if self.problem.fp8 else CHECKED
        target = self.arch if self.on_gpu else "cpu"
        asked, left_out = [], []
        for p in dict.fromkeys((*everywhere, like_this, *also)):
            own = dataclasses.replace(p, head_dim=self.problem.head_dim)
            if taken := [each for each in (p, own) if not self.step.unsupported(each, target)]:
                asked.append(taken[0])
            else:
                left_out.append(f"Left out: {p.describe()} ({self.step.unsupported(p, target)}).")
        kind, rows = pass_of(self.step), []
        causes = max((kind.causes(p) for p in asked), key=len, default=())
        for p in dict.fromkeys(asked):
            empty = ("" for _ in causes[len(kind.causes(p)) :])
            rows.append([p.describe(), *_accuracy(self.step, p, self.on_gpu), *empty])
        by = {"torch": "by PyTorch", "cutile": "in the interpreter"}.get(self.step.backend, "on the simulator")
        where, whose = "on this GPU" if self.on_gpu else f"{by}, on the CPU", kind.measure
        return Page(
            f"Run {where}; correct means an error of at most twice {whose} plus one rounding step:",
            table(["problem", "largest error", whose, "correct", *causes], rows),
            " ".join(left_out),
        )

    @cached_property
    def run(self) -> Run | None:
        """What this machine measures, or else what was recorded."""
        if not self.on_gpu:
            return self.recorded
        baseline = get_step(pass_of(self.step).baseline)
        steps = dict.fromkeys(s for s in (baseline, self.previous, self.step) if s is not None)
        run, _, _ = measure(self.problem, list(steps), [], Settings(device="cuda", seed=0, rounds=ROUNDS))
        return run

    def time(self) -> Page:
        """This step, the one before and SDPA: measured here on a GPU, else as recorded."""
        if self.never_timed and (why := _part(self.step).untimed):
            return Page(
                f"Compiled and simulated, not timed: {called(self.step)} is made for {self.step.made_for}, and "
                f"{why}. `python -m steps.run --steps {self.step.name}` times it on such a GPU."
            )
        if self.run is None:
            told = f"No timing of {self.problem.describe()} is recorded, and no GPU here can take one."
            return Page(told, self._timed_elsewhere())
        now, before = self._mine(self.run), self.rival and self.run.measurement(self.rival.name)
        run = self.run.as_together(now, before) if now and before else self.run  # bars of the same rounds
        before = self.rival and run.measurement(self.rival.name)
        names = [pass_of(self.step).baseline, *(s.name for s in (self.previous, self.step) if s is not None)]
        found = (run.measurement(name) for name in dict.fromkeys(names))
        shown = run.model_copy(update={"steps": [m for m in found if m and m.tflops]})
        if not shown.steps:
            return Page("Nothing was timed.", *(f"{m.label}: {tables.outcome(m)}" for m in self.run.everybody))
        told = "Measured here, now" if self.on_gpu else "Recorded, not measured here"
        where = f"{told}: {tables.origin(run)}, {len(run.rounds)} rounds."
        if now is None:
            others = ", ".join(f"step {m.label} {tables.tflops(m)} TFLOPS" for m in shown.steps)
            told = f"Nobody has timed {called(self.step)} on {self.problem.describe()} yet."
            return Page(f"{told} To beat: {others}. {where}", self._timed_elsewhere())
        figure = plots.tflops_by_step(shown, highlight=self.step.name)
        if self.guess and before and before.tflops:
            axes, guessed = figure.axes[0], self.guess * before.tflops
            axes.axhline(guessed, color="black", linestyle=":", label="your guess")
            axes.set_ylim(top=1.15 * max(axes.get_ylim()[1], guessed))  # room for the legend over the bars
            figure.axes[0].legend(frameon=False, loc="upper right")
        found = self._ratios(now)
        if ratio := now.speedup_vs_previous if self.rival is self.previous else now.speedup_vs_baseline:
            found.append(self._scored(ratio))
        was = self._ratios(then) if self.on_gpu and (then := self._timed()) else []  # beside what was measured here
        beside = f"Recorded: {tables.origin(self.recorded)}. {' '.join(was)}" if was else ""
        return Page(where, figure, " ".join(found), beside, MEDIANS if found else "")

    def _ratios(self, m: Measurement) -> list[str]:
        """How many times as fast as its predecessor and as SDPA a measurement of this step is, as sentences."""
        own, kind = m.speedup_vs_previous, pass_of(self.step)
        found = [tables.times_as_fast(called(self.previous), own)] if own else []
        if m.speedup_vs_baseline and m.previous != kind.baseline:
            found.append(tables.times_as_fast(kind.baseline_in_tables, m.speedup_vs_baseline))
        return found

    def _timed_elsewhere(self) -> str:
        """The problems on which this step is recorded."""
        runs = recorded_runs(self.results, self.step.direction)
        found = [run for run in runs if (m := run.measurement(self.step.name)) and m.tflops]
        told = "; ".join(dict.fromkeys(run.the_problem().describe() for run in found))
        return f"Step {self.step.label} is recorded on other problems: {told}." if told else ""

    # --- why ---

    def evidence(self) -> Page:
        """What changed most of registers, shared memory, hot loop and counters, from the step before to this one."""
        compared = [(s, self.compiled(s)) for s in (self.previous, self.step) if s is not None]
        compared = [(s, resources) for s, resources in compared if resources]
        if self.step.backend == "torch":
            return self.traffic()
        if not any(s is self.step for s, _ in compared):
            return Page(f"Nothing to show: {self.step.unsupported(self.problem, self.arch) or 'it does not compile'}.")
        rows = [[name, *(resources[key] for _, resources in compared)] for name, key in FIGURES]
        kinds = list(dict.fromkeys(k for _, r in compared for k, count in (r["hot_loop"] or {}).items() if count))
        for kind in kinds:
            counts = ((r["hot_loop"] or {}).get(kind, 0) for _, r in compared)
            rows.append([f"hot loop: {AMERICAN.get(kind, kind)}", *counts])
        counted = self._counted([s for s, _ in compared])
        rows += counted
        shown = tables.most_changed(rows, SHOWN) if len(compared) == 2 else rows[:SHOWN]
        made_by = " and ".join(dict.fromkeys(r["compiler"] for _, r in compared))
        same = ""
        if len(compared) == 2 and self.compile(self.step).same_code(self.compile(self.previous)):
            same = "**The two steps are the same code, instruction for instruction.**"
        headers = [f"{made_by}, {self.arch}", *(s.label for s, _ in compared)]
        counted = [row for row in counted if row in shown]
        note = f"Rows with ncu were recorded: {tables.origin(self.recorded)}." if counted else ""
        if any("bank conflicts" in row[0] for row in counted) and (tiles := compared[-1][1].get("kv_tiles")):
            note += f" All blocks of {called(self.step)} together visit {tiles:,} tiles of keys."
        return Page(same, table(headers, shown) if shown else "No figure changed.", note)

    def machine_code(self, pattern: str, lines: int = 10) -> Page:
        """Instructions of the kernel around the first that matches ``pattern``, in the hot loop where it is there."""
        try:
            made = self.compile(self.step)
            found = made.excerpt(pattern, lines)
        except (Unsupported, CompilerError) as error:
            return Page(f"{error}")
        if not found:
            return Page(f"Step {self.step.label} has no instruction `{pattern}` on {self.arch}.")
        told = f"{len(found)} instructions of {called(self.step)}, for {self.arch}, {made.compiler}:"
        return Page(told, "```\n" + "\n".join(found) + "\n```")

    def simulated(self, before: bool = True, length: int = SIMULATED_LENGTH) -> Page:
        """Who computes and who waits for whom in a block, on the simulator; ``before``: in the previous step, too."""
        problem = self._short(length)
        figures = []
        for step in (self.previous, self.step) if before else (self.step,):
            _, run, _ = Examination(step, problem, 0).under(None, trace=True)
            figures.append(pictures.simulated_timeline(run, called(step)))
        told = "Simulated on the CPU: it shows what waits for what, and not how fast the kernel is."
        return Page(f"{told} {problem.describe()}, the block that takes longest.", *figures)

    def traced(self, end: bool = False) -> Page:
        """When the roles of a block waited, as recorded, and beside it on the simulator, with fewer heads.

        end: draw the last iterations of a block, not the first, and nothing else: the table is of the whole block.
        """
        from steps.trace import beside_simulated

        found = [t for t in recorded_traces(self.results, self.step.name) if t.the_problem() == HEADLINE]
        if not found:
            return Page(f"No trace is recorded: `python -m steps.trace {self.step.name}` measures one on a GPU.")
        trace = found[0]
        simulated = beside_simulated(self.step, trace)
        headers, cells = tables.trace_table(trace, simulated.shares)
        told = f"Recorded: {trace.machine['name']}, {trace.the_problem().describe()}, {trace.day}, {trace.compilers}. "
        told += f"{tables.about_trace(trace)} In parentheses: on the simulator, with fewer heads on fewer SMs."
        picture = pictures.measured_timeline(trace, end, simulated)
        return Page(picture) if end else Page(told, picture, table(headers, cells))

    def without(self, statement: str, length: int = SIMULATED_LENGTH) -> Page:
        """What the simulator says of this step without one synchronisation of its kernel, named by a piece of it."""
        problem = self._short(length)
        whole = write_step(self.step, problem)
        broken = dataclasses.replace(whole, text=without(whole.text, statement))
        told = Examination(broken, problem, 0).told()
        return Page(f"Without `{statement}`, on the simulator, {problem.describe()}:", told)

    def edited(self, *edits: tuple[str, str], length: int = SIMULATED_LENGTH, seed: int | None = None) -> Page:
        """What the simulator says of this step with pieces of its kernel's text replaced; edits: (old, new).

        seed: of random latencies; None for those of the model.
        """
        problem = self._short(length)
        changed = edited(write_step(self.step, problem), *edits)
        lines = [difference(clean(old).rstrip(), clean(new).rstrip()) for old, new in edits]
        return Page(*lines, f"On the simulator, {problem.describe()}:", Examination(changed, problem, 0).told(seed))

    def _short(self, length: int) -> Problem:
        """A short problem like this lesson's, of one head."""
        return dataclasses.replace(
            self.problem, batch=1, heads=1, kv_heads=1, seq_len_q=length, seq_len_kv=length, scale=None
        )

    def order(self, **changes) -> Page:
        """In which order a warp begins products, waits for them, takes maxima and exponentials; holes filled so."""
        step = self._varied(changes) if changes else self.step
        if isinstance(step, Page):
            return step
        what = ", ".join([self.step.label, *_filled(changes)])
        if reason := step.unsupported(self.problem, self.arch):
            return Page(f"{what}: {reason}.")
        try:
            compiled = self.compile(step)
        except (Unsupported, CompilerError) as error:
            return Page(f"{what}: {error}")
        order = " → ".join(
            name if (name, count) == ("wait", 1) else f"{count} {name}" for name, count in compiled.hot_order
        )
        where = f"{what}, an iteration of the hot loop, {compiled.compiler}, {self.arch}:"
        return Page(where, f"`{order}`" if order else "no loop over tiles of keys was found.")

    def _varied(self, changes: dict) -> Step | Page:
        """This step with holes filled otherwise, or why there is none."""
        if not isinstance(self.step, FusedStep):
            return Page(f"Step {self.step.label} has no holes: it is not a kernel of ours.")
        if unknown := changes.keys() - self.step.holes().keys():
            known = ", ".join(self.step.holes())
            return Page(f"No hole {', '.join(sorted(unknown))}: step {self.step.label} has {known}.")
        try:
            varied = {"name": f"{self.step.name}_varied", "previous": self.step, "number": self.step.number}
            return dataclasses.replace(self.step, **varied, **changes)
        except ValueError as error:  # holes that do not go together
            return Page(f"{', '.join(_filled(changes))}: {error}.")

    def _counted(self, steps: list[Step]) -> list[list]:
        """Rows of the recorded counters, where there are any."""
        measured = [self.known(s) for s in steps]
        if not any(m and m.counters for m in measured):
            return []
        return [[f"ncu: {name}", *(text(m) if m else None for m in measured)] for name, text in tables.COUNTED]

    def where(self) -> Page:
        """Where the step matters: what it brought on every problem that is recorded with it and its predecessor.

        By the GPU and the compilers of this page's record, where they have such problems; else by the GPU with most.
        Of two records that differ in the dtype alone, float16 or bfloat16, the first is shown.
        """
        runs = recorded_runs(self.results, self.step.direction)
        compared = [run for run in runs if (now := self._mine(run)) and now.speedup_vs_previous]
        here = [run for run in compared if self.recorded and run.made_by == self.recorded.made_by]
        found = [(run, self._mine(run).speedup_vs_previous) for run in here or of_most_problems(compared)]
        if not found:
            return Page(f"No record compares {called(self.step)} with {called(self.previous)}.")
        verdicts = {key: speedup.verdict for run, speedup in found if (key := _besides(run, "float16"))}
        same = [s.verdict == verdicts[key] for run, s in found if (key := _besides(run, "bfloat16")) in verdicts]
        cells = [(run, tables.marked(s)) for run, s in found if _besides(run, "bfloat16") not in verdicts]
        told = f"Times as fast as {called(self.previous)}, as recorded (p10–p90, and our verdict):"
        return Page(told, tables.by_problem(cells), _not_shown(same))

    # --- an exercise ---

    def exercise(self, name: str, function) -> Page:
        """Run your function inside the kernel, on the CPU: right, or what is wrong, and hints to unfold."""
        return exercise(name, function)

    # --- a variation ---

    def vary(self, **changes) -> Page:
        """This step with some holes filled otherwise, such as ``tile=Tile(128, 64)``: timed on a GPU, else compiled."""
        what = ", ".join(_filled(changes))
        other = self._varied(changes)
        if isinstance(other, Page):
            return other
        if reason := other.unsupported(self.problem, self.arch):
            return Page(f"{what}: cannot run {self.problem.describe()} on {self.arch}: {reason}.")
        try:
            pair = [self.compile(step).as_dict() for step in (self.step, other)]
        except (Unsupported, CompilerError) as error:
            return Page(f"{what}: {error}")
        rows = [[name, *(resources[key] for resources in pair)] for name, key in FIGURES]
        if self.on_gpu or other.unsupported(CHECKED[0], "cpu") is None:
            found = [_accuracy(step, CHECKED[0], self.on_gpu)[2] for step in (self.step, other)]
            rows.append([f"correct, {CHECKED[0].describe()}", *found])
        if self.on_gpu:
            written_here = any(getattr(value, "__module__", None) == "__main__" for value in changes.values())
            settings = Settings(device="cuda", seed=0, rounds=ROUNDS, isolated=not written_here)
            run, _, _ = measure(self.problem, [self.step, other], [], settings)
            measured = [run.measurement(step.name) for step in (self.step, other)]
            rows.append(
                ["TFLOPS, measured here", *(tables.tflops(m) if m.tflops else tables.outcome(m) for m in measured)]
            )
            rows.append(["vs this step", "", tables.vs_previous(measured[1])])
        else:
            rows.append(["TFLOPS", "needs a GPU that runs it", ""])
        return Page(table([f"for {self.arch}", self.step.label, what], rows))


FIGURES = [
    ("registers per thread, at launch", "registers"),
    ("threads per block", "threads"),
    ("shared memory, bytes", "shared_bytes"),
    ("spilled, bytes", "spilled_bytes"),
    ("blocks per SM", "blocks_per_sm"),
    ("blocks per SM limited by", "limited_by"),
    ("instructions", "instructions"),
    ("hot loop, an iteration", "hot_loop_instructions"),
]
SHOWN = 5  # rows of evidence
EARLIER = (
    "If that run did not time both kernels of a ratio in the same rounds, the ratio is from an earlier run, and "
    "may differ from the quotient of the TFLOPS."
)
MEDIANS = "A bar is the median of all rounds, a ratio the median of each round's ratio."
PLAIN = {  # features that a problem can do without, and its fields then
    "window": {"window": None},
    "softcap": {"softcap": None},
    "lengths": {"lengths": None, "lengths_kv": None},
    "sinks": {"sinks": False},
}
AROUND = 3  # lines around what changed
BLOCKS = 4  # that compute a head, of which one is drawn
AMERICAN = {"synchronisation": "synchronization"}  # kinds of instructions that records spell otherwise


def _besides(run: Run, dtype: str) -> tuple | None:
    """What a record in this dtype shares with one of the same problem in another; None for a record in another."""
    problem = run.the_problem()
    return (dataclasses.replace(problem, dtype="float16").slug, run.compilers) if problem.dtype == dtype else None


def _not_shown(same: list[bool]) -> str:
    """What a table leaves out: same says of each record in bfloat16 whether its verdict is that of the one shown."""
    if len(same) == 1:
        verdict = "the same" if same[0] else "another"
        return f"Not shown: one record of these problems in bfloat16; its verdict is {verdict}."
    agree = "all of them" if all(same) else str(sum(same))
    told = f"Not shown: {len(same)} records of these problems in bfloat16; the verdict is the same in {agree}."
    return told if same else ""


def _off(said: float, measured: float) -> str:
    """How far a prediction was from what it predicted."""
    if said == measured:
        return "which is right"
    percent = round(100 * abs(said / measured - 1)) or "less than 1"
    return f"{percent}% too {'high' if said > measured else 'low'}"


def _part(step: Step) -> Part:
    """The part that a step, or the step that it is inside, belongs to."""
    return part_of(owner_of(step).number)


def machine(recorded: Run | None, refused: str | None = None) -> Page:
    """One line: what this machine can do. refused: why its GPU is of no use for a chapter, as a clause."""
    if has_gpu() and not refused:
        here = describe_machine("cuda")
        return in_any_theme(
            f"**Executed on a GPU, {here['name']} ({here['arch']}): kernels ran on it, timings are its own.**"
        )
    shown = (
        f"Timings were recorded on {recorded.machine['name']}"
        if recorded
        else "No timing of its step on its problem is recorded"
    )
    told = f"**Executed on a machine without a GPU. Kernels ran on the CPU and were also compiled for a GPU. {shown}.**"
    if (why := refused or why_no_gpu()) not in (None, NO_GPU):
        told = told.replace("a machine without a GPU", f"the CPU, as {why}", 1)
    told += "".join(f" {line}" for line in left_out())
    here = compilers(describe_versions())
    if recorded and recorded.compilers and recorded.compilers != here:
        told += f" Machine code here is that of {here}. The timed kernels were made by {recorded.compilers}, "
        told += "so the code that was timed may differ from the code on this page."
    return in_any_theme(told)


def _name(value: object) -> str:
    return "left to the compiler" if value is None else getattr(value, "__name__", str(value))


def _filled(changes: dict) -> list[str]:
    return [f"{name}={_name(value)}" for name, value in changes.items()]


def _accuracy(step: Step, problem: Problem, on_gpu: bool) -> list[str]:
    """The largest error, what is allowed twice, whether it is correct, and the errors by ``Pass.causes``."""
    import secrets

    device, kind = "cuda" if on_gpu else "cpu", pass_of(step)
    target = describe_machine(device)["arch"] or "cpu"
    if reason := step.unsupported(problem, target):
        return [f"not for this step: {reason}", "", "", *("" for _ in kind.causes(problem))]
    if on_gpu:
        compile_quietly(step, problem, target)
    with gpu_turn(device):
        inputs = kind.inputs(problem, seed := secrets.randbits(32), device)
        exact = kind.reference(problem, inputs)
        allowed = kind.yardstick(problem, inputs, exact)
        found = kind.check(step, problem, inputs, exact, allowed)
        errors = (f"{error:.0e}" for error in kind.errors_by_cause(problem, seed, exact, allowed, step))
    return [f"{found.max_error:.0e}", f"{found.reference_error:.0e}", "yes" if found.correct else "NO", *errors]
