"""A compiled kernel: what it takes of a multiprocessor, what was counted in its machine code, and its texts."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property

from tutorial_lib import amdgcn
from tutorial_lib import sass as sass_reader
from tutorial_lib.architectures import ARCHITECTURES, blocks_per_multiprocessor

AMD_LANES = 64  # of their waves

# What a record keeps of a kernel.
FIGURES = (
    *("arch", "compiler", "code", "threads", "compute_threads", "compute_groups", "registers", "shared_bytes"),
    *("stack_bytes", "spilled_bytes", "spill_instructions", "blocks", "blocks_per_sm", "limited_by", "occupancy_pct"),
    *("instructions", "kinds", "hot_loop_instructions", "hot_loop", "issued_per_tile", "scores_per_tile", "kv_tiles"),
    *("shared_clocks_per_tile", "tensor_columns", "amd"),
)
COMPUTE_WARPS = 4  # left to itself, tileiras lets four warps compute; it adds warps of its own for copies


def compute_threads(resources: dict) -> int:
    """Of a block's threads, those that compute; ``resources`` is what ``Compiled.as_dict`` returned."""
    if resources.get("compute_threads"):
        return resources["compute_threads"]
    return resources["threads"] if (resources.get("compiler") or "").startswith("Triton") else 32 * COMPUTE_WARPS


@dataclass(frozen=True)
class Remark:
    """What the compiler says of one line of source, such as "Load instruction selected: TMA Load instruction"."""

    file: str
    line: int
    text: str


@dataclass(frozen=True)
class Texts:
    """What a compiler and a disassembler wrote of a kernel."""

    tile_ir: str  # Tile IR, or Triton's GPU IR
    sass: str | None = None  # None where the disassembler does not know the architecture
    ptx: str | None = None  # tileiras makes none
    assembly: str | None = None  # AMD's, in place of SASS
    remarks: tuple[Remark, ...] = ()


class OnDemand:
    """Texts that are made when one of them is first asked for: to compile a kernel takes seconds."""

    def __init__(self, make: Callable[[], Texts]):
        self._make = make

    @cached_property
    def _made(self) -> Texts:
        return self._make()

    def __getattr__(self, name: str):
        if name not in Texts.__dataclass_fields__:
            raise AttributeError(name)
        return getattr(self._made, name)


@dataclass(frozen=True)
class Figures:
    """What was counted in a kernel's machine code: all that most questions need, without the texts.

    codes: fingerprints of its instructions and those of other kernels that a step launches, by the fingerprints of the
    latter; "" for its own alone. ptx: a fingerprint of its PTX without what is there for a debugger. kinds: its
    instructions by what they do. hot: of the warps of each role that have a hot loop, how many instructions that has,
    and how many of each kind. exponentials: in the hot loop of the warps that compute. order: ``sass.order_of_work`` of
    that loop. amd: registers, spills and waves, where the code is AMD's.
    """

    codes: dict[str, str]
    ptx: str | None = None
    instructions: int | None = None
    kinds: dict[str, int] | None = None
    hot: dict[str, tuple[int, dict[str, int]]] = field(default_factory=dict)
    exponentials: int = 0
    order: tuple[tuple[str, int], ...] = ()
    amd: amdgcn.Facts | None = None

    @classmethod
    def of(cls, texts: Texts) -> Figures:
        """Count."""
        read = Reading(texts)
        if not read.known:
            return cls({}, _without_debugging(texts.ptx))
        return cls(
            codes={"": fingerprint(read.lines)},
            ptx=_without_debugging(texts.ptx),
            instructions=len(read.instructions),
            kinds=read.reader.count_kinds(read.instructions),
            hot={role: (len(body), read.reader.count_kinds(body)) for role, body in read.hot.items()},
            exponentials=_exponentials(read.hot.get("compute", [])),
            order=() if texts.assembly else tuple(sass_reader.order_of_work(read.hot.get("compute", []))),
            amd=amdgcn.facts(texts.assembly) if texts.assembly else None,
        )

    @classmethod
    def from_fields(cls, fields: dict) -> Figures:
        """What ``dataclasses.asdict`` made of figures and JSON kept; raises TypeError for other fields."""
        kinds = fields["kinds"] and dict(fields["kinds"])
        hot = {role: (length, dict(counts)) for role, (length, counts) in fields["hot"].items()}
        order = tuple((what, count) for what, count in fields["order"])
        amd = fields["amd"] and amdgcn.Facts(**fields["amd"])
        return cls(**{**fields, "kinds": kinds, "hot": hot, "order": order, "amd": amd})


class Reading:
    """The instructions of a kernel, from its texts."""

    def __init__(self, texts: Texts):
        self._texts = texts
        self.reader = amdgcn if texts.assembly else sass_reader
        self.known = bool(texts.sass or texts.assembly)

    @cached_property
    def _assembly(self) -> amdgcn.Code:
        return amdgcn.parse(self._texts.assembly)

    @cached_property
    def instructions(self) -> list[sass_reader.Instruction] | list[amdgcn.Instruction]:
        return self._assembly.instructions if self._texts.assembly else sass_reader.parse(self._texts.sass or "")

    @property
    def lines(self) -> list[str]:
        """The instructions' texts, whatever their addresses."""
        if self._texts.assembly:
            return [instruction.text for instruction in self.instructions]
        return sass_reader.without_addresses(self._texts.sass)

    @cached_property
    def hot(self) -> dict[str, list]:
        """The hot loop of each role of warps."""
        if self._texts.assembly:
            body = amdgcn.hot_loop(self._assembly)
            return {"compute": body} if body else {}
        return sass_reader.hot_loops(self.instructions)


