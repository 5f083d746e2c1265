"""Which bar.sync of a warpgroup may go: in short sequences of PTX events, and in the PTX of step row_max_ilp."""

from steps import get_step
from steps.core.problems import HEADLINE, standard
from tutorial_lib import meetings
from tutorial_lib.exercises import Compared, Wrong

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
KINDS = [*dict(WORDS).values(), "copy", "other"]
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
WHY = {  # a barrier stays in front of an arrival, by the nearest event in front of it that reads a tile
    "wait": "The arrival is behind a mere wait for an mbarrier. One warp may see that the tile has come, and release "
    "its slot, before another warp has begun to wait. TMA fills the slot again, and the other warp waits forever.",
    "begin": "The product has only been begun, and may still read the tile: nobody has waited for it.",
    "label": "A branch may lead to the label, and on that way no product may be complete.",
    None: "Nothing in front of it says that a product is complete.",
}


def words(ptx: str) -> list[str]:
    """The events of a kernel's PTX, a word each."""
    return [_word(found["event"]) for line in ptx.splitlines() if (found := meetings.EVENT.match(line))]


def _word(event: str) -> str:
    if meetings.STORE.match(event):
        return "copy"
    return next((word for start, word in WORDS if event.startswith(start)), "other")


def told(before: list[str], after: str) -> str:
    """Why a barrier stays, or may go."""
    if after == "wait":
        return "In front of a wait there is nothing to protect: a warp that comes early does nothing there but wait."
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
    if nearest != "complete":
        other = f"Behind the complete product stands `{nearest}`, which may need the tile, too: in doubt it stays."
        return WHY.get(nearest, other)
    if before[-1] == "complete":
        return "The product is complete, and it was one of all four warps: none of them reads the tile any more."
    return (
        "Behind the complete product stand arrivals and their barriers, and nothing else: it is complete for the "
        "second arrival as well."
    )


def cases(chance):
    """Short sequences, and what stands around each barrier in two kernels of step row_max_ilp."""
    yield from CASES
    for _ in range(60):
        before = chance.choices(KINDS, k=chance.randint(0, 6))
        if before[-1:] != ["sync"]:
            yield before, chance.choice(("arrive", *KINDS))
    for problem in (HEADLINE, standard(head_dim=256)):
        events = words(get_step("row_max_ilp").compile(problem, ARCH).ptx)
        yield from ((events[:n], events[n + 1]) for n, event in enumerate(events) if event == "sync")


EXERCISE = Compared(
    name="no_redundant_barriers",
    function="may_go",
    cases=cases,
    named=lambda before, after: f"may_go({before[-SHOWN:]}, {after!r})",
    told=told,
    hints=(
        "Begin with what follows the barrier. Before a wait it may always go. Before an arrival it depends. Before "
        "anything else it stays.",
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
            "the barrier in front of every arrival may go",
            source='def may_go(before, after):\n    return after in ("wait", "arrive")',
        ),
        Wrong("all barriers may go", source="def may_go(before, after):\n    return True"),
        Wrong("none in front of a wait may go", old='if after == "wait":\n        return True\n    ', new=""),
        Wrong(
            "those in front of what is written or copied are taken for those in front of an arrival",
            old='if after != "arrive":',
            new='if after not in ("arrive", "write", "copy"):',
        ),
        Wrong("those in front of copies by TMA may go", old='if after == "wait":', new='if after in ("wait", "copy"):'),
        Wrong(
            "only the event right in front counts",
            old='if event not in ("arrive", "sync"):\n            ',
            new="",
        ),
        Wrong(
            "a complete product may stand anywhere in front",
            source="""
def may_go(before, after):
    return after == "wait" or (after == "arrive" and "complete" in before)
""",
        ),
        Wrong(
            "the nearest wgmma counts, whatever stands behind it",
            old='if event not in ("arrive", "sync"):',
            new='if event in ("begin", "complete"):',
        ),
        Wrong(
            "a product that was only begun counts",
            old='return event == "complete"',
            new='return event in ("begin", "complete")',
        ),
        Wrong("labels are passed over", old='("arrive", "sync"):', new='("arrive", "sync", "label"):'),
        Wrong("no truth value", "must be True or False", old="return True", new='return "yes"'),
    ),
    debrief="In the PTX of step row_max_ilp at head_dim 128 the variant no_redundant_barriers removes these barriers: "
    "those of the loop over tiles of keys, and some of the others.",
)
