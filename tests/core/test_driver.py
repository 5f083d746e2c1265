"""Launching by the driver: parameters are where the machine code looks for them, for every kernel in Gluon."""

import ctypes
import struct
import weakref
from types import SimpleNamespace

import pytest
import triton

from steps import get_step
from steps.core import driver
from steps.core.ladder import kernels_of
from steps.cutile import launching
from tests.distinct import distinct, first_and_last, named
from tests.selection import sampled
from tests.shapes import problem
from tutorial_lib import compiler
from tutorial_lib.problem import Problem

PLACES = (0x1000, 0x2000, 0x3000, 0x4000)


class FakeCuda:
    """Takes down what the driver would be told; a tensor's map is its address and the dimensions, as 64-bit words."""

    def __init__(self, statuses=()):
        self.statuses, self.launched = list(statuses), []

    def cuTensorMapEncodeTiled(self, place, dtype, rank, tensor, shape, strides, box, steps, *options):
        assert place.value % driver.MAP_ALIGNMENT == 0 and len(shape) == len(box) == rank and list(steps) == [1] * rank
        words = [tensor.value, dtype, *shape, *strides[: rank - 1], *box]
        ctypes.memmove(place.value, struct.pack(f"{len(words)}q", *words), driver.MAP_BYTES)
        return 0

    def cuLaunchKernelEx(self, config, function, addresses, extra):
        told = config._obj
        attributes = [told.attributes[n] for n in range(told.attribute_count)]
        numbers = [number for attribute in attributes for number in (attribute.id, *attribute.value)]
        self.launched.append((function.value, *told.grid, *told.block, told.stream, *numbers, addresses))
        assert ctypes.sizeof(driver.Attribute) == 72 and ctypes.sizeof(told) == 56
        return self.statuses.pop(0) if self.statuses else 0

    def cuGetErrorName(self, status, name):
        name._obj.value = b"CUDA_ERROR_OF_A_TEST"
        return 0


@pytest.fixture
def cuda(monkeypatch):
    fake = FakeCuda()
    monkeypatch.setattr(driver, "cuda", lambda: fake)
    return fake


def compiled_step(step, shape):
    """(what Triton compiled for what the step is made for, the arguments) of a step in Gluon."""
    if step.backend == "gluon":
        from steps.gluon.launching import arguments, shapes

        variant, lists = step.variant(shape), ()
        warps, ctas = variant.warps.number, 1
    else:
        from steps.gluon.tensors import shapes
        from steps.hopper.launching import arguments

        variant = step.variant(shape)
        warps, ctas, lists = variant.warps, variant.ctas, ([compiler.Placeholder((1,), "int32")] * 2, variant)
    tensors = [compiler.Placeholder(x, shape.dtype) for x in shapes(shape)]
    given = (*arguments(*tensors, shape, shape.effective_scale, *lists), variant)
    source, how = compiler.gluon_source(step.kernel(shape), given, warps, step.made_for, ctas)
    return triton.compile(source, **how), given


def words(packed, sizes) -> list[bytes]:
    """The parameters' bytes, read where the driver would read them."""
    return [ctypes.string_at(address, size) for address, size in zip(packed.addresses, sizes, strict=True)]


PACKED = distinct(
    (s for s in kernels_of("forward") if s.backend in ("gluon", "hopper", "blackwell")),
    [problem(batch=3, heads=4, kv_heads=2, seq_len_q=200, seq_len_kv=333, head_dim=64, dtype="bfloat16")],
)


@sampled(core=first_and_last(PACKED))
@pytest.mark.parametrize(("step", "shape"), PACKED, ids=named)
def test_every_kernels_parameters_are_packed_as_its_code_takes_them(step, shape, cuda):
    compiled, given = compiled_step(step, shape)
    parameters = driver.Parameters(compiled, given)
    sizes = driver.parameter_sizes(compiled.asm["ptx"])
    found = words(parameters.packed(PLACES), sizes)
    again = words(parameters.packed(PLACES[::-1]), sizes)
    places = [i for i, (x, y) in enumerate(zip(found, again)) if x != y]
    assert [struct.unpack("q", found[i][:8])[0] for i in places] == list(PLACES)
    assert [struct.unpack("q", again[i][:8])[0] for i in places] == list(PLACES[::-1])
    scale = struct.pack("f", shape.effective_scale / 0.6931471805599453)
    assert found.count(scale) == 1 and struct.pack("i", 333) in found
    if step.backend != "gluon":  # [batch, heads, seq_len, head_dim], turned round: the last axis first
        _, dtype, *lengths = struct.unpack("7q", found[places[1]][:56])
        assert dtype == 9 and lengths[:4] == [64, 333, 2, 3] and lengths[4] == 2 * 64


