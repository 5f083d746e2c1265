"""The compiler lens: what the compiler made of a kernel, and why.

Works without a GPU: tileiras, cuTile's compiler, and Triton make code for every architecture they know, and cuobjdump,
which comes with Triton, reads it. Results are kept on disk under the kernel's Tile IR (which holds its source and every
constant), the architecture and the compiler's version, so that asking twice costs nothing.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import re
import subprocess
import tempfile
from collections import Counter
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from tutorial_lib import amdgcn, rewriting
from tutorial_lib import sass as sass_reader
from tutorial_lib.architectures import ARCHITECTURES, blocks_per_multiprocessor

if TYPE_CHECKING:
    import cuda.tile as ct
    from cuda.tile.compilation import KernelSignature

# What tileiras 13.4 accepts as --gpu-name.
CUTILE_ARCHITECTURES = tuple(f"sm_{n}" for n in (80, 86, 87, 88, 89, 90, 100, 103, 107, 110, 120, 121))

# What Triton 3.7 makes machine code for: on sm_88 its ptxas stops, on sm_107 LLVM ends the process.
GLUON_ARCHITECTURES = tuple(arch for arch in CUTILE_ARCHITECTURES if arch not in ("sm_88", "sm_107"))

# AMD's that the steps of part cdna are for; Triton knows more.
AMD_ARCHITECTURES = ("gfx942", "gfx950")
AMD_LANES = 64  # of their waves

OLDEST = (13, 4)  # the release of tileiras that can explain itself and knows all these architectures

COMPUTE_WARPS = 4  # left to itself, tileiras lets four warps compute; it adds warps of its own for copies

FORMAT = 4  # of what is kept on disk: a change here makes everything be compiled again


def compute_threads(resources: dict) -> int:
    """Of a block's threads, those that compute; ``resources`` is what ``Compiled.as_dict`` returned."""
    if resources.get("compute_threads"):
        return resources["compute_threads"]
    return resources["threads"] if resources.get("compiler", "").startswith("Triton") else 32 * COMPUTE_WARPS


class CompilerError(RuntimeError):
    """The compiler is missing, too old, or failed; the message is one line."""