def fingerprint(lines: Sequence[str]) -> str:
    """Of lines of code: equal where they are."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _without_debugging(ptx: str | None) -> str | None:
    """A fingerprint of PTX without what is for a debugger, on whose labels ptxas was seen to let registers depend."""
    if ptx is None:
        return None
    lines = (line.split("//")[0].strip() for line in ptx.split(".section")[0].splitlines())
    return fingerprint([line for line in lines if line and not re.match(r"\.loc|\.file|\$L__(tmp|info|func)", line)])


def _exponentials(body: Sequence) -> int:
    """Exponentials among instructions."""
    if body and isinstance(body[0], amdgcn.Instruction):
        return sum(i.opcode.startswith("v_exp_f32") for i in body)
    special = [i.operands for i in body if i.opcode == "MUFU"]
    # A hyperbolic tangent's has a reciprocal behind it.
    return sum(of.startswith(".EX2") for of in special) - sum(of.startswith(".RCP") for of in special)


@dataclass(frozen=True)
class Compiled:
    """A kernel as compiled for one architecture. Registers and stack are a thread's, shared memory is a block's."""

    arch: str
    compiler: str
    threads: int  # a block
    compute_threads: int  # of them, those that do not only copy
    registers: int  # a thread, at launch
    shared_bytes: int
    stack_bytes: int
    spilled_bytes: int  # local memory a thread: what did not fit in registers
    figures: Figures = field(repr=False)
    texts: Texts | OnDemand = field(repr=False, compare=False)
    scores_per_tile: int | None = None  # query rows times keys: what one iteration of the loop over K/V tiles computes
    other_kernels: tuple[str, ...] = ()  # fingerprints of those that the step launches, too
    lists: str | None = None  # what tells the order of blocks, a fingerprint or words, where that sets a step apart
    blocks: int | None = None  # that a launch has, for the problem
    kv_tiles: int | None = None  # iterations of that loop, over all blocks of the problem
    compute_groups: int = 1  # groups of the threads that compute, which do so independently of each other
    shared_clocks: float | None = None  # clocks a K/V tile that shared memory is busy, where the layouts are known
    tensor_columns: int | None = None  # of tensor memory, a block; None where there is none
    ctas: int = 1  # blocks of a cluster
    system_bytes: int = 0  # of shared_bytes, those that are the system's and not the kernel's

    @property
    def tile_ir(self) -> str:
        return self.texts.tile_ir

    @property
    def sass(self) -> str | None:
        return self.texts.sass

    @property
    def ptx(self) -> str | None:
        return self.texts.ptx

    @property
    def assembly(self) -> str | None:
        return self.texts.assembly

    @property
    def remarks(self) -> tuple[Remark, ...]:
        return self.texts.remarks

    @cached_property
    def _read(self) -> Reading:
        return Reading(self.texts)

    @property
    def all_kinds(self) -> tuple[str, ...]:
        """The kinds of instructions that this architecture has."""
        return amdgcn.ALL_KINDS if self.amd else sass_reader.ALL_KINDS

    @property
    def amd(self) -> amdgcn.Facts | None:
        """Vector and scalar registers, spills and waves, where the code is AMD's."""
        return self.figures.amd

    @property
    def instructions(self) -> int | None:
        return self.figures.instructions

    @property
    def kinds(self) -> dict[str, int] | None:
        """Instructions of the whole kernel by what they do."""
        return self.figures.kinds

    def opcodes(self, kind: str) -> Counter[str]:
        """How often the kernel has each instruction of a kind, such as LDTM of "tensor memory"."""
        return Counter(i.name for i in self._read.instructions if i.kind == kind)

    @property
    def spill_instructions(self) -> int | None:
        return self.kinds and self.kinds["spill"]

    @property
    def hot_loop(self) -> dict[str, float] | None:
        """Instructions a K/V tile by what they do, in the loop that runs without the mask; None where none is found.

        Counted are those that one warp of each role executes. Where the compiler unrolled the loop, an iteration
        handles several tiles and counts are divided by that number.
        """
        if not self.figures.hot:
            return None
        total = dict.fromkeys(self.all_kinds, 0.0)
        for _, counts in self.figures.hot.values():
            for kind, count in counts.items():
                total[kind] += count / self._tiles_per_iteration
        return total

    def excerpt(self, pattern: str, lines: int) -> list[str]:
        """Instructions around the first that matches, in the hot loop where it is there, else anywhere."""
        for body in (*self._read.hot.values(), self._read.instructions):
            texts = [instruction.text for instruction in body]
            at = next((i for i, text in enumerate(texts) if re.search(pattern, text)), None)
            if at is not None:
                begin = max(0, min(at - lines // 3, len(texts) - lines))
                return texts[begin : begin + lines]
        return []

    @property
    def hot_body(self) -> list:
        """The instructions of the hot loop of the warps that compute."""
        return self._read.hot.get("compute", [])

    @property
    def hot_order(self) -> list[tuple[str, int]]:
        """Products begun, waits, maxima and exponentials in an iteration of the hot loop: ``sass.order_of_work``."""
        return list(self.figures.order)

    @property
    def hot_loop_instructions(self) -> float | None:
        return None if self.hot_loop is None else sum(self.hot_loop.values())

    @property
    def issued_per_tile(self) -> float | None:
        """Instructions that a block issues for one K/V tile; one warp plays each role but computing."""
        if not self.figures.hot:
            return None
        warps = {"compute": self.compute_threads // (AMD_LANES if self.amd else 32)}
        issued = sum(warps.get(role, 1) * length for role, (length, _) in self.figures.hot.items())
        return issued / self._tiles_per_iteration

    @property
    def _tiles_per_iteration(self) -> int:
        """One exponential is due for every score of a tile, so their number tells how many an iteration handles."""
        if not self.scores_per_tile:
            return 1
        return max(1, round(self.figures.exponentials * self.compute_threads / self.scores_per_tile))

    @property
    def occupancy(self) -> tuple[int, str] | None:
        """(blocks an SM, what limits their number), or None for an architecture whose limits are not known here."""
        own_bytes = self.shared_bytes - self.system_bytes
        return blocks_per_multiprocessor(self.arch, self.threads, self.registers, own_bytes, self.tensor_columns)

    @property
    def occupancy_percent(self) -> float | None:
        """Warps on an SM of those that it can hold, in percent."""
        if self.occupancy is None:
            return None
        limits = ARCHITECTURES[self.arch]
        return 100 * self.occupancy[0] * -(-self.threads // limits.lanes) / limits.max_warps

    @property
    def code(self) -> str | None:
        """A fingerprint of the instructions of all kernels of a step, and of its lists: equal where steps are equal."""
        codes, others = self.figures.codes, "\n".join(self.other_kernels)
        if not codes:
            return None
        if others not in codes:
            codes[others] = fingerprint([*self._read.lines, *self.other_kernels])
        return with_lists(codes[others], self.lists) if self.lists else codes[others]

    @property
    def digest(self) -> str | None:
        """As ``code``; of Blackwell's kernels a fingerprint of the PTX, for which ptxas chooses registers otherwise."""
        return self.code if self.tensor_columns is None else self.figures.ptx

    def same_code(self, other: Compiled) -> bool:
        """Whether both are the same instructions."""
        return self.code is not None and self.code == other.code

    def differs_from(self, other: Compiled) -> str:
        """Where the instructions of the main kernels begin to differ, in words.

        To be asked of kernels whose texts are there: those that a lock answers for are compiled now.
        """
        if not (self._read.known and other._read.known):
            return "The disassembler does not know these instructions."
        mine, its = self._read.lines, other._read.lines
        at = next((n for n, pair in enumerate(zip(mine, its)) if pair[0] != pair[1]), min(len(mine), len(its)))
        if at == len(mine) == len(its):
            return "All instructions of the main kernel are the same: kernels beside it, or its lists, differ."
        now, before = (lines[at].strip() if at < len(lines) else "its end" for lines in (mine, its))
        return f"Instruction {at + 1:,} of {len(mine):,} is the first that differs: {now}; before: {before}"

    def fields(self) -> dict:
        """All of it, as JSON can keep it; ``from_fields`` reads it."""
        plain = {name: value for name, value in vars(self).items() if name in self.__dataclass_fields__}
        texts = {name: getattr(self.texts, name) for name in Texts.__dataclass_fields__}
        texts["remarks"] = [asdict(remark) for remark in texts["remarks"]]
        return plain | {"figures": asdict(self.figures), "texts": texts}

    def as_dict(self) -> dict:
        """What results.json keeps: the figures, without the texts."""
        blocks, limiter = self.occupancy or (None, None)
        told = {"blocks_per_sm": blocks, "limited_by": limiter, "occupancy_pct": self.occupancy_percent}
        told |= {"shared_clocks_per_tile": self.shared_clocks, "amd": self.amd and asdict(self.amd)}
        return {name: told[name] if name in told else getattr(self, name) for name in FIGURES}


def with_lists(code: str, lists: str) -> str:
    """The fingerprint of code whose blocks read lists of their own."""
    return hashlib.sha256(f"{code} {lists}".encode()).hexdigest()[:16]


def from_fields(fields: dict) -> Compiled:
    """A ``Compiled`` from what ``Compiled.fields`` made of it and JSON kept; raises TypeError for other fields."""
    texts = fields["texts"]
    if isinstance(texts, dict):
        texts = Texts(**{**texts, "remarks": tuple(Remark(**remark) for remark in texts["remarks"])})
    figures = Figures.from_fields(fields["figures"])
    return Compiled(**{**fields, "texts": texts, "figures": figures, "other_kernels": tuple(fields["other_kernels"])})
