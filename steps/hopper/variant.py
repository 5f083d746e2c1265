"""What a Hopper kernel can be made of, and the constants and layouts that it is compiled with.

The choices are nested: what makes sense only together with something else stands inside it. ``Roles`` gives warps
roles; the warps that compute have a ``loop``; only products that overlap let blocks ``Stay``; and so on.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from triton.experimental.gluon import language as gl

from steps.core.fused import Choices
from steps.core.order import DEALT, NATURAL, TAKEN, Order
from steps.core.rules import rule_for
from steps.core.step import DEFAULT_ARCH
from steps.core.tiles import HopperShape, Tile
from steps.hopper.packed import AXES
from tutorial_lib.multicast import PAIR
from tutorial_lib.problem import BYTES_PER_ELEMENT, Problem

LEAST_PIECE = 16  # columns: wgmma's K
ROWS = 64  # of queries that a warp group multiplies at a time: wgmma's M
GROUP_WARPS = 4  # of a warp group
PRODUCER_REGISTERS = 24  # the least that setmaxnreg can leave
MOST_REGISTERS = 240  # with which two groups of 128 threads and the producer's four warps still share 65536
THREE_GROUPS_REGISTERS = 160  # with which three do


@dataclass(frozen=True)
class Waiting(Choices):
    """Every product is waited for before anything else begins. in_turn: the groups issue their QK products in turn."""

    in_turn: bool = False


@dataclass(frozen=True)
class Room(Choices):
    """At head_dim 256 the output leaves in halves, from a place of its own for one half.

    half_query: half of Q stays in registers. early_query: the place of Q is free for the next tile of queries as soon
    as the last QK product has read it.
    """

    half_query: bool = True
    early_query: bool = True


@dataclass(frozen=True)
class Stay(Choices):
    """One block an SM stays, and computes a list of tiles of queries that was dealt to it before the launch.

    taken: there is no list, and a block takes the next tile that no other has when it is ready for one.
    linked: the first QK product of the next tile of queries runs under the end of this one, where shared memory has
    room for both. ends: where a part stops under a causal mask: at the last tile of keys that the block sees, or at its
    own; "own, diagonal first": at head_dim 256 it also visits the tiles of keys from the last, which the mask cuts, to
    the first. room: what is done at head_dim 256 to make room; None: nothing. pairs: two blocks on neighbouring SMs
    share what TMA brings of keys and values (``steps.hopper.pairs``), always, or where the rule says that it pays.
    even_end: the lists are dealt so that blocks end together (``steps.core.order.deal``). computed: where a head has
    few tiles of queries, up to ``steps.core.order.FEW``, blocks read no lists, but compute which tiles are theirs.

    Raises ValueError for pairs whose parts do not stop at their own ends, or that take tiles or compute which are
    theirs; for pairs always with the diagonal first; and for tiles that are both taken and computed.
    """

    linked: bool = False
    ends: Literal["the block's", "own", "own, diagonal first"] = "the block's"
    room: Room | None = None
    # What steps without them are recorded to change stays as it reads:
    taken: bool = field(default=False, repr=False)
    pairs: Literal["always", "by rule"] | None = field(default=None, repr=False)
    even_end: bool = field(default=False, repr=False)
    computed: bool = field(default=False, repr=False)

    def __post_init__(self):
        if self.pairs and (self.ends == "the block's" or self.taken):
            raise ValueError("pairs of blocks take parts that stop at their own ends, and lists of tiles")
        if self.pairs == "always" and self.ends == "own, diagonal first":
            raise ValueError("where blocks always come in pairs they visit the tiles of keys from the first")
        if self.computed and (self.pairs or self.taken):
            raise ValueError("blocks that compute their tiles take pairs=None and taken=False")


@dataclass(frozen=True)
class Overlap(Choices):
    """The QK product of a tile and the PV product of the tile before are begun together, before the softmax.

    third_group: at head_dim 64 three warp groups compute; "in turn": and issue their products in turn.
    wait: where the wait for the PV product stays in the machine code, too. "behind the softmax"; "behind the maxima":
    and, up to head_dim 128, the correction, and so before the exponentials; None: where the compiler moves it to.
    lean_sum: up to head_dim 128 the lanes of a row add their sums after the loop; "and diagonal first": at head_dim
    256, too, where the tiles of keys are visited from the last. four_chains: a lane looks for the maximum of a row in
    four chains of comparisons, not in one; at head_dim 256 only under a causal mask. no_meetings: at head_dim 128 the
    warps of a group do not meet where nothing needs it (``tutorial_lib.meetings``). Where tiles are taken they do.
    quarter_query: at head_dim 128 a quarter of Q stays in registers, where the rule says that it pays. softmax_ahead:
    there the first maxima for the next queries are taken under the last PV product for these, where the rule says so,
    and blocks do not come in pairs (``steps.hopper.ahead``).
    """

    stay: Stay | None = None
    third_group: Literal["free", "in turn"] | None = None
    wait: Literal["behind the softmax", "behind the maxima"] | None = None
    lean_sum: bool | Literal["and diagonal first"] = False
    # As with Stay, what older steps change reads as before:
    four_chains: bool = field(default=False, repr=False)
    no_meetings: bool = field(default=False, repr=False)
    quarter_query: bool = field(default=False, repr=False)
    softmax_ahead: bool = field(default=False, repr=False)


@dataclass(frozen=True)
class Roles(Choices):
    """A producer warp asks for tiles of K and V; warp groups of ROWS queries each do nothing but compute.

    registers: of a thread that computes. loop: how its group goes through the tiles of keys.

    Raises ValueError for registers that setmaxnreg does not take.
    """

    registers: int = 168
    loop: Waiting | Overlap = Waiting()

    def __post_init__(self):
        if self.registers % 8 or not PRODUCER_REGISTERS <= self.registers <= MOST_REGISTERS:
            raise ValueError(
                f"registers must be a multiple of 8 from {PRODUCER_REGISTERS} to {MOST_REGISTERS}, got {self.registers}"
            )


def order_of(roles: Roles | None) -> Order:
    """Which block computes which tiles of queries."""
    stay = roles.loop.stay if roles and isinstance(roles.loop, Overlap) else None
    if stay is None:
        return NATURAL
    return TAKEN if stay.taken else replace(DEALT, even_end=stay.even_end, computed=stay.computed)


@dataclass(frozen=True)
class Variant:
    """What a kernel is compiled for, and the layouts that follow: all of it is constant in the compiled code."""

    tile: Tile  # of a block, or of both blocks of a pair
    head_dim: int
    group_size: int
    causal: bool
    ragged: bool  # the last tile of keys is not full
    groups: int  # warp groups that compute, of ROWS queries each
    stages: int
    producer: bool
    registers: int
    in_turn: bool
    overlap: bool
    persistent: bool
    taken: bool  # a block takes one tile of queries after the other, and has no list of them
    computed: bool  # a block computes its tiles of queries, and has no list of them
    linked: bool
    own_output: bool  # the output has its own place in shared memory, and not that of Q
    half_output: bool  # and that for one half at a time
    own_end: bool
    lean_sum: bool
    four_chains: bool
    no_meetings: bool
    softmax_ahead: bool  # the first maxima for the next queries are taken under the last PV product for these
    half_query: bool  # the first half of head_dim of Q stays in registers; never where linked
    quarter_query: bool  # the first quarter does
    early_query: bool
    late_wait: Literal["maxima", "correction", "softmax"] | None  # behind what the wait for the PV product is held
    diagonal_first: bool
    window: int | None = None  # of ``Problem``, as softcap
    softcap: float | None = None
    lse: bool = False  # the log-sum-exp of every query is stored, too
    neighbours: int = 1  # blocks on neighbouring SMs that share what TMA brings of keys and values
    pieces: tuple[int, int] | None = None  # columns of head_dim, where products take them in two pieces
    packed: bool = False  # sequences are packed into one tensor

    def __post_init__(self):
        if self.in_pieces and (not self.overlap or self.late_wait == "softmax"):
            raise ValueError("head_dim in pieces takes products that overlap, and no wait behind the softmax")
        if self.diagonal_first and self.neighbours > 1:
            raise ValueError("blocks in pairs visit the tiles of keys from the first")
        if self.softmax_ahead and not (self.linked and self.most_over == 0):
            raise ValueError("the softmax ahead takes a linked kernel, none of whose parts passes over a tile of keys")
        if self.softmax_ahead and (self.taken or self.in_turn or self.neighbours > 1):
            raise ValueError("the softmax ahead takes blocks that stay, each for itself, and groups that take no turns")
        if self.softmax_ahead and (self.in_pieces or self.packed or self.window or self.softcap):
            raise ValueError("the softmax ahead takes head_dim in one piece, and sees all keys as they are")
        if self.packed and not (self.producer and self.taken and self.neighbours == 1 and not self.in_pieces):
            raise ValueError("packed sequences take blocks that stay, each for itself, and head_dim in one piece")

    @property
    def in_pieces(self) -> bool:
        """Whether products take head_dim in two pieces (``steps.hopper.pieces``)."""
        return self.pieces is not None

    @cached_property
    def outputs(self) -> list[gl.NVMMADistributedLayout]:
        """Outputs [query, columns of a piece], of each piece."""
        return [gl.NVMMADistributedLayout([3, 0], [self.warps, 1], [16, columns, 16]) for columns in self.pieces]

    @property
    def parts(self) -> int:
        """Into how many parts the queries of a block fall: each has its warps, which run for themselves."""
        return self.groups if self.producer else 1

    @property
    def rows(self) -> int:
        """Queries of a part."""
        return self.tile.query // (self.neighbours * self.parts)

    @property
    def warps(self) -> int:
        """Warps of a part."""
        return GROUP_WARPS * self.groups // self.parts

    @property
    def most_over(self) -> int:
        """Of the tiles of keys that a block visits, or a pair, how many at most a part passes over at its end."""
        if not self.own_end:
            return 0
        query, key = self.tile.query, self.tile.key
        # After so many tiles of queries their ends stand to those of tiles of keys as for the first.
        firsts = range(0, query * key, query)
        return max(-(-(first + query) // key) - -(-(first + self.rows) // key) for first in firsts)

    @property
    def listeners(self) -> int:
        """Roles that the producer tells which tile of queries is next."""
        return self.parts

    @property
    def query_stages(self) -> int:
        """Tiles of queries that shared memory holds."""
        return 2 if self.linked else 1

    @property
    def output_columns(self) -> int:
        """Columns of the output that are stored at once."""
        return self.head_dim // 2 if self.half_output else self.head_dim

    @property
    def workers(self) -> list[int]:
        """Warps of every part but the first, and of the producer."""
        return [self.warps] * (self.parts - 1) + [1]

    @property
    def budgets(self) -> list[int]:
        """Registers of a thread of those; the first part gets what is left, which is no less."""
        return [self.registers] * (self.parts - 1) + [PRODUCER_REGISTERS]

    @cached_property
    def accumulator(self) -> gl.NVMMADistributedLayout:
        """Scores [query, key], as wgmma leaves them in registers: a warp has 16 rows."""
        return gl.NVMMADistributedLayout([3, 0], [self.warps, 1], [16, self.tile.key, 16])

    @cached_property
    def output(self) -> gl.NVMMADistributedLayout:
        """Outputs [query, head_dim]."""
        return gl.NVMMADistributedLayout([3, 0], [self.warps, 1], [16, self.head_dim, 16])

    @cached_property
    def weights(self) -> gl.DotOperandLayout:
        """The first factor of the PV product, which comes from registers."""
        return gl.DotOperandLayout(0, self.output, 2)

    @cached_property
    def shared(self) -> gl.NVMMASharedLayout:
        """Tiles in shared memory, swizzled as TMA writes and wgmma reads them."""
        swizzle = min(128, self.head_dim * BYTES_PER_ELEMENT)
        return gl.NVMMASharedLayout(swizzle, 8 * BYTES_PER_ELEMENT, rank=len(self.outer) + 2)

    @property
    def outer(self) -> list[int]:
        """How much of the axes in front of rows and columns is in a tile, as TMA knows a tensor."""
        return [1] * ((AXES if self.packed else 4) - 2)

    @property
    def shared_key(self) -> gl.NVMMASharedLayout:
        """Those of keys."""
        return self.shared

    @property
    def shared_value(self) -> gl.NVMMASharedLayout:
        """Those of values."""
        return self.shared

    @property
    def holds_by_nobody(self) -> bool:
        """Whether a wait for an mbarrier where nobody arrives holds the wait for the PV product in its place."""
        return self.no_meetings and self.late_wait is not None

    @property
    def rewrite(self) -> bool:
        """Whether the kernel asks for its PTX to be rewritten (``tutorial_lib.rewriting``): for wgmma's descriptors."""
        return True

    @property
    def ctas(self) -> int:
        """Blocks that work together."""
        return 1


