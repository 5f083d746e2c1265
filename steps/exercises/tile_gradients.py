"""What a block of the fused backward kernel does with one tile of queries: step ordered_atomics."""

from tutorial_lib.exercises import Plain, Wrong

NAMES = ("dQ", "dK", "dV")


def by_tiles(function, problem, inputs, tile_query: int, tile_key: int):
    """The gradients, as blocks that own tiles of keys put them together from what ``function`` makes of each tile."""
    import torch

    q, k, v, o, lse, do = (x.float() for x in inputs)
    row_sum = (do * o).sum(-1)
    sums = [torch.zeros_like(x) for x in (q, k, v)]
    queries, keys = torch.arange(q.shape[2]), torch.arange(k.shape[2])
    for b in range(problem.batch):
        for h in range(problem.heads):
            g = h // problem.group_size
            for columns in keys.split(tile_key):
                d_key, d_value = torch.zeros(2, len(columns), problem.head_dim)
                for rows in queries.split(tile_query):
                    hidden = (columns[:, None] > rows[None, :]) & problem.causal
                    if hidden.all():
                        continue  # no query of this tile sees a key of that
                    made = function(
                        *(x[b, g, columns] for x in (k, v)),
                        *(x[b, h, rows] for x in (q, do, lse, row_sum)),
                        hidden,
                        problem.effective_scale,
                        d_key,
                        d_value,
                    )
                    if not isinstance(made, tuple) or len(made) != 3:
                        raise TypeError(f"return d_key, d_value and d_query; this came: {type(made).__name__}")
                    d_key, d_value, part = made
                    sums[0][b, h, rows] += part
                sums[1][b, g, columns] += d_key
                sums[2][b, g, columns] += d_value
    return sums


def judge(function, chance):
    from tutorial_lib.accuracy import compare, first_difference
    from tutorial_lib.passes import BACKWARD
    from tutorial_lib.problem import Problem

    for changes in ({}, {"causal": True}, {"heads": 4, "kv_heads": 2, "causal": True, "scale": 0.3}):
        length = chance.randint(70, 120)
        shape = {"batch": 1, "heads": 2, "head_dim": 64, "seq_len_q": length, "seq_len_kv": length + 13}
        problem = Problem(**shape | changes)
        inputs = BACKWARD.inputs(problem, chance.getrandbits(32))
        exact = BACKWARD.reference(problem, inputs)
        allowed = BACKWARD.yardstick(problem, inputs, exact)
        tiles = chance.choice([(32, 48), (48, 32)])  # never square: a product the wrong way round is found out
        made = by_tiles(function, problem, inputs, *tiles)
        for name, x, its, error in zip(NAMES, made, exact, allowed, strict=True):
            found = compare(x.half(), its, error)
            if not found.correct:
                where = f"{problem.describe()}, in tiles of {tiles[0]} queries and {tiles[1]} keys"
                told = first_difference(x.half(), its, found.limit)
                if name != "dQ":  # its rows are keys
                    told = told.replace("query", "key").replace("queries", "keys")
                return f"On {where}, {name}: {told}{_recognised(made, problem, inputs, tiles)}"
    return None


def _recognised(made, problem, inputs, tiles) -> str:
    """The mistake that gives these sums."""
    return EXERCISE.recognised([((problem, inputs, *tiles), made)], 0.02, by_tiles)


EXERCISE = Plain(
    name="tile_gradients",
    function="tile_gradients",
    hints=(
        "Everything that has both axes is [key, query] here: scores = k @ q.mT * scale. lse and row_sum have a number "
        "for each query, so that they stand along the second axis: `lse[None, :]`.",
        "d_value grows by weights @ do, with no transposition, and d_weights = v @ do.mT. "
        "d_scores = weights * (d_weights - row_sum[None, :]).",
        "d_key grows by d_scores @ q * scale. Of what you have computed, only dS must be turned, for the part of dQ: "
        "d_scores.mT @ k * scale.",
    ),
    solution="""
def tile_gradients(k, v, q, do, lse, row_sum, hidden, scale, d_key, d_value):
    weights = torch.exp(k @ q.mT * scale - lse[None, :]).masked_fill(hidden, 0.0)
    d_weights = v @ do.mT
    d_scores = weights * (d_weights - row_sum[None, :])
    d_value = d_value + weights @ do
    d_key = d_key + d_scores @ q * scale
    d_query = d_scores.mT @ k * scale
    return d_key, d_value, d_query
""",
    wrong=(
        Wrong(
            "each tile begins anew, and is not added to what came in as d_key and d_value",
            old="d_value = d_value + weights @ do\n    d_key = d_key + d_scores @ q * scale",
            new="d_value = weights @ do\n    d_key = d_scores @ q * scale",
        ),
        Wrong("the mask is forgotten", old=".masked_fill(hidden, 0.0)", new=""),
        Wrong("the row's sum is not subtracted", old="(d_weights - row_sum[None, :])", new="d_weights"),
        Wrong("dQ lacks the scale", old="d_scores.mT @ k * scale", new="d_scores.mT @ k"),
        Wrong("dK lacks the scale", old="d_scores @ q * scale", new="d_scores @ q"),
        Wrong("dQ not transposed", "Error", old="d_scores.mT @ k", new="d_scores @ k"),
        Wrong("the sums along the wrong axis", "Error", old="lse[None, :]", new="lse[:, None]"),
    ),
    debrief="In the kernel the last of these products is added to dQ in device memory, where every block that owns "
    "keys adds its part.",
    by=judge,
)