def test_the_parameters_of_packed_sequences_are_packed_as_the_code_takes_them(cuda):
    """Where sequences begin moves, too, and so does the count of tiles that are taken."""
    from steps.gluon.tensors import shapes
    from steps.hopper.launching import COUNTER, arguments, last_arguments

    step = get_step("hopper_varlen")
    shape = Problem.packed((100, 3, 230), heads=4, kv_heads=2, head_dim=64, causal=True, dtype="bfloat16")
    tensors = [compiler.Placeholder(x, shape.dtype) for x in shapes(shape)]
    begins = [compiler.Placeholder((4,), "int32")] * 2
    variant = step.variant(shape)
    given = arguments(*tensors, shape, shape.effective_scale, [compiler.Placeholder((1,), "int32")] * 2, variant)
    places, last = last_arguments(step.kernel(shape), shape, None, *begins)
    moving = (0, 1, 2, 3, COUNTER, *(len(given) + 1 + place for place in places))
    given = (*given, variant, *last)
    assert last == [None, *begins, 3]
    source, how = compiler.gluon_source(step.kernel(shape), given, variant.warps, step.made_for)
    compiled = triton.compile(source, **how)
    parameters = driver.Parameters(compiled, given, moving)
    sizes = driver.parameter_sizes(compiled.asm["ptx"])
    moved = (*PLACES, 7 * 2**20, 8 * 2**20, 9 * 2**20)
    found = words(parameters.packed(moved), sizes)
    again = words(parameters.packed((*moved[1:], moved[0])), sizes)
    places = [i for i, (x, y) in enumerate(zip(found, again)) if x != y]
    assert {struct.unpack("q", found[i][:8])[0] for i in places} == set(moved)
    _, dtype, *lengths = struct.unpack("7q", found[places[1]][:56])
    assert dtype == 9 and lengths == [64, 2**30, 2, 334, 2**30 + 1]


def test_a_kernel_with_other_parameters_is_left_to_triton(cuda):
    compiled, given = compiled_step(get_step("swizzle"), problem())
    longer = SimpleNamespace(
        src=compiled.src,
        metadata=compiled.metadata,
        asm={"ptx": compiled.asm["ptx"].replace(".param .u32", ".param .u64", 1)},
    )
    with pytest.raises(driver.OtherParameters, match="the kernel takes parameters of"):
        driver.Parameters(longer, given)


@pytest.fixture
def run(cuda, monkeypatch):
    """``run`` of a kernel, without a GPU: stream 7 is the current one."""
    import torch

    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 7, raising=False)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: cuda.launched.append("a context"))
    return launcher_of("epilogue_overlap", 5)


def launcher_of(name, blocks, **how):
    compiled, given = compiled_step(get_step(name), problem())
    code = SimpleNamespace(src=compiled.src, asm=compiled.asm, metadata=compiled.metadata, function=99)
    kernel = driver.Kernel(code, (blocks, 1, 1), given, **how)
    return driver.launcher([(kernel, range(4))], SimpleNamespace(index=0))


def tensors(*places):
    return [SimpleNamespace(data_ptr=lambda place=place: place) for place in places]


def test_tensors_at_known_places_are_not_described_again(run, cuda):
    run(*tensors(*PLACES))
    run(*tensors(*PLACES[::-1]))
    run(*tensors(*PLACES))
    (*first, a), (*_, b), (*_, c) = cuda.launched
    assert first[:7] == [99, 5, 1, 1, 32 * 12, 1, 1] and first[7] == 7
    assert a is c and a is not b


def test_blocks_in_pairs_are_launched_as_clusters(run, cuda):
    """``run`` makes PyTorch tell of stream 7. 4 is CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION."""
    together = launcher_of("kv_multicast", 6, neighbours=2)
    together(*tensors(*PLACES))
    [(*told, _)] = cuda.launched
    assert told == [99, 6, 1, 1, 32 * 12, 1, 1, 7, 4, 2, 1, 1]


@pytest.mark.parametrize(
    ("name", "neighbours", "attributes"), [("epilogue_overlap", 1, []), ("kv_multicast", 2, [4, 2, 1, 1])]
)
def test_kernels_that_may_begin_early_are_launched_so(name, neighbours, attributes, run, cuda):
    """6 is CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION."""
    early = launcher_of(name, 6, neighbours=neighbours, early=True)
    early(*tensors(*PLACES))
    [(*told, _)] = cuda.launched
    assert told[8:] == [*attributes, 6, 1, 0, 0]


