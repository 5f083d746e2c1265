"""What every Gluon kernel uses: tiles of numbers, reductions, masks, global memory, roles."""

from __future__ import annotations

import builtins
import re
from collections.abc import Callable

import torch
from triton.experimental.gluon import language as gl

from tutorial_lib.simulator import state
from tutorial_lib.simulator.block import DONE, KernelError, Unknown, at
from tutorial_lib.simulator.cluster import alone, halved, must_stay, own_part
from tutorial_lib.simulator.integers import Int, quotient
from tutorial_lib.simulator.memory import allocate_shared_memory
from tutorial_lib.simulator.translate import OPERATIONS, operation
from tutorial_lib.simulator.values import Pointer, Tensor, common, elementwise, plain, torch_dtype

SHUFFLES = 5  # steps in which the lanes of a warp add up a row

OPERATIONS["allocate_shared_memory"] = allocate_shared_memory


@operation("program_id")
def program_id(axis):
    return Int(state.block().index[axis])


@operation("num_programs")
def num_programs(axis):
    return Int(state.block().grid[axis])


@operation("num_warps")
def num_warps():
    return state.role().warps


@operation("to_tensor")
def to_tensor(x):
    return Int(x) if isinstance(x, int) and not isinstance(x, bool) else x


@operation("arange")
def arange(start, end, layout=None):
    if halved(layout) is not None:
        half = (end - start) // 2
        start += state.block().rank * half
        end = start + half
    return Tensor(torch.arange(start, end, dtype=torch.int32), layout)


@operation("full")
def full(shape, value, dtype, layout=None):
    return Tensor(torch.full(own_part(shape, layout), value, dtype=torch_dtype(dtype)), layout)


@operation("zeros")
def zeros(shape, dtype, layout=None):
    return full(shape, 0, dtype, layout)


@operation("where")
def where(condition, x, y):
    layout = common(condition, x, y)
    chosen = torch.where(plain(condition), plain(x), plain(y))
    dtype = next((v.data.dtype for v in (x, y) if isinstance(v, Tensor)), chosen.dtype)
    state.spend("alu", chosen.numel())
    return Tensor(chosen.to(dtype), layout)


def _extremum(scalar, pairwise):
    def choose(x, y, propagate_nan=None):
        if not isinstance(x, Tensor) and not isinstance(y, Tensor):
            found = scalar(x, y)
            return Int(found) if isinstance(found, int) else found

        def apply(a, b):
            some = a if isinstance(a, torch.Tensor) else b
            return pairwise(*(v if isinstance(v, torch.Tensor) else torch.tensor(v, dtype=some.dtype) for v in (a, b)))

        return elementwise(apply, x, y)

    return choose


OPERATIONS["maximum"] = _extremum(builtins.max, torch.fmax)
OPERATIONS["minimum"] = _extremum(builtins.min, torch.fmin)


@operation("cdiv")
def cdiv(x, div):
    return Int(quotient(x + div - 1, div))


def _number(x: torch.Tensor):
    return Int(x.item()) if not x.is_floating_point() else x.item()


def _reduction(function):
    def reduce(x, axis=None, keep_dims=False):
        data = plain(x)
        its = halved(x.layout)
        if its is not None and (axis is None or axis % data.ndim == its % data.ndim):
            raise Unknown(at("the simulator has no reduction over the CTAs of a cluster"))
        if axis is None:
            state.spend("alu", data.numel())
            return _number(function(data.reshape(-1), 0))
        axis %= data.ndim
        result = function(data, axis)
        state.spend("alu", data.numel() + SHUFFLES * 32 * state.role().warps)
        if result.ndim == 0:
            return _number(result)
        return Tensor(result, None if x.layout is None else gl.SliceLayout(axis, x.layout))

    return reduce


OPERATIONS["sum"] = _reduction(lambda data, axis: data.sum(dim=axis, dtype=data.dtype))
OPERATIONS["max"] = _reduction(lambda data, axis: data.amax(dim=axis))
OPERATIONS["min"] = _reduction(lambda data, axis: data.amin(dim=axis))


# --- functions of a number ---


def _flushed(x: torch.Tensor) -> torch.Tensor:
    """Zero in place of numbers too small to be normal, as .ftz has it."""
    return x * (x.abs() >= torch.finfo(torch.float32).tiny)


for _function in (torch.exp2, torch.exp, torch.log, torch.log2, torch.sqrt, torch.rsqrt, torch.abs, torch.floor):
    OPERATIONS[_function.__name__] = lambda x, f=_function: elementwise(f, x, unit="mufu")
