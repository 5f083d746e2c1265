"""What begins anew where one tile of queries ends and the next begins, inside one loop."""

from dataclasses import dataclass
from types import SimpleNamespace

from steps.exercises.in_kernel import InKernel
from tutorial_lib.exercises import Wrong, define, source_of

NAMES = ("n", "i", "head", "batch", "q", "row_max", "row_sum", "accumulator", "unmasked", "end", "j")


def _wrong_tile(function) -> str | None:
    """Which of the results is not that of the next tile: told by a list of three tiles, and stand-ins for the rest."""
    order = [4, 9, 6]
    known = {
        "ct": SimpleNamespace(load=lambda array, index, shape: array[index[0]]),
        "position": lambda number, Q: (number, number + 10, number + 20),
        "load_query": lambda Q, i, head, batch: ("load_query", i, head, batch),
        "begin": lambda: ("0: row_max", "0: row_sum", "0: accumulator"),
        "tiles_to_visit": lambda i, seq_len_kv: (("unmasked", i), ("end", i)),
    }
    own = define(source_of(function), function.__name__, **known)
    for n in range(3):
        after = min(n + 1, 2)
        i = order[after]
        right = (
            after,
            i,
            i + 10,
            i + 20,
            ("load_query", i, i + 10, i + 20),
            *known["begin"](),
            ("unmasked", i),
            ("end", i),
            0,
        )
        try:
            mine = own(n, 2, order, "Q", 1000, 5, "old row_max", "old row_sum", "old accumulator")
        except IndexError:
            return f"The list has the entries 0 to 2, and behind entry {n} you read one that is not there."
        for name, its, should in zip(NAMES, mine, right, strict=True):
            if its != should:
                return (
                    f"In a block whose list has the entries 0 to 2, behind entry {n}: `{name}` is not that of entry "
                    f"{after}. {_HINTS.get(name, '')}"
                )
    return None


_HINTS = {
    "n": "It grows by one, but not beyond `last`.",
    "q": "The next tile has other queries, perhaps of another head or batch.",
    "row_max": "It is still that of the tile before: `begin()` makes a new one.",
    "unmasked": "How many tiles of keys are seen depends on i.",
    "j": "The keys of the next tile begin at tile 0.",
}


@dataclass(frozen=True, kw_only=True)
class OneLoop(InKernel):
    """What the function gives is looked at first, so that the message says which of it is wrong."""

    def judge(self, function, chance):
        return _wrong_tile(function) or super().judge(function, chance)


EXERCISE = OneLoop(
    name="one_loop",
    step="one_loop",
    function="next_tile",
    kinds=({"causal": True},),
    lengths=(400, 500),
    edits=(
        (
            """            n = min(n + 1, last)  # behind the last tile it is read once more, for nothing
            i, head, batch = position(ct.load(order, (n,), ()), Q)
            q = load_query(Q, i, head, batch)
            row_max, row_sum, accumulator = begin()
            unmasked, end = tiles_to_visit(i, seq_len_kv)
            j = 0
""",
            """            n, i, head, batch, q, row_max, row_sum, accumulator, unmasked, end, j = next_tile(
                n, last, order, Q, seq_len_kv, j, row_max, row_sum, accumulator
            )
""",
        ),
    ),
    hints=(
        "Go through what a turn of the loop uses: q, j, unmasked, end, the two row statistics and the accumulator. "
        "Which of these belong to one tile of queries?",
        "All of them do. `load_query`, `begin` and `tiles_to_visit` make them for a new tile, and its keys begin at 0.",
        "n grows by one, but not beyond `last`: behind the last tile there is no entry in the list, so it is read once "
        "more. Then position(ct.load(order, (n,), ()), Q) gives the tile.",
    ),
    solution="""
def next_tile(n, last, order, Q, seq_len_kv, j, row_max, row_sum, accumulator):
    n = min(n + 1, last)
    i, head, batch = position(ct.load(order, (n,), ()), Q)
    q = load_query(Q, i, head, batch)
    row_max, row_sum, accumulator = begin()
    unmasked, end = tiles_to_visit(i, seq_len_kv)
    j = 0
    return n, i, head, batch, q, row_max, row_sum, accumulator, unmasked, end, j
""",
    wrong=(
        Wrong("the sums go on", "`row_max` is not", old="    row_max, row_sum, accumulator = begin()\n", new=""),
        Wrong("keys are not taken from the start", "`j` is not", old="    j = 0\n", new=""),
        Wrong("the same tile again", "`n` is not", old="min(n + 1, last)", new="min(n, last)"),
        Wrong("the last tile is left out", "`n` is not", old="min(n + 1, last)", new="min(n + 1, last - 1)"),
        Wrong("behind the end of the list", "one that is not there", old="min(n + 1, last)", new="n + 1"),
        Wrong(
            "the query is that of head 0",
            "`q` is not",
            old="load_query(Q, i, head, batch)",
            new="load_query(Q, i, 0, batch)",
        ),
        Wrong(
            "the bounds are those of the tile before",
            "`unmasked` is not",
            old="tiles_to_visit(i, seq_len_kv)",
            new="tiles_to_visit(max(i - 1, 0), seq_len_kv)",
        ),
    ),
    debrief="A loop around a loop begins anew by itself. In one loop you say it, for all that belongs to the tile of "
    "queries. In return the compiler may fetch ahead across the seam.",
)