def test_kernels_of_a_call_are_launched_together_on_memory_of_its_own(cuda, monkeypatch):
    """The second has the first one's output, and pieces of the memory, of which two share a storage."""
    import torch

    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 7, raising=False)
    places = [SimpleNamespace(call=lambda stream, places, n=n: (n, stream, places)) for n in range(2)]
    told = []
    monkeypatch.setattr(cuda, "cuLaunchKernelEx", lambda *call: told.append(call) or 0)
    shared = torch.empty(300, dtype=torch.int32)
    memory = driver.Memory([torch.empty(3), shared[:7], shared[7:]], torch.device("cpu"))
    assert memory.offsets == [0, 512, 512 + 4 * 7] and memory.empty().numel() == 512 + 1536
    kept = torch.empty(2048, dtype=torch.uint8)
    memory.empty = lambda: kept
    start = kept.data_ptr()
    run = driver.launcher([(places[0], [0, 1, 3]), (places[1], [1, 2, 4])], SimpleNamespace(index=0), memory)
    for _ in range(2):
        run(*tensors(0x1000, 0x2000))
    first, second = (0, 7, [0x1000, 0x2000, start + 512]), (1, 7, [0x2000, start, start + 512 + 28])
    assert told == [first, second] * 2 and all(mine is its for mine, its in zip(told[0][2:], told[2][2:]))
    run(*tensors(0x1000, 0x3000))
    assert told[4][2][:2] == [0x1000, 0x3000]


@pytest.mark.parametrize("known", [True, False], ids=["as compiled programs do", "in another PyTorch"])
def test_a_place_is_contiguous_whatever_it_is_like(known, monkeypatch):
    import torch
    from torch._C._dynamo import guards

    if not known:
        monkeypatch.delattr(guards, "_empty_strided_cpu")
    for x in (torch.ones(2, 3, 4, 8).half().transpose(1, 2), torch.ones(3), torch.ones(1, 5, 1).expand(4, 5, 1)):
        for dtype in (None, torch.bfloat16):
            place = driver.places_like(x, dtype)
            first, second = place(), place()
            assert first.is_contiguous() and first.shape == x.shape and first.dtype == (dtype or x.dtype)
            assert first.data_ptr() != second.data_ptr() and not first.requires_grad


def test_a_call_in_another_stream_is_another(cuda, monkeypatch):
    import torch

    streams = iter((7, 8, 7))
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: next(streams), raising=False)
    run = launcher_of("epilogue_overlap", 5)
    for _ in range(3):
        run(*tensors(*PLACES))
    assert [told[7] for told in cuda.launched] == [7, 8, 7]


def test_places_without_end_are_not_all_kept(run, cuda, monkeypatch):
    alive = weakref.WeakSet()

    class Watched(driver.Config):
        __hash__ = object.__hash__

        def __init__(self, *arguments):
            super().__init__(*arguments)
            alive.add(self)

    monkeypatch.setattr(driver, "Config", Watched)
    for n in range(3 * driver.KEPT):
        run(*tensors(*(16 * (n + i) for i in range(1, 5))))
    assert 0 < len(alive) <= driver.KEPT
    *_, last = cuda.launched[-1]
    assert struct.unpack("q", ctypes.string_at(last[0], 8))[0] == 16 * 3 * driver.KEPT


def test_a_thread_that_has_no_context_gets_one(run, cuda):
    cuda.statuses = [driver.INVALID_CONTEXT, 0]
    run(*tensors(*PLACES))
    assert cuda.launched[1] == "a context" and cuda.launched[0][:8] == cuda.launched[2][:8]


def test_what_the_driver_refuses_is_raised(run, cuda):
    cuda.statuses = [719]
    with pytest.raises(RuntimeError, match=r"cuLaunchKernelEx: CUDA_ERROR_OF_A_TEST \(719\)"):
        run(*tensors(*PLACES))


class FakeGraphs(FakeCuda):
    """A driver that captures one launch: of function 99, with these parameters (a place and bytes each)."""

    def __init__(self, parameters, cluster=0, nodes=1):
        super().__init__()
        self.parameters, self.cluster, self.nodes, self.open = parameters, cluster, nodes, []
        self.memory = [ctypes.create_string_buffer(piece, len(piece)) for _, piece in parameters]
        self.addresses = (ctypes.c_void_p * len(parameters))(*map(ctypes.addressof, self.memory))

    def cuThreadExchangeStreamCaptureMode(self, mode):
        return 0

    def cuStreamCreate(self, stream, flags):
        stream._obj.value = 5
        self.open.append("stream")
        return 0

    def cuStreamBeginCapture_v2(self, stream, mode):
        return 0

    def cuStreamEndCapture(self, stream, graph):
        graph._obj.value = 6
        self.open.append("graph")
        return 0

    def cuGraphGetNodes(self, graph, nodes, number):
        number._obj.value = self.nodes
        if nodes is not None:
            nodes._obj.value = 7
        return 0

    def cuGraphKernelNodeGetParams_v2(self, node, told):
        assert ctypes.sizeof(driver.NodeParams) == 72
        told._obj.kernel, told._obj.grid, told._obj.block, told._obj.shared_bytes = 98, (3, 2, 1), (128, 1, 1), 4096
        told._obj.parameters = ctypes.cast(self.addresses, ctypes.POINTER(ctypes.c_void_p))
        return 0

    def cuKernelGetFunction(self, function, kernel):
        assert kernel.value == 98
        function._obj.value = 99
        return 0

    def cuFuncGetParamInfo(self, function, n, offset, size):
        assert function.value == 99
        if n == len(self.parameters):
            return 1
        offset._obj.value, size._obj.value = self.parameters[n][0], len(self.parameters[n][1])
        return 0

    def cuGraphKernelNodeGetAttribute(self, node, attribute, value):
        ctypes.cast(value, ctypes.POINTER(ctypes.c_uint))[0] = self.cluster
        return 0

    def cuGraphDestroy(self, graph):
        self.open.remove("graph")
        return 0

    def cuStreamDestroy_v2(self, stream):
        self.open.remove("stream")
        return 0


