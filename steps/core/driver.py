"""Launches a compiled Triton kernel through the CUDA driver, which costs the host less than Triton's own launcher.

Triton looks at every argument of every call again, and describes every tensor for TMA anew. Calls of one kind differ
only in where their tensors are, so that all parameters of a call can be packed once for these addresses, and passed on
as they are [CUDA Driver API: cuLaunchKernel, cuTensorMapEncodeTiled]. Triton's launch hooks are not called.
"""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

FORMATS = {  # Triton's names of types, as ``struct`` packs them
    **{"i1": "?", "i8": "b", "i16": "h", "i32": "i", "i64": "q"},
    **{"u1": "?", "u8": "B", "u16": "H", "u32": "I", "u64": "Q", "fp32": "f", "fp64": "d"},
}
POINTER = "Q"
SPECIAL = ("global_scratch_size", "profile_scratch_size", "launch_pdl", "launch_cooperative_grid")  # not for Triton
MAP_BYTES, MAP_ALIGNMENT = 128, 64  # of a CUtensorMap
PACKS = 64  # of parameters that a launch remembers: by the addresses of its tensors, which an allocator hands out again
INVALID_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT: this thread has not used the GPU yet
CLUSTER_DIMENSION = 4  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
EARLY = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
NO_INTERLEAVE, L2_128B, FILL_WITH_ZEROS = 0, 2, 0  # of CUtensorMap, as Triton sets them


class OtherParameters(ValueError):
    """The kernel takes other parameters than these, so it is not for us to launch it; the message says how."""


@cache
def cuda() -> ctypes.CDLL:
    """The CUDA driver. It lets other threads run while it works."""
    return ctypes.CDLL("libcuda.so.1")


class Attribute(ctypes.Structure):
    """A CUlaunchAttribute whose value is up to three numbers."""

    _fields_ = (
        ("id", ctypes.c_int),
        ("pad", ctypes.c_char * 4),
        ("value", ctypes.c_uint * 3),
        ("rest", ctypes.c_char * 52),
    )


class Config(ctypes.Structure):
    """A CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(Attribute)),
        ("attribute_count", ctypes.c_uint),
    )


def launcher(
    compiled: Any,
    blocks: tuple[int, int, int],
    arguments: tuple,
    device: Any,
    moving: Sequence[int] = (0, 1, 2, 3),
    neighbours: int = 1,
    early: bool = False,
) -> Callable[..., None]:
    """``run(q, k, v, o)`` launches a compiled kernel in the current stream, on tensors of the kind of these arguments.

    arguments: all that the kernel takes; of those at the positions ``moving``, which are ``run``'s, only what does
    not change is kept: no tensor, no address. neighbours: blocks of a cluster, of which Triton does not know. early: it
    may begin when the kernel before it in the stream lets it (griddepcontrol), or that one's last block has ended.
    Several threads may call. Raises OtherParameters where the kernel's parameters are not as expected.
    """
    import torch

    parameters = Parameters(compiled, arguments, moving)
    function, shared = ctypes.c_void_p(compiled.function), compiled.metadata.shared
    threads = 32 * compiled.metadata.num_warps
    wants = {name: getattr(compiled.metadata, name, 0) for name in SPECIAL}
    if compiled.metadata.num_ctas != 1 or any(wants.values()):
        raise OtherParameters(f"the kernel wants clusters, or one of {wants}")
    stream_of, index = torch._C._cuda_getCurrentRawStream, device.index
    launch = _launch(function, blocks, threads, shared, neighbours, early)
    packs: dict[tuple[int, ...], Packed] = {}

    def run(*tensors):
        nonlocal packs
        places = tuple([x.data_ptr() for x in tensors])
        if (packed := packs.get(places)) is None:
            if len(packs) >= PACKS:
                packs = {}
            packs[places] = packed = parameters.packed(places)
        stream = ctypes.c_void_p(stream_of(index))
        status = launch(stream, packed.addresses)
        if status == INVALID_CONTEXT:
            torch.cuda.mem_get_info(device)  # makes the device's context this thread's
            status = launch(stream, packed.addresses)
        check(status, "cuLaunchKernel")

    run.kernel = compiled  # Triton unloads code that nobody holds
    return run


def _launch(
    function, blocks: tuple[int, int, int], threads: int, shared: int, neighbours: int, early: bool
) -> Callable[..., int]:
    """``launch(stream, addresses of the parameters)`` starts a kernel, and returns the driver's status."""
    wanted = [Attribute(id=CLUSTER_DIMENSION, value=(neighbours, 1, 1))] if neighbours > 1 else []
    wanted += [Attribute(id=EARLY, value=(1, 0, 0))] if early else []
    if not wanted:
        alone = cuda().cuLaunchKernel
        return lambda stream, addresses: alone(function, *blocks, threads, 1, 1, shared, stream, addresses, None)
    together, attributes = cuda().cuLaunchKernelEx, (Attribute * len(wanted))(*wanted)

    def launch(stream, addresses) -> int:
        config = Config(blocks, (threads, 1, 1), shared, stream, attributes, len(attributes))
        return together(ctypes.byref(config), function, addresses, None)

    return launch


