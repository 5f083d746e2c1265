"""Attention of one head in tiles, in plain PyTorch: the score matrix is never made."""

from tutorial_lib.exercises import Plain, Wrong

LIMIT = 1e-3  # of an error; in float32 the solution stays far below, also with large scores


def heads(chance):
    """(what the head is like, q, k, v, causal, tile): lengths, head_dim and tile are different numbers."""
    import torch

    seeded = torch.Generator().manual_seed(chance.getrandbits(32))
    tile, head_dim = chance.choice((16, 32)), chance.choice((6, 10, 14))

    def tensors(queries, keys, size=1.0):
        q, k, v = (torch.randn(n, head_dim, generator=seeded) for n in (queries, keys, keys))
        return size * q, size * k, v

    short, middle, long = (n * tile + chance.randint(1, tile - 1) for n in (2, 3, 4))
    yield "a single tile of queries and of keys", *tensors(tile - 3, tile - 5), False, tile
    yield "fewer queries than keys", *tensors(short, long), False, tile
    yield "a causal mask", *tensors(middle, middle), True, tile
    yield "a causal mask, and more queries than keys", *tensors(long, short), True, tile
    yield "a causal mask, and fewer queries than keys", *tensors(short, long), True, tile
    yield "large scores", *tensors(middle, long, 12.0), False, tile
    q, k, v = tensors(middle, middle, 12.0)
    # The only score that query 0 sees is -200, below many that it does not see: its weight beside 0 is 0 in float32.
    q[0] = -200 * head_dim**0.5 * k[0] / (k[0] @ k[0])
    yield "a causal mask, and large scores", q, k, v, True, tile


def judge(function, chance):
    import torch

    from tutorial_lib.tiled import WHOLE, Suspects, TooLarge, Watch, attention_in_tiles

    wrong, suspects = "", Suspects(WHOLE, attention_in_tiles)
    for what, q, k, v, causal, tile in heads(chance):
        where = f"On {what} ({len(q)} queries, {len(k)} keys, head_dim {q.shape[1]}, tile {tile})"
        try:
            with Watch(refused(len(q), len(k), tile), function.__code__.co_filename):
                mine = function(q, k, v, causal, tile)
        except TooLarge as error:
            return f"{where}: {error}"
        except IndexError as error:
            if "non-zero size" not in str(error):
                raise
            return (
                f"{where}: a tile of keys is empty. The loop over keys must end at the last key, if that comes before "
                "the diagonal."
            )
        right = exact(q, k, v, causal)
        if not isinstance(mine, torch.Tensor) or mine.shape != right.shape:
            came = f"shape {list(mine.shape)}" if isinstance(mine, torch.Tensor) else type(mine).__name__
            return f"{where}: the result must be a tensor of shape {list(right.shape)}; got {came}."
        if not wrong and not (mine.double() - right).abs().max() <= LIMIT:  # NaN is wrong, too
            wrong = f"{where}: {difference(mine, right)}"
        suspects.see(mine, q, k, v, causal, tile, wrong=bool(wrong))
    if wrong:
        return f"{wrong} {suspects.told}".strip()
    return above_the_diagonal(function, chance)


def above_the_diagonal(function, chance) -> str | None:
    """None if tiles above the diagonal are left out: NaN in later keys and values must not reach earlier queries."""
    import math

    import torch

    seeded = torch.Generator().manual_seed(chance.getrandbits(32))
    tile = chance.choice((16, 32))
    q, k, v = (torch.randn(3 * tile + 5, 6, generator=seeded) for _ in range(3))
    seen = 2 * tile  # by the first two tiles of queries
    right = exact(q, k, v, True)[:seen]
    k[seen:], v[seen:] = math.nan, math.nan
    mine = function(q, k, v, True, tile)[:seen]
    if (mine.double() - right).abs().max() <= LIMIT:
        return None
    return (
        f"The output is right, but with a causal mask your loop also computes tiles above the diagonal. With tile "
        f"{tile}, the queries before {seen} see no key from {seen} on, and yours read these keys. End the loop over "
        "keys earlier."
    )


def exact(q, k, v, causal):
    """Attention in float64."""
    import math

    import torch

    scores = q.double() @ k.double().T / math.sqrt(q.shape[1])
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape, dtype=torch.bool).triu(1), -math.inf)
    return torch.softmax(scores, -1) @ v.double()


