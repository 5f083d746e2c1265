"""Values of a kernel: integers, tiles in registers with their layouts, pointers, and what TMA knows of a tensor."""

from __future__ import annotations

import math
import operator
from functools import cache

import torch
from triton.experimental.gluon import language as gl

from tutorial_lib.simulator import state
from tutorial_lib.simulator.block import KernelError, Unknown, at
from tutorial_lib.simulator.cluster import alone, halved, own_part, whole
from tutorial_lib.simulator.integers import BINARY, Int

DTYPES = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp32": torch.float32,
    "fp64": torch.float64,
    "fp8e4nv": torch.float8_e4m3fn,
    "fp8e5": torch.float8_e5m2,
    "int1": torch.bool,
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "uint8": torch.uint8,
}
GLUON_DTYPES = {
    dtype: getattr(gl, {"fp": "float", "bf": "bfloat"}.get(name[:2], name[:-2]) + name[2:] if name[0] in "fb" else name)
    for name, dtype in DTYPES.items()
}


def torch_dtype(dtype) -> torch.dtype:
    return dtype if isinstance(dtype, torch.dtype) else DTYPES[dtype.name]


class Type:
    """What ``x.type`` tells of a tile or of memory."""

    def __init__(self, layout, dtype, shape):
        self.layout, self.element_ty, self.scalar, self.shape = layout, dtype, dtype, shape


class Tensor:
    """A tile in registers: numbers, and the layout that says who holds which. Layout None is not known; it fits any.

    In a cluster the numbers are this CTA's part.
    """

    __slots__ = ("data", "layout")
    __hash__ = None

    def __init__(self, data: torch.Tensor, layout=None):
        self.data, self.layout = data, layout

    shape = property(lambda self: whole(self.data.shape, halved(self.layout)))
    dtype = property(lambda self: GLUON_DTYPES[self.data.dtype])
    type = property(lambda self: Type(self.layout, self.dtype, self.shape))
    numel = property(lambda self: self.data.numel())

    def __bool__(self):
        raise KernelError(at("a tile is no condition"))

    def to(self, dtype, fp_downcast_rounding=None, bitcast=False) -> Tensor:
        data = plain(self)
        if bitcast:  # the same bits
            return Tensor(data.contiguous().view(torch_dtype(dtype)), self.layout)
        state.spend("alu", data.numel() / 2)
        return Tensor(data.to(torch_dtype(dtype)), self.layout)

    cast = to

    def reshape(self, *shape) -> Tensor:
        shape = _unpacked(shape)
        layout = infer("reshape", self, shape)
        before, after = halved(self.layout), halved(layout)
        if before is not None and list(self.shape)[before:][:1] != list(shape)[after:][:1]:
            raise Unknown(at("the simulator has no reshape of the axis that the CTAs of a cluster halve"))
        return Tensor(plain(self).reshape(own_part(shape, layout)), layout)

    def permute(self, *order) -> Tensor:
        order = _unpacked(order)
        return Tensor(plain(self).permute(order), infer("permute", self, order))

    def split(self) -> tuple[Tensor, Tensor]:
        left, right = plain(self).unbind(-1)
        layout = infer("split", self, ())
        return Tensor(left.contiguous(), layout), Tensor(right.contiguous(), layout)

    def __getitem__(self, index) -> Tensor:
        layout = self.layout
        for axis, part in enumerate(index):
            if part is None and isinstance(layout, gl.SliceLayout):
                if layout.dim != axis:
                    raise KernelError(at(f"axis {axis} is added to a tile whose layout lacks axis {layout.dim}"))
                layout = layout.parent
            elif part is None:
                layout = None
        return Tensor(plain(self)[index], layout)


class Pending(Tensor):
    """What a product that is under way will give. number: which of its role's; result: when it has ended."""

    __slots__ = ("number", "result")

    def __init__(self, shape, layout, number: int):
        super().__init__(torch.empty(shape, device="meta"), layout)
        self.number, self.result = number, None


def _unpacked(values: tuple) -> tuple:
    return tuple(values[0]) if len(values) == 1 and isinstance(values[0], list | tuple) else values


def plain(x):
    """The numbers of a tile; anything else as it is."""
    if isinstance(x, Pending):
        raise KernelError(at("the result of a product is used before it is waited for"))
    return x.data if isinstance(x, Tensor) else x


