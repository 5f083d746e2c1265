"""Step 902: keys and values are read where they lie, in pages.

Which page a tile lies in is one more load, of one number, before the load of the tile. A page as large as a tile or
larger costs nothing else: the tile is a part of it. Of smaller pages a tile is put together, up to four of them, each
with a number and a copy of its own. That is what small pages cost; how much it is, ``steps.inspect`` shows.

Sequences have lengths of their own, and each is split into equal shares of its own tiles.

Pages may be in e4m3. Then tiles come as words, and become float16 in registers, as in step fp8_kv, whose softmax this
one has for them.
"""

import cuda.tile as ct

from steps.core.fused import OnlyFor
from steps.core.problems import PAGED_DECODING
from steps.everyday import step900_split_kv, step901_gathered
from steps.everyday.paged_decoding import PagedDecodeStep, in_fp8
from steps.fp8.step306_cutile_fp8 import softmax_with_offset

SPLIT_KV = step900_split_kv.STEP


def place(Table, batch, j, variant):
    """Of a page that is no smaller than a tile: its number, and which of its tiles the j-th of a sequence is."""
    tiles_a_page = variant.page_size // variant.tile.key
    return ct.load(Table, (batch, j // tiles_a_page), ()), j % tiles_a_page


def small_page(Pages, Table, batch, n, last, kv_head, latency, variant):
    """The n-th page of a sequence [page_size, column]; behind its last page once more that: the table ends there."""
    number = ct.load(Table, (batch, min(n, last)), ())
    x = ct.load(Pages, (number, 0, kv_head, 0), (1, variant.page_size, 1, variant.columns), latency=latency)
    return ct.reshape(x, (variant.page_size, variant.columns))


def two_pages(Pages, Table, batch, n, last, kv_head, latency, variant):
    """The n-th page of a sequence and the one behind it."""
    first = small_page(Pages, Table, batch, n, last, kv_head, latency, variant)
    return ct.cat((first, small_page(Pages, Table, batch, n + 1, last, kv_head, latency, variant)), 0)


def from_small_pages(source, batch, kv_head, j, latency, variant):
    """The j-th tile of keys or values [key, column], of two or four pages."""
    Pages, Table, last = source
    if 2 * variant.page_size == variant.tile.key:
        return two_pages(Pages, Table, batch, 2 * j, last, kv_head, latency, variant)
    else:
        first = two_pages(Pages, Table, batch, 4 * j, last, kv_head, latency, variant)
        return ct.cat((first, two_pages(Pages, Table, batch, 4 * j + 2, last, kv_head, latency, variant)), 0)


def load_key_from_pages(K, batch, kv_head, j, variant):
    """The j-th tile of keys, transposed: [head_dim, key]."""
    latency = variant.latency.key
    if variant.page_size < variant.tile.key:
        return ct.permute(from_small_pages(K, batch, kv_head, j, latency, variant), (1, 0))
    else:
        Pages, Table, _ = K
        number, within = place(Table, batch, j, variant)
        shape = (1, 1, variant.head_dim, variant.tile.key)
        k = ct.load(Pages, (number, kv_head, 0, within), shape, order=(0, 2, 3, 1), latency=latency)
        return ct.reshape(k, (variant.head_dim, variant.tile.key))


def load_value_from_pages(V, batch, kv_head, j, variant):
    """The j-th tile of values, or of keys or values as words: [key, column]."""
    latency = variant.latency.value
    if variant.page_size < variant.tile.key:
        return from_small_pages(V, batch, kv_head, j, latency, variant)
    else:
        Pages, Table, _ = V
        number, within = place(Table, batch, j, variant)
        shape = (1, variant.tile.key, 1, variant.columns)
        v = ct.load(Pages, (number, within, kv_head, 0), shape, latency=latency)
        return ct.reshape(v, (variant.tile.key, variant.columns))


STEP = PagedDecodeStep(
    number=902,
    name="paged",
    title="Keys and values read from pages",
    change="The kernel looks a tile's page up in the table, and loads it from where it lies.",
    previous=step901_gathered.STEP,
    default_problem=PAGED_DECODING,
    **{
        **SPLIT_KV.holes(),
        "load_key": load_key_from_pages,
        "load_value": load_value_from_pages,
        "softmax": OnlyFor(in_fp8, softmax_with_offset, otherwise=SPLIT_KV.softmax),
    },
)
