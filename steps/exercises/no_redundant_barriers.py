"""Which bar.sync of a warpgroup may go: in short sequences of PTX events, and in the PTX of step row_max_ilp."""

from steps import get_step
from steps.core.problems import HEADLINE, standard
from tutorial_lib import meetings
from tutorial_lib.exercises import Plain, Wrong

ARCH = "sm_90"
WORDS = (  # what a line of PTX begins with, and its word; the first that fits counts
    (meetings.MEETING, "sync"),
    (meetings.WAIT, "wait"),
    (meetings.ARRIVAL, "arrive"),
    (meetings.COMPLETE, "complete"),
    ("wgmma.", "begin"),
    (meetings.WRITE, "write"),
    ("$L", "label"),
)
CASES = (  # what stands in front of a barrier, and what behind
    (["begin", "complete"], "arrive"),
    (["begin", "complete", "sync", "arrive"], "wait"),
    (["complete", "label"], "wait"),
    (["sync", "wait"], "arrive"),
    (["complete", "sync", "arrive", "wait"], "arrive"),
    (["complete", "begin"], "arrive"),
    (["complete", "sync", "arrive"], "arrive"),
    (["complete", "label"], "arrive"),
    (["complete", "other"], "arrive"),
    (["complete", "other"], "write"),
    (["write", "other"], "copy"),
    (["complete"], "write"),
    (["complete", "other"], "other"),
    ([], "arrive"),
)
SHOWN = 4  # events in front of a barrier of a whole kernel


def words(ptx: str) -> list[str]:
    """The events of a kernel's PTX, a word each."""
    return [_word(found["event"]) for line in ptx.splitlines() if (found := meetings.EVENT.match(line))]


def _word(event: str) -> str:
    if meetings.STORE.match(event):
        return "copy"
    return next((word for start, word in WORDS if event.startswith(start)), "other")


def why_it_stays(before: list[str], after: str) -> str | None:
    """What needs a barrier; None if nothing does."""
    if after == "wait":
        return None
    if after == "write":
        return (
            "The warps write to the output's buffer in shared memory, and TMA may still read the last output there. "
            "Only the thread that asked TMA for that copy waits for it: the others know by this barrier."
        )
    if after == "copy":
        return "TMA copies what all four warps have written, and one thread asks for it: all must have written."
    if after != "arrive":
        return "What stands behind it is neither a wait nor an arrival: in doubt a barrier stays."
    nearest = next((word for word in reversed(before) if word not in ("arrive", "sync")), None)
    return {
        "complete": None,
        "wait": "The arrival is behind a mere wait for an mbarrier. One warp may see that the tile has come, and "
        "release its slot, before another warp has begun to wait. TMA fills the slot again, and the other warp waits "
        "forever.",
        "begin": "The product has only been begun, and may still read the tile: nobody has waited for it.",
        "label": "A branch may lead to the label, and on that way no product may be complete.",
        None: "Nothing in front of it says that a product is complete.",
    }.get(nearest, f"Behind the complete product stands `{nearest}`, which may need the tile, too: in doubt it stays.")


def why_it_goes(before: list[str], after: str) -> str:
    """Of a barrier that nothing needs."""
    if after == "wait":
        return "In front of a wait there is nothing to protect: a warp that comes early does nothing there but wait."
    if before[-1] == "complete":
        return "The product is complete, and it was one of all four warps: none of them reads the tile any more."
    return (
        "Behind the complete product stand arrivals and their barriers, and nothing else: it is complete for the "
        "second arrival as well."
    )


def wrong_in(function, before: list[str], after: str) -> str | None:
    told, why = function(list(before), after), why_it_stays(before, after)
    if not isinstance(told, bool):
        return f"`may_go` must return True or False, and yours gives {told!r}."
    if told == (why is None):
        return None
    what = f"`may_go({before[-SHOWN:]}, {after!r})` must be {why is None}, and yours gives {told}."
    return f"{what} {why or why_it_goes(before, after)}"


def judge(function, chance):
    for before, after in CASES:
        if wrong := wrong_in(function, before, after):
            return wrong
    kinds = [*dict(WORDS).values(), "copy", "other"]
    for _ in range(60):
        before = chance.choices(kinds, k=chance.randint(0, 6))
        if before[-1:] != ["sync"] and (wrong := wrong_in(function, before, chance.choice(("arrive", *kinds)))):
            return wrong
    for problem in (HEADLINE, standard(head_dim=256)):
        events = words(get_step("row_max_ilp").compile(problem, ARCH).ptx)
        for n, event in enumerate(events):
            if event == "sync" and (wrong := wrong_in(function, events[:n], events[n + 1])):
                return f"In the PTX of step row_max_ilp at head_dim {problem.head_dim}: {wrong}"
    return None


EXERCISE = Plain(
    name="no_redundant_barriers",
    function="may_go",
    by=judge,
    hints=(
        "Begin with what stands behind the barrier. In front of a wait it may always go. In front of an arrival it "
        "depends. In front of anything else it stays.",
        "An arrival releases a slot. So look back from the barrier: which is the nearest event that tells whether "
        "the tile has been read, or was only seen to come?",
        'Go through `reversed(before)`, and pass over "arrive" and "sync", which read no tile. If the first other '
        'word is "complete", the barrier may go. If it is any other word, or if there is none, it stays.',
    ),
    solution="""
def may_go(before, after):
    if after == "wait":
        return True
    if after != "arrive":
        return False
    for event in reversed(before):
        if event not in ("arrive", "sync"):
            return event == "complete"
    return False
""",
    wrong=(
        Wrong(
            "in front of every arrival",
            "behind a mere wait",
            source="""
def may_go(before, after):
    return after in ("wait", "arrive")
""",
        ),
        Wrong(
            "all of them",
            "behind a mere wait",
            source="""
def may_go(before, after):
    return True
""",
        ),
        Wrong(
            "none in front of waits",
            "does nothing there but wait",
            old='if after == "wait":\n        return True\n    ',
            new="",
        ),
        Wrong(
            "in front of what is written",
            "the others know by this barrier",
            old='if after != "arrive":',
            new='if after not in ("arrive", "write", "copy"):',
        ),
        Wrong(
            "in front of copies by TMA",
            "all must have written",
            old='if after == "wait":',
            new='if after in ("wait", "copy"):',
        ),
        Wrong(
            "the event right in front alone",
            "complete for the second arrival",
            old='if event not in ("arrive", "sync"):\n            ',
            new="",
        ),
        Wrong(
            "a complete product anywhere",
            "behind a mere wait",
            source="""
def may_go(before, after):
    return after == "wait" or (after == "arrive" and "complete" in before)
""",
        ),
        Wrong(
            "the nearest wgmma, whatever stands behind it",
            "behind a mere wait",
            old='if event not in ("arrive", "sync"):',
            new='if event in ("begin", "complete"):',
        ),
        Wrong(
            "a product that was begun",
            "has only been begun",
            old='return event == "complete"',
            new='return event in ("begin", "complete")',
        ),
        Wrong(
            "past labels",
            "A branch may lead to the label",
            old='("arrive", "sync"):',
            new='("arrive", "sync", "label"):',
        ),
        Wrong(
            "no truth value",
            "must return True or False",
            old="return True",
            new='return "yes"',
        ),
    ),
    debrief="In the PTX of step row_max_ilp at head_dim 128 the variant no_redundant_barriers removes these barriers: "
    "those of the loop over tiles of keys, and some of the others.",
)
