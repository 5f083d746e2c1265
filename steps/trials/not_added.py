"""Trial: what the backward kernels for Hopper would take if nobody added dQ, for each way of adding it.

What is left of dQ is wrong, and the time is what a faster way of adding could reach at most. The product for dQ stays:
its sums are added under a condition that never holds, of which the compiler does not know.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from steps import get_step
from steps.core.problems import FULL, HEADLINE
from steps.trials.trial import Trial
from steps.writing.written import write_step

ADD, PUT = "def add_to_query(", "def add_now("
BETWEEN = "\n\n\n"  # functions


@dataclass(frozen=True)
class NotAdded(Trial):
    """Values come in pairs: a step's name, and the same behind "no "."""

    def version(self, value, problem, **named):
        step = write_step(get_step(value.removeprefix("no ")), problem, **named)
        if not value.startswith("no "):
            return step
        [head] = [line for line in step.text.splitlines() if line.startswith(ADD)]
        parameters = ", ".join(one.split(":")[0] for one in head.removeprefix(ADD).rsplit("):", 1)[0].split(", "))
        never = f"@gluon.jit\n{head}\n    if work.heads < 0:\n        add_now({parameters})"
        before, adding = step.text.split(ADD)
        body, behind = adding.split(BETWEEN, 1)
        return replace(step, text=f"{before}{PUT}{body}{BETWEEN}{never}{BETWEEN}{behind}")


TRIAL = NotAdded(
    name="not_added",
    question="How fast would the backward kernels be if adding dQ took no time?",
    base="decoupled_warpgroups",
    values=tuple(
        f"{no}{name}"
        for name in ("async_products", "vectorized_atomics", "tma_reduce_add", "decoupled_warpgroups")
        for no in ("", "no ")
    ),
    problems=(HEADLINE, FULL),
    right=False,
)
