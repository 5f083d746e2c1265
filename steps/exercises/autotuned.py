"""Which of a search's configurations to keep, when the fastest is fastest by luck."""

from tutorial_lib.exercises import Plain, Wrong


def _pick(found):
    fastest = min(found, key=lambda one: one[1])
    near = [one for one in found if one[1] - one[2] <= fastest[1] + fastest[2]]
    return min(near, key=lambda one: one[3])[0]


def _cases(chance):
    """The fastest takes more shared memory than another that cannot be told from it, and one that can takes least."""
    for _ in range(6):
        base, margin = chance.randint(500, 900), chance.randint(4, 9)
        found = [
            ("fastest", base, margin, 160),
            ("within both margins", base + 2 * margin - 1, margin, 80),
            ("within the first margin", base + margin // 2, margin, 96),
            ("slow", base + 9 * margin, margin, 16),
            ("too slow", base + 3 * margin, margin, 48),
        ]
        chance.shuffle(found)
        yield found


def _judge(function, chance):
    for found in _cases(chance):
        mine, right = function(list(found)), _pick(found)
        if mine == right:
            continue
        by_name = {one[0]: one for one in found}
        told = f"Of {found} you pick {mine!r}, and it should be {right!r}."
        if mine not in by_name:
            return f"{told} Return the name of a configuration, its first field."
        fastest = by_name["fastest"]
        if mine == "fastest":
            return f"{told} Others cannot be told from the fastest, and take less shared memory."
        if by_name[mine][1] - by_name[mine][2] > fastest[1] + fastest[2]:
            return (
                f"{told} {mine!r} takes at least {by_name[mine][1] - by_name[mine][2]} µs, and the fastest at most "
                f"{fastest[1] + fastest[2]} µs: it is slower for certain."
            )
        return f"{told} Both cannot be told from the fastest: both margins count, its own and the fastest's."
    return None


EXERCISE = Plain(
    name="autotuned",
    function="pick",
    by=_judge,
    hints=(
        "A time of 600 µs with a margin of 5 µs means: somewhere from 595 to 605. When can two such times be the same?",
        "They can be the same when the two ranges touch: the least that this one may take is not more than the most "
        "that the fastest may take.",
        "Keep those with time - margin <= the fastest's time + margin, and return the name of the one of them with the "
        "least shared memory.",
    ),
    solution="""
def pick(found):
    fastest = min(found, key=lambda one: one[1])
    near = [one for one in found if one[1] - one[2] <= fastest[1] + fastest[2]]
    return min(near, key=lambda one: one[3])[0]
""",
    wrong=(
        Wrong(
            "always the fastest",
            "cannot be told from the fastest",
            old="min(near, key=lambda one: one[3])",
            new="fastest",
        ),
        Wrong("the margin of one side only", "both margins count", old="one[1] - one[2] <=", new="one[1] <="),
        Wrong("the least memory of all", "slower for certain", old="min(near,", new="min(found,"),
        Wrong("the slowest for the fastest", "slower for certain", old="fastest = min(", new="fastest = max("),
        Wrong("the whole entry", "Return the name", old="one[3])[0]", new="one[3])"),
    ),
    debrief="A search ranks by measurements, and its first places may be luck. Where margins overlap, decide by "
    "something that is certain.",
)
