"""The descriptors of what wgmma multiplies, computed in the PTX right where it takes them.

A descriptor of 64 bits says where in shared memory a tile lies: its low half begins with the address, and what
follows, up to the high half, is constant. ptxas keeps descriptors in uniform registers, of which a warp has 63. Triton
3.9 computes all descriptors of several products in front of the first one, each from the address in 32 bits: so many
do not fit, and ptxas computes them, and all that they come from, in the registers of every lane. Those are short, too,
and spill; and each product waits for its descriptors to be brought back. Here they are computed as before Triton 3.9:
each by one addition in 64 bits, in front of its product. Those that a loop computes ahead stay there if they are few.

A register is touched only if it is written once, and only by the instructions below, from an address.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter, defaultdict
from pathlib import Path

VERSION = f"{zlib.crc32(Path(__file__).read_bytes()):08x}"  # part of the name under which a compiled kernel is kept
FEW = 8  # descriptors that a block of instructions computes for others: 16 of 63 uniform registers

PRODUCT, LABEL = "wgmma.mma_async", "$L__BB"
WRITTEN = re.compile(r"\s*(?:@!?%p\d+\s+)?[a-z][\w.:]*\s+(\{[^}]*\}|%\w+)")  # by any instruction
REGISTER = re.compile(r"%rd?\d+\b")
ADDRESS = re.compile(r"\s*bfe\.u32\s+(?P<to>%r\d+), %r\d+, 4, (?P<bits>14|15);")
STEP = re.compile(
    r"\s*(?P<how>cvt\.u64\.u32|add\.s32|or\.b32|or\.b64)\s+(?P<to>%rd?\d+), (?P<of>%rd?\d+)(?:, (?P<by>\d+))?;"
)
DECLARED = re.compile(r"\t\.reg \.b64 \s*%rd<\d+>;")


def where_used(ptx: str) -> str:
    """The PTX with the same descriptors, each computed where it is used; unchanged where there are none as known."""
    lines = ptx.split("\n")
    found = _descriptors(lines)
    if not found or not DECLARED.search(ptx):
        return ptx
    block, blocks = 0, []
    for line in lines:
        block += line.startswith(LABEL)
        blocks.append(block)
    uses, ahead = defaultdict(list), defaultdict(set)  # ahead: by the block that computes descriptors for others
    for n, line in enumerate(lines):
        for register in REGISTER.findall(line):
            if register in found and n != (at := found[register][0]):
                uses[register].append(n)
                if blocks[n] != blocks[at]:
                    ahead[blocks[at]].add(register)
    stay = {register for registers in ahead.values() if len(registers) <= FEW for register in registers}
    addresses = list(dict.fromkeys(address for _, address, _ in found.values()))
    wide = {address: f"%rda{n}" for n, address in enumerate(addresses)}
    before, instead, moved = defaultdict(list), {}, 0
    for register, (at, address, constant) in found.items():
        if register in stay or not all(PRODUCT in lines[n] for n in uses[register]):
            instead[at] = [f"\tadd.s64 \t{register}, {wide[address]}, {constant};"]
            continue
        instead[at] = []
        for n in uses[register]:
            before[n].append(f"\tadd.s64 \t%rdu{moved}, {wide[address]}, {constant};")
            lines[n] = re.sub(rf"{register}\b", f"%rdu{moved}", lines[n])
            moved += 1
    made = []
    for n, line in enumerate(lines):
        made += [*before[n], *instead.get(n, [line])]
        if (address := ADDRESS.match(line)) and address["to"] in wide:
            made.append(f"\tcvt.u64.u32 \t{wide[address['to']]}, {address['to']};")
    declared = f"\n\t.reg .b64 \t%rda<{len(wide) + 1}>;\n\t.reg .b64 \t%rdu<{moved + 1}>;"
    return DECLARED.sub(lambda line: line[0] + declared, "\n".join(made), count=1)


def _descriptors(lines: list[str]) -> dict[str, tuple[int, str, int]]:
    """By register: in which line it is written, the register of its address, and what is added to that."""
    times, steps, bits = Counter(), {}, {}  # bits: that an address has
    for n, line in enumerate(lines):
        if written := WRITTEN.match(line):
            times.update(REGISTER.findall(written[1]))
        if step := STEP.match(line):
            steps[step["to"]] = (step["how"], step["of"], int(step["by"] or 0), n)
        elif address := ADDRESS.match(line):
            bits[address["to"]] = int(address["bits"])
    found = {}
    for register, (how, low, high, n) in steps.items():
        if how != "or.b64" or high % 2**32 or low not in steps or steps[low][0] != "cvt.u64.u32":
            continue
        passed, at, added = [register, low], steps[low][1], 0
        while at in steps and at not in passed:
            passed.append(at)
            how, at, by, _ = steps[at]
            # What is added to an address by "or" has none of its bits, and comes before anything else.
            if not (how == "add.s32" or (how == "or.b32" and at in bits and by % 2 ** bits[at] == 0)):
                break
            added += by
        else:
            if at in bits and added < 2**31 and all(times[r] == 1 for r in (*passed, at)):
                found[register] = (n, at, high + added)
    return found