OPERATIONS["fma"] = lambda x, y, z: elementwise(lambda a, b, c: a * b + c, x, y, z)

INSTRUCTIONS = {  # PTX -> a function of float32 operands, and its unit
    "ex2.approx.ftz.f32": (lambda x: _flushed(torch.exp2(_flushed(x))), "mufu"),
    "ex2.approx.f32": (torch.exp2, "mufu"),
    "rcp.approx.ftz.f32": (lambda x: _flushed(1 / _flushed(x)), "mufu"),
}
SEQUENCES: dict[str, Callable] = {}  # a pattern of several instructions -> a function of the match and the operands
ONE_INSTRUCTION = re.compile(r"\s*(\S+) \$0((?:, \$\d)*);\s*")


@operation("inline_asm_elementwise")
def inline_asm_elementwise(asm, constraints, args, dtype, is_pure, pack):
    """One instruction of PTX, of those that are known."""
    if found := ONE_INSTRUCTION.fullmatch(asm):
        operands = [int(number) for number in re.findall(r"\$(\d)", found[2])]
        if found[1] in INSTRUCTIONS and operands == list(range(1, len(args) + 1)):
            function, unit = INSTRUCTIONS[found[1]]
            return elementwise(function, *args, unit=unit)
    for pattern, function in SEQUENCES.items():
        if found := re.fullmatch(pattern, asm.strip()):
            return function(found, *args)
    if asm.strip() == "mov.u64 $0, %clock64;":
        return Int(state.role().time)
    if not asm.strip() or asm.strip().startswith("//"):  # nothing but a place for the compiler to keep an order by
        return args[0] if len(args) == 1 else tuple(args)
    raise Unknown(at(f"the simulator does not know these instructions: {asm.strip()[:60]}"))


# --- layouts and shapes ---


@operation("convert_layout")
def convert_layout(value, layout, assert_trivial=False):
    """Other lanes hold the numbers: by way of shared memory, unless the lanes are the same."""
    data = plain(value)
    must_stay(layout, halved(value.layout))
    same = assert_trivial or value.layout == layout or data.ndim == 1 or isinstance(layout, gl.DotOperandLayout)
    if not same:
        state.spend("smem", 2 * data.numel() * data.itemsize)
    return Tensor(data, layout)


@operation("set_auto_layout")
def set_auto_layout(value, layout):
    return Tensor(plain(value), layout)


OPERATIONS["reshape"] = lambda x, *shape: x.reshape(*shape)
OPERATIONS["permute"] = lambda x, *order: x.permute(*order)
OPERATIONS["split"] = lambda x: x.split()


@operation("join")
def join(a, b):
    return Tensor(torch.stack((plain(a), plain(b)), -1), None)


@operation("expand_dims")
def expand_dims(x, axis):
    index = [slice(None)] * x.data.ndim
    index.insert(axis, None)
    return x[tuple(index)]


# --- global memory: no races are looked for there ---


@operation("load")
def load(pointer: Pointer, mask=None, other=0, **_):
    me = state.role()
    found = pointer.gather(plain(mask), other)
    me.time += me.block.machine.memory_latency
    return Tensor(found, pointer.layout) if isinstance(found, torch.Tensor) else to_tensor(found)


@operation("store")
def store(pointer: Pointer, value, mask=None, **_):
    me = state.role()
    me.point()
    pointer.scatter(plain(value), plain(mask))
    me.time += me.block.machine.issue


@operation("atomic_add")
def atomic_add(pointer: Pointer, value, mask=None, sem=None, scope=None):
    """Added at once. What was there before comes back for a single number that is "relaxed", or counts ("acq_rel")."""
    me = state.role()
    me.point()
    asked = sem in ("relaxed", "acq_rel") and not isinstance(pointer.offset, torch.Tensor)
    before = pointer.gather() if asked else None
    pointer.scatter(plain(value), plain(mask), add=True)
    me.time += me.block.machine.memory_latency if asked else me.block.machine.issue
    if sem == "release":
        tell_who_polls(pointer)
    return before


def tell_who_polls(pointer: Pointer) -> None:
    """Roles that wait for a number in global memory look again, once what was added to ``pointer`` is seen."""
    me = state.role()
    for role in me.block.processor.roles:
        if role.why[0] == ANOTHER_BLOCK:
            role.wake(me.time + me.block.machine.memory_latency)


ANOTHER_BLOCK = "another block"  # what a role waits for that polls a number in global memory


def await_number(_, pointer: Pointer, wanted) -> int:
    """Until a number in global memory is the wanted one, to which others add with "release"."""
    me = state.role()
    me.wait(lambda: pointer.gather() == wanted, ANOTHER_BLOCK, lambda: f"a number in global memory to be {wanted}")
    me.time += me.block.machine.memory_latency
    return wanted


