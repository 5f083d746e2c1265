"""The compiler lens: what the compiler made of a kernel, and why.

Works without a GPU: tileiras, cuTile's compiler, and Triton make code for every architecture they know, and cuobjdump,
which comes with Triton, reads it. Results are kept on disk under the kernel's Tile IR (which holds its source and every
constant), the architecture and the compiler's version, so that asking twice costs nothing (``tutorial_lib.identity``).
``tutorial_lib.compiled`` says what there is to know of a compiled kernel.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import struct
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tutorial_lib import amdgcn, identity, ptxas, rewriting
from tutorial_lib.architectures import ARCHITECTURES
from tutorial_lib.compiled import AMD_LANES, COMPUTE_WARPS, Compiled, Figures, OnDemand, Remark, Texts, from_fields

if TYPE_CHECKING:
    import cuda.tile as ct
    from cuda.tile.compilation import KernelSignature

# What tileiras 13.5 accepts as --gpu-name.
CUTILE_ARCHITECTURES = tuple(f"sm_{n}" for n in (80, 86, 87, 88, 89, 90, 100, 103, 107, 110, 120, 121))

# What Triton makes machine code for: on sm_88 its ptxas stops; what it makes for sm_107 cannot be read here.
GLUON_ARCHITECTURES = tuple(arch for arch in CUTILE_ARCHITECTURES if arch not in ("sm_88", "sm_107"))

# AMD's that the steps of part cdna are for; Triton knows more.
AMD_ARCHITECTURES = ("gfx942", "gfx950")

OLDEST = (13, 4)  # the release of tileiras that can explain itself and knows all these architectures

REQNTID = b"\x04\x10\x0c\x00"  # an attribute of a kernel with 12 bytes: threads of a block along three axes

OPTIMIZATION = 3  # tileiras's optimization level; cuTile's default

FORMAT = 5  # of what is kept on disk: a change here makes everything be compiled again


class CompilerError(RuntimeError):
    """The compiler is missing, too old, or failed; the message is one line."""


def compile_cutile(
    kernel: ct.kernel,
    signature: KernelSignature,
    arch: str,
    scores_per_tile: int,
    compute_warps: int = COMPUTE_WARPS,
) -> Compiled:
    """Compile a cuTile kernel for ``arch`` ("sm_90"), or find it on disk. Launches of the kernel find it, too.

    Raises ValueError for an architecture that the compiler does not know, CompilerError when it is missing or fails.
    """
    if arch not in CUTILE_ARCHITECTURES:
        raise ValueError(f"arch must be one of {', '.join(CUTILE_ARCHITECTURES)}, got {arch!r}")
    compiler = compiler_version()
    asked = repr((FORMAT, compiler, arch, scores_per_tile)).encode()

    @cache
    def bytecode() -> bytes:
        launched = replace(signature, symbol=None)  # cuTile gives a kernel that is launched a name of its own
        return _tile_ir(identity.tile_ir_and_places, kernel, launched, arch)

    compiled = _known(
        what=lambda: asked + _tile_ir(identity.tile_ir, kernel, signature, arch),
        what_and_where=lambda: asked + bytecode(),
        make=lambda: _compile(bytecode(), compiler, arch, scores_per_tile),
    )
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


class Lock(Protocol):
    """Figures of kernels that were compiled before, by all that the compiler sees of them but their places."""

    def find(self, key: str) -> dict | None:
        """What ``Compiled.fields`` gave, without texts, of the kernel of this key; None where it is not known."""

    def missed(self, key: str, compiled: Compiled) -> None:
        """A kernel that is not known was compiled, or found on disk."""


lock: Lock | None = None  # asked first where there is one: the tests' (tests/lock.py)


def _known(what: Callable[[], bytes], what_and_where: Callable[[], bytes], make: Callable[[], Compiled]) -> Compiled:
    """A compiled kernel: as the lock knows it, with its texts on demand; or as it is on disk; or as it is made now.

    what: all that the compiler sees of it but places in files; what_and_where: with these.
    """
    if lock is None:
        return _kept(what_and_where(), make)
    key = hashlib.sha256(what()).hexdigest()[:32]
    if fields := lock.find(key):
        return from_fields(fields | {"texts": OnDemand(lambda: _kept(what_and_where(), make).texts)})
    compiled = _kept(what_and_where(), make)
    lock.missed(key, compiled)
    return compiled


def _kept(identity: bytes, make: Callable[[], Compiled]) -> Compiled:
    """What is on disk for this identity, or what ``make`` returns, which is then kept."""
    with suppress(OSError, ValueError, TypeError, KeyError):  # not there, or not ours
        return from_fields(read_kept(identity))
    if _from_disk_only.get():
        raise NotOnDisk(_place(identity))
    compiled = make()
    keep(identity, compiled.fields())
    return compiled


def _place(identity: bytes) -> Path:
    return cache_folder() / f"{hashlib.sha256(identity).hexdigest()}.json"


def read_kept(identity: bytes) -> dict:
    """What ``keep`` wrote for this identity; raises OSError where there is nothing, ValueError for what is no JSON."""
    return json.loads(_place(identity).read_text(encoding="utf-8"))


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
    registers: int | None = None,
) -> Compiled:
    """Compile a Gluon kernel for ``arch`` as a launch with ``arguments`` would, or find it on disk.

    compute_warps: of a block, those that compute; None where all do. ctas: blocks of a cluster. rewrite: the kernel's
    PTX asks to be rewritten (``tutorial_lib.rewriting``). registers: of a thread, at most; None: what a block may have.
    Raises ValueError for an architecture that is none, CompilerError when Triton fails.
    """
    import triton

    source, how = gluon_source(kernel, arguments, num_warps, arch, ctas, registers)
    compiler = f"Triton {triton.__version__}, ptxas {ptxas.version_for(arch)}"

    def make() -> Compiled:
        compiled = by_triton(source, how, arch, rewrite)
        with tempfile.TemporaryDirectory() as name:
            cubin = Path(name, "kernel.cubin")
            cubin.write_bytes(compiled.asm["cubin"])
            numbers = _resource_usage(cubin)
            texts = Texts(compiled.asm["ttgir"], _disassemble(cubin), compiled.asm["ptx"])
            return Compiled(
                arch=arch,
                compiler=compiler,
                threads=32 * compiled.metadata.num_warps,
                compute_threads=32 * (compute_warps or num_warps),
                registers=numbers["REG"],
                shared_bytes=compiled.metadata.shared,
                stack_bytes=numbers["STACK"],
                spilled_bytes=numbers["STACK"] + numbers["LOCAL"],
                figures=Figures.of(texts),
                texts=texts,
                scores_per_tile=scores_per_tile,
                tensor_columns=getattr(compiled.metadata, "tmem_size", None) or None,
                ctas=ctas,
            )

    asked = (FORMAT, compiler, arch, scores_per_tile, num_warps, *([ctas] if ctas > 1 else []))
    asked = (*asked, *([rewriting.VERSION] if rewrite else []), *([f"registers {registers}"] if registers else []))
    return _by_source(source, asked, make)


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
        compiled = by_triton(source, how, arch)
        if compiled.metadata.shared > (holds := ARCHITECTURES[arch].shared_bytes):
            raise CompilerError(f"{arch} has {holds} bytes of LDS; the kernel takes {compiled.metadata.shared}")
        assembly = compiled.asm["amdgcn"]
        found = amdgcn.facts(assembly)
        threads = found.wave_lanes * compiled.metadata.num_warps
        texts = Texts(compiled.asm["ttgir"], assembly=assembly)
        return Compiled(
            arch=arch,
            compiler=compiler,
            threads=threads,
            compute_threads=threads,
            registers=found.vgprs,
            shared_bytes=compiled.metadata.shared,
            stack_bytes=found.scratch_bytes,
            spilled_bytes=max(found.scratch_bytes, 4 * found.spilled_vgprs),
            figures=Figures.of(texts),
            texts=texts,
            scores_per_tile=scores_per_tile,
        )

    return _by_source(source, (FORMAT, compiler, arch, scores_per_tile, waves), make)


def _by_source(source, asked: tuple, make: Callable[[], Compiled]) -> Compiled:
    """``_known`` for what Triton compiles; asked: what else decides about the code."""
    return _known(
        what=lambda: repr((*asked, identity.triton_source(source))).encode(),
        what_and_where=lambda: repr((*asked, source.hash())).encode(),
        make=make,
    )


def by_triton(source, how: dict, arch: str, rewrite: bool = False):
    """What Triton compiles of a ``triton_source``, or finds in its own cache, which launches and the lens share.

    rewrite: as in ``compile_gluon``. Raises CompilerError with one line of what Triton said.
    """
    import triton

    try:
        with ptxas.chosen_for(arch), rewriting.written_into_ptx() if rewrite else nullcontext():
            return triton.compile(source, **how)
    except Exception as error:  # whatever its passes, ptxas and LLVM raise
        told = error
        while isinstance(told, triton.CompilationError) and told.__cause__ is not None:
            told = told.__cause__  # a mistake in the kernel, of which the outer errors tell the line alone
        lines = [line for line in str(told).splitlines() if line.strip()] or [type(told).__name__]
        why = next((line for line in lines if "fatal" in line or "error" in line.lower()), lines[0])
        raise CompilerError(f"Triton failed for {arch}: {why.strip()}") from error


def gluon_source(
    kernel, arguments: tuple, num_warps: int, arch: str, ctas: int = 1, registers: int | None = None
) -> tuple[object, dict]:
    """What a launch with ``arguments`` gives to Triton's compiler: the source, and target and options by name.

    Raises ValueError for an architecture that is none of NVIDIA's.
    """
    if arch not in GLUON_ARCHITECTURES:
        raise ValueError(f"arch must be one of {', '.join(GLUON_ARCHITECTURES)}, got {arch!r}")
    return triton_source(kernel, arguments, num_warps, arch, ctas, registers)


def compiled_how(ctas: int = 1, registers: int | None = None) -> dict[str, int]:
    """What Triton is told of how to compile a kernel: in clusters of so many blocks; with FMA; for so many registers.

    Triton 3.9 warns where nothing says whether a product and a sum may become one instruction: later ones keep them
    apart.
    """
    asked = {"num_ctas": ctas if ctas > 1 else None, "maxnreg": registers}
    return {"enable_fp_fusion": True, **{name: n for name, n in asked.items() if n}}


def triton_source(
    kernel, arguments: tuple, num_warps: int, arch: str, ctas: int = 1, registers: int | None = None
) -> tuple[object, dict]:
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
    options = {"num_warps": num_warps, **compiled_how(ctas, registers)}
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
        done = subprocess.run([_tileiras(), "--version"], capture_output=True, encoding="utf-8", errors="replace")
    except OSError as error:
        raise CompilerError(f"tileiras cannot be run: {error}") from None
    found = re.search(r"V(\d+)\.(\d+)\.(\d+)", done.stdout)
    if not found:
        raise CompilerError(f"{_tileiras()} does not tell its version: {done.stderr.strip()[:200]!r}")
    major, minor, patch = map(int, found.groups())
    if (major, minor) < OLDEST:
        raise CompilerError(f"tileiras must be at least {OLDEST[0]}.{OLDEST[1]}, got {major}.{minor}.{patch}")
    return f"tileiras {major}.{minor}.{patch}"


def _tile_ir(translate: Callable, kernel: ct.kernel, signature: KernelSignature, arch: str) -> bytes:
    from cuda.tile import TileError

    _tileiras()
    try:
        return translate(kernel, signature, arch)
    except TileError as error:
        raise CompilerError(f"cuTile cannot translate the kernel: {str(error).splitlines()[0]}") from error


def _compile(bytecode: bytes, compiler: str, arch: str, scores_per_tile: int) -> Compiled:
    from cuda.tile import TileError
    from cuda.tile._compile import _bytecode_to_mlir_text  # runs tileirdisasm, which stands beside tileiras

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "kernel.tileirbc").write_bytes(bytecode)
        remarks = ["--remarks=all", "--remark-format=yaml", f"--remarks-output-file={folder / 'remarks.yaml'}"]
        options = ["-o", folder / "kernel.cubin", "--gpu-name", arch, f"-O{OPTIMIZATION}", "--lineinfo", *remarks]
        # Without CUDA_HOME: tileiras would take an older toolkit's ptxas.
        environment = {name: value for name, value in os.environ.items() if name not in ("CUDA_HOME", "CUDA_PATH")}
        try:
            done = subprocess.run(
                [_tileiras(), folder / "kernel.tileirbc", *options],
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                env=environment,
            )
            tile_ir = _bytecode_to_mlir_text(bytecode)
        except (OSError, TileError) as error:  # not to be run at all, or tileirdisasm missing beside it
            raise CompilerError(f"the compiler's programs cannot be run: {str(error).splitlines()[0]}") from error
        if done.returncode:
            why = next((line for line in done.stderr.splitlines() if line.strip()), f"exit status {done.returncode}")
            raise CompilerError(f"tileiras failed for {arch}: {why.strip()}")
        cubin = folder / "kernel.cubin"
        _keep_for_launches(bytecode, arch, cubin.read_bytes())
        numbers = _resource_usage(cubin)
        remarks = parse_remarks((folder / "remarks.yaml").read_text(encoding="utf-8"))
        texts = Texts(tile_ir, _disassemble(cubin), remarks=remarks)
        return Compiled(
            arch=arch,
            compiler=compiler,
            threads=_threads_of_block(cubin.read_bytes()) or 32 * COMPUTE_WARPS,
            compute_threads=32 * COMPUTE_WARPS,
            registers=numbers["REG"],
            shared_bytes=numbers["SHARED"],
            stack_bytes=numbers["STACK"],
            spilled_bytes=numbers["STACK"] + numbers["LOCAL"],
            figures=Figures.of(texts),
            texts=texts,
            scores_per_tile=scores_per_tile,
        )


def _keep_for_launches(bytecode: bytes, arch: str, cubin: bytes) -> None:
    """Put machine code where cuTile looks for it when the kernel is launched, also by another process."""
    from cuda.tile._compile import _get_compiler_version_string, default_tile_context
    from cutile_cache._cache import cache_key, cache_store, evict_lru  # cuda-tile 1.7 has no public names for it

    folder, version = default_tile_context.config.cache_dir, _get_compiler_version_string()
    if folder and version:  # else cuTile keeps nothing
        cache_store(folder, cache_key(version, arch, OPTIMIZATION, bytecode), cubin)
        with suppress(OSError):  # where nothing can be kept there
            evict_lru(folder, default_tile_context.config.cache_size_limit)  # else only after cuTile's own compilations


def _threads_of_block(cubin: bytes) -> int | None:
    """Threads of a block, where the kernel says so: the attribute REQNTID in its section .nv.info.

    cuobjdump prints it, too, but the one in Triton's wheel stops at the line numbers of a newer tileiras.
    """
    [table] = struct.unpack_from("<Q", cubin, 0x28)
    size, number, names = struct.unpack_from("<3H", cubin, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", cubin, table + size * n) for n in range(number)]
    for name, _, _, _, start, length in sections:
        if cubin.startswith(b".nv.info.", sections[names][4] + name):
            place = cubin.find(REQNTID, start, start + length)
            if place >= 0:
                return struct.unpack_from("<I", cubin, place + len(REQNTID))[0]
    return None


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
    done = subprocess.run([_cuobjdump_path(), option, cubin], capture_output=True, encoding="utf-8", errors="replace")
    if done.returncode:
        raise CompilerError(f"cuobjdump {option} failed: {done.stderr.strip().splitlines()[0]}")
    return done.stdout
