"""Who holds which element of a tile, where shared memory keeps it, and which banks a read meets; all without a GPU.

Registers: a distributed layout says which lane of which warp holds what; Triton gives it as bits (a linear layout, Zhou
et al. 2025, https://arxiv.org/abs/2505.23819). Shared memory: 32 banks of 4 bytes, each of which serves one word a
cycle (CUDA C++ Programming Guide, «Shared Memory»). ldmatrix reads 8 x 8 matrices of 16-bit elements, eight rows of 16
bytes; one matrix takes as many cycles, *wavefronts*, as there are different words in its busiest bank.

AMD's LDS has 32 such banks on gfx942 and 64 on gfx950. A wave's read is served in groups of lanes, and each group takes
as many cycles as there are different words in its busiest bank. Which lanes are a group depends on the instruction:
[CK] "Understanding AMD GPU LDS and Bank Conflicts", Composable Kernel's documentation, for ds_read_b128 on gfx942;
[HK] measured on an MI355X by HipKittens (Hu et al. 2025, https://arxiv.org/abs/2511.08083, analysis/paper_experiments),
for ds_read_b128 and ds_read_b64 on gfx950. For others no source was found, and neighbouring lanes are taken, as many as
all banks can serve.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from itertools import product

BANKS = 32
WORD = 4  # bytes
MATRIX_ROWS = 8
CHUNK = 8  # elements of 16 bits in the 16 bytes of a matrix's row
ELEMENT = 2  # bytes


@cache
def _context():
    from triton._C.libtriton import gluon_ir, ir
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import make_backend

    context = ir.context()
    ir.load_dialects(context)
    make_backend(GPUTarget("cuda", 90, 32)).load_dialects(context)
    builder = gluon_ir.GluonOpBuilder(context)
    # Where bank conflicts are counted, Triton asks the function that it builds how many CTAs a cluster has.
    module = builder.create_module()
    function = builder.get_or_insert_function(module, "layouts", builder.get_function_ty([], []), "public", False)
    module.push_back(function)
    builder.set_insertion_point_to_start(function.add_entry_block())
    return context, builder, module  # the builder does not keep its context and its module alive


def _builder():
    return _context()[1]


def _bases(layout, shape: Sequence[int]) -> tuple[list, list, list]:
    """What every bit of the register's, the lane's and the warp's number adds to an element's indices."""
    linear = _builder().to_linear_layout(layout._to_ir(_builder()), list(shape))
    return linear.reg_bases, linear.lane_bases, linear.warp_bases


def _element(axes: int, *parts: tuple[int, list]) -> tuple[int, ...]:
    """The indices of an element along so many axes; parts: a number, and what each of its bits adds to them."""
    index = (0,) * axes
    for number, bases in parts:
        for bit, base in enumerate(bases):
            if number >> bit & 1:
                index = tuple(i ^ b for i, b in zip(index, base))
    return index


def holders(layout, shape: Sequence[int]) -> dict[tuple[int, ...], list[tuple[int, int, int]]]:
    """element -> (warp, lane, register) of all that hold it, in the order of their numbers."""
    bases = _bases(layout, shape)
    found: dict[tuple[int, ...], list[tuple[int, int, int]]] = {}
    for warp, lane, register in product(*(range(1 << len(of)) for of in reversed(bases))):
        index = _element(len(shape), *zip((register, lane, warp), bases))
        found.setdefault(index, []).append((warp, lane, register))
    return found


def held_by(layout, shape: Sequence[int]):
    """A boolean array [warps, *shape]: which warp holds which element of a tile in registers."""
    import numpy

    held = numpy.zeros((1 << len(_bases(layout, shape)[2]), *shape), dtype=bool)
    for index, who in holders(layout, shape).items():
        held[(sorted({warp for warp, _, _ in who}), *index)] = True
    return held


def matrices(layout, shape: Sequence[int]) -> int:
    """8 x 8 matrices that every warp loads to hold a tile of this shape as a factor of a product."""
    registers, lanes, _ = _bases(layout, shape)
    return (1 << len(registers) + len(lanes)) // (MATRIX_ROWS * CHUNK)


def shared_address(layout, columns: int, row: int, column: int) -> int:
    """Bytes from the start of a tile with so many 16-bit columns to element [row, column].

    layout: a ``gl.SwizzledSharedLayout``: chunks of ``vec`` elements trade places within their row, by an exclusive or
    with the row's phase, which changes every ``per_phase`` rows and has ``max_phase`` values.
    """
    phase = row // layout.per_phase % layout.max_phase
    chunk = column // layout.vec ^ phase
    return (row * columns + chunk * layout.vec + column % layout.vec) * ELEMENT


def ldmatrix_addresses(layout, columns: int, first_row: int = 0, chunk: int = 0) -> list[int]:
    """Where the eight rows of a matrix begin: what eight lanes of a warp hand to ldmatrix."""
    return [shared_address(layout, columns, first_row + row, chunk * CHUNK) for row in range(MATRIX_ROWS)]


def words_a_bank(addresses: Sequence[int]) -> Counter:
    """bank -> different 4-byte words of it that reads of 16 bytes at ``addresses`` want."""
    words = {address // WORD + word for address in addresses for word in range(CHUNK * ELEMENT // WORD)}
    return Counter(word % BANKS for word in words)


def ldmatrix_wavefronts(layout, columns: int) -> int:
    """Wavefronts of shared memory for one matrix of a tile, the worst over its matrices; 1 is without conflict."""
    every = (
        ldmatrix_addresses(layout, columns, first, chunk)
        for first in range(0, MATRIX_ROWS * layout.max_phase, MATRIX_ROWS)
        for chunk in range(columns // CHUNK)
    )
    return max(max(words_a_bank(addresses).values()) for addresses in every)


def tma_address(layout, rows: int, row: int, column: int) -> int:
    """Bytes from the start of a tile with so many rows to element [row, column], where TMA puts or expects it.

    layout: a ``gl.NVMMASharedLayout``. Panels as wide as the swizzle lie one behind the other. Chunks of 16 bytes trade
    places within their row: an exclusive or with the row's number in each 1024 bytes' pattern [PTX ISA, «Swizzling
    modes»].
    """
    width, size = layout.swizzle_byte_width, layout.element_bitwidth // 8
    panel, within = divmod(column * size, width)
    chunk = within // 16 ^ row * width // 128 % (width // 16)
    return (panel * rows + row) * width + chunk * 16 + within % 16


def places_in(linear, layout, shape: Sequence[int]) -> list[int]:
    """For a tile [row, column] that is stored by ``linear``: where TMA, by ``layout``, takes each element to be.

    linear: a ``gl.SharedLinearLayout``: what each bit of an element's place adds to its indices. Both in row order.
    """
    rows, columns = shape
    size = layout.element_bitwidth // 8
    indices = [(0, 0)]  # of the element in each place
    for base in linear.offset_bases:
        indices += [(row ^ base[0], column ^ base[1]) for row, column in indices]
    theirs = {
        tma_address(layout, rows, row, column): row * columns + column
        for row, column in product(range(rows), range(columns))
    }
    found = [0] * len(indices)
    for n, (row, column) in enumerate(indices):
        found[row * columns + column] = theirs[n * size]
    return found


def triton_conflicts(register_layout, shared_layout, shape: Sequence[int], bits: int = 8 * ELEMENT) -> int:
    """Triton's count of extra wavefronts (what ``gl.bank_conflicts`` says), for plain loads into ``register_layout``.

    bits: of an element. It is the same for stores.
    """
    builder = _builder()
    return builder.get_shared_bank_conflicts(
        register_layout._to_ir(builder), shared_layout._to_ir(builder), list(shape), bits
    )


# --- AMD's LDS ---


def _together(*begins: int, at_once: int = 4) -> list[list[int]]:
    """Groups of lanes: runs of four that begin there, the same again for the other half of the wave."""
    half = [begin + n for begin in begins for n in range(at_once)]
    return [half, [lane + LANES // 2 for lane in half]]


LANES = 64  # of a wave
LDS_BANKS = {"gfx942": 32, "gfx950": 64}
GROUPS = {  # lanes that are served together
    ("gfx942", "ds_read_b128"): [g for at in ((0, 20), (4, 16), (8, 28), (12, 24)) for g in _together(*at)],  # [CK]
    ("gfx950", "ds_read_b128"): [g for at in ((0, 12, 20, 24), (4, 8, 16, 28)) for g in _together(*at)],  # [HK]
    ("gfx950", "ds_read_b64"): [list(range(32)), list(range(32, 64))],  # [HK]
}
READS = {"ds_read_b128": 16, "ds_read_b64": 8, "ds_read_b64_tr_b16": 8, "ds_read_u16": 2}  # bytes that a lane gets


def groups_of_lanes(arch: str, instruction: str) -> list[list[int]]:
    """Which lanes of a wave LDS serves together; a transposing read is taken to be like the plain one of its size."""
    if found := GROUPS.get((arch, instruction.removesuffix("_tr_b16"))):
        return found
    number = min(LANES, LDS_BANKS[arch] * WORD // max(WORD, READS[instruction]))
    return [list(range(first, first + number)) for first in range(0, LANES, number)]


def lds_cycles(arch: str, instruction: str, layout, shape: Sequence[int], address: Callable) -> tuple[int, int]:
    """Cycles that LDS takes for what a wave reads of a tile [*shape] of 16-bit elements, and how few would do.

    layout: what the lanes of the wave hold then. address(*index): where an element lies, in bytes.
    """
    registers, lanes, _ = _bases(layout, shape)
    at_once = READS[instruction] // ELEMENT
    cycles = least = 0
    for first in range(0, 1 << len(registers), at_once):
        held = [_element(len(shape), (register, registers)) for register in range(first, first + at_once)]
        for group in groups_of_lanes(arch, instruction):
            of_lanes = [_element(len(shape), (lane, lanes)) for lane in group]
            words = {address(*(a ^ b for a, b in zip(x, y))) // WORD for x in of_lanes for y in held}
            cycles += max(Counter(word % LDS_BANKS[arch] for word in words).values())
            least += -(-len(words) // LDS_BANKS[arch])
    return cycles, least


def padded_address(columns: int, interval: int, padding: int, row: int, column: int) -> int:
    """Bytes to element [row, column] of a tile with so many columns, where ``padding`` elements follow ``interval``."""
    number = row * columns + column
    return (number + number // interval * padding) * ELEMENT