@dataclass(frozen=True)
class Remark:
    """What the compiler says of one line of source, such as "Load instruction selected: TMA Load instruction"."""

    file: str
    line: int
    text: str


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
    remarks: tuple[Remark, ...] = field(repr=False)
    tile_ir: str = field(repr=False)  # Tile IR, or Triton's GPU IR
    sass: str | None = field(repr=False)  # None where the disassembler does not know the architecture
    ptx: str | None = field(default=None, repr=False)  # tileiras makes none
    scores_per_tile: int | None = None  # query rows times keys: what one turn of the loop over K/V tiles computes
    other_kernels: tuple[str, ...] = ()  # fingerprints of those that the step launches, too
    lists: str | None = None  # what tells the order of blocks, a fingerprint or words, where that sets a step apart
    blocks: int | None = None  # that a launch has, for the problem
    kv_tiles: int | None = None  # turns of that loop, over all blocks of the problem
    compute_groups: int = 1  # groups of the threads that compute, which do so independently of each other
    shared_clocks: float | None = None  # clocks a K/V tile that shared memory is busy, where the layouts are known
    tensor_columns: int | None = None  # of tensor memory, a block; None where there is none
    assembly: str | None = field(default=None, repr=False)  # AMD's, in place of SASS
    ctas: int = 1  # blocks of a cluster
    system_bytes: int = 0  # of shared_bytes, those that are the system's and not the kernel's

    @property
    def _reader(self):
        """What reads this code: it counts kinds of instructions, and names them all."""
        return amdgcn if self.assembly else sass_reader

    @cached_property
    def _assembly(self) -> amdgcn.Code:
        return amdgcn.parse(self.assembly)

    @cached_property
    def _instructions(self) -> list[sass_reader.Instruction] | list[amdgcn.Instruction]:
        return self._assembly.instructions if self.assembly else sass_reader.parse(self.sass or "")

    @cached_property
    def _hot(self) -> dict[str, list]:
        if self.assembly:
            body = amdgcn.hot_loop(self._assembly)
            return {"compute": body} if body else {}
        return sass_reader.hot_loops(self._instructions)

    @cached_property
    def amd(self) -> amdgcn.Facts | None:
        """Vector and scalar registers, spills and waves, where the code is AMD's."""
        return amdgcn.facts(self.assembly) if self.assembly else None

    @property
    def all_kinds(self) -> tuple[str, ...]:
        """The kinds of instructions that this architecture has."""
        return self._reader.ALL_KINDS

    @property
    def instructions(self) -> int | None:
        return len(self._instructions) if self.sass or self.assembly else None

    @cached_property
    def kinds(self) -> dict[str, int] | None:
        """Instructions of the whole kernel by what they do."""
        return self._reader.count_kinds(self._instructions) if self.instructions is not None else None

    def opcodes(self, kind: str) -> Counter[str]:
        """How often the kernel has each instruction of a kind, such as LDTM of "tensor memory"."""
        return Counter(i.name for i in self._instructions if i.kind == kind)

    @property
    def spill_instructions(self) -> int | None:
        return self.kinds and self.kinds["spill"]

    @cached_property
    def hot_loop(self) -> dict[str, float] | None:
        """Instructions a K/V tile by what they do, in the loop that runs without the mask; None where none is found.

        Counted are those that one warp of each role executes. Where the compiler unrolled the loop, a turn handles
        several tiles and counts are divided by that number.
        """
        if not self._hot:
            return None
        turns = self._tiles_per_turn(self._hot["compute"])
        total = dict.fromkeys(self.all_kinds, 0.0)
        for body in self._hot.values():
            for kind, count in self._reader.count_kinds(body).items():
                total[kind] += count / turns
        return total

    def excerpt(self, pattern: str, lines: int) -> list[str]:
        """Instructions around the first that matches, in the hot loop where it is there, else anywhere."""
        for body in (*self._hot.values(), self._instructions):
            texts = [instruction.text for instruction in body]
            at = next((i for i, text in enumerate(texts) if re.search(pattern, text)), None)
            if at is not None:
                begin = max(0, min(at - lines // 3, len(texts) - lines))
                return texts[begin : begin + lines]
        return []

    @property
    def hot_body(self) -> list:
        """The instructions of the hot loop of the warps that compute."""
        return self._hot.get("compute", [])

    @property
    def hot_order(self) -> list[tuple[str, int]]:
        """Products begun, waits, maxima and exponentials in a turn of the hot loop: ``sass.order_of_work``."""
        return [] if self.assembly else sass_reader.order_of_work(self._hot.get("compute", []))

    @property
    def hot_loop_instructions(self) -> float | None:
        return None if self.hot_loop is None else sum(self.hot_loop.values())

    @property
    def issued_per_tile(self) -> float | None:
        """Instructions that a block issues for one K/V tile; one warp plays each role but computing."""
        if not self._hot:
            return None
        warps = {"compute": self.compute_threads // (AMD_LANES if self.assembly else 32)}
        issued = sum(warps.get(role, 1) * len(body) for role, body in self._hot.items())
        return issued / self._tiles_per_turn(self._hot["compute"])

    def _tiles_per_turn(self, body: list[sass_reader.Instruction]) -> int:
        """One exponential is due for every score of a tile, so their number tells how many tiles a turn handles."""
        if not self.scores_per_tile:
            return 1
        if self.assembly:
            exponentials = sum(i.opcode.startswith("v_exp_f32") for i in body)
        else:
            special = [i.operands for i in body if i.opcode == "MUFU"]
            exponentials = sum(of.startswith(".EX2") for of in special)
            exponentials -= sum(of.startswith(".RCP") for of in special)  # a hyperbolic tangent's has one behind it
        return max(1, round(exponentials * self.compute_threads / self.scores_per_tile))

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

    @cached_property
    def code(self) -> str | None:
        """A fingerprint of the instructions of all kernels of a step, and of its lists: equal where steps are equal."""
        if self.assembly:
            own = [i.text for i in self._instructions]
        elif self.sass:
            own = sass_reader.without_addresses(self.sass)
        else:
            return None
        texts = [*own, *self.other_kernels]
        code = hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]
        return with_lists(code, self.lists) if self.lists else code

    def same_code(self, other: Compiled) -> bool:
        """Whether both are the same instructions."""
        return self.code is not None and self.code == other.code

    def as_dict(self) -> dict:
        """What results.json keeps: the figures, without the texts."""
        blocks, limiter = self.occupancy or (None, None)
        return {
            "arch": self.arch,
            "compiler": self.compiler,
            "code": self.code,
            "threads": self.threads,
            "compute_threads": self.compute_threads,
            "compute_groups": self.compute_groups,
            "registers": self.registers,
            "shared_bytes": self.shared_bytes,
            "stack_bytes": self.stack_bytes,
            "spilled_bytes": self.spilled_bytes,
            "spill_instructions": self.spill_instructions,
            "blocks": self.blocks,
            "blocks_per_sm": blocks,
            "limited_by": limiter,
            "occupancy_pct": self.occupancy_percent,
            "instructions": self.instructions,
            "kinds": self.kinds,
            "hot_loop_instructions": self.hot_loop_instructions,
            "hot_loop": self.hot_loop,
            "issued_per_tile": self.issued_per_tile,
            "scores_per_tile": self.scores_per_tile,
            "kv_tiles": self.kv_tiles,
            "shared_clocks_per_tile": self.shared_clocks,
            "tensor_columns": self.tensor_columns,
            "amd": self.amd and asdict(self.amd),
        }


def compile_cutile(
    kernel: ct.kernel,
    signature: KernelSignature,
    arch: str,
    scores_per_tile: int,
    compute_warps: int = COMPUTE_WARPS,
) -> Compiled:
    """Compile a cuTile kernel for ``arch`` ("sm_90"), or find it on disk.

    Raises ValueError for an architecture that the compiler does not know, CompilerError when it is missing or fails.
    """
    if arch not in CUTILE_ARCHITECTURES:
        raise ValueError(f"arch must be one of {', '.join(CUTILE_ARCHITECTURES)}, got {arch!r}")
    bytecode = _tile_ir(kernel, signature, arch)
    compiler = compiler_version()
    identity = repr((FORMAT, compiler, arch, scores_per_tile)).encode() + bytecode
    compiled = _kept(identity, lambda: _compile(bytecode, compiler, arch, scores_per_tile))
    # From sm_90 on cuobjdump counts the system's bytes with the kernel's own.
    counted = ARCHITECTURES[arch].reserved_bytes if int(arch.removeprefix("sm_")) >= 90 else 0
    return replace(compiled, compute_threads=32 * compute_warps, system_bytes=counted)


class NotOnDisk(Exception):
    """The kernel would have to be compiled."""


_from_disk_only: ContextVar[bool] = ContextVar("from_disk_only", default=False)


@contextmanager
def from_disk_only():
    """Inside, a kernel that is not on disk raises NotOnDisk and is not compiled."""
    token = _from_disk_only.set(True)
    try:
        yield
    finally:
        _from_disk_only.reset(token)


def _kept(identity: bytes, make) -> Compiled:
    """What is on disk for this identity, or what ``make`` returns, which is then kept."""
    with suppress(OSError, ValueError, TypeError, KeyError):  # not there, or not ours
        return from_fields(read_kept(identity))
    if _from_disk_only.get():
        raise NotOnDisk(_place(identity))
    compiled = make()
    keep(identity, asdict(compiled))
    return compiled


def with_lists(code: str, lists: str) -> str:
    """The fingerprint of code whose blocks read lists of their own."""
    return hashlib.sha256(f"{code} {lists}".encode()).hexdigest()[:16]


def from_fields(fields: dict) -> Compiled:
    """A ``Compiled`` from what ``dataclasses.asdict`` made of it and JSON kept; raises TypeError for other fields."""
    remarks = tuple(Remark(**remark) for remark in fields["remarks"])
    return Compiled(**{**fields, "remarks": remarks, "other_kernels": tuple(fields["other_kernels"])})


def _place(identity: bytes) -> Path:
    return cache_folder() / f"{hashlib.sha256(identity).hexdigest()}.json"


def read_kept(identity: bytes) -> dict:
    """What ``keep`` wrote for this identity; raises OSError where there is nothing, ValueError for what is no JSON."""
    return json.loads(_place(identity).read_text())


def keep(identity: bytes, fields: dict) -> None:
    """Keep something on disk that can be made again; a cache that cannot be written is slow, and nothing worse."""
    from tutorial_lib.files import write_whole

    with suppress(OSError):
        write_whole(_place(identity), json.dumps(fields))


class Placeholder:
    """Stands for a contiguous tensor of this shape and dtype ("float16") where a kernel is compiled and not run."""

    def __init__(self, shape: tuple[int, ...], dtype: str):
        import torch

        self.shape, self.dtype = shape, getattr(torch, dtype)

    def stride(self) -> tuple[int, ...]:
        return tuple(math.prod(self.shape[axis + 1 :]) for axis in range(len(self.shape)))

    def data_ptr(self) -> int:
        return 0  # aligned

    def ptr_range(self) -> int:
        """Bytes; of what is short enough, AMD's compiler gives offsets in 32 bits."""
        return math.prod(self.shape) * self.dtype.itemsize


def compile_gluon(
    kernel,
    arguments: tuple,
    num_warps: int,
    arch: str,
    scores_per_tile: int,
    compute_warps: int | None = None,
    ctas: int = 1,
    rewrite: bool = False,
) -> Compiled:
    """Compile a Gluon kernel for ``arch`` as a launch with ``arguments`` would, or find it on disk.

    compute_warps: of a block, those that compute; None where all do. ctas: blocks of a cluster. rewrite: the kernel's
    PTX asks to be rewritten (``tutorial_lib.rewriting``).
    Raises ValueError for an architecture that is none, CompilerError when Triton fails.
    """
    import triton

    source, how = gluon_source(kernel, arguments, num_warps, arch, ctas)
    compiler = f"Triton {triton.__version__}"

    def make() -> Compiled:
        with rewriting.written_into_ptx() if rewrite else nullcontext():
            compiled = _by_triton(source, how, arch)
        with tempfile.TemporaryDirectory() as name:
            cubin = Path(name, "kernel.cubin")
            cubin.write_bytes(compiled.asm["cubin"])
            numbers = _resource_usage(cubin)
            return Compiled(
                arch=arch,
                compiler=compiler,
                threads=32 * compiled.metadata.num_warps,
                compute_threads=32 * (compute_warps or num_warps),
                registers=numbers["REG"],
                shared_bytes=compiled.metadata.shared,
                stack_bytes=numbers["STACK"],
                spilled_bytes=numbers["STACK"] + numbers["LOCAL"],
                remarks=(),
                tile_ir=compiled.asm["ttgir"],
                sass=_disassemble(cubin),
                ptx=compiled.asm["ptx"],
                scores_per_tile=scores_per_tile,
                tensor_columns=getattr(compiled.metadata, "tmem_size", None) or None,
                ctas=ctas,
            )

    asked = (FORMAT, compiler, arch, scores_per_tile, num_warps, source.hash())
    asked = (*asked, *([ctas] if ctas > 1 else []), *([rewriting.VERSION] if rewrite else []))
    return _kept(repr(asked).encode(), make)


def compile_amd(kernel, arguments: tuple, waves: int, arch: str, scores_per_tile: int) -> Compiled:
    """Compile a Triton or Gluon kernel for one of AMD's architectures ("gfx950"), or find it on disk.

    waves: of a block. Needs no GPU: LLVM, which Triton brings along, writes AMD's code.
    Raises ValueError for an architecture that is none, CompilerError when Triton fails, or when a block would have
    more LDS than a compute unit has, which Triton does not check.
    """
    import triton

    if arch not in AMD_ARCHITECTURES:
        raise ValueError(f"arch must be one of {', '.join(AMD_ARCHITECTURES)}, got {arch!r}")
    source, how = triton_source(kernel, arguments, waves, arch)
    compiler = f"Triton {triton.__version__}"

    def make() -> Compiled:
        compiled = _by_triton(source, how, arch)
        if compiled.metadata.shared > (holds := ARCHITECTURES[arch].shared_bytes):
            raise CompilerError(f"{arch} has {holds} bytes of LDS; the kernel takes {compiled.metadata.shared}")
        assembly = compiled.asm["amdgcn"]
        found = amdgcn.facts(assembly)
        threads = found.wave_lanes * compiled.metadata.num_warps
        return Compiled(
            arch=arch,
            compiler=compiler,
            threads=threads,
            compute_threads=threads,
            registers=found.vgprs,
            shared_bytes=compiled.metadata.shared,
            stack_bytes=found.scratch_bytes,
            spilled_bytes=max(found.scratch_bytes, 4 * found.spilled_vgprs),
            remarks=(),
            tile_ir=compiled.asm["ttgir"],
            sass=None,
            assembly=assembly,
            scores_per_tile=scores_per_tile,
        )

    return _kept(repr((FORMAT, compiler, arch, scores_per_tile, waves, source.hash())).encode(), make)


def _by_triton(source, how: dict, arch: str):
    """What Triton compiled; raises CompilerError with one line of what it said."""
    import triton

    try:
        return triton.compile(source, **how)
    except Exception as error:  # whatever its passes, ptxas and LLVM raise
        lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        why = next((line for line in lines if "fatal" in line or "error" in line.lower()), lines[0])
        raise CompilerError(f"Triton failed for {arch}: {why.strip()}") from error


def gluon_source(kernel, arguments: tuple, num_warps: int, arch: str, ctas: int = 1) -> tuple[object, dict]:
    """What a launch with ``arguments`` gives to Triton's compiler: the source, and target and options by name.

    Raises ValueError for an architecture that is none of NVIDIA's.
    """
    if arch not in GLUON_ARCHITECTURES:
        raise ValueError(f"arch must be one of {', '.join(GLUON_ARCHITECTURES)}, got {arch!r}")
    return triton_source(kernel, arguments, num_warps, arch, ctas)


def in_clusters(ctas: int) -> dict[str, int]:
    """What Triton is told where a kernel runs in clusters of so many blocks; of others, nothing."""
    return {"num_ctas": ctas} if ctas > 1 else {}


def triton_source(kernel, arguments: tuple, num_warps: int, arch: str, ctas: int = 1) -> tuple[object, dict]:
    """As ``gluon_source``, for a kernel in Triton or Gluon, and for any architecture that Triton knows."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import ASTSource, make_backend
    from triton.experimental.gluon._runtime import GluonASTSource, GluonJITFunction
    from triton.runtime.jit import create_function_from_signature

    # What a launch does, with a target that is named instead of asked for (triton.runtime.jit.JITFunction.run).
    if arch.startswith("gfx"):
        target = GPUTarget("hip", arch, AMD_LANES if arch.startswith("gfx9") else 32)
    else:
        target = GPUTarget("cuda", int(arch.removeprefix("sm_")), 32)
    backend = make_backend(target)
    options = {"num_warps": num_warps, **in_clusters(ctas)}
    bound, specialization, _ = create_function_from_signature(kernel.signature, kernel.params, backend)(*arguments)
    options, types, constants, attributes = kernel._pack_args(backend, options, bound, specialization, {})
    kind = GluonASTSource if isinstance(kernel, GluonJITFunction) else ASTSource
    return kind(kernel, types, constants, attributes), {"target": target, "options": options.__dict__}


def cache_folder() -> Path:
    """Where compiled kernels are kept: $FMHA_TUTORIAL_CACHE, or the user's cache folder."""
    if chosen := os.environ.get("FMHA_TUTORIAL_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "fmha-tutorial")


@cache
def _tileiras() -> str:
    """Path of the compiler that cuTile itself uses."""
    from cuda.tile._compile import _find_compiler_bin  # cuda-tile 1.7 has no public name for it

    try:
        return _find_compiler_bin().path
    except FileNotFoundError:
        raise CompilerError(
            "tileiras, cuTile's compiler, was not found: pip install the nvidia-cuda-tileiras, nvidia-cuda-nvcc and "
            "nvidia-nvvm of requirements.txt"
        ) from None


@cache
def compiler_version() -> str:
    """The compiler's version, such as "tileiras 13.4.92"; raises CompilerError when it is missing or too old."""
    try:
        done = subprocess.run([_tileiras(), "--version"], capture_output=True, text=True)
    except OSError as error:
        raise CompilerError(f"tileiras cannot be run: {error}") from None
    found = re.search(r"V(\d+)\.(\d+)\.(\d+)", done.stdout)
    if not found:
        raise CompilerError(f"{_tileiras()} does not tell its version: {done.stderr.strip()[:200]!r}")
    major, minor, patch = map(int, found.groups())
    if (major, minor) < OLDEST:
        raise CompilerError(f"tileiras must be at least {OLDEST[0]}.{OLDEST[1]}, got {major}.{minor}.{patch}")
    return f"tileiras {major}.{minor}.{patch}"


def _tile_ir(kernel: ct.kernel, signature: KernelSignature, arch: str) -> bytes:
    from cuda.tile import TileError
    from cuda.tile.compilation import export_kernel

    _tileiras()
    buffer = io.BytesIO()
    try:
        export_kernel(kernel, [signature], buffer, gpu_code=arch, output_format="tileir_bytecode")
    except TileError as error:
        raise CompilerError(f"cuTile cannot translate the kernel: {str(error).splitlines()[0]}") from error
    return buffer.getvalue()


def _compile(bytecode: bytes, compiler: str, arch: str, scores_per_tile: int) -> Compiled:
    from cuda.tile import TileError
    from cuda.tile._compile import _bytecode_to_mlir_text  # runs tileirdisasm, which stands beside tileiras

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "kernel.tileirbc").write_bytes(bytecode)
        remarks = ["--remarks=all", "--remark-format=yaml", f"--remarks-output-file={folder / 'remarks.yaml'}"]
        options = ["-o", folder / "kernel.cubin", "--gpu-name", arch, "-O3", "--lineinfo", *remarks]
        # Without CUDA_HOME: tileiras would take an older toolkit's ptxas.
        environment = {name: value for name, value in os.environ.items() if name not in ("CUDA_HOME", "CUDA_PATH")}
        try:
            done = subprocess.run(
                [_tileiras(), folder / "kernel.tileirbc", *options], capture_output=True, text=True, env=environment
            )
            tile_ir = _bytecode_to_mlir_text(bytecode)
        except (OSError, TileError) as error:  # not to be run at all, or tileirdisasm missing beside it
            raise CompilerError(f"the compiler's programs cannot be run: {str(error).splitlines()[0]}") from error
        if done.returncode:
            why = next((line for line in done.stderr.splitlines() if line.strip()), f"exit status {done.returncode}")
            raise CompilerError(f"tileiras failed for {arch}: {why.strip()}")
        cubin = folder / "kernel.cubin"
        numbers = _resource_usage(cubin)
        elf = cuobjdump("--dump-elf", cubin)
        threads = re.search(r"EIATTR_REQNTID\s+Format:\s*\S+\s+Value:\s*0x([0-9a-f]+)", elf)
        return Compiled(
            arch=arch,
            compiler=compiler,
            threads=int(threads[1], 16) if threads else 32 * COMPUTE_WARPS,
            compute_threads=32 * COMPUTE_WARPS,
            registers=numbers["REG"],
            shared_bytes=numbers["SHARED"],
            stack_bytes=numbers["STACK"],
            spilled_bytes=numbers["STACK"] + numbers["LOCAL"],
            remarks=parse_remarks((folder / "remarks.yaml").read_text()),
            tile_ir=tile_ir,
            sass=_disassemble(cubin),
            scores_per_tile=scores_per_tile,
        )


def _resource_usage(cubin: Path) -> dict[str, int]:
    """Registers and stack of a thread, local memory, static shared memory of a block."""
    usage = cuobjdump("--dump-resource-usage", cubin)
    return {key: int(value) for key, value in re.findall(r"\b(REG|STACK|SHARED|LOCAL):(\d+)", usage)}


def _disassemble(cubin: Path) -> str | None:
    try:
        return cuobjdump("--dump-sass", cubin)
    except CompilerError as error:
        # tileiras is newer than the disassembler in Triton's wheel: it knows more architectures and instructions.
        if "Cannot decode architecture" in str(error) or "nvdisasm error" in str(error):
            return None
        raise


def parse_remarks(text: str) -> tuple[Remark, ...]:
    """tileiras's YAML of remarks, in order of source lines, each once."""
    import yaml

    class Loader(yaml.SafeLoader):
        pass

    Loader.add_multi_constructor("!", lambda loader, suffix, node: loader.construct_mapping(node, deep=True))
    found = set()
    for entry in yaml.load_all(text, Loader):
        where = entry.get("DebugLoc") or {}
        details = {key: value for argument in entry["Args"] for key, value in argument.items()}
        words = [str(details[key]) for key in ("Remark", "Instruction", "Shape") if key in details]
        file = "/".join(Path(where.get("File", "?")).parts[-2:])  # such as cutile/kernel.py
        found.add(Remark(file, int(where.get("Line", 0)), ": ".join(words)))
    return tuple(sorted(found, key=lambda remark: (remark.file, remark.line, remark.text)))


@cache
def _cuobjdump_path() -> Path:
    from importlib.util import find_spec

    triton = find_spec("triton")  # found, not imported: that takes a second
    path = Path(triton.origin).parent / "backends" / "nvidia" / "bin" / "cuobjdump" if triton else Path("cuobjdump")
    if not path.exists():
        raise CompilerError(f"cuobjdump, which comes with Triton, was not found at {path}")
    return path


def cuobjdump(option: str, cubin: Path) -> str:
    """What cuobjdump prints of a cubin."""
    done = subprocess.run([_cuobjdump_path(), option, cubin], capture_output=True, text=True)
    if done.returncode:
        raise CompilerError(f"cuobjdump {option} failed: {done.stderr.strip().splitlines()[0]}")
    return done.stdout
