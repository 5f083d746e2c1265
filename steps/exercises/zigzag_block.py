"""Who computes what where every rank holds an early and a late piece of the sequence, under a causal mask."""

from itertools import permutations

from tutorial_lib.exercises import Compared, Wrong


def told(own: int, owner: int) -> str:
    pieces = [f"{rank} and 2N - {rank + 1}" for rank in (own, owner)]
    return (
        f"Of 2N pieces rank {own} holds {pieces[0]}, and rank {owner} holds {pieces[1]}. A piece of queries sees the "
        "pieces of keys with a smaller number, whole, and of later ones nothing."
    )


EXERCISE = Compared(
    name="zigzag_block",
    function="block",
    cases=lambda chance: permutations(range(9), 2),
    told=told,
    hints=(
        "Number the pieces: of 2N pieces, rank r holds r and 2N - 1 - r. A piece of queries sees exactly the pieces of "
        "keys with a smaller number, since the two belong to different ranks. Try it with N = 4, ranks 1 and 2.",
        "A late piece has a larger number than every early one. So late queries always see the owner's early keys, and "
        "early queries never see its late ones. What is left: do early queries see its early keys, and late queries "
        "its late ones?",
        "If owner < own, its early piece is before both of yours, and its late one after both: both queries, early "
        "keys. Else its late piece is before your late one, and both are after your early one.",
    ),
    solution="""
def block(own, owner):
    if owner < own:
        return "both", "early"
    return "late", "both"
""",
    wrong=(
        Wrong("the two cases are changed", old="owner < own", new="owner > own"),
        Wrong(
            "everything is computed where the owner's number is larger",
            old='return "late", "both"',
            new='return "both", "both"',
        ),
        Wrong(
            "late queries do not see the late keys of ranks with a larger number",
            old='return "late", "both"',
            new='return "late", "early"',
        ),
        Wrong("early queries see no other rank's keys", old='return "both", "early"', new='return "late", "early"'),
        Wrong("keys and queries are changed", old='return "both", "early"', new='return "early", "both"'),
        Wrong("one word", "must be (a word, a word)", old='return "late", "both"', new='return "late"'),
    ),
    debrief="Either way it is half of a part, and needs no mask: two pieces of queries on one of keys, or one on two. "
    "So every rank takes equally long in every iteration, and nobody waits for a rank that has more to do.",
)
