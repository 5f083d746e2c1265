"""Which query a row of a tile holds, where a tile holds the queries of all heads of a group."""

from types import SimpleNamespace

import torch

from steps.exercises.in_kernel import InKernel
from tutorial_lib.exercises import Wrong, define

IN_TORCH = SimpleNamespace(arange=lambda n, dtype: torch.arange(n), int32=None)  # of ct, as far as an answer needs it


def indices(source: str, chance) -> str | None:
    """The indices, row by row."""
    for rows, together in ((16, 8), (64, 2), (2, 64)):
        known = {"TILE_QUERY": rows * together, "ROWS": rows, "TOGETHER": together}
        own = define(source, "query_indices", ct=IN_TORCH, **known)
        for i in (0, 1, chance.randint(2, 9)):
            if wrong := _wrong_rows(own(i), i, rows, together):
                return f"ROWS={rows}, TOGETHER={together}; tile {i}: {wrong}"
    return None


def _wrong_rows(mine, i: int, rows: int, together: int) -> str | None:
    if not isinstance(mine, torch.Tensor) or mine.shape != (rows * together, 1):
        came = tuple(mine.shape) if isinstance(mine, torch.Tensor) else repr(mine)
        return f"a tile of shape ({rows * together}, 1) must come back, and this came: `{came}`."
    for row, index in enumerate(mine.flatten().tolist()):
        wanted = i * rows + row % rows
        if index != wanted:
            return (
                f"row {row} belongs to head {row // rows} of the group, and holds query {wanted}. You say query "
                f"{index}."
            )
    return None


EXERCISE = InKernel(
    name="rows_of_group",
    step="pack_gqa",
    function="query_indices",
    first=indices,
    kinds=(
        {"causal": True, "heads": 8, "kv_heads": 2},
        {"causal": True, "heads": 6, "kv_heads": 2, "dtype": "bfloat16"},
    ),
    hints=(
        "The tile of Q has the shape [TOGETHER, ROWS, head_dim] before it is reshaped to rows. So the first ROWS rows "
        "are queries of the first head, the next ROWS rows the same queries of the second head.",
        "Which query a row holds depends on its place inside its head's rows alone: that is the remainder when the "
        "number of the row is divided by ROWS.",
        "A tile has ROWS different queries, so tile i begins with query i * ROWS, and not with i * TILE_QUERY.",
    ),
    solution="""
def query_indices(i):
    row = ct.arange(TILE_QUERY, dtype=ct.int32)
    return (i * ROWS + row % ROWS)[:, None]
""",
    wrong=(
        Wrong("as if all rows were of one head", "belongs to head 1", old="row % ROWS", new="row"),
        Wrong("the tile begins too late", "holds query", old="i * ROWS +", new="i * TILE_QUERY +"),
        Wrong("query after query", "belongs to head 0", old="row % ROWS", new="row // TOGETHER"),
        Wrong("the head in place of the query", "belongs to head 0", old="row % ROWS", new="row // ROWS"),
        Wrong("a row, not a column", "must come back", old="[:, None]", new=""),
    ),
    debrief="The same queries stand in the tile once for every head, and the mask cuts each head's rows in the same "
    "way. The bounds of the loop follow from ROWS, too: a tile of 8 heads sees a diagonal an eighth as wide.",
)
