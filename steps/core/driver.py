"""Launches a compiled kernel through the CUDA driver, which costs the host less than Triton's and cuTile's launchers.

They look at every argument of every call again, and Triton describes every tensor for TMA anew. Calls of one kind
differ only in where their tensors are, so that all parameters of a call can be packed once for these addresses, and
passed on as they are [CUDA Driver API: cuLaunchKernelEx, cuTensorMapEncodeTiled]. Triton's launch hooks are not called.

Which parameters a kernel in Triton takes is read from what Triton compiled (``Kernel``), and of one in cuTile from what
cuTile's own launcher asks the driver for (``Captured``).
"""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

FORMATS = {  # Triton's names of types, as ``struct`` packs them
    **{"i1": "?", "i8": "b", "i16": "h", "i32": "i", "i64": "q"},
    **{"u1": "?", "u8": "B", "u16": "H", "u32": "I", "u64": "Q", "fp32": "f", "fp64": "d"},
}
POINTER = "Q"
SPECIAL = ("global_scratch_size", "profile_scratch_size", "launch_pdl", "launch_cooperative_grid")  # not for Triton
ALIGNED = 16  # bytes: what TMA, and copies of 16 bytes, want of a pointer
MAP_BYTES, MAP_ALIGNMENT = 128, 64  # of a CUtensorMap
PIECES_ALIGNED = 512  # bytes: as PyTorch aligns what it hands out
KEPT = 128  # calls that a launcher remembers: by the addresses of its tensors, which an allocator hands out again
INVALID_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT: this thread has not used the GPU yet
CLUSTER_DIMENSION = 4  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
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


