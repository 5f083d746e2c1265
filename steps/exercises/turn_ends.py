"""When a warpgroup is done with an iteration of products that it issues, waits and other work: step deferred_fence."""

from tutorial_lib.exercises import Plain, Wrong


def ends_of(pieces) -> int:
    now = cores = 0  # of the warpgroup, and of the tensor cores
    for what, time in pieces:
        if what == "ask":
            cores = max(cores, now) + time
        elif what == "wait":
            now = max(now, cores)
        else:
            now += time
    return now


def judge(function, chance):
    iterations = [
        [("fence", 3), ("ask", 5), ("wait", 0)],
        [("ask", 5), ("fence", 3), ("wait", 0)],
        [("ask", 2), ("fence", 6), ("wait", 0)],
        [("ask", 4), ("ask", 4), ("wait", 0), ("store", 2)],
        [("ask", 2), ("exp2", 9), ("ask", 3), ("wait", 0)],
    ]
    for _ in range(20):
        kinds = [chance.choice(("ask", "wait", "exp2", "fence", "store")) for _ in range(chance.randint(4, 9))]
        iterations.append([(kind, 0 if kind == "wait" else chance.randint(1, 9)) for kind in kinds])
    for pieces in iterations:
        told, right = function(list(pieces)), ends_of(pieces)
        if not isinstance(told, int | float):
            return f"`iteration_ends` must return a number, and yours gives {told!r}."
        if told != right:
            when = "too early" if told < right else "too late"
            return f"An iteration of {pieces} ends at {right}. Yours ends at {told}, which is {when}."
    return None


EXERCISE = Plain(
    name="turn_ends",
    function="iteration_ends",
    by=judge,
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
        Wrong("two products at once", "too early", old="max(cores, now) + time", new="max(cores, now + time)"),
        Wrong("asking takes as long as the product", "too late", old="cores = max", new="now = cores = max"),
        Wrong(
            "products begin before they are asked for", "too early", old="max(cores, now) + time", new="cores + time"
        ),
        Wrong("nobody waits", "too early", old="now = max(now, cores)", new="pass"),
    ),
    debrief="Fence 3, ask for 5, wait: done at 8. Ask first: done at 5, as the product is under way meanwhile.",
)