def refused(queries: int, keys: int, tile: int):
    """Which shapes are too large: more than a tile of scores."""

    def why(shape):
        rest = list(shape)
        if keys > tile and keys in rest:
            rest.remove(keys)
            rows = [n for n in rest if n == queries or (n == tile and queries != keys)]
            if rows:
                return f"it holds {keys} scores of each of {rows[0]} queries; a tile of scores is {tile} by {tile}."
        if queries > tile and len(shape) > 1 and queries in shape and tile in shape:
            return f"it holds {tile} scores of each of {queries} queries; a tile of scores is {tile} by {tile}."
        return None

    return why


def difference(mine, right) -> str:
    """Which rows are wrong."""
    rows = (~((mine.double() - right).abs() <= LIMIT)).any(-1).nonzero().flatten().tolist()
    row = rows[0]
    shown = [", ".join(f"{x:.3g}" for x in output[row, :3].tolist()) for output in (mine, right)]
    return (
        f"{len(rows)} of {len(mine)} queries are wrong, from {rows[0]} to {rows[-1]}. The output of query {row} begins "
        f"with {shown[0]}; it should begin with {shown[1]}."
    )


EXERCISE = Plain(
    name="flash_attention",
    function="flash_attention",
    hints=(
        "The inner loop is that of the row, for all queries of the tile at once: maxima and sums are columns "
        "[query, 1], so that they go with scores [query, key]. Reductions over keys have dim=1 and keepdim=True.",
        "The scores of a tile are queries @ keys.T / math.sqrt(q.shape[1]). For the mask, make the numbers of this "
        "tile's queries and keys with torch.arange, and set scores to -math.inf where "
        "key_index > query_index[:, None].",
        "After the mask: new_max = torch.maximum(row_max, scores.amax(1, keepdim=True)); weights and correction as in "
        "the row; row_sum = row_sum * correction + weights.sum(1, keepdim=True); accumulator likewise, plus "
        "weights @ values. With a causal mask the loop over keys may end at first_query + tile.",
    ),
    solution="""
def flash_attention(q, k, v, causal, tile):
    o = torch.empty_like(q)
    for first_query in range(0, len(q), tile):
        queries = q[first_query : first_query + tile]
        row_max = torch.full((len(queries), 1), -math.inf)
        row_sum = torch.zeros(len(queries), 1)
        accumulator = torch.zeros_like(queries)
        end = min(len(k), first_query + tile) if causal else len(k)
        for first_key in range(0, end, tile):
            keys, values = k[first_key : first_key + tile], v[first_key : first_key + tile]
            scores = queries @ keys.T / math.sqrt(q.shape[1])
            if causal:
                query_index = first_query + torch.arange(len(queries))
                key_index = first_key + torch.arange(len(keys))
                scores = scores.masked_fill(key_index > query_index[:, None], -math.inf)
            new_max = torch.maximum(row_max, scores.amax(1, keepdim=True))
            weights = torch.exp(scores - new_max)
            correction = torch.exp(row_max - new_max)
            row_sum = row_sum * correction + weights.sum(1, keepdim=True)
            accumulator = accumulator * correction + weights @ values
            row_max = new_max
        o[first_query : first_query + tile] = accumulator / row_sum
    return o
""",
    wrong=(
        Wrong("sum not rescaled", "the sum is not rescaled", old="row_sum * correction", new="row_sum"),
        Wrong(
            "output not rescaled", "the accumulator is not rescaled", old="accumulator * correction", new="accumulator"
        ),
        Wrong("mask forgotten", "the mask is forgotten", old="if causal:", new="if False:"),
        Wrong("the mask hides the diagonal", "hides the diagonal", old="key_index > query", new="key_index >= query"),
        Wrong(
            "the mask within the tile",
            "counts within the tile",
            old="first_key + torch.arange(len(keys))",
            new="torch.arange(len(keys)); query_index = query_index - first_query",
        ),
        Wrong(
            "masked too late",
            "the mask comes too late",
            source="""
def flash_attention(q, k, v, causal, tile):
    o = torch.empty_like(q)
    for first_query in range(0, len(q), tile):
        queries = q[first_query : first_query + tile]
        row_max = torch.full((len(queries), 1), -math.inf)
        row_sum = torch.zeros(len(queries), 1)
        accumulator = torch.zeros_like(queries)
        end = min(len(k), first_query + tile) if causal else len(k)
        for first_key in range(0, end, tile):
            keys, values = k[first_key : first_key + tile], v[first_key : first_key + tile]
            scores = queries @ keys.T / math.sqrt(q.shape[1])
            new_max = torch.maximum(row_max, scores.amax(1, keepdim=True))
            weights = torch.exp(scores - new_max)
            correction = torch.exp(row_max - new_max)
            row_sum = row_sum * correction + weights.sum(1, keepdim=True)
            if causal:
                query_index = first_query + torch.arange(len(queries))
                key_index = first_key + torch.arange(len(keys))
                weights = weights.masked_fill(key_index > query_index[:, None], 0.0)
            accumulator = accumulator * correction + weights @ values
            row_max = new_max
        o[first_query : first_query + tile] = accumulator / row_sum
    return o
""",
        ),
        Wrong(
            "masked after the maximum",
            "a causal mask, and large scores",
            source="""
def flash_attention(q, k, v, causal, tile):
    o = torch.empty_like(q)
    for first_query in range(0, len(q), tile):
        queries = q[first_query : first_query + tile]
        row_max = torch.full((len(queries), 1), -math.inf)
        row_sum = torch.zeros(len(queries), 1)
        accumulator = torch.zeros_like(queries)
        end = min(len(k), first_query + tile) if causal else len(k)
        for first_key in range(0, end, tile):
            keys, values = k[first_key : first_key + tile], v[first_key : first_key + tile]
            scores = queries @ keys.T / math.sqrt(q.shape[1])
            new_max = torch.maximum(row_max, scores.amax(1, keepdim=True))
            weights = torch.exp(scores - new_max)
            if causal:
                query_index = first_query + torch.arange(len(queries))
                key_index = first_key + torch.arange(len(keys))
                weights = weights.masked_fill(key_index > query_index[:, None], 0.0)
            correction = torch.exp(row_max - new_max)
            row_sum = row_sum * correction + weights.sum(1, keepdim=True)
            accumulator = accumulator * correction + weights @ values
            row_max = new_max
        o[first_query : first_query + tile] = accumulator / row_sum
    return o
""",
        ),
        Wrong(
            "a maximum of at least 0",
            "a causal mask, and large scores",
            old="scores.amax(1, keepdim=True))",
            new="scores.amax(1, keepdim=True)).clamp(min=0)",
        ),
        Wrong(
            "all tiles with a causal mask, too",
            "tiles above the diagonal",
            old="min(len(k), first_query + tile) if causal else len(k)",
            new="len(k)",
        ),
        Wrong(
            "no end at the last key",
            "a tile of keys is empty",
            old="min(len(k), first_query + tile) if causal",
            new="first_query + tile if causal",
        ),
        Wrong(
            "all queries against each tile of keys",
            "a tile of scores is",
            old="queries @ keys.T",
            new="(q @ keys.T)[first_query : first_query + tile]",
        ),
        Wrong(
            "hidden scores are zero",
            "hidden scores are set to 0",
            old="query_index[:, None], -math.inf",
            new="query_index[:, None], 0.0",
        ),
        Wrong(
            "the tile's maximum alone",
            "of the tile alone",
            old="torch.maximum(row_max, scores.amax(1, keepdim=True))",
            new="scores.amax(1, keepdim=True)",
        ),
        Wrong("maximum not kept", "not kept for the next iteration", old="row_max = new_max", new="pass"),
        Wrong(
            "no maximum",
            "no maximum is subtracted",
            old="torch.maximum(row_max, scores.amax(1, keepdim=True))",
            new="row_max = torch.zeros_like(row_max)",
        ),
        Wrong("no division", "the division is missing", old="accumulator / row_sum", new="accumulator"),
        Wrong("no scale", "the scale is forgotten", old=" / math.sqrt(q.shape[1])", new=""),
        Wrong(
            "the loop ends before the diagonal",
            "ends before the tile on the diagonal",
            old="first_query + tile) if",
            new="first_query) if",
        ),
        Wrong(
            "all keys at once",
            "a tile of scores is",
            old="range(0, end, tile):\n            keys, values = k[first_key : first_key + tile], v[first_key : "
            "first_key + tile]",
            new="[0]:\n            keys, values = k, v",
        ),
        Wrong(
            "the formula",
            "a tile of scores is",
            source="""
def flash_attention(q, k, v, causal, tile):
    scores = q @ k.T / math.sqrt(q.shape[1])
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -math.inf)
    return torch.softmax(scores, dim=1) @ v
""",
        ),
    ),
    debrief="This is FlashAttention: whatever the lengths, no more than one tile of scores exists at a time. The "
    "kernels of this course are this function, with each tile of queries given to a block.",
    by=judge,
)