class Packed:
    """Parameters in memory of their own, and the array of their addresses that the driver takes."""

    def __init__(self, template: bytes, offsets: list[int]):
        self._memory = ctypes.create_string_buffer(len(template) + MAP_ALIGNMENT)
        self.start = -(-ctypes.addressof(self._memory) // MAP_ALIGNMENT) * MAP_ALIGNMENT
        ctypes.memmove(self.start, template, len(template))
        self.addresses = (ctypes.c_void_p * len(offsets))(*(self.start + offset for offset in offsets))


class Parameters:
    """A kernel's parameters but the places of the tensors that change: ``packed(places)`` has all.

    compiled: what Triton compiled, with its signature. Raises OtherParameters where the machine code takes others.
    """

    def __init__(self, compiled: Any, arguments: tuple, moving: Sequence[int] = (0, 1, 2, 3)):
        self._maps = iter(getattr(compiled.metadata, "tensordesc_meta", None) or ())
        self._kept = [
            x for n, x in enumerate(arguments) if n not in moving
        ]  # tensors among them must outlive the addresses that are written here
        self._template, self._offsets, sizes = bytearray(), [], []
        self._places: list[Callable[[int, int], None]] = []  # (start of the parameters, pointer) writes it there
        signature = list(compiled.src.signature.values())
        arguments = (*arguments, *[None] * (len(signature) - len(arguments)))  # which parameters have by default
        for n, (kind, value) in enumerate(zip(signature, arguments, strict=True)):
            for piece, size in self._pieces(kind, value, n in moving):
                alignment = MAP_ALIGNMENT if size == MAP_BYTES else 8
                self._template += bytes(-len(self._template) % alignment)
                self._offsets.append(len(self._template))
                self._template += piece
                sizes.append(size)
        for _ in ("global scratch memory", "the profiler's"):
            self._template += bytes(-len(self._template) % 8)
            self._offsets.append(len(self._template))
            self._template += bytes(8)
            sizes.append(8)
        if sizes != (wanted := parameter_sizes(compiled.asm["ptx"])):
            raise OtherParameters(f"the kernel takes parameters of {wanted} bytes, not {sizes}")
        if len(self._places) != len(moving):
            raise OtherParameters(f"{len(moving)} tensors change from call to call, not {len(self._places)}")

    def packed(self, places: tuple[int, ...]) -> Packed:
        """All parameters for tensors at these addresses."""
        made = Packed(bytes(self._template), self._offsets)
        for write, pointer in zip(self._places, places):
            write(made.start, pointer)
        return made

    def _pieces(self, kind: Any, value: Any, moves: bool) -> Iterator[tuple[bytes, int]]:
        """The bytes of an argument's parameters and their sizes; before them, a place that is written later is noted.

        ``self._template`` ends, but for padding, where the piece that is yielded next begins.
        """
        if isinstance(kind, tuple):
            for inner, x in zip(kind, value, strict=True):
                yield from self._pieces(inner, x, False)
        elif kind == "constexpr":
            return
        elif kind.startswith("tensordesc"):
            made = next(self._maps, None)
            unusual = made and (made["fp4_padded"] or getattr(value, "round_f32_to_tf32", False))
            if made is None or not moves or unusual or value.padding != "zero":
                raise OtherParameters(f"a tensor's description of the kind {kind} that is not made here")
            at = len(self._template) + -len(self._template) % MAP_ALIGNMENT
            encode = encoder(made, value)
            self._places.append(lambda start, pointer: encode(start + at, pointer))
            yield bytes(MAP_BYTES), MAP_BYTES
            for n in value.shape:
                yield struct.pack("i", n), 4
            for n in value.strides:
                yield struct.pack("q", n), 8
        elif kind.startswith("*"):
            if moves:
                at = len(self._template) + -len(self._template) % 8
                self._places.append(lambda start, pointer: write_pointer(start + at, pointer))
            yield struct.pack(POINTER, 0 if moves else value.data_ptr()), 8
        elif kind in FORMATS:
            yield struct.pack(FORMATS[kind], value), struct.calcsize(FORMATS[kind])
        else:
            raise OtherParameters(f"an argument of the type {kind}")


def write_pointer(at: int, pointer: int) -> None:
    """Write a pointer to the host's memory at this address."""
    ctypes.c_uint64.from_address(at).value = pointer


def encoder(made: dict, like: Any) -> Callable[[int, int], None]:
    """``encode(at, pointer)`` writes a CUtensorMap for a tensor at ``pointer`` that is like another.

    made: what Triton's compiler noted of the description: swizzle, elem_type, elem_size, block_size.
    like: the other tensor's description, of which shape and strides are taken; lengths in elements.
    """
    from triton.backends.nvidia.driver import TMA_DTYPE_DEVICE_TO_HOST

    rank = len(like.shape)
    dtype = TMA_DTYPE_DEVICE_TO_HOST[made["elem_type"]]
    shape = (ctypes.c_uint64 * rank)(*reversed(like.shape))
    strides = (ctypes.c_uint64 * rank)(*(made["elem_size"] * n for n in reversed(like.strides[:-1])), 0)
    box = (ctypes.c_uint32 * rank)(*reversed(made["block_size"]))
    steps = (ctypes.c_uint32 * rank)(*[1] * rank)

    def encode(at: int, pointer: int) -> None:
        options = (NO_INTERLEAVE, made["swizzle"], L2_128B, FILL_WITH_ZEROS)
        place, tensor = ctypes.c_void_p(at), ctypes.c_void_p(pointer)
        status = cuda().cuTensorMapEncodeTiled(place, dtype, rank, tensor, shape, strides, box, steps, *options)
        check(status, "cuTensorMapEncodeTiled")

    return encode


def parameter_sizes(ptx: str) -> list[int]:
    """Bytes of each parameter of a kernel in PTX."""
    entry = re.search(r"\.entry\s+\S+?\(([^)]*)\)", ptx)
    found = re.findall(r"\.param\b.*?\.[a-z](\d+)\b[^,\[]*(?:\[(\d+)\])?", entry[1]) if entry else []
    return [int(bits) // 8 * int(count or 1) for bits, count in found]


@contextmanager
def unsafe_calls_allowed() -> Iterator[None]:
    """Inside, this thread may allocate, load code and wait while a stream of another name is captured.

    [CUDA Driver API: cuThreadExchangeStreamCaptureMode]
    """
    mode = ctypes.c_int(RELAXED)
    check(cuda().cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)), "cuThreadExchangeStreamCaptureMode")
    try:
        yield
    finally:
        cuda().cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))


def check(status: int, function: str) -> None:
    """Raise RuntimeError for what is no success, with the driver's name for it."""
    if status:
        name = ctypes.c_char_p()
        cuda().cuGetErrorName(status, ctypes.byref(name))
        raise RuntimeError(f"{function}: {(name.value or b'an unknown error').decode()} ({status})")
