"""Which parity a wait names: of the full barrier of a slot, and of its empty barrier."""

from tutorial_lib.exercises import Plain, Wrong, first_wrong


def right(iteration, stages):
    uses = iteration // stages
    return uses % 2, (uses + 1) % 2


def told(iteration, stages):
    slot, uses = iteration % stages, iteration // stages
    filled = f"Tile {iteration} goes into slot {slot} of {stages}, which was filled {uses} times before"
    if uses == 0:
        return f"{filled}: the consumer waits for phase 0 of `full`, and nobody has given the slot back yet."
    return f"{filled}: the consumer waits for phase {uses} of `full`, the producer for phase {uses - 1} of `empty`."


def judge(function, chance):
    few = [(iteration, stages) for stages in (2, 1, 3) for iteration in range(7)]
    more = [(chance.randint(0, 200), chance.randint(1, 6)) for _ in range(20)]
    cases = [*few, *more]
    for iteration, stages in cases:
        answer = function(iteration, stages)
        if not (isinstance(answer, tuple) and len(answer) == 2 and set(answer) <= {0, 1}):
            return f"`parities({iteration}, {stages})` must be two parities, each 0 or 1, and yours gives {answer!r}."
    if all(function(*case) == right(*case)[::-1] for case in cases):
        return (
            "The two are swapped: first comes the parity that the consumer waits for on `full`. On a fresh barrier "
            "a wait for parity 0 waits, and a wait for parity 1 passes."
        )
    if all(function(*case) == (right(*case)[0], right(*case)[0]) for case in cases):
        return (
            "The parity for `full` is right, but the one for `empty` cannot be the same: with tile 0 the producer "
            "would wait for somebody to give back a slot that was never used."
        )
    return first_wrong(function, right, cases, told)


EXERCISE = Plain(
    name="parity",
    function="parities",
    by=judge,
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
            "tiles are counted, not uses",
            "`parities(1, 2)` must be (0, 1), and yours gives (1, 0)",
            source="def parities(iteration, stages):\n    return iteration & 1, iteration & 1 ^ 1\n",
        ),
        Wrong(
            "the slot instead of the use",
            "must be two parities, each 0 or 1",
            source="def parities(iteration, stages):\n    return iteration % stages, iteration % stages ^ 1\n",
        ),
        Wrong("the same for both", "with tile 0 the producer would wait", old=" ^ 1", new=""),
        Wrong("swapped", "The two are swapped", old="return full, empty", new="return empty, full"),
        Wrong(
            "off by one use",
            "`parities(1, 2)` must be (0, 1)",
            source="def parities(iteration, stages):\n    use = (iteration + 1) // stages\n"
            "    return use & 1, use & 1 ^ 1\n",
        ),
        Wrong(
            "a whole number of phases",
            "must be two parities, each 0 or 1",
            source="def parities(iteration, stages):\n    return iteration // stages, iteration // stages - 1\n",
        ),
    ),
    debrief="One counter is enough for a ring: its remainder is the slot, and the lowest bit of its quotient is the "
    "parity. `empty` waits for the phase before, and therefore passes at once in the first round.",
)
