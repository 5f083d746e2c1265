"""Launch rules: which tile, warps, cluster and blocks an SM a kernel is launched with, for which problems.

They choose nothing else: for which problems a step does what is new in it the step itself says (``only_for``, see
``steps.core.fused``).

They are data: ``rules.toml`` beside this module, a table for each kind of kernel, and the first rule of a table that
takes a problem counts. A rule may ask for an architecture, or for the shared memory that a block is allowed to have,
for a head_dim, a mask, a length or a batch. It stands on a record in results/, or is *untested*: then only a compiler
has seen it, and nothing says that it is fast.

Nothing here is read from results/ when a kernel is launched. A new measurement changes a kernel only when somebody
writes its outcome into the table. ``tests/core/test_rules.py`` compares the table with the records, and compiles the
rules for an architecture of every kind.

With ``FMHA_PROFILE=1`` in the environment launches print the rule that they follow, and say so of an untested one
(``steps.core.launch``).
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from steps.core.tiles import IN_PANELS, BlockShape, Tile
from tutorial_lib.architectures import ARCHITECTURES, KIB
from tutorial_lib.problem import Problem

TABLE = Path(__file__).with_name("rules.toml")
UNTESTED = " (untested)"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule of the table: for which launches, what is chosen, and what that stands on.

    kernel: the table that it is in. choice: what the kernel is launched with. architectures: those that it is for;
    none: all. shared_kib: KiB of shared memory that a block may have there, at least. head_dims: none: all. causal:
    None: with and without a mask. seq_len, batch: at least so many queries and sequences. where: a name of
    ``WHERE``: what else must hold. blocks: how many share an SM, at least. spilled: bytes that a thread spills at most,
    in the step that tests/core/test_rules.py compiles. record: what in results/ it stands on; None: untested.
    """

    name: str
    kernel: str
    choice: BlockShape
    architectures: tuple[str, ...] = ()
    shared_kib: int = 0
    head_dims: tuple[int, ...] = ()
    causal: bool | None = None
    seq_len: int = 0
    batch: int = 0
    where: str | None = None
    blocks: int = 1
    spilled: int = 0
    record: str | None = None

    def takes(self, problem: Problem, arch: str) -> bool:
        """Whether the rule is for ``problem`` on ``arch`` ("sm_90"; "cpu" for cuTile's interpreter)."""
        return (
            (not self.architectures or arch in self.architectures)
            and shared_kib(arch) >= self.shared_kib
            and (not self.head_dims or problem.head_dim in self.head_dims)
            and self.causal in (None, problem.causal)
            and problem.seq_len_q >= self.seq_len
            and problem.batch >= self.batch
            and (self.where is None or WHERE[self.where](problem))
        )

    def told(self, arch: str) -> str:
        """The rule's name, and whether it is untested on ``arch``: a record is of the first that a rule names."""
        return self.name if arch == "cpu" or self.timed_on(arch) else self.name + UNTESTED

    def timed_on(self, arch: str) -> bool:
        return self.record is not None and arch == self.architectures[0]


def few_blocks(problem: Problem) -> bool:
    """Whether blocks of one query head, with 128 or more keys each, would leave half of an H100's SMs without one."""
    tiles = -(-problem.seq_len_kv // 128)
    return tiles > 1 and 2 * problem.batch * problem.heads * tiles <= 132


def two_tiles_of_keys(problem: Problem) -> bool:
    """Whether up to 256 queries see 129 to 256 keys without a mask, in more blocks of 128 than an H100 has SMs."""
    short = problem.seq_len_q <= 256 and 128 < problem.seq_len_kv <= 256
    plain = not problem.causal and problem.group_size == 1
    return short and plain and 2 * problem.batch * problem.heads > 132


def saves_a_tenth_of_rows(problem: Problem) -> bool:
    """Whether tiles of 64 queries have fewer rows than those of 128, by a tenth or more: up to 640 queries."""
    rows, fewer = (-(-problem.seq_len_q // tile) * tile for tile in (128, 64))
    return rows >= 1.1 * fewer


def narrow_window(problem: Problem) -> bool:
    """Whether a query sees no more than four tiles of 64 keys, and parts of others."""
    return problem.window is not None and problem.window <= 256


def soft_cap(problem: Problem) -> bool:
    """Whether scores have a soft cap."""
    return problem.softcap is not None


WHERE = {f.__name__: f for f in (few_blocks, two_tiles_of_keys, saves_a_tenth_of_rows, narrow_window, soft_cap)}


def shared_kib(arch: str) -> int:
    """KiB of shared memory that a block may have; 0 where that is not known, and for the CPU."""
    limits = ARCHITECTURES.get(arch)
    known = limits is not None and limits.shared_bytes is not None
    return (limits.shared_bytes - limits.reserved_bytes) // KIB if known else 0


@cache
def rules() -> dict[str, tuple[Rule, ...]]:
    """The rules of every kind of kernel, in their order.

    Raises TypeError for a field that a rule does not have, and ValueError for a head_dim that no tile has.
    """
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    return {kernel: tuple(_rule(kernel, row) for row in rows) for kernel, rows in table.items()}


def rule_for(kernel: str, problem: Problem, arch: str) -> Rule | None:
    """The first rule of a kind of kernel that takes ``problem`` on ``arch``, or None."""
    return next((rule for rule in rules()[kernel] if rule.takes(problem, arch)), None)


def place_of_rule(name: str) -> str:
    """File and line of a rule, such as "steps/core/rules.toml:31"; several lines where tables share a name."""
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    found = [str(number) for number, line in enumerate(lines, 1) if line == f'name = "{name}"']
    return f"steps/core/{TABLE.name}:{','.join(found)}"


CONDITIONS = (
    "name",
    "architectures",
    "shared_kib",
    "head_dims",
    "causal",
    "seq_len",
    "batch",
    "where",
    "blocks",
    "spilled",
)


def _rule(kernel: str, row: dict) -> Rule:
    fields = {name: row.pop(name) for name in (*CONDITIONS, "record") if name in row}
    fields = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    for head_dim in fields.get("head_dims", ()):
        if head_dim & (head_dim - 1) and (kernel, head_dim) != ("hopper", IN_PANELS):
            raise ValueError(
                f"{TABLE.name}: head_dims of rule {fields['name']} must be those of tiles, which are powers of two, "
                f"got {head_dim}: name that of the tile which takes it"
            )
    return Rule(kernel=kernel, choice=BlockShape(Tile(*row.pop("tile")), **row), **fields)
