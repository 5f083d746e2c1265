"""One iteration of the loop over keys: what a new tile does to a row's sum and to its output."""

from types import SimpleNamespace

from steps.exercises.in_cutile import InCuTile
from tutorial_lib.exercises import Wrong, define


class Stand:
    """Stands for a tile, and knows its type: float32 after any arithmetic."""

    def __init__(self, dtype, products):
        self.dtype, self.products = dtype, products

    def _computed(self, other):
        return Stand("float32", self.products)

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = _computed

    def __matmul__(self, other):
        self.products.append((self.dtype, other.dtype))
        return self._computed(other)


def factors(source: str, name: str) -> list[tuple[str, str]]:
    """The types of both factors of every product; ``v`` has the type "of v". Empty where stand-ins do not do."""
    products: list[tuple[str, str]] = []
    tile = Stand("float32", products)

    def mma(x, y, acc):
        return x @ y

    ct = SimpleNamespace(
        mma=mma,
        matmul=lambda x, y: x @ y,
        sum=lambda x, axis=None, keepdims=False: tile,
        astype=lambda x, dtype: Stand(dtype, products),
        **{dtype: dtype for dtype in ("float16", "bfloat16", "float32", "tfloat32")},
    )
    own = define(source, name, ct=ct, softmax_exp=lambda *_: (tile, tile, tile))
    try:
        own(tile, Stand("of v", products), tile, tile, tile, 0.125)
    except Exception:
        return []
    return products


def types_of_the_product(exercise, source: str, chance) -> str | None:
    """Factors of more bits are slower, and not wrong."""
    if all(pair == ("of v", "of v") for pair in factors(source, exercise.function)):
        return None
    return (
        "The output is right, but the factors of your product are not of the type of `v`. A product of float32 numbers "
        "is slower, and float16 does not hold every bfloat16 number. Convert the weights to `v.dtype`, and leave `v` "
        "as it is."
    )


ABSORB = """
def absorb(scores, V, batch, kv_head, j, row_max, row_sum, accumulator, scale):
    v = load_value(V, batch, kv_head, j)
    return online_update(scores, v, row_max, row_sum, accumulator, scale)
"""

EXERCISE = InCuTile(
    name="online_update",
    step="mma",
    function="online_update",
    kinds=({"causal": True, "heads": 1}, {"dtype": "bfloat16", "kv_heads": 1}),
    lengths=(150, 300),
    replaces="",
    last=types_of_the_product,
    functions={"absorb": ABSORB},
    hints=(
        "Both the sum and the accumulator are relative to the old maximum. What must happen to them before anything is "
        "added that is relative to the new one?",
        "The sum: multiply by correction, then add the sum of each row of weights, with axis=1 and keepdims=True, so "
        "that it stays [query, 1]. The accumulator: multiply by correction, then add the product of weights and v.",
        "ct.mma(x, y, accumulator) multiplies and adds in one go. It takes x and y of one type, and weights are "
        "float32: ct.astype(weights, v.dtype).",
    ),
    solution="""
def online_update(scores, v, row_max, row_sum, accumulator, scale):
    weights, correction, row_max = softmax_exp(scores, row_max, scale)
    row_sum = row_sum * correction + ct.sum(weights, axis=1, keepdims=True)
    accumulator = ct.mma(ct.astype(weights, v.dtype), v, accumulator * correction)
    return row_max, row_sum, accumulator
""",
    wrong=(
        Wrong("the accumulator is not multiplied by the correction", old="accumulator * correction", new="accumulator"),
        Wrong("the old sum is not multiplied by the correction", old="row_sum * correction", new="row_sum"),
        Wrong(
            "the correction multiplies the new weights' sum as well as the old one",
            old="row_sum * correction + ct.sum(weights, axis=1, keepdims=True)",
            new="(row_sum + ct.sum(weights, axis=1, keepdims=True)) * correction",
        ),
        Wrong(
            "the product takes the place of the old accumulator, and is not added to it",
            old="accumulator * correction)",
            new="ct.zeros((TILE_QUERY, HEAD_DIM), ct.float32))",
        ),
        Wrong("the weights stay float32", "must have the same dtype", old="ct.astype(weights, v.dtype)", new="weights"),
        Wrong(
            "a product of float32",
            "not of the type of `v`",
            old="ct.mma(ct.astype(weights, v.dtype), v,",
            new="ct.mma(weights, ct.astype(v, ct.float32),",
        ),
        Wrong("the sum loses its second axis", "Type of `row_sum`", old=", keepdims=True", new=""),
        Wrong(
            "the old maximum is returned", old="weights, correction, row_max = ", new="weights, correction, new_max = "
        ),
    ),
    debrief="Whatever a row has gathered is relative to the largest score so far. One factor, the same for the sum and "
    "for all head_dim numbers of the output, moves both to the new maximum. Every kernel of this course does this.",
)
