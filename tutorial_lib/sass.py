"""Reads SASS, NVIDIA's machine code: what its instructions do, and which loop is the hot one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

# What an opcode is for, by prefix; the longest that fits decides. Names as in the CUDA binary utilities' manual,
# https://docs.nvidia.com/cuda/cuda-binary-utilities/#instruction-set-reference
KINDS = {
    kind: tuple(opcodes.split())
    for kind, opcodes in {
        "tensor core": "HMMA HGMMA UTCHMMA UTCQMMA IMMA IGMMA QGMMA DMMA OMMA QMMA",
        "MUFU": "MUFU",
        "FP32": "FADD FMUL FFMA FMNMX FSEL FSETP FSET FCHK FSWZADD FMNMX3 HADD2 HFMA2 HMUL2",
        "packed FP32": "FADD2 FMUL2 FFMA2",  # two results a lane
        "conversion": "F2F F2I I2F I2I F2FP FRND I2FP F2IP",
        "bulk copy": "UTMALDG UTMASTG UTMACCTL UTMACMDFLUSH UTMAPF UTMAREDG UBLKCP UBLKRED",
        "global memory": "LDG STG LDGSTS LDGDEPBAR RED REDG ATOMG ATOM CCTL LD ST",
        "shared memory": "LDS LDSM STS STSM ATOMS",
        "tensor memory": "LDTM STTM UTCCP",
        "spill": "LDL STL",
        "synchronisation": "BAR SYNCS MEMBAR FENCE DEPBAR WARPGROUP WARPSYNC WARPGROUPSET ERRBAR UTCBAR USETMAXREG "
        "NANOSLEEP ELECT VOTE UVOTE ACQBULK UTCATOMSWS UCGABAR UCGABAR_ARV UCGABAR_WAIT BSYNC BSSY SHFL ENDCOLLECTIVE "
        "WARPGROUPARRIVE CGAERRBAR PREEXIT",
        "control": "BRA BRX JMP CALL RET EXIT BREAK BRXU BPT KILL YIELD NOP BMOV",
    }.items()
}
REST = "integer and move"  # what none of the above names: IADD3, LOP3, MOV, ISETP, PRMT, R2UR, S2R, ...
ALL_KINDS = (*KINDS, REST)

OF_A_CLUSTER = (".2CTA", ".MULTICAST")  # what is said behind an opcode where several CTAs take part

MASK = 32  # instructions of a mask, at least: a compare and a select for each score that a lane holds
WORK = ("tensor core", "MUFU", "bulk copy")  # what a kernel exists for

_BY_PREFIX = {prefix: kind for kind, prefixes in KINDS.items() for prefix in prefixes}

# One line of cuobjdump: address, an optional predicate, the instruction, a semicolon.
_LINE = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P[0-9T]+)\s+)?([A-Z][A-Z0-9_]*)([^;]*);", re.MULTILINE)


@dataclass(frozen=True)
class Instruction:
    """address in bytes; predicate such as "!P0" or None; opcode such as "MUFU"; the rest, such as ".EX2 R4, R5"."""

    address: int
    predicate: str | None
    opcode: str
    operands: str

    @property
    def text(self) -> str:
        """The instruction as it is written, without its address."""
        guard = f"@{self.predicate} " if self.predicate else ""
        gap = "" if self.operands.startswith(".") else " "
        return f"{guard}{self.opcode}{gap}{self.operands}".rstrip()

    @property
    def name(self) -> str:
        """The opcode, and whether several CTAs of a cluster take part: "UTCHMMA.2CTA"."""
        modifiers = self.operands.split(" ", 1)[0]
        return self.opcode + "".join(part for part in OF_A_CLUSTER if part in modifiers)

    @property
    def kind(self) -> str:
        return _BY_PREFIX.get(self.opcode, REST)

    def takes(self, function: str) -> bool:
        """Whether the unit for special functions computes this one: EX2, RCP, ..."""
        return self.opcode == "MUFU" and self.operands.startswith(f".{function}")

    @property
    def is_conditional(self) -> bool:
        """Whether a predicate decides: in front, or, for a branch of the whole warp, among the operands."""
        return bool(self.predicate or (self.opcode == "BRA" and re.search(r"\bU?P\d", self.operands)))

    @property
    def target(self) -> int | None:
        """Where a branch goes; None for what is no branch."""
        found = re.search(r"0x([0-9a-f]+)", self.operands) if self.opcode == "BRA" else None
        return int(found[1], 16) if found else None


def parse(sass: str) -> list[Instruction]:
    """The instructions of SASS text, in order; the padding of NOPs and the closing self-branch included."""
    return [Instruction(int(m[1], 16), m[2], m[3], m[4].strip()) for m in _LINE.finditer(sass)]


def without_addresses(sass: str) -> list[str]:
    """The instructions alone: two kernels with equal lists are the same code."""
    return [f"{i.predicate} {i.opcode}{i.operands}" for i in parse(sass)]


def count_kinds(instructions: list[Instruction]) -> dict[str, int]:
    """How many instructions of each kind; every kind is there, in a fixed order."""
    counts = Counter(i.kind for i in instructions)
    return {kind: counts[kind] for kind in ALL_KINDS}


def order_of_work(body: list[Instruction]) -> list[tuple[str, int]]:
    """Matrix products begun, waits for products, maxima and exponentials: (what, how many), in the order of the code.

    Between one product or wait and the next, maxima and exponentials, which mix, are counted together.
    """
    order: list[str] = []
    maxima: list[str] = []  # since the last product or wait
    exponentials: list[str] = []
    for i in body:
        if i.opcode.startswith("FMNMX"):
            maxima.append("FMNMX")
        elif i.takes("EX2"):
            exponentials.append("EX2")
        elif i.kind == "tensor core" or (i.opcode == "WARPGROUP" and i.operands.startswith(".DEPBAR")):
            order += [*maxima, *exponentials, i.opcode if i.kind == "tensor core" else "wait"]
            maxima, exponentials = [], []
    order += [*maxima, *exponentials]
    return [(what, len(list(alike))) for what, alike in groupby(order)]


def loops(instructions: list[Instruction]) -> list[list[Instruction]]:
    """The innermost loops that do work, in order of address.

    A loop is what lies between a backward branch and its target. Two things look like one and are not: a branch from
    the slow path of a barrier, which stands behind the kernel's end, back into the code (an EXIT lies between), and a
    wait that spins (a handful of instructions without arithmetic).
    """
    index = {i.address: n for n, i in enumerate(instructions)}
    found = []
    for n, instruction in enumerate(instructions):
        target = instruction.target
        if target is None or target > instruction.address or target not in index:
            continue
        body = instructions[index[target] : n + 1]
        exits = any(i.opcode == "EXIT" and i.predicate is None for i in body)
        works = any(i.kind in WORK for i in body)
        if works and not exits:
            found.append(body)
    spans = [(body[0].address, body[-1].address) for body in found]
    return [
        body
        for body, (start, end) in zip(found, spans)
        if not any(other != (start, end) and start <= other[0] and other[1] <= end for other in spans)
    ]


def _always(body: list[Instruction]) -> list[Instruction]:
    """A loop without what most iterations jump over: the mask, which whole tiles do not need, and what ends a tile of
    queries, where one loop goes through many.

    A mask is known by its looks: long, and nothing but arithmetic. The end of a tile by its division: a reciprocal, and
    no exponential. What a branch jumps over for some lanes only, such as the store of what one of them holds, is short.
    """
    index = {i.address: n for n, i in enumerate(body)}
    left_out: set[int] = set()
    for n, instruction in enumerate(body):
        jumped = body[n + 1 : index.get(instruction.target, 0)]
        if instruction.is_conditional and len(jumped) >= MASK and (_is_mask(jumped) or _is_end(jumped)):
            left_out.update(range(n + 1, n + 1 + len(jumped)))
    return [i for n, i in enumerate(body) if n not in left_out]


def _is_mask(jumped: list[Instruction]) -> bool:
    return all(i.kind in ("FP32", REST) for i in jumped)


def _is_end(jumped: list[Instruction]) -> bool:
    return any(i.takes("RCP") for i in jumped) and not any(i.takes("EX2") for i in jumped)


def one_behind_another(body: Sequence[Instruction], opcode: str) -> tuple[int, int]:
    """(how many instructions of this opcode, how many of them read what the one of them before has written).

    Such an instruction cannot begin until that one has ended. Instructions of other opcodes may stand between.
    """
    registers = [re.findall(r"\bR(?:\d+|Z)\b", i.operands) for i in body if i.opcode == opcode]
    written = [its[0] if its and its[0] != "RZ" else None for its in registers]
    return len(registers), sum(last in its[1:] for last, (_, its) in zip(written, pairwise(registers), strict=False))


def hot_loops(instructions: list[Instruction]) -> dict[str, list[Instruction]]:
    """The loop over K/V tiles that runs without the mask, for each role that warps play in it.

    Roles: "compute" (the exponentials, and on most architectures the matrix products), "matrix product" (sm_100 gives
    it a warp of its own), "copy" (a warp that issues bulk copies). Where the compiler has split the loop in two, whole
    tiles come first and masked ones second, so the first of each role is taken. Empty when there is no such loop.
    """
    hot: dict[str, list[Instruction]] = {}
    for body in map(_always, loops(instructions)):
        kinds = count_kinds(body)
        if kinds["MUFU"] >= 8:
            role = "compute"
        elif kinds["tensor core"]:
            role = "matrix product"
        elif kinds["bulk copy"]:
            role = "copy"
        else:
            continue
        hot.setdefault(role, body)
    return hot if "compute" in hot else {}