class NodeParams(ctypes.Structure):
    """A CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = (
        ("function", ctypes.c_void_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("parameters", ctypes.POINTER(ctypes.c_void_p)),
        ("extra", ctypes.POINTER(ctypes.c_void_p)),
        ("kernel", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    )


class Kernel:
    """A compiled Triton kernel, as the driver launches it: ``call(stream, places)`` makes the arguments of a launch.

    arguments: all that the kernel takes; of those at the positions ``moving``, whose ``places`` a call has, only what
    does not change is kept: no tensor, no address. neighbours: blocks of a cluster, of which Triton does not know.
    early: it may begin when the kernel before it in the stream lets it (griddepcontrol), or that one's last block has
    ended. Raises OtherParameters where the kernel's parameters are not as expected.
    """

    def __init__(
        self,
        compiled: Any,
        blocks: tuple[int, int, int],
        arguments: tuple,
        moving: Sequence[int] = (0, 1, 2, 3),
        neighbours: int = 1,
        early: bool = False,
    ):
        self._parameters = Parameters(compiled, arguments, moving)
        wants = {name: getattr(compiled.metadata, name, 0) for name in SPECIAL}
        if compiled.metadata.num_ctas != 1 or any(wants.values()):
            raise OtherParameters(f"the kernel wants clusters, or one of {wants}")
        wanted = [Attribute(id=CLUSTER_DIMENSION, value=(neighbours, 1, 1))] if neighbours > 1 else []
        wanted += [Attribute(id=EARLY, value=(1, 0, 0))] if early else []
        self._attributes = (Attribute * len(wanted))(*wanted)
        self._shape = blocks, (32 * compiled.metadata.num_warps, 1, 1), compiled.metadata.shared
        self._function = ctypes.c_void_p(compiled.function)
        self._compiled = compiled  # Triton unloads code that nobody holds

    def call(self, stream: int, places: Sequence[int]) -> tuple:
        """What cuLaunchKernelEx takes for tensors at these addresses, in this stream."""
        packed = self._parameters.packed(places)
        config = Config(*self._shape, stream, self._attributes, len(self._attributes))
        return ctypes.byref(config), self._function, packed.addresses, None


class Captured:
    """A kernel as another launcher has asked for it once: ``call(stream, places)`` makes the arguments of a launch.

    launch: ``launch(stream)`` launches the kernel, alone, whose code stays. It is captured as a graph, which runs
    nothing, and the graph tells what the driver was asked for [CUDA Driver API: cuStreamBeginCapture,
    cuGraphKernelNodeGetParams]. tensors: that it was given, in the order of its parameters; of them a call has others.
    Raises OtherParameters where their places are not among the parameters, or the launch is more than a kernel.
    """

    def __init__(self, launch: Callable[[int], None], tensors: Sequence[Any], device: Any):
        import torch

        with unsafe_calls_allowed():
            torch.cuda.mem_get_info(device)  # makes the device's context this thread's
            with _captured(launch) as graph:
                self._read(graph)
        places = [x.data_ptr() for x in tensors]
        self._pointers = self._found(places)
        if len(self._pointers) < len(places):
            raise OtherParameters(f"tensor {len(self._pointers)} is not among the kernel's parameters")
        self._aligned = [place % ALIGNED for place in places]

    def _read(self, graph: ctypes.c_void_p) -> None:
        """Take over what a graph's only node launches: function, shape, cluster, and the parameters' bytes."""
        node, told = _only_kernel(graph)
        cluster = Attribute(id=CLUSTER_DIMENSION)
        value = ctypes.byref(cluster, Attribute.value.offset)
        status = cuda().cuGraphKernelNodeGetAttribute(node, CLUSTER_DIMENSION, value)
        check(status, "cuGraphKernelNodeGetAttribute")
        wanted = [cluster] if cluster.value[0] else []
        self._attributes = (Attribute * len(wanted))(*wanted)
        self._shape = tuple(told.grid), tuple(told.block), told.shared_bytes
        self._function = ctypes.c_void_p(told.function)
        self._offsets, self._template = [], bytearray()
        for offset, piece in _parameters_of(told):
            self._template += bytes(offset - len(self._template)) + piece
            self._offsets.append(offset)

    def _found(self, places: Sequence[int]) -> list[int]:
        """Where these addresses stand among the parameters, in this order."""
        wanted, found = [place.to_bytes(8, "little") for place in places], []
        for offset in self._offsets:
            if self._template[offset : offset + 8] in wanted[len(found) : len(found) + 1]:
                found.append(offset)
        return found

    def call(self, stream: int, places: Sequence[int]) -> tuple:
        """What cuLaunchKernelEx takes for tensors at these addresses, in this stream."""
        if [place % ALIGNED for place in places] != self._aligned:  # the code may count on it
            raise RuntimeError(f"tensors must begin {self._aligned} bytes past multiples of {ALIGNED}, got {places}")
        packed = Packed(bytes(self._template), self._offsets)
        for offset, place in zip(self._pointers, places):
            write_pointer(packed.start + offset, place)
        config = Config(*self._shape, stream, self._attributes, len(self._attributes))
        return ctypes.byref(config), self._function, packed.addresses, None


@contextmanager
def _captured(launch: Callable[[int], None]) -> Iterator[ctypes.c_void_p]:
    """Inside, a graph of what is launched in a stream that nobody else has."""
    stream, graph = ctypes.c_void_p(), ctypes.c_void_p()
    check(cuda().cuStreamCreate(ctypes.byref(stream), NON_BLOCKING), "cuStreamCreate")
    try:
        check(cuda().cuStreamBeginCapture_v2(stream, RELAXED), "cuStreamBeginCapture")
        try:
            launch(stream.value)
        finally:
            status = cuda().cuStreamEndCapture(stream, ctypes.byref(graph))
        check(status, "cuStreamEndCapture")
        yield graph
    finally:
        if graph:
            cuda().cuGraphDestroy(graph)
        cuda().cuStreamDestroy_v2(stream)


def _only_kernel(graph: ctypes.c_void_p) -> tuple[ctypes.c_void_p, NodeParams]:
    """The node of a graph, and what it launches; raises OtherParameters where there are more, or it is no kernel."""
    number = ctypes.c_size_t()
    check(cuda().cuGraphGetNodes(graph, None, ctypes.byref(number)), "cuGraphGetNodes")
    if number.value != 1:
        raise OtherParameters(f"a launch must be one kernel, got {number.value} nodes of a graph")
    node, told = ctypes.c_void_p(), NodeParams()
    check(cuda().cuGraphGetNodes(graph, ctypes.byref(node), ctypes.byref(number)), "cuGraphGetNodes")
    if cuda().cuGraphKernelNodeGetParams_v2(node, ctypes.byref(told)):
        raise OtherParameters("a launch must be one kernel, got another node of a graph")
    if told.kernel and not told.function:
        function = ctypes.c_void_p()
        check(cuda().cuKernelGetFunction(ctypes.byref(function), ctypes.c_void_p(told.kernel)), "cuKernelGetFunction")
        told.function = function.value
    return node, told


def _parameters_of(told: NodeParams) -> Iterator[tuple[int, bytes]]:
    """Of each parameter that a node of a graph passes on: where it lies among all of them, and its bytes."""
    offset, size, n = ctypes.c_size_t(), ctypes.c_size_t(), 0
    function = ctypes.c_void_p(told.function)
    while not cuda().cuFuncGetParamInfo(function, n, ctypes.byref(offset), ctypes.byref(size)):
        yield offset.value, ctypes.string_at(told.parameters[n], size.value)
        n += 1


def launcher(
    kernels: Sequence[tuple[Kernel | Captured, Sequence[int]]], device: Any, memory: Memory | None = None
) -> Callable[..., None]:
    """``run(*tensors)`` launches kernels, one after the other, in the current stream.

    kernels: each with the positions of its tensors: among those of ``run``, and behind them among the pieces of
    ``memory``, which a call has for itself. The arguments are made once for the same addresses in the same stream.
    Several threads may call.
    """
    import torch

    stream_of, index, launch = torch._C._cuda_getCurrentRawStream, device.index, cuda().cuLaunchKernelEx
    calls: dict[tuple[int, ...], list[tuple]] = {}

    def made(stream: int, *places: int) -> list[tuple]:
        if memory is not None:
            *places, start = places
            places = *places, *(start + offset for offset in memory.offsets)
        return [kernel.call(stream, [places[n] for n in which]) for kernel, which in kernels]

    def run(*tensors):
        nonlocal calls
        if memory is not None:
            tensors = *tensors, memory.empty()
        where = (stream_of(index), *[x.data_ptr() for x in tensors])
        if (found := calls.get(where)) is None:
            if len(calls) >= KEPT:
                calls = {}
            calls[where] = found = made(*where)
        for call in found:
            if status := launch(*call):
                if status == INVALID_CONTEXT:
                    torch.cuda.mem_get_info(device)  # makes the device's context this thread's
                    status = launch(*call)
                check(status, "cuLaunchKernelEx")

    return run


class Memory:
    """Where the pieces of memory lie that a call has for itself: ``offsets`` behind the start of one, in bytes.

    pieces: tensors; those that share memory now lie as they do in it.
    """

    def __init__(self, pieces: Sequence[Any], device: Any):
        import torch

        begins: dict[int, int] = {}
        size = 0
        for x in pieces:
            memory = x.untyped_storage()
            if memory.data_ptr() not in begins:
                begins[memory.data_ptr()] = size
                size += -(-memory.nbytes() // PIECES_ALIGNED) * PIECES_ALIGNED
        self.offsets = [begins[m := x.untyped_storage().data_ptr()] + x.data_ptr() - m for x in pieces]
        self.empty = places_like(torch.empty(size, dtype=torch.uint8, device=device))


class Packed:
    """Parameters in memory of their own, and the array of their addresses that the driver takes, which holds it."""

    def __init__(self, template: bytes, offsets: list[int]):
        array = ctypes.c_void_p * len(offsets)
        size = -(-len(template) // MAP_ALIGNMENT) * MAP_ALIGNMENT
        memory = ctypes.create_string_buffer(size + ctypes.sizeof(array) + MAP_ALIGNMENT)
        before = -ctypes.addressof(memory) % MAP_ALIGNMENT
        self.start = ctypes.addressof(memory) + before
        ctypes.memmove(self.start, template, len(template))
        self.addresses = array.from_buffer(memory, before + size)
        self.addresses[:] = [self.start + offset for offset in offsets]


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

    def packed(self, places: Sequence[int]) -> Packed:
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


def places_like(x, dtype=None) -> Callable:
    """``place()`` is a new contiguous tensor of x's shape, for less of the host than ``torch.empty``.

    dtype None: x's. It is on x's device, which must be the current one. PyTorch's own compiled programs allocate so;
    where a version of PyTorch does not, it is ``torch.empty``. x itself is not kept.
    """
    import torch

    shape, dtype = tuple(x.shape), dtype or x.dtype
    try:
        from torch._C._dynamo import guards

        strides = torch.empty(shape, device="meta").stride()
        return partial(getattr(guards, f"_empty_strided_{x.device.type}"), shape, strides, dtype)
    except (ImportError, AttributeError):
        return partial(torch.empty, shape, dtype=dtype, device=x.device)


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
