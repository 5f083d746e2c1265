"""A tile of keys, its axes swapped by the load."""

from steps.core.tiles import Tile
from steps.exercises.in_cutile import InCuTile
from tutorial_lib.exercises import Wrong

EXERCISE = InCuTile(
    name="load_transposed",
    step="load_order",
    function="load_key_transposed",
    tile=Tile(64, 32),
    kinds=({"causal": True, "heads": 2, "head_dim": 64}, {"dtype": "bfloat16", "kv_heads": 1, "head_dim": 128}),
    lengths=(150, 300),
    hints=(
        "order=(0, 1, 3, 2) says: tile axis 2 is array axis 3, and tile axis 3 is array axis 2. Index and shape speak "
        "of the tile's axes, so they swap, too.",
        "The shape is (1, 1, HEAD_DIM, TILE_KEY). The index counts tiles of this shape along the tile's axes: which of "
        "its two last numbers counts tiles of keys, and which counts tiles of the head dimension?",
        "The head dimension is one tile only, number 0. The index is (batch, head, 0, j), and the reshape takes the "
        "two leading ones away: (HEAD_DIM, TILE_KEY).",
    ),
    solution="""
def load_key_transposed(K, batch, head, j):
    k = ct.load(
        K,
        (batch, head, 0, j),
        (1, 1, HEAD_DIM, TILE_KEY),
        order=(0, 1, 3, 2),
        padding_mode=ct.PaddingMode.ZERO,
    )
    return ct.reshape(k, (HEAD_DIM, TILE_KEY))
""",
    wrong=(
        Wrong(
            "the index is not swapped", "the index is not swapped", old="(batch, head, 0, j)", new="(batch, head, j, 0)"
        ),
        Wrong(
            "the array's axes keep their order", "keep their order", old="order=(0, 1, 3, 2)", new="order=(0, 1, 2, 3)"
        ),
        Wrong(
            "the tile is loaded as it lies and then reshaped, which moves no element: rows run on into each other",
            "rows run on into each other",
            source="""
def load_key_transposed(K, batch, head, j):
    k = ct.load(K, (batch, head, j, 0), (1, 1, TILE_KEY, HEAD_DIM), padding_mode=ct.PaddingMode.ZERO)
    return ct.reshape(k, (HEAD_DIM, TILE_KEY))
""",
        ),
        Wrong(
            "the shape is not swapped",
            "the shape is not swapped",
            old="(1, 1, HEAD_DIM, TILE_KEY)",
            new="(1, 1, TILE_KEY, HEAD_DIM)",
        ),
        Wrong(
            "the result keeps the old shape",
            "Incompatible shapes",
            old="ct.reshape(k, (HEAD_DIM, TILE_KEY))",
            new="ct.reshape(k, (TILE_KEY, HEAD_DIM))",
        ),
        Wrong(
            "the order of all four axes is reversed, batch and head too",
            "all four axes is reversed",
            old="order=(0, 1, 3, 2)",
            new='order="F"',
        ),
    ),
    debrief="A load with order reads the array as if its axes stood in that order; index and shape follow the tile. A "
    "reshape is something else: it keeps the elements in their order and only counts them anew.",
)
