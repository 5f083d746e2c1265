"""Who computes what where every rank holds an early and a late piece of the sequence, under a causal mask."""

from tutorial_lib.exercises import Plain, Wrong


def _pieces(rank: int, ranks: int) -> tuple[int, int]:
    return rank, 2 * ranks - 1 - rank


def judge(function, chance) -> str | None:
    for ranks in (2, 3, 4, chance.randint(5, 9)):
        for own in range(ranks):
            for owner in range(ranks):
                if owner != own and (wrong := _wrong(function(own, owner), own, owner, ranks)):
                    return f"With {ranks} ranks, `block({own}, {owner})`: {wrong}"
    return None


def _wrong(mine, own: int, owner: int, ranks: int) -> str | None:
    """By the definition alone: a piece of queries sees a piece of keys that is before it."""
    names = ("early", "late")
    if not (isinstance(mine, tuple) and len(mine) == 2 and all(isinstance(some, str) for some in mine)):
        return f'two words must come back, such as `"late", "both"`. This came: `{mine!r}`.'
    if unknown := [word for word in mine if word not in (*names, "both")]:
        return f'each word is "early", "late" or "both". This came: `{unknown[0]!r}`.'
    queries, keys = _pieces(own, ranks), _pieces(owner, ranks)
    wanted = {(a, b) for a in (0, 1) for b in (0, 1) if keys[b] < queries[a]}
    chosen = [range(2) if word == "both" else (names.index(word),) for word in mine]
    found = {(a, b) for a in chosen[0] for b in chosen[1]}
    if too_much := sorted(found - wanted):
        a, b = too_much[0]
        return (
            f"rank {own}'s {names[a]} piece is number {queries[a]}, and rank {owner}'s {names[b]} piece of keys is "
            f"number {keys[b]}: that is later, and the mask hides it."
        )
    if missing := sorted(wanted - found):
        a, b = missing[0]
        return (
            f"rank {own}'s {names[a]} piece is number {queries[a]}, and sees rank {owner}'s {names[b]} piece of keys, "
            f"number {keys[b]}, whole. Nobody computes that."
        )
    return None


EXERCISE = Plain(
    name="zigzag_block",
    function="block",
    by=judge,
    hints=(
        "Number the pieces: of 2N pieces, rank r holds r and 2N - 1 - r. A piece of queries sees exactly the pieces of "
        "keys with a smaller number, as both belong to different ranks. Try it with N = 4, ranks 1 and 2.",
        "A late piece has a larger number than every early one. So late queries see the owner's early keys always. "
        "What is left to decide is early on early, and late on late, and early on late is never seen.",
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
        Wrong("the two cases changed", "and the mask hides it", old="owner < own", new="owner > own"),
        Wrong("everything", "and the mask hides it", old='return "late", "both"', new='return "both", "both"'),
        Wrong(
            "as in order: nothing of later ranks",
            "Nobody computes that",
            old='return "late", "both"',
            new='return "late", "early"',
        ),
        Wrong("late queries alone", "Nobody computes that", old='return "both", "early"', new='return "late", "early"'),
        Wrong(
            "keys and queries changed",
            "and the mask hides it",
            old='return "both", "early"',
            new='return "early", "both"',
        ),
        Wrong(
            "a word that is none",
            'each word is "early", "late" or "both"',
            old='return "late", "both"',
            new='return "late", "all"',
        ),
        Wrong("one word", "two words must come back", old='return "late", "both"', new='return "late"'),
    ),
    debrief="Either way it is half of a part, and needs no mask: two pieces of queries on one of keys, or one on two. "
    "So every rank takes equally long in every iteration, and nobody waits for a rank that has more to do.",
)