def pieces_of(head_dim: int) -> tuple[int, int] | None:
    """Columns of two pieces, each a power of two, that hold head_dim; None where one tile of all is as small."""
    first = 2 ** (head_dim.bit_length() - 1)
    second = max(LEAST_PIECE, 2 ** (head_dim - first - 1).bit_length()) if head_dim > first else first
    return (first, second) if second < first else None


def make_variant(roles: Roles | None, problem: Problem) -> Variant:
    """The constants that a kernel with these roles is compiled with for ``problem``."""
    shape = rule_for("hopper", problem, DEFAULT_ARCH).choice
    loop = roles.loop if roles else Waiting()
    overlap = loop if isinstance(loop, Overlap) else None
    stay = overlap.stay if overlap else None
    # Where shared memory holds the next tile of queries beside this one, there is nothing to make room for.
    room = stay.room if stay and not shape.two_queries else None
    three = bool(overlap and overlap.third_group) and shape.third_group
    groups = 3 if three else 2
    pairs = bool(stay) and (stay.pairs == "always" or (stay.pairs == "by rule" and shape.pairs))
    neighbours = PAIR if pairs else 1
    tile = Tile(neighbours * groups * ROWS, shape.key)
    registers = roles.registers if roles else 0
    own_end = bool(stay) and stay.ends != "the block's" and problem.causal
    diagonal_first = own_end and stay.ends == "own, diagonal first" and not shape.two_queries
    taken = bool(stay) and (stay.taken or problem.lengths is not None)
    return Variant(
        tile=tile,
        head_dim=problem.head_dim,
        group_size=problem.group_size,
        causal=problem.causal,
        ragged=problem.lengths is not None or problem.seq_len_kv % tile.key != 0,
        groups=groups,
        stages=2,
        producer=roles is not None,
        registers=THREE_GROUPS_REGISTERS if three else registers,
        in_turn=overlap.third_group == "in turn" and three if overlap else loop.in_turn,
        overlap=overlap is not None,
        persistent=stay is not None,
        taken=taken,
        computed=order_of(roles).computes(problem, tile),
        packed=problem.lengths is not None,
        linked=bool(stay) and stay.linked and shape.two_queries,
        own_output=bool(stay) and (shape.two_queries or room is not None),
        half_output=room is not None,
        own_end=own_end,
        lean_sum=bool(overlap) and _is_lean(overlap, shape, diagonal_first),
        four_chains=bool(overlap) and overlap.four_chains and shape.four_chains,
        no_meetings=bool(overlap) and overlap.no_meetings and shape.no_meetings and not taken,
        softmax_ahead=bool(overlap) and overlap.softmax_ahead and shape.softmax_ahead and not (taken or pairs),
        quarter_query=bool(overlap) and overlap.quarter_query and shape.quarter_query and not taken,
        half_query=room is not None and room.half_query,
        early_query=room is not None and room.early_query,
        late_wait=_wait(overlap, shape),
        window=problem.window,
        softcap=problem.softcap,
        diagonal_first=diagonal_first,
        neighbours=neighbours,
    )


def _is_lean(overlap: Overlap, shape: HopperShape, diagonal_first: bool) -> bool:
    return bool(overlap.lean_sum) and (shape.lean_sum or (diagonal_first and overlap.lean_sum == "and diagonal first"))


def _wait(overlap: Overlap | None, shape: HopperShape) -> str | None:
    if overlap is None or overlap.wait is None:
        return None
    if overlap.wait == "behind the softmax":
        return "softmax"
    return None if shape.wait == "the compiler's" else shape.wait
