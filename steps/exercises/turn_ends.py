"""When a warpgroup is done with an iteration of products that it issues, waits and other work: step deferred_fence."""

from tutorial_lib.exercises import Compared, Wrong

KNOWN = (
    [("fence", 3), ("ask", 5), ("wait", 0)],
    [("ask", 5), ("fence", 3), ("wait", 0)],
    [("ask", 2), ("fence", 6), ("wait", 0)],
    [("ask", 4), ("ask", 4), ("wait", 0), ("store", 2)],
    [("ask", 2), ("exp2", 9), ("ask", 3), ("wait", 0)],
)


def cases(chance):
    yield from ((pieces,) for pieces in KNOWN)
    for _ in range(20):
        kinds = [chance.choice(("ask", "wait", "exp2", "fence", "store")) for _ in range(chance.randint(4, 9))]
        yield ([(kind, 0 if kind == "wait" else chance.randint(1, 9)) for kind in kinds],)


EXERCISE = Compared(
    name="turn_ends",
    function="iteration_ends",
    cases=cases,
    hints=(
        "Keep two times: how far the warpgroup is, and when the tensor cores are done with all that was asked for.",
        "A product begins when it has been asked for, and the products before it are done.",
        "Asking takes no time here. A wait lasts until the tensor cores are done, if they are not done already.",
    ),
    solution="""
def iteration_ends(pieces):
    now = cores = 0
    for what, time in pieces:
        if what == "ask":
            cores = max(cores, now) + time
        elif what == "wait":
            now = max(now, cores)
        else:
            now += time
    return now
""",
    wrong=(
        Wrong("two products are under way at once", old="max(cores, now) + time", new="max(cores, now + time)"),
        Wrong("asking takes as long as the product", old="cores = max", new="now = cores = max"),
        Wrong("products begin before they are asked for", old="max(cores, now) + time", new="cores + time"),
        Wrong("nobody waits", old="now = max(now, cores)", new="pass"),
    ),
    debrief="Fence 3, ask for 5, wait: done at 8. Ask first: done at 5, as the product is under way meanwhile.",
)
