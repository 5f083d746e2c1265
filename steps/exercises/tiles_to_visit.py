"""Which tiles of keys a tile of queries sees whole, and which in part, under a causal mask."""

from dataclasses import dataclass
from types import SimpleNamespace

from steps.exercises.in_cutile import InCuTile
from tutorial_lib.exercises import Wrong, define, source_of

TILES = [(64, 64), (64, 128), (64, 32), (128, 16)]  # queries, keys
KNOWN = [(0, 512), (1, 512), (2, 512), (3, 512), (2, 160), (2, 100), (3, 60)]  # tile of queries, number of keys

ON_THE_HOST = SimpleNamespace(cdiv=lambda a, b: -(-a // b), minimum=min, maximum=max)  # of ct, for whole numbers


def _keys(j: int, key: int) -> str:
    return f"tile {j} of the keys ({j * key} to {(j + 1) * key - 1})"


def _wrong_bounds(unmasked: int, end: int, i: int, seq_len_kv: int, query: int, key: int) -> str | None:
    """By the definition alone: what each query of the tile sees."""
    first, last = i * query, (i + 1) * query - 1
    whole = seen = 0
    while (whole + 1) * key - 1 <= first and (whole + 1) * key <= seq_len_kv:
        whole += 1
    while seen * key <= last and seen * key < seq_len_kv:
        seen += 1
    if end < seen:
        return f"the loop ends before {_keys(end, key)}, and query {last} sees keys of it."
    if end > seen:
        nothing = (
            "no such keys exist, and what a load there returns is undefined"
            if seen * key >= seq_len_kv
            else f"query {last}, the last, sees none of them: that work is for nothing"
        )
        return f"the loop visits {_keys(seen, key)}, but {nothing}."
    if unmasked > whole:
        why = (
            f"there are only {seq_len_kv} keys"
            if (whole + 1) * key > seq_len_kv
            else f"query {first}, the first, does not see key {(whole + 1) * key - 1}"
        )
        return f"{_keys(whole, key)} would be taken without a mask, but {why}."
    if unmasked < whole:
        return f"{_keys(unmasked, key)} would be masked, though every query of the tile sees all of it."
    return None


@dataclass(frozen=True, kw_only=True)
class Bounds(InCuTile):
    """The two numbers are looked at first: a loop that visits too much gives right results, too."""

    def judge(self, function, chance):
        cases = [*KNOWN, *((chance.randint(0, 5), chance.randint(1, 600)) for _ in range(20))]
        for query, key in TILES:
            own = define(source_of(function), self.function, ct=ON_THE_HOST, TILE_QUERY=query, TILE_KEY=key)
            for i, seq_len_kv in cases:
                mine = own(i, seq_len_kv)
                if not (isinstance(mine, tuple) and len(mine) == 2 and all(isinstance(n, int) for n in mine)):
                    return f"Two whole numbers must come back, unmasked and end. These came: `{mine!r}`."
                if wrong := _wrong_bounds(*mine, i, seq_len_kv, query, key):
                    return (
                        f"With TILE_QUERY={query} and TILE_KEY={key}, `tiles_to_visit({i}, {seq_len_kv})` is about "
                        f"queries {i * query} to {(i + 1) * query - 1}. You return unmasked = {mine[0]} and end = "
                        f"{mine[1]}: {wrong}"
                    )
        return super().judge(function, chance)


EXERCISE = Bounds(
    name="tiles_to_visit",
    step="mma",
    function="tiles_to_visit",
    kinds=({"causal": True, "heads": 1}, {"causal": True, "heads": 1, "seq_len_kv": 100}),
    hints=(
        "Which query of the tile sees the fewest keys, and which the most? One decides about unmasked, the other about "
        "end. And neither may go beyond the last key there is.",
        "The first query, number i * TILE_QUERY, sees the fewest keys: unmasked counts the whole tiles before it. The "
        "last one is number (i + 1) * TILE_QUERY - 1: end counts every tile that begins at or before it.",
        "Whole tiles are counted with //, begun ones with ct.cdiv, which rounds up: end is ct.cdiv(min(seq_len_kv, "
        "(i + 1) * TILE_QUERY), TILE_KEY). For unmasked take the same min with i * TILE_QUERY, and //.",
    ),
    solution="""
def tiles_to_visit(i, seq_len_kv):
    unmasked = min(seq_len_kv, i * TILE_QUERY) // TILE_KEY
    end = ct.cdiv(min(seq_len_kv, (i + 1) * TILE_QUERY), TILE_KEY)
    return unmasked, end
""",
    wrong=(
        Wrong(
            "the loop ends before the diagonal",
            "the loop ends before",
            old="(i + 1) * TILE_QUERY",
            new="i * TILE_QUERY",
        ),
        Wrong(
            "the loop goes over all keys",
            "that work is for nothing",
            old="min(seq_len_kv, (i + 1) * TILE_QUERY)",
            new="seq_len_kv",
        ),
        Wrong(
            "the end ignores how many keys there are",
            "no such keys exist",
            old="min(seq_len_kv, (i + 1) * TILE_QUERY)",
            new="(i + 1) * TILE_QUERY",
        ),
        Wrong(
            "the end rounds down",
            "the loop ends before",
            old="ct.cdiv(min(seq_len_kv, (i + 1) * TILE_QUERY), TILE_KEY)",
            new="min(seq_len_kv, (i + 1) * TILE_QUERY) // TILE_KEY",
        ),
        Wrong(
            "the diagonal is taken whole",
            "would be taken without a mask",
            old="min(seq_len_kv, i * TILE_QUERY)",
            new="min(seq_len_kv, (i + 1) * TILE_QUERY)",
        ),
        Wrong("every tile is masked", "though every query", old="min(seq_len_kv, i * TILE_QUERY) // TILE_KEY", new="0"),
        Wrong(
            "a last tile that is not full is taken whole",
            "there are only",
            old="min(seq_len_kv, i * TILE_QUERY) // TILE_KEY",
            new="min(ct.cdiv(seq_len_kv, TILE_KEY), i * TILE_QUERY // TILE_KEY)",
        ),
    ),
    debrief="The first query of a tile decides which keys need no mask, the last one where the loop ends. A loop that "
    "goes on to the last key would compute the same output with twice the work.",
)
