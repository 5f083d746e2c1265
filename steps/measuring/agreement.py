"""Whether a GPU gives the same output as the simulator for the same inputs, and the sentence that tells of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

from tutorial_lib import simulator
from tutorial_lib.files import write_whole
from tutorial_lib.problem import Problem
from tutorial_lib.records import Agreement, Difference

README = Path(simulator.__file__).with_name("README.md")
COMPILER_SECONDS = 120.0  # without any kernel ready
BEGIN, END = "<!-- made by `python -m steps.simulate --against-gpu` -->", "<!-- end of what is made -->"
PROBLEMS = [
    Problem(batch=1, heads=2, seq_len_q=300, seq_len_kv=300, head_dim=head_dim, causal=causal, dtype=dtype)
    for head_dim, causal, dtype in itertools.product((64, 128, 256), (True, False), ("float16", "bfloat16"))
]


def on_the_gpu(step, inputs, causal: bool):
    """Not timed: a launch this small disturbs nobody who holds the GPU to measure."""
    return step.attention(*(x.cuda() for x in inputs), causal).cpu()


def measure(steps, tell: Callable[[str], object] = lambda what: None, on_gpu: Callable = on_the_gpu) -> Agreement:
    """Every step's output on the GPU beside the simulator's. tell: is told what is being done."""
    from steps.measuring.ahead import compile_ahead
    from tutorial_lib.accuracy import compare, worst
    from tutorial_lib.hardware import describe_machine
    from tutorial_lib.passes import FORWARD

    machine = describe_machine("cuda")
    taken = {step: [p for p in PROBLEMS if step.unsupported(p, "cpu") is None] for step in steps}
    compile_ahead([(step, p) for step in steps for p in taken[step]], machine["arch"], COMPILER_SECONDS, tell)
    differences = []
    for step in steps:
        tell(f"step {step.label} on the GPU and on the simulator")
        found = []
        for problem in taken[step]:
            inputs = FORWARD.inputs(problem, 0)
            exact = FORWARD.reference(problem, inputs)
            [sdpa] = FORWARD.yardstick(problem, inputs, exact)
            simulated = step.attention(*inputs, problem.causal)
            found.append(compare(on_gpu(step, inputs, problem.causal), simulated.double(), sdpa))
        largest = worst(found)
        differences.append(
            Difference(step=step.name, problems=len(found), largest=largest.max_error, allowed=largest.limit)
        )
    return Agreement.made_here(machine, steps=differences)


def sentence(recorded: list[Agreement]) -> str:
    """What the newest record says, or that there is none."""
    if not recorded:
        return "Whether a GPU gives the same output for the same inputs is not recorded yet."
    newest = recorded[0]
    differ = [d.step for d in newest.steps if not d.agrees]
    most = max(newest.steps, key=lambda d: d.largest)
    told = (
        f"On the {newest.machine['name']} the same inputs gave the same output, up to the order of sums, for "
        f"{len(newest.steps) - len(differ)} of {len(newest.steps)} steps (recorded {newest.date[:10]}). The largest "
        f"difference is {most.largest:.1e}, in step {most.step}, where the rule for outputs allows {most.allowed:.1e}."
    )
    return told + (f" Not so for {', '.join(differ)}." if differ else "")


def update_readme(recorded: list[Agreement], path: Path = README) -> None:
    """Replace what stands between the markers of the simulator's page."""
    head, rest = path.read_text(encoding="utf-8").split(BEGIN)
    write_whole(path, f"{head}{BEGIN}\n\n{sentence(recorded)}\n\n{END}{rest.split(END)[1]}")
