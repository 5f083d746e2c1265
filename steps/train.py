"""Does training go as it does with PyTorch's attention? ``python -m steps.train`` trains a small transformer with both.

The model, its first weights and the made-up data are the same; attention and its gradients are computed by the fastest
recorded steps, and by ``scaled_dot_product_attention``. A third training, with SDPA and other weights and data, shows
how much a loss differs by chance. Then attention with its gradients is timed, eager: through ``steps.attention``, or by
the steps themselves where that takes others. Written to RESULTS/MACHINE/training.json. Without a GPU, what is recorded
is shown. Exit status: 0 done; 1 it cannot be written; 2 the request makes no sense; 130 interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from tutorial_lib.command import BadRequest, as_command, measure_or_show, parser_of, print_table, whole_number
from tutorial_lib.files import RESULTS

OTHERS = "SDPA, other weights and data"


def make_parser() -> argparse.ArgumentParser:
    parser = parser_of("steps.train", __doc__)
    parser.add_argument("--forward", default="best", metavar="STEP", help="the forward step (best)")
    parser.add_argument("--backward", default="best", metavar="STEP", help="the backward step (best)")
    parser.add_argument("--count", type=whole_number, default=300, metavar="N", help="training steps (300)")
    parser.add_argument("--iterations", type=whole_number, default=9, metavar="N", help="rounds of the timing (9)")
    parser.add_argument("--output-dir", type=Path, default=RESULTS, metavar="DIR", help="where to write (results)")
    return parser


def run(options: argparse.Namespace) -> int:
    from steps.core.recorded import recorded_trainings

    folder = options.output_dir
    return measure_or_show(folder, "training.json", recorded_trainings, lambda console: measure(options, console), show)


def measure(options: argparse.Namespace, console):
    """A ``records.Training`` of this machine; raises BadRequest for a step that does not take the model's attention."""
    import steps
    from steps.core import attention as front
    from steps.core.problems import HEADLINE
    from steps.measuring import training
    from tutorial_lib import records
    from tutorial_lib.hardware import describe_machine, gpu_turn
    from tutorial_lib.problem import Problem
    from tutorial_lib.tables import SDPA, STEPS

    machine, size = describe_machine("cuda"), training.Size()
    problem = Problem(
        batch=size.batch,
        heads=size.heads,
        kv_heads=size.kv_heads,
        seq_len_q=size.seq_len,
        seq_len_kv=size.seq_len,
        head_dim=size.head_dim,
        dtype="bfloat16",
    )
    forward, backward = (asked(getattr(options, d), d, problem, machine["arch"]) for d in ("forward", "backward"))
    ours = training.by_steps(forward, backward)
    with gpu_turn("cuda"):
        curves = {}
        for name, attention, seed in ((SDPA, training.by_sdpa, 0), (STEPS, ours, 0), (OTHERS, training.by_sdpa, 1)):
            with console.status(f"training with {name}"):
                curves[name] = training.losses(attention, size, options.count, seed, "cuda")
        timed = []
        for shape in (HEADLINE, replace(HEADLINE, heads=64, kv_heads=8)):
            pair = tuple(asked(getattr(options, d), d, shape, machine["arch"]) for d in ("forward", "backward"))
            contenders = {SDPA: training.by_sdpa, STEPS: training.by_steps(*pair)}
            through = front.with_gradients(shape, machine["arch"]) == pair
            if through:
                contenders[STEPS] = lambda q, k, v: steps.attention(q, k, v, causal=True)
            with console.status(f"timing {shape.describe()}"):
                found = training.milliseconds(contenders, shape, options.iterations)
            names = [step.name for step in pair]
            timed.append(
                records.TrainingTime(problem=shape.as_dict(), steps=names, front_door=through, milliseconds=found)
            )
    return records.Training.made_here(
        machine,
        forward=forward.name,
        backward=backward.name,
        size=asdict(size),
        floor=size.floor,
        losses=curves,
        timed=timed,
    )


def asked(name: str, direction: str, problem, arch: str):
    """The step of this name, or the best recorded one; raises BadRequest."""
    from steps import best, get_step

    try:
        step = best(problem, arch, direction=direction).step if name == "best" else get_step(name)
    except ValueError as error:
        raise BadRequest(f"argument --{direction}: {error}") from None
    if step.direction != direction:
        raise BadRequest(f"argument --{direction}: must be a step of the {direction} pass, got {step.label}")
    if reason := step.unsupported(problem, arch):
        raise BadRequest(f"argument --{direction}: step {step.label}: {reason}")
    return step


def show(console, record) -> None:
    """The losses at the end, and the times."""
    from tutorial_lib import tables

    console.print(tables.about_training(record), style="bold", soft_wrap=True)
    print_table(console, tables.LOSS_HEADERS, tables.loss_rows(record))
    print_table(console, tables.TRAINING_HEADERS, tables.training_rows(record))


def main(arguments: Sequence[str] | None = None) -> int:
    told = "Interrupted: nothing was written."
    return as_command("steps.train", lambda: run(make_parser().parse_args(arguments)), interrupted=told)


if __name__ == "__main__":
    sys.exit(main())