def common(*values):
    """The layout that tiles share; raises KernelError where they do not, as the compiler would."""
    layout = None
    for x in values:
        its = x.layout if isinstance(x, Tensor) else None
        if its is None or isinstance(its, gl._layouts.AutoLayout):
            continue
        if layout is not None and layout != its:
            raise KernelError(at(f"tiles of different layouts, {layout} and {its}"))
        layout = its
    return layout


def elementwise(function, *values, unit: str = "alu") -> Tensor:
    """A function of every element, in the layout of the tiles."""
    layout = common(*values)
    data = [plain(x) for x in values]
    floats = [x for x in data if isinstance(x, torch.Tensor) and x.is_floating_point()]
    if len({x.dtype for x in floats}) > 1:
        wide = torch.promote_types(*{x.dtype for x in floats})
        data = [x.to(wide) if any(x is other for other in floats) else x for x in data]
    result = function(*data)
    state.spend(unit, result.numel())
    return Tensor(result, layout)


def _operators() -> None:
    for name, function in {**BINARY, "truediv": operator.truediv}.items():

        def forward(self, other, function=function):
            return NotImplemented if isinstance(other, Pointer) else elementwise(function, self, other)

        def backward(self, other, function=function):
            return elementwise(lambda x, y: function(y, x), self, other)

        setattr(Tensor, f"__{name}__", forward)
        setattr(Tensor, f"__r{name}__", backward)
    for function in (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne):
        setattr(Tensor, f"__{function.__name__}__", lambda a, b, f=function: elementwise(f, a, b))
    Tensor.__neg__ = lambda self: elementwise(operator.neg, self)


class Pointer:
    """A pointer, or a tile of them: a flat tensor and offsets into it, in elements."""

    def __init__(self, flat: torch.Tensor, offset, layout=None):
        self.flat, self.offset, self.layout = flat, offset, layout
        self.dtype = self.type = gl.pointer_type(GLUON_DTYPES[flat.dtype])

    shape = property(lambda self: list(self.offset.shape))

    def __add__(self, other) -> Pointer:
        if not isinstance(other, Tensor):
            return Pointer(self.flat, self.offset + other, self.layout)
        return Pointer(self.flat, self.offset + plain(other).long(), common(other, Tensor(None, self.layout)))

    __radd__ = __add__

    def __sub__(self, other) -> Pointer:
        return self + -other

    def gather(self, mask: torch.Tensor | bool | None = None, other=0):
        """The elements, and ``other`` where the mask is false; a number for a single pointer."""
        if not isinstance(self.offset, torch.Tensor):
            if mask is not None and not mask:
                return other
            self._inside(self.offset, self.offset)
            return self.flat[self.offset].item()
        if mask is None:
            self._inside(int(self.offset.min()), int(self.offset.max()))
            return self.flat[self.offset]
        index = torch.where(mask, self.offset, 0)
        self._inside(int(index.min()), int(index.max()))
        return torch.where(mask, self.flat[index], torch.tensor(other, dtype=self.flat.dtype))

    def scatter(self, value, mask: torch.Tensor | bool | None = None, add: bool = False) -> None:
        """Write the elements, or add to them, where the mask is true."""
        if not isinstance(self.offset, torch.Tensor):
            if mask is None or mask:
                self._inside(self.offset, self.offset)
                self.flat[self.offset] = self.flat[self.offset] + value if add else value
            return
        index, value = torch.broadcast_tensors(self.offset, torch.as_tensor(value))
        if mask is not None:
            mask = mask.expand(index.shape)
            index, value = index[mask], value[mask]
        if index.numel():
            self._inside(int(index.min()), int(index.max()))
            self.flat.index_put_((index,), value.to(self.flat.dtype), accumulate=add)

    def _inside(self, low: int, high: int) -> None:
        if low < 0 or high >= len(self.flat):
            raise KernelError(at(f"elements {low} to {high} of a tensor that has {len(self.flat)}"))


ADDRESSES = 2**64  # TMA counts addresses modulo this


