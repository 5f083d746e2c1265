"""Reads AMD's assembly as LLVM writes it: what a kernel takes, what its instructions do, and which loop is the hot one.

The text is ``asm["amdgcn"]`` of what Triton compiled. Names of instructions and their groups are those of the ISA
manuals, "AMD Instinct MI300" (gfx942) and "CDNA4" (gfx950), chapters on VALU, MFMA, LDS and vector memory; those of the
metadata are LLVM's, "User Guide for AMDGPU Backend", section "Code Object V5 Metadata".
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

# What an instruction is for, by a pattern of its name; the first that fits decides.
KINDS = {
    "MFMA": r"v_s?mfma|v_wmma|v_swmmac",
    "transcendental": r"v_(exp|log|rcp|rsq|sqrt|sin|cos)_",
    "cross-lane": r"v_permlane|v_readlane|v_readfirstlane|v_writelane|v_mov_b32_dpp|ds_b?permute|ds_swizzle",
    "conversion": r"v_cvt_",
    "packed VALU": r"v_pk_",
    "register move": r"v_accvgpr|v_mov_|v_swap",
    "VALU": r"v_",
    "LDS": r"ds_",
    "spill": r"scratch_",
    "vector memory": r"(buffer|global|flat)_",
    "wait": r"s_wait|s_nop|s_sleep|s_delay",
    "barrier": r"s_barrier",
    "priority": r"s_setprio",
    "control": r"s_cbranch|s_branch|s_endpgm|s_setpc|s_swappc|s_call",
    "scalar": r"s_",
}
DIRECT = "direct to LDS"  # vector memory with the word lds: bytes that go from memory to LDS past the registers
ALL_KINDS = (*KINDS, DIRECT)

_PATTERNS = {kind: re.compile(pattern) for kind, pattern in KINDS.items()}
# A label stands at the begin of a line, and so do instructions that a kernel has in plain text.
_LINE = re.compile(r"^(?P<label>\.?[\w$.]+):|^[ \t]*([a-z][a-z0-9]*_[a-z0-9_]+)\b([^;\n]*)", re.MULTILINE)
_FACT = {
    "vgprs": r"\.vgpr_count:\s*(\d+)",
    "agprs": r"\.agpr_count:\s*(\d+)",
    "sgprs": r"\.sgpr_count:\s*(\d+)",
    "spilled_vgprs": r"\.vgpr_spill_count:\s*(\d+)",
    "spilled_sgprs": r"\.sgpr_spill_count:\s*(\d+)",
    "scratch_bytes": r"\.private_segment_fixed_size:\s*(\d+)",
    "wave_lanes": r"\.wavefront_size:\s*(\d+)",
    "occupancy": r";\s*Occupancy:\s*(\d+)",
}


@dataclass(frozen=True)
class Facts:
    """What the compiler says that a kernel takes.

    vgprs: vector registers of a lane, 32 bits each, of which agprs are accumulation registers; sgprs: scalar registers
    of a wave. spilled_vgprs, spilled_sgprs: of them, those kept elsewhere; scratch_bytes: memory of a lane for that.
    wave_lanes: lanes of a wave. occupancy: waves that a SIMD holds as far as registers decide; LDS is not in it.
    """

    vgprs: int
    agprs: int
    sgprs: int
    spilled_vgprs: int
    spilled_sgprs: int
    scratch_bytes: int
    wave_lanes: int
    occupancy: int


def facts(text: str) -> Facts:
    """What the text's metadata say; raises ValueError where one of them is missing. RDNA has no AGPRs: 0."""
    found = {name: re.search(pattern, text) for name, pattern in _FACT.items()}
    if missing := [name for name, match in found.items() if match is None and name != "agprs"]:
        raise ValueError(f"the assembly does not tell {', '.join(missing)}")
    return Facts(**{name: int(match[1]) if match else 0 for name, match in found.items()})


@dataclass(frozen=True)
class Instruction:
    """index: its place in the code; opcode such as "v_exp_f32_e32"; operands such as "v4, v5"."""

    index: int
    opcode: str
    operands: str

    @property
    def name(self) -> str:
        """As ``sass.Instruction.name``: AMD's has no dots behind it."""
        return self.opcode

    @property
    def text(self) -> str:
        return f"{self.opcode} {self.operands}".rstrip()

    @property
    def kind(self) -> str:
        kind = next((kind for kind, pattern in _PATTERNS.items() if pattern.match(self.opcode)), "scalar")
        return DIRECT if kind == "vector memory" and re.search(r"\blds\b", self.operands) else kind


@dataclass(frozen=True)
class Code:
    """The instructions of a kernel, in order. labels: name -> index of the instruction that it stands in front of."""

    instructions: list[Instruction]
    labels: dict[str, int]


def parse(text: str) -> Code:
    """The instructions of assembly, without directives, comments, and what follows the kernel's end."""
    instructions, labels = [], {}
    for match in _LINE.finditer(text.split("\n.Lfunc_end", 1)[0]):
        if match["label"]:
            labels[match["label"]] = len(instructions)
        else:
            instructions.append(Instruction(len(instructions), match[2], match[3].strip()))
    return Code(instructions, labels)


def count_kinds(instructions: list[Instruction]) -> dict[str, int]:
    """How many instructions of each kind; every kind is there, in a fixed order."""
    counts = Counter(i.kind for i in instructions)
    return {kind: counts[kind] for kind in ALL_KINDS}


def hot_loop(code: Code) -> list[Instruction]:
    """The loop over K/V tiles that runs without the mask; empty where there is none.

    A loop is what lies between a backward branch and its target. Whole tiles come first and masked ones second, so the
    first that has matrix products and exponentials is taken.
    """
    for instruction in code.instructions:
        target = code.labels.get(instruction.operands)
        if instruction.kind != "control" or target is None or target > instruction.index:
            continue
        body = code.instructions[target : instruction.index + 1]
        kinds = count_kinds(body)
        if kinds["MFMA"] and kinds["transcendental"]:
            return body
    return []
