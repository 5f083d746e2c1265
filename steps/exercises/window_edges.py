"""Where a sliding window begins for a tile of queries: the first tile that is visited, the first without a mask."""

from itertools import product
from types import SimpleNamespace

from steps.exercises.in_kernel import InKernel
from tutorial_lib.exercises import Wrong, define
from tutorial_lib.values import fits

TILES = [(128, 128), (64, 128), (128, 64), (64, 16)]  # queries, keys
KNOWN = [(0, 1), (0, 70), (1, 1), (1, 2), (2, 64), (2, 128), (3, 129), (5, 200), (4, 1000)]  # tile of queries, window

ON_THE_HOST = SimpleNamespace(cdiv=lambda a, b: -(-a // b), minimum=min, maximum=max)  # of ct, for whole numbers


def _wrong_edges(first: int, left: int, i: int, rows: int, key: int, window: int) -> str | None:
    """By the definition alone: query q sees the keys q - window + 1 to q."""
    lowest = [max(0, query - window + 1) for query in (i * rows, (i + 1) * rows - 1)]  # key of the first, last query
    seen, whole = lowest[0] // key, -(-lowest[1] // key)

    def keys(j: int) -> str:
        return f"tile {j} of the keys ({j * key} to {(j + 1) * key - 1})"

    if first < 0 or left < 0:
        return "no tile has a number below 0."
    if first > seen:
        return f"{keys(seen)} is not visited, and query {i * rows}, the first, sees key {lowest[0]}."
    if first < seen:
        return f"{keys(first)} is visited, and nobody sees any of it: that work is for nothing."
    if left < whole:
        return (
            f"{keys(left)} would be taken without a mask, but query {(i + 1) * rows - 1}, the last, sees nothing "
            + (f"before key {lowest[1]}.")
        )
    if left > whole:
        return f"{keys(left - 1)} would be masked, though the window hides none of it from anybody."
    return None


def edges(source: str, chance) -> str | None:
    """The two numbers: a loop that visits or masks too much gives right results, too."""
    cases = [*KNOWN, *((chance.randint(0, 6), chance.randint(1, 400)) for _ in range(20))]
    for (rows, key), (i, window) in product(TILES, cases):
        mine = define(source, "left_edge", ct=ON_THE_HOST, ROWS=rows, WINDOW=window)(i, key)
        if not fits(mine, (0, 0)):
            return f"Two whole numbers must come back, first and left. These came: `{mine!r}`."
        if wrong := _wrong_edges(*mine, i, rows, key, window):
            return (
                f"With ROWS={rows} and WINDOW={window}, `left_edge({i}, {key})` is about queries {i * rows} to "
                f"{(i + 1) * rows - 1}. You return first = {mine[0]} and left = {mine[1]}: {wrong}"
            )
    return None


EXERCISE = InKernel(
    name="window_edges",
    step="window",
    function="left_edge",
    first=edges,
    kinds=tuple({"causal": True, "heads": 1, "head_dim": 128, "window": window} for window in (70, 150)),
    lengths=(390, 500),
    hints=(
        "Query q sees the keys q - WINDOW + 1 to q. Which query of the tile sees furthest to the left, and which sees "
        "least far? One decides about first, the other about left.",
        "The first query, number i * ROWS, sees furthest: first is the tile that holds its first key. The last one is "
        "number (i + 1) * ROWS - 1: from the tile that begins at or after its first key on, nothing is hidden.",
        "The first keys are i * ROWS + 1 - WINDOW and (i + 1) * ROWS - WINDOW, but never below 0. For first divide "
        "with //, for left round up with ct.cdiv.",
    ),
    solution="""
def left_edge(i, tile_key):
    first = max(0, i * ROWS + 1 - WINDOW) // tile_key
    left = ct.cdiv(max(0, (i + 1) * ROWS - WINDOW), tile_key)
    return first, left
""",
    wrong=(
        Wrong("the window ends one key early", "the first, sees key", old="i * ROWS + 1 -", new="i * ROWS + 2 -"),
        Wrong("the last query decides", "is not visited", old="i * ROWS + 1 - WINDOW", new="(i + 1) * ROWS - WINDOW"),
        Wrong("first rounds up", "is not visited", old="// tile_key", new="// tile_key + (i > 0)"),
        Wrong("all tiles are visited", "for nothing", old="max(0, i * ROWS + 1 - WINDOW) // tile_key", new="0"),
        Wrong(
            "left rounds down",
            "without a mask",
            old="ct.cdiv(max(0, (i + 1) * ROWS - WINDOW), tile_key)",
            new="max(0, (i + 1) * ROWS - WINDOW) // tile_key",
        ),
        Wrong(
            "one tile too many is masked",
            "would be masked",
            old="ROWS - WINDOW), tile_key)",
            new="ROWS - WINDOW), tile_key) + 1",
        ),
        Wrong("below zero", "below 0", old="max(0, i * ROWS + 1 - WINDOW) //", new="(i * ROWS + 1 - WINDOW) //"),
    ),
    debrief="At the left edge it is as on the diagonal, the other way round: the first query decides where the loop "
    "begins, and the last one from where on nothing is asked. A window shorter than a tile has no tile without a mask.",
)