class Descriptor:
    """What TMA knows of a tensor: shape, strides, and the box that it moves."""

    def __init__(self, host):
        self.shape, self.block_shape, self.layout = list(host.shape), list(host.block_shape), host.layout
        self.dtype = GLUON_DTYPES[host.base.dtype]
        self.base, self.strides = host.base, list(host.strides)
        bytes_of = [stride * self.base.itemsize for stride in self.strides[:-1]]
        if max(self.shape) > 2**32 or max(self.block_shape) > 256 or any(n >= 2**40 or n % 16 for n in bytes_of):
            told = f"of shape {self.shape}, strides of {bytes_of} bytes, in boxes {self.block_shape}"
            raise KernelError(f"TMA takes no tensor {told}")

    @property
    def box(self) -> list[int]:
        """What TMA moves for a CTA."""
        return own_part(self.block_shape, self.layout)

    @property
    def nbytes_per_cta(self) -> int:
        return math.prod(self.box) * self.base.itemsize

    def own(self, coordinates) -> list[int]:
        """Where the part of this CTA begins, in a block that begins there."""
        begin, axis = [int(n) for n in coordinates], halved(self.layout)
        if axis is not None:
            begin[axis] += state.block().rank * self.box[axis]
        return begin

    def _window(self, begin: list[int]):
        lengths, there, first = [], [], 0
        for start, size, length, stride in zip(begin, self.box, self.shape, self.strides, strict=True):
            low, high = max(start, 0), max(min(start + size, length), max(start, 0))
            lengths.append(high - low)
            there.append(slice(low - start, high - start))
            first += low * stride
        if 0 in lengths:
            return self.base.new_empty(lengths), tuple(there)
        elements = ADDRESSES // self.base.itemsize
        first = (first + self.base.storage_offset() + elements // 2) % elements - elements // 2
        strides = [stride if length > 1 else 1 for length, stride in zip(lengths, self.strides)]
        last = first + sum((length - 1) * stride for length, stride in zip(lengths, strides))
        end = sum((n - 1) * stride for n, stride in zip(self.base.shape, self.base.stride()))
        if first < self.base.storage_offset() or last > self.base.storage_offset() + end:
            raise KernelError(at(f"TMA moves elements {first} to {last}, which are not the tensor's"))
        return torch.as_strided(self.base, lengths, strides, first), tuple(there)

    def load(self, begin: list[int]) -> torch.Tensor:
        """A box; zeros where it is outside of the tensor."""
        found, there = self._window(begin)
        if list(found.shape) == self.box:
            return found.clone()
        tile = torch.zeros(self.box, dtype=found.dtype)
        if found.numel():
            tile[there] = found
        return tile

    def store(self, begin: list[int], tile: torch.Tensor) -> None:
        """A box; what is outside of the tensor is dropped."""
        found, there = self._window(begin)
        if found.numel():
            found.copy_(tile[there])


_operators()


def argument(value):
    """What a kernel gets for what a launch passes."""
    if isinstance(value, torch.Tensor):
        flat = torch.as_strided(value, (value.untyped_storage().size() // value.itemsize,), (1,), 0)
        return Pointer(flat, value.storage_offset())
    if hasattr(value, "block_shape") and hasattr(value, "base"):
        return Descriptor(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return Int(value)
    if isinstance(value, float):
        return torch.tensor(value, dtype=torch.float32).item()
    if type(value) in (tuple, list):
        return tuple(argument(part) for part in value)
    return value


# --- layouts of results, as the compiler infers them ---


def infer(what: str, tile: Tensor, how) -> object:
    """The layout of a tile after a reshape, permute or split; None where the compiler has none."""
    if what != "reshape":
        alone(what)
    if tile.layout is None:
        return None
    return _infer(what, tile.layout, tuple(tile.shape), state.role().warps, state.run.ctas, tuple(how))


@cache
def _infer(what: str, layout, shape: tuple, warps: int, ctas: int, how: tuple):
    from triton._C.libtriton import gluon_ir, ir, nvidia
    from triton.experimental.gluon.language._semantic import GluonSemantic

    context = ir.context()
    ir.load_dialects(context)
    nvidia.load_dialects(context)
    builder = gluon_ir.GluonOpBuilder(context)
    module = builder.create_module()
    module.set_attr("ttg.target", builder.get_string_attr("cuda:90"))
    for name, value in (("num-warps", warps), ("num-ctas", ctas), ("threads-per-warp", 32)):
        module.set_attr(f"ttg.{name}", builder.get_int32_attr(value))
    function = builder.get_or_insert_function(module, "f", builder.get_function_ty([], []), "public", False)
    module.push_back(function)
    builder.set_insertion_point_to_start(function.add_entry_block())
    semantic = GluonSemantic(builder)
    tile = semantic.full(list(shape), 0.0, gl.float32, layout)
    if what == "reshape":
        found = semantic.reshape(tile, list(how), False)
    elif what == "permute":
        found = semantic.permute(tile, how)
    else:
        found = semantic.split(tile)[0]
    return found.type.layout
