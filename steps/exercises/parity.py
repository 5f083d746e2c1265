"""Which parity a wait names: of the full barrier of a slot, and of its empty barrier."""

from tutorial_lib.exercises import Compared, Wrong


def told(iteration: int, stages: int) -> str:
    slot, uses = iteration % stages, iteration // stages
    filled = f"Tile {iteration} goes into slot {slot} of {stages}, which was filled {uses} times before"
    if uses == 0:
        return (
            f"{filled}: the consumer waits for phase 0 of `full`, and nobody has given the slot back yet. On a fresh "
            "barrier a wait for parity 0 waits, and a wait for parity 1 passes."
        )
    return f"{filled}: the consumer waits for phase {uses} of `full`, the producer for phase {uses - 1} of `empty`."


def cases(chance):
    yield from ((iteration, stages) for stages in (2, 1, 3) for iteration in range(7))
    yield from ((chance.randint(0, 200), chance.randint(1, 6)) for _ in range(20))


EXERCISE = Compared(
    name="parity",
    function="parities",
    cases=cases,
    told=told,
    hints=(
        "Slots are reused. How often has the slot of this tile been filled before, with so many slots?",
        "That number, `iteration // stages`, is the number of the phase of `full` that this tile completes. Its parity "
        "is its lowest bit.",
        "The producer waits for the phase of `empty` before that one. With tile 0 this is the phase before the first, "
        "and its parity must let the wait pass: 1.",
    ),
    solution="""
def parities(iteration, stages):
    full = iteration // stages & 1
    empty = iteration // stages & 1 ^ 1
    return full, empty
""",
    wrong=(
        Wrong(
            "tiles are counted, and not the uses of a slot",
            source="def parities(iteration, stages):\n    return iteration & 1, iteration & 1 ^ 1\n",
        ),
        Wrong(
            "the number of the slot is taken for its use",
            source="def parities(iteration, stages):\n    return iteration % stages, iteration % stages ^ 1\n",
        ),
        Wrong(
            "both parities are the same: with tile 0 the producer waits for a slot that was never used",
            old=" ^ 1",
            new="",
        ),
        Wrong("the two are swapped", old="return full, empty", new="return empty, full"),
        Wrong(
            "each use begins one tile too early",
            source="def parities(iteration, stages):\n    use = (iteration + 1) // stages\n"
            "    return use & 1, use & 1 ^ 1\n",
        ),
        Wrong(
            "whole numbers of phases come, and not their lowest bits",
            source="def parities(iteration, stages):\n    return iteration // stages, iteration // stages - 1\n",
        ),
    ),
    debrief="One counter is enough for a ring: its remainder is the slot, and the lowest bit of its quotient is the "
    "parity. `empty` waits for the phase before, and therefore passes at once in the first round.",
)
