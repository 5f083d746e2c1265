"""Attention of one head in tiles, in plain PyTorch: the score matrix is never made."""

from tutorial_lib.exercises import Plain, Wrong, clean

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
    # The only score that query 0 sees is -20,000: far below those that it does not see, and below what people take for
    # minus infinity.
    q[0] = -20_000 * head_dim**0.5 * k[0] / (k[0] @ k[0])
    yield "a causal mask, and large scores", q, k, v, True, tile


def judge(function, chance):
    import torch

    from tutorial_lib.tiled import TooLarge, Watch

    wrong, seen = "", []
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
        seen.insert(0 if wrong else len(seen), ((q, k, v, causal, tile), mine))
    return wrong + EXERCISE.recognised(seen) if wrong else above_the_diagonal(function, chance)


def above_the_diagonal(function, chance) -> str | None:
    """None if tiles above the diagonal are left out: keys that no query sees are NaN, and enter no product."""
    import math

    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Products(TorchDispatchMode):
        """Whether a product has given NaN."""

        unseen = False

        def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
            made = operation(*args, **(kwargs or {}))
            if operation.overloadpacket.__name__ in ("mm", "bmm", "addmm", "baddbmm", "mv", "dot", "mul"):
                self.unseen |= bool(made.isnan().any())
            return made

    seeded = torch.Generator().manual_seed(chance.getrandbits(32))
    tile = chance.choice((16, 32))
    seen = 2 * tile  # keys, by as many queries
    q, k, v = (torch.randn(n, 6, generator=seeded) for n in (seen, seen + tile + 5, seen + tile + 5))
    k[seen:], v[seen:] = math.nan, math.nan
    with Products() as products:
        function(q, k, v, True, tile)
    if not products.unseen:
        return None
    return (
        f"The output is right, but with a causal mask your loop also computes tiles above the diagonal. With {seen} "
        f"queries and tile {tile}, no query sees a key from {seen} on, and yours multiplies by these keys or their "
        "values. End the loop over keys earlier."
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


SOLUTION = """
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
"""

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
    solution=SOLUTION,
    wrong=(
        Wrong(
            "the sum is not rescaled: row_sum is relative to the old maximum, so it must be multiplied by the "
            "correction before the new weights are added",
            old="row_sum * correction",
            new="row_sum",
        ),
        Wrong(
            "the accumulator is not rescaled: it is relative to the old maximum, so it must be multiplied by the "
            "correction before the new product is added",
            old="accumulator * correction",
            new="accumulator",
        ),
        Wrong(
            "neither the sum nor the accumulator is rescaled: both are relative to the old maximum",
            old="correction = torch.exp(row_max - new_max)",
            new="correction = 1",
        ),
        Wrong(
            "the correction is turned around (it must be exp(old maximum - new maximum))",
            old="row_max - new_max",
            new="new_max - row_max",
        ),
        Wrong(
            "the weights are relative to the old maximum, which is minus infinite in the first iteration (they must "
            "be relative to the new one)",
            old="scores - new_max",
            new="scores - row_max",
        ),
        Wrong(
            "the mask is forgotten: with `causal`, a key is hidden where its number is larger than the query's",
            old="if causal:",
            new="if False:",
        ),
        Wrong(
            "the mask hides the diagonal, too: a query must see its own key",
            old="key_index > query",
            new="key_index >= query",
        ),
        Wrong(
            "the mask counts within the tile: the numbers of queries and keys must begin at first_query and first_key",
            old="first_key + torch.arange(len(keys))",
            new="torch.arange(len(keys)); query_index = query_index - first_query",
        ),
        Wrong(
            "the mask comes too late: the weights of hidden keys are already in row_sum; mask the scores, before the "
            "maximum and the exponential",
            old="weights.sum(1, keepdim=True)",
            new="torch.exp(queries @ keys.T / math.sqrt(q.shape[1]) - new_max).sum(1, keepdim=True)",
        ),
        Wrong(
            "the mask comes behind the maximum: a score that the query does not see may be far larger",
            old="torch.maximum(row_max, scores.amax(1, keepdim=True))",
            new="torch.maximum(row_max, (queries @ keys.T / math.sqrt(q.shape[1])).amax(1, keepdim=True))",
        ),
        Wrong(
            "a maximum of at least 0 is taken: the largest score that a query sees may be far below",
            old="torch.maximum(row_max, scores.amax(1, keepdim=True))",
            new="torch.maximum(row_max, scores.amax(1, keepdim=True)).clamp(min=0)",
        ),
        Wrong(
            "all tiles with a causal mask, too",
            "tiles above the diagonal",
            old="min(len(k), first_query + tile) if causal else len(k)",
            new="len(k)",
        ),
        Wrong(
            "tiles with a causal mask are left only when their scores are there",
            "tiles above the diagonal",
            source=clean(SOLUTION)
            .replace("min(len(k), first_query + tile) if causal else len(k)", "len(k)")
            .replace(
                "            if causal:",
                "            if causal and first_key > first_query:\n                continue\n            if causal:",
            ),
        ),
        Wrong(
            "hidden scores are not low enough",
            "1 of",
            old="query_index[:, None], -math.inf",
            new="query_index[:, None], -1e4",
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
            "hidden scores are set to 0, whose exponential is not 0: they must be minus infinite",
            old="query_index[:, None], -math.inf",
            new="query_index[:, None], 0.0",
        ),
        Wrong(
            "the maximum is that of the tile alone: where a later tile has much smaller scores, the correction is "
            "infinite; the new maximum must be the larger one of the old and the tile's",
            old="torch.maximum(row_max, scores.amax(1, keepdim=True))",
            new="scores.amax(1, keepdim=True)",
        ),
        Wrong(
            "the new maximum is not kept for the next iteration: the correction is then always 0, and only the last "
            "tile of keys counts",
            old="row_max = new_max",
            new="pass",
        ),
        Wrong(
            "no maximum is subtracted: the exponential of a large score is infinite, and infinite divided by infinite"
            " is NaN",
            old="torch.maximum(row_max, scores.amax(1, keepdim=True))",
            new="row_max = torch.zeros_like(row_max)",
        ),
        Wrong(
            "the division is missing: at the end the accumulator must be divided by row_sum",
            old="accumulator / row_sum",
            new="accumulator",
        ),
        Wrong(
            "the scale is forgotten: scores must be divided by the square root of head_dim",
            old=" / math.sqrt(q.shape[1])",
            new="",
        ),
        Wrong(
            "the loop over keys ends before the tile on the diagonal: the last query of a tile sees the key of its "
            "own number",
            old="first_query + tile) if",
            new="first_query) if",
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
