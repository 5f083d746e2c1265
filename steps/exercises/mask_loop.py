"""The bounds of the two loops over keys: whole tiles, which ask nothing, and narrow ones, which the mask cuts."""

from types import SimpleNamespace

from steps.exercises.in_kernel import InKernel
from tutorial_lib.exercises import Wrong, define

TILES = [
    (128, 128, 64),
    (64, 128, 32),
    (128, 64, 16),
    (32, 128, 64),
]  # queries, keys of a whole tile, keys of a narrow one
CASES = [(0, 512), (1, 512), (2, 512), (2, 333), (2, 300), (2, 200)]  # tile of queries, keys


def _keys(begin: int, end: int) -> str:
    return f"keys {begin} to {end - 1}"


def _wrong_bounds(mine, i: int, seq_len: int, query: int, key: int, narrow: int) -> str | None:
    whole, first, end = mine
    first_query, past = i * query, min(seq_len, (i + 1) * query)  # and the first key that no query sees
    right = min(seq_len, first_query) // key
    if whole > right:
        hidden = (
            "there are no such keys" if (right + 1) * key > seq_len else f"query {first_query} does not see them all"
        )
        return f"your first loop takes {_keys(right * key, (right + 1) * key)} without a mask, but {hidden}."
    if whole < right:
        return (
            f"every query sees {_keys(whole * key, (whole + 1) * key)}, so they need no mask, and your first loop "
            "leaves them to the second. The result would be right, but slow."
        )
    if first * narrow > whole * key:
        return (
            f"neither loop takes {_keys(whole * key, first * narrow)}. The first tile of the second is in narrow tiles."
        )
    if first * narrow < whole * key:
        return f"both loops take {_keys(first * narrow, whole * key)}. The first tile of the second is in narrow tiles."
    if end * narrow < past:
        return f"your second loop ends before {_keys(max(first, end) * narrow, past)}, which some queries see."
    if (end - 1) * narrow >= past and end > first:
        return (
            f"your second loop takes {_keys((end - 1) * narrow, end * narrow)}, which no query sees: they are behind "
            f"query {past - 1} or behind the last key. The result would be right, but slow."
        )
    return None


def bounds(source: str, chance) -> str | None:
    """The function's numbers: too much work gives right results, too."""
    for query, key, narrow in TILES:
        known = {"TILE_QUERY": query, "TILE_KEY": key, "NARROW_KEY": narrow}
        own = define(source, "bounds", ct=SimpleNamespace(cdiv=lambda a, b: -(-a // b)), **known)
        for i, seq_len in [*CASES, *((2, chance.randint(1, 400)) for _ in range(20))]:
            mine = tuple(own(i, seq_len))
            if wrong := _wrong_bounds(mine, i, seq_len, query, key, narrow):
                return (
                    f"TILE_QUERY={query}, TILE_KEY={key}, NARROW_KEY={narrow}; tile {i} has the queries {i * query} to "
                    f"{(i + 1) * query - 1}, and there are {seq_len} keys. You give whole, first, end = "
                    f"{', '.join(map(str, mine))}: {wrong}"
                )
    return None


# The kernel asks for its whole tiles and for its narrow ones in two places.
WHOLE = """
def whole_tiles(i, seq_len_kv):
    whole, first, end = bounds(i, seq_len_kv)
    return whole, end
"""
NARROW = """
def narrow_tiles(i, seq_len_kv):
    whole, first, end = bounds(i, seq_len_kv)
    return first, end
"""

EXERCISE = InKernel(
    name="mask_loop",
    step="mask_loop",
    function="bounds",
    first=bounds,
    kinds=(
        {"causal": True, "head_dim": 128, "heads": 1},
        {"causal": True, "head_dim": 128, "heads": 1, "seq_len_kv": 150},
    ),
    lengths=(260, 300),
    replaces="",
    functions={"tiles_to_visit": WHOLE, "narrow_tiles": NARROW},
    hints=(
        "The i-th tile of queries begins with query i * TILE_QUERY. That query sees the fewest keys: those up to its "
        "own number. How many whole tiles of keys lie before it?",
        "The second loop counts in narrow tiles. It begins where the whole ones end, so its first number is whole * "
        "(TILE_KEY // NARROW_KEY).",
        "The last query of the tile is number (i + 1) * TILE_QUERY - 1, and there may be fewer keys than that: end is "
        "ct.cdiv(min(seq_len_kv, (i + 1) * TILE_QUERY), NARROW_KEY), and whole needs the same min.",
    ),
    solution="""
def bounds(i, seq_len_kv):
    whole = min(seq_len_kv, i * TILE_QUERY) // TILE_KEY
    first = whole * (TILE_KEY // NARROW_KEY)
    end = ct.cdiv(min(seq_len_kv, (i + 1) * TILE_QUERY), NARROW_KEY)
    return whole, first, end
""",
    wrong=(
        Wrong(
            "the tile on the diagonal counts as whole",
            "without a mask, but query",
            old="min(seq_len_kv, i * TILE_QUERY) //",
            new="min(seq_len_kv, (i + 1) * TILE_QUERY) //",
        ),
        Wrong("one whole tile too few", "so they need no mask", old="// TILE_KEY\n", new="// TILE_KEY - (i > 0)\n"),
        Wrong("first is in whole tiles", "both loops take", old=" * (TILE_KEY // NARROW_KEY)", new=""),
        Wrong("end is in whole tiles", "ends before", old=", NARROW_KEY)", new=", TILE_KEY)"),
        Wrong(
            "end is rounded down",
            "ends before",
            old="ct.cdiv(min(seq_len_kv, (i + 1) * TILE_QUERY), NARROW_KEY)",
            new="min(seq_len_kv, (i + 1) * TILE_QUERY) // NARROW_KEY",
        ),
        Wrong(
            "behind the last key",
            "which no query sees",
            old="min(seq_len_kv, (i + 1) * TILE_QUERY)",
            new="((i + 1) * TILE_QUERY)",
        ),
        Wrong(
            "whole tiles where there are no keys",
            "there are no such keys",
            old="min(seq_len_kv, i * TILE_QUERY)",
            new="(i * TILE_QUERY)",
        ),
    ),
    debrief="Only the tiles around the diagonal ask for the mask, and only those at the end of the keys. Bounds that "
    "take too much give the right result, so no test of the output finds them: count the tiles.",
)
