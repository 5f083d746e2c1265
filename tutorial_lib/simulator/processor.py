"""An SM in simulated time: the blocks that it holds share its units, and whoever is earliest goes first."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator

from tutorial_lib.simulator.block import DONE, READY, WAITING, Block, Deadlock, Role, told
from tutorial_lib.simulator.machine import Unit

Group = list[Block]  # blocks that begin together, on an SM each: the CTAs of a cluster, or one block
UNITS = ("tensor cores", "mufu", "alu", "smem", "tmem", "tma")


class Processor:
    """One SM of a launch, or as many as a cluster has CTAs. time: when the last block that has ended did so."""

    def __init__(self, chance, ctas: int = 1):
        self.units = [{name: Unit(name, chance) for name in UNITS} for _ in range(ctas)]
        self.events: list = []
        self.roles: list[Role] = []  # of all blocks that it holds
        self.current: Role | None = None
        self.time = 0.0
        self.to_begin: Iterator[Group] = iter(())  # blocks that have not begun; who takes one sees to its work
        self._order = itertools.count()

    def later(self, time: float, action: Callable[[float], None]) -> None:
        heapq.heappush(self.events, (time, next(self._order), action))

    def anyone_before(self, role: Role) -> bool:
        """Whether something happens, or another role goes on, before a role does."""
        return bool(self.events and self.events[0][0] <= role.time) or any(
            other.time < role.time and other.state is READY for other in self.roles if other is not role
        )

    def execute(self, groups: Iterator[Group], at_once: int) -> None:
        """Run blocks in order, as many groups at once as given: the next begins when one has ended. Raises Deadlock."""
        groups_of: dict[Block, Group] = {}
        self.to_begin = groups

        def begin(group: Group, time: float) -> None:
            for block in group:
                groups_of[block] = group
                block.begin(time)

        try:
            for group in itertools.islice(groups, at_once):
                begin(group, 0.0)
            while True:
                ready = [role for role in self.roles if role.state is READY]
                role = min(ready, key=lambda role: role.time, default=None)
                if self.events and (role is None or self.events[0][0] <= role.time):
                    time, _, action = heapq.heappop(self.events)
                    action(time)
                elif role is not None:
                    self.current = role
                    role.resume()
                    if role.state is DONE and role.block.end():
                        self.time = max(self.time, role.block.ended)
                        group = groups_of[role.block]
                        if all(block.over for block in group) and (following := next(groups, None)):
                            begin(following, max(block.ended for block in group))
                else:
                    break
            if waiting := [role for role in self.roles if role.state is WAITING]:
                lines = [
                    f"  {role} {'wait' if str(role).startswith('all') else 'waits'} for {role.why[1]()}\n"
                    f"      at {told(role.stopped_at)}"
                    for role in waiting
                ]
                blocks = sorted({role.block.key for role in waiting})
                raise Deadlock(f"block {', '.join(map(str, blocks))}: nobody can go on\n" + "\n".join(lines))
        finally:
            for role in self.roles:
                role.kill()
