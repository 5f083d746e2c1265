"""The launch under way, and the role whose turn it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tutorial_lib.simulator.block import Block, Role
    from tutorial_lib.simulator.run import Run

run: Run | None = None


def block() -> Block:
    return role().block


def role() -> Role:
    return run.processor.current


def spend(unit: str, amount: float, label: str = "") -> None:
    """Keep a unit busy with so many operations, results or bytes, at its rate."""
    me = role()
    machine = me.block.machine
    rate = {"alu": machine.fp32, "mufu": machine.mufu, "smem": machine.smem, "tmem": machine.tmem}[unit]
    me.use(unit, amount / rate, label)
