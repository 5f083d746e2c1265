"""What the compiler made of a kernel. Works without a GPU: tileiras compiles for every architecture it knows."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import cuda.tile as ct
    from cuda.tile.compilation import KernelSignature

# What tileiras 13.4 accepts as --gpu-name.
CUTILE_ARCHITECTURES = tuple(f"sm_{n}" for n in (80, 86, 87, 88, 89, 90, 100, 103, 107, 110, 120, 121))


class CompilerError(RuntimeError):
    """The compiler is missing, too old, or failed; the message is one line."""


@dataclass(frozen=True)
class Compiled:
    """A kernel's machine code and what it uses. Registers are a thread, shared memory and instructions a block."""

    arch: str
    registers: int
    shared_bytes: int
    stack_bytes: int  # local memory a thread: what did not fit in registers
    instructions: int
    opcodes: dict[str, int] = field(repr=False)  # first part of the mnemonic -> count, such as {"MUFU": 107}
    sass: str = field(repr=False)

    @property
    def spill_instructions(self) -> int:
        """Loads from and stores to local memory."""
        return self.opcodes.get("LDL", 0) + self.opcodes.get("STL", 0)

    def as_dict(self) -> dict:
        """What results.json keeps: everything but the code."""
        fields = asdict(self)
        del fields["sass"], fields["opcodes"]
        return fields | {"spill_instructions": self.spill_instructions, "mufu": self.opcodes.get("MUFU", 0)}


def compile_cutile(kernel: ct.kernel, signature: KernelSignature, arch: str) -> Compiled:
    """Compile a cuTile kernel for ``arch`` ("sm_90") and read the machine code.

    Raises ValueError for an architecture that the compiler does not know, CompilerError when it fails.
    """
    if arch not in CUTILE_ARCHITECTURES:
        raise ValueError(f"arch must be one of {', '.join(CUTILE_ARCHITECTURES)}, got {arch!r}")
    from cuda.tile import TileError
    from cuda.tile.compilation import export_kernel

    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder, "kernel.cubin")
        try:
            export_kernel(kernel, [signature], cubin, gpu_code=arch, output_format="cubin")
        except FileNotFoundError as error:
            raise CompilerError(f"tileiras, cuTile's compiler, was not found: {error}") from error
        except TileError as error:
            raise CompilerError(f"tileiras failed for {arch}: {str(error).splitlines()[0]}") from error
        return read_cubin(cubin, arch)


def read_cubin(cubin: Path, arch: str) -> Compiled:
    """Resources and instructions of the one kernel in a cubin."""
    usage = _cuobjdump("--dump-resource-usage", cubin)
    numbers = {key: int(value) for key, value in re.findall(r"\b(REG|STACK|SHARED|LOCAL):(\d+)", usage)}
    sass = _cuobjdump("--dump-sass", cubin)
    opcodes = opcode_counts(sass)
    return Compiled(
        arch=arch,
        registers=numbers["REG"],
        shared_bytes=numbers["SHARED"],
        stack_bytes=numbers["STACK"] + numbers["LOCAL"],
        instructions=sum(opcodes.values()),
        opcodes=opcodes,
        sass=sass,
    )


# One SASS instruction: address comment, an optional predicate, the mnemonic, operands, a semicolon.
INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P[0-9T]+\s+)?([A-Z][A-Z0-9_]*)[^;]*;", re.MULTILINE)


def opcode_counts(sass: str) -> dict[str, int]:
    """How often each opcode occurs in SASS text, modifiers left off."""
    return dict(Counter(INSTRUCTION.findall(sass)))


@cache
def _cuobjdump_path() -> Path:
    import triton

    path = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    if not path.exists():
        raise CompilerError(f"cuobjdump, which comes with Triton, was not found at {path}")
    return path


def _cuobjdump(option: str, cubin: Path) -> str:
    done = subprocess.run([_cuobjdump_path(), option, cubin], capture_output=True, text=True)
    if done.returncode:
        raise CompilerError(f"cuobjdump {option} failed: {done.stderr.strip().splitlines()[0]}")
    return done.stdout
