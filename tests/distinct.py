"""Which cases of a matrix of steps and problems are a test of their own, and which of these always run.

Many steps run the kernel of an earlier one on most problems: what they change is for another head_dim, for a mask or
for longer sequences. ``distinct`` leaves such cases out, also where everything runs. ``core`` is for
``selection.sampled``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from steps.core.fused import FusedStep
from tests.selection import ALL, parse, turn
from tutorial_lib.problem import Problem


def what_runs(step, problem: Problem) -> tuple:
    """Kernels, constants and order of a call on the CPU: two steps for which they are equal do the same."""
    if not isinstance(step, FusedStep):
        return (step.name,)
    step = step.configured(problem, "cpu")
    kernel, constants = step.entry(problem, "cpu")
    order = step.order_for(problem) if hasattr(step, "order_for") else None
    a_processor = getattr(step, "occupancy", None) if order and order.persistent else None
    of_queries = (
        step.kernel("queries", problem)[:2] if hasattr(step, "queries") and not getattr(step, "adds", True) else None
    )
    launches = order, a_processor, of_queries, step.counted_kernels(problem)
    return type(step), kernel, tuple(sorted(constants.items())), *launches


def distinct(steps: Iterable, problems: Iterable[Problem]) -> list[tuple]:
    """(step, problem) for every problem that a step takes, unless a step before it runs the same for the problem."""
    steps, seen, pairs = list(steps), set(), []
    for step in steps:
        for problem in problems:
            if step.unsupported(problem, "cpu") is None and (case := (what_runs(step, problem), problem)) not in seen:
                seen.add(case)
                pairs.append((step, problem))
    return pairs


def named(x) -> str:
    """A step, or a problem, in the name of a test."""
    return x.slug if isinstance(x, Problem) else x.name


def core(pairs: Iterable[tuple], always: Iterable[Problem] = ()) -> Callable[..., bool]:
    """Whether a pair of (step, shape) always runs: of every step a few, and every shape with each kind of kernel.

    Of a step these are the shapes of ``always``, or, where it has none of them, its first two. And with every skeleton
    each shape runs once at least, in the steps of the skeleton by turns.
    """
    shapes_of, steps_of, chosen = defaultdict(list), defaultdict(list), set()
    for step, shape in pairs:
        shapes_of[step.name].append(shape)
        steps_of[type(step), shape].append(step.name)
    for name, shapes in shapes_of.items():
        chosen |= {(name, shape) for shape in [s for s in shapes if s in always] or shapes[:2]}
    for n, ((_, shape), names) in enumerate(steps_of.items()):
        chosen.add((names[n % len(names)], shape))
    return lambda step, shape: (step.name, shape) in chosen


def first_and_last(pairs: Iterable[tuple]) -> Callable[..., bool]:
    """As ``core``, for what steps inherit from their skeleton: of each skeleton its first step, and its last."""
    pairs = list(pairs)
    ends = [{type(step): step.name for step, _ in each} for each in (pairs, reversed(pairs))]
    return lambda step, shape: any(end[type(step)] == step.name for end in ends)


def some_of(seeds: Sequence, number: int, config) -> list[int]:
    """So many of the seeds, others for every selection; all of them where everything runs. config: pytest's."""
    chosen = parse(config.option.selection)
    if chosen == ALL:
        return list(seeds)
    return [seeds[((chosen + turn(chosen)) * number + n) % len(seeds)] for n in range(number)]