# Loads in a loop until the number is right, and then a fence for the async proxy: all of it must be there.
AWAIT = (
    r"\{.*ld\.acquire\.gpu\.global\.b32 (\w+), \[\$1\]; setp\.ne\.b32 (\w+), \1, \$2; @\2 bra"
    r".*fence\.proxy\.async\.global;.*\}"
)
SEQUENCES[AWAIT] = await_number


def unpacked(_, x: Tensor) -> Tensor:
    """The two bfloat16 of a register in float32: the lower one moved up, and the upper one where it is."""
    if plain(x).dtype != torch.bfloat16:
        raise KernelError(at(f"these instructions take a register's two halves for bfloat16, got {plain(x).dtype}"))
    return elementwise(lambda data: data.to(torch.float32), x)


SEQUENCES[r"shl\.b32 \$0, \$2, 16; and\.b32 \$1, \$2, 0xffff0000;"] = unpacked


def four_to_e4m3(_, *four: Tensor) -> Tensor:
    """Float32 to the nearest of e4m3, and no further than its largest: four bytes of an int32, the lowest first."""
    rounded = [plain(x).clamp(-448, 448).to(torch.float8_e4m3fn) for x in four]
    state.spend("alu", 2 * rounded[0].numel())
    return Tensor(torch.stack(rounded, -1).view(torch.int32).squeeze(-1), common(*four))


PAIR_TO_E4M3 = r"cvt\.rn\.satfinite\.e4m3x2\.f32"
SEQUENCES[rf"\{{.*{PAIR_TO_E4M3} low, \$2, \$1; {PAIR_TO_E4M3} high, \$4, \$3; mov\.b32 \$0, \{{low, high\}}; \}}"] = (
    four_to_e4m3
)


def multiplied_by_vote(x: Tensor, factor: Tensor, rows: int, columns: int) -> Tensor:
    """x * factor in every block of rows and columns in which a factor is not 1; warps jump over the others.

    A block is what the lanes of a warp vote on together. ``Run.counts`` has how often each way was taken.
    """
    data, factors = plain(x), plain(factor).expand(x.shape)
    blocks = factors.reshape(x.shape[0] // rows, rows, x.shape[1] // columns, columns)
    votes = (blocks != 1).any(dim=3).any(dim=1)
    rescaled = int(votes.sum())
    counts = state.run.counts
    counts["rescaled"] += rescaled
    counts["left as it was"] += votes.numel() - rescaled
    state.spend("alu", rescaled * rows * columns)
    chosen = votes.repeat_interleave(rows, 0).repeat_interleave(columns, 1)
    return Tensor(torch.where(chosen, data * factors, data), x.layout)


# --- what is said to the compiler, or checked ---

OPERATIONS["multiple_of"] = OPERATIONS["max_contiguous"] = lambda x, *_: x
OPERATIONS["assume"] = lambda condition: None
OPERATIONS["static_print"] = OPERATIONS["device_print"] = lambda *values: print(*map(plain, values))


@operation("static_assert")
def static_assert(condition, message=""):
    if not condition:
        raise KernelError(at(f"static_assert: {message}"))


@operation("device_assert")
def device_assert(condition, message=""):
    if not (bool(plain(condition).all()) if isinstance(condition, Tensor) else condition):
        raise KernelError(at(f"device_assert: {message}"))


# --- roles ---


@operation("barrier", "thread_barrier")
def barrier(cluster=False):
    """All warps of a role. They have one clock here, so there is nothing to wait for, but something to learn."""
    if cluster:
        raise Unknown(at("the simulator has no barrier(cluster=True)"))
    me = state.role()
    me.asks("barrier", None)
    me.meet()
    me.time += me.block.machine.wait


@operation("warp_specialize")
def warp_specialize(functions_and_args, worker_num_warps, worker_num_regs=None):
    alone("warp_specialize")
    me = state.role()
    (first, arguments), *workers = functions_and_args
    known = me.release()
    made = []
    for n, ((function, its), warps) in enumerate(zip(workers, worker_num_warps, strict=True), 1):
        worker = me.block.start(f"{function.__name__} {n}", lambda f=function, a=its: f(*a), warps, me)
        worker.acquire(known)
        made.append(worker)
    me.name, before = f"{first.__name__} 0", me.name
    result = first(*arguments)
    me.name = before
    me.wait(lambda: all(w.state is DONE for w in made), "the others", lambda: "the other roles to end")
    for worker in made:
        me.acquire((worker.known, worker.fenced))
    return result
