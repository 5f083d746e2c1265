"""What the trace of a simulated launch says of products: who begins them, in which order, and what runs under them.

A trace holds events in the order in which a role asks for them, so an event behind a product that ends later runs under
that product.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

TENSOR_CORES = "tensor cores"


def products(run) -> dict[tuple, list[str]]:
    """Of every block: the roles that began its products, in the order in which they were begun."""
    found: dict[tuple, list[str]] = {}
    for block, lane, _, label, _, _ in run.trace:
        if lane == TENSOR_CORES:
            found.setdefault(block, []).append(label)
    return found


def begun_together(run) -> int:
    """How many products were begun while their role had not waited for the one before."""
    begun: Counter = Counter()
    waited: Counter = Counter()
    together = 0
    for block, role, what, which in run.asked:
        if what == "wait":
            waited[block, role] = max(which, waited[block, role])
        elif what.startswith("wgmma"):
            together += begun[block, role] > waited[block, role]
            begun[block, role] = which
    return together


def work(run, kind: str) -> Iterator[tuple[float, float]]:
    """Every piece of work of a kind ("mufu", "alu", "smem"): its clocks, and how long a product of its role goes on."""
    ends: dict[tuple, float] = {}
    for block, lane, what, label, begin, end in run.trace:
        if lane == TENSOR_CORES:
            ends[block, label] = max(end, ends.get((block, label), 0.0))
        elif what == kind:
            yield end - begin, max(0.0, ends.get((block, lane), 0.0) - begin)


def share_under_products(run, kind: str, at_least: float = 0.0) -> float:
    """Of the work of a kind, in pieces of so many clocks at least, the share that begins under an own product."""
    clocks = [(taken, left) for taken, left in work(run, kind) if taken >= at_least]
    return sum(taken for taken, left in clocks if left) / max(1.0, sum(taken for taken, _ in clocks))