def captured(monkeypatch, pieces, places, **how):
    """A kernel that was captured with these parameters, of tensors at these places; and the driver."""
    import torch

    offsets, at = [], 0
    for piece in pieces:
        at += -at % len(piece)
        offsets.append(at)
        at += len(piece)
    fake = FakeGraphs(list(zip(offsets, pieces)), **how)
    monkeypatch.setattr(driver, "cuda", lambda: fake)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: None)
    streams = []
    kernel = driver.Captured(streams.append, tensors(*places), None)
    assert streams == [5] and not fake.open
    return kernel, fake


def array(place):
    """A tensor as cuTile passes it on: its place, a length and a stride."""
    return struct.pack("q", place), struct.pack("i", 64), struct.pack("i", 1)


def test_a_captured_launch_is_repeated_for_tensors_elsewhere(monkeypatch):
    """The first two share their memory, as keys and values may; the third begins between multiples of 16."""
    places, others = (0x1000, 0x1000, 0x2008), (0x7000, 0x8000, 0x9008)
    scale = struct.pack("f", 0.125)
    pieces = [*array(places[0]), *array(places[1]), *array(places[2]), scale]
    kernel, _ = captured(monkeypatch, pieces, places, cluster=2)
    config, function, addresses, _ = kernel.call(11, others)
    found = [ctypes.string_at(address, len(piece)) for address, piece in zip(addresses, pieces, strict=True)]
    assert found == [*array(others[0]), *array(others[1]), *array(others[2]), scale]
    told = config._obj
    assert function.value == 99 and told.stream == 11 and told.shared_bytes == 4096
    assert (*told.grid, *told.block) == (3, 2, 1, 128, 1, 1)
    assert (told.attribute_count, told.attributes[0].id, *told.attributes[0].value) == (1, 4, 2, 0, 0)
    with pytest.raises(RuntimeError, match=r"begin \[0, 0, 8\] bytes past multiples of 16"):
        kernel.call(11, (0x7000, 0x8000, 0x9000))


@pytest.mark.parametrize(
    ("places", "how", "told"),
    [
        ((0x1000, 0x3000), {}, "tensor 1 is not among the kernel's parameters"),
        ((0x2000, 0x1000), {}, "tensor 1 is not among the kernel's parameters"),
        ((0x1000, 0x2000), {"nodes": 2}, "a launch must be one kernel, got 2 nodes"),
    ],
    ids=["another place", "another order", "two kernels"],
)
def test_what_is_launched_in_another_way_is_not_captured(places, how, told, monkeypatch):
    with pytest.raises(driver.OtherParameters, match=told):
        captured(monkeypatch, [*array(0x1000), *array(0x2000)], places, **how)


@pytest.mark.parametrize(
    "refused",
    ["cuThreadExchangeStreamCaptureMode", "cuStreamCreate", "cuStreamBeginCapture_v2", "cuGraphGetNodes", None],
)
def test_where_no_graph_is_captured_cutile_launches_by_itself(refused, monkeypatch):
    """Whatever the driver refuses, or cuTile (None) while its launch is captured, in stream 5: a call is computed."""
    import torch

    fake, launched = FakeGraphs([]), []
    if refused:
        monkeypatch.setattr(fake, refused, lambda *_: 900)

    def launch(part, arguments, stream):
        if stream == 5:
            raise RuntimeError("operation not permitted when stream is capturing")
        launched.append((*arguments, stream))

    monkeypatch.setattr(driver, "cuda", lambda: fake)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: None)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 7, raising=False)
    monkeypatch.setattr(launching, "target_of", lambda device: "sm_90")
    monkeypatch.setattr(launching, "_launch", launch)
    run = launching.launcher([launching.Part((1, 1, 1), None, None, lambda *given: given)], SimpleNamespace(index=0))
    for _ in range(2):
        given = tensors(0x1000, 0x2000)
        run(*given)
        assert launched == [(*given, 7)] and not fake.open
        launched.clear()
