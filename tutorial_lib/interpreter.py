"""Runs cuTile kernels on the CPU: the same source, one block after another, with torch tensors for tiles.

Every ``ct.*`` operation asks the current dispatch mode what to do, and ``ct.Tile``'s operators call those
operations. ``launch`` installs a mode that computes with torch, so a kernel is ordinary Python while it runs here:
a breakpoint stops in it, ``print`` and ``ct.printf`` print, an exception points at its line.

What matters to a result is kept: 16-bit tiles hold 16-bit numbers and ``astype`` rounds to nearest even;
``mma`` multiplies exactly and adds in float32, but in fp8 as Hopper's tensor cores do; loads pad out of bounds as asked
(undetermined padding is NaN here, so that code which relies on it is found out) and stores drop what is out of bounds;
``flush_to_zero`` flushes.
What only matters to speed (latency hints, occupancy, TMA) is accepted and ignored. An approximate division or
exponential is computed exactly. Integer scalars are Python integers and do not wrap at 32 bits.

An operation that is missing here raises ``UnsupportedOperation`` with its name.
"""

from __future__ import annotations

import builtins
import itertools
import operator
import re
import sys
from functools import cache

import cuda.tile as ct
import torch

# The mode that cuda.tile consults is not exported under a public name (cuda-tile 1.7).
from cuda.tile._dispatch_mode import DispatchMode

from tutorial_lib import tensor_cores

TORCH_DTYPES = {
    "bool_": torch.bool,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
    "float64": torch.float64,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "uint8": torch.uint8,
}

PADDING = {
    ct.PaddingMode.UNDETERMINED: float("nan"),
    ct.PaddingMode.ZERO: 0.0,
    ct.PaddingMode.NEG_ZERO: -0.0,
    ct.PaddingMode.NAN: float("nan"),
    ct.PaddingMode.POS_INF: float("inf"),
    ct.PaddingMode.NEG_INF: float("-inf"),
}


class UnsupportedOperation(NotImplementedError):
    """A cuTile operation, or a setting of one, that this interpreter lacks; the message names it."""


def launch(grid: tuple[int, ...], function, args: tuple) -> None:
    """Run ``function``, the body of a cuTile kernel, once for every block of ``grid``.

    grid: up to three block counts. args: CPU tensors (become arrays), floats (become float32 scalars, as a GPU
    launch makes them), integers or booleans (passed as they are), and tuples of these.
    """
    grid = tuple(grid) + (1,) * (3 - len(grid))
    args = tuple(_argument(a) for a in args)
    mode = _Interpreter(grid)
    with mode.as_current(), torch.no_grad():
        for z, y, x in itertools.product(*(range(n) for n in reversed(grid))):
            mode.block = (x, y, z)
            function(*args)


def _argument(value):
    if isinstance(value, torch.Tensor):
        if value.device.type != "cpu":
            raise ValueError(f"the interpreter needs tensors on the CPU, got one on {value.device}")
        return Array(value)
    if isinstance(value, float):
        return Tile(torch.tensor(value, dtype=torch.float32))
    if isinstance(value, tuple):
        return tuple(map(_argument, value))
    return value


class _Held:
    """What arrays and tiles have in common here: a tensor, and what cuTile asks of its shape."""

    def __init__(self, tensor: torch.Tensor):
        self.tensor = tensor

    @property
    def dtype(self) -> ct.DType:
        return _cutile_dtype(self.tensor.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @property
    def ndim(self) -> int:
        return self.tensor.ndim


class Array(_Held, ct.Array):
    """A global array: a tensor that tiles are loaded from and stored to."""

    @property
    def strides(self) -> tuple[int, ...]:
        return self.tensor.stride()

    def slice(self, axis, start, stop) -> Array:
        start, stop, length = operator.index(start), operator.index(stop), self.tensor.shape[axis]
        if not (0 <= start < length and start <= stop <= length):
            raise IndexError(f"the slice from {start} to {stop} is not inside the array's {length} elements there")
        return Array(self.tensor.narrow(axis, start, stop - start))


class Tile(_Held, ct.Tile):
    """A tile: an immutable tensor. Arithmetic is ``ct.Tile``'s, which calls the operations below."""

    def __index__(self) -> int:
        return operator.index(self.tensor.item())

    def __int__(self) -> int:
        return int(self.tensor.item())

    def __float__(self) -> float:
        return float(self.tensor.item())

    def __bool__(self) -> bool:
        return bool(self.tensor.item())

    __hash__ = None

    def __repr__(self) -> str:
        return f"Tile({self.tensor.tolist()}, shape={self.shape}, dtype={self.dtype})"

    def __str__(self) -> str:
        return str(self.tensor.tolist())

    def __format__(self, spec: str) -> str:
        def each(value):
            return "[" + ", ".join(map(each, value)) + "]" if isinstance(value, list) else format(value, spec)

        return each(self.tensor.tolist())


class _Interpreter(DispatchMode):
    def __init__(self, grid: tuple[int, int, int]):
        self.grid = grid
        self.block = (0, 0, 0)

    def call_tile_function_from_host(self, func, args, kwargs):
        name = func.__qualname__
        operation = OPERATIONS.get(name)
        if operation is not None:
            return operation(*args, **kwargs)
        if name == "bid":
            return self.block[args[0]]
        if name == "num_blocks":
            return self.grid[args[0]]
        if hasattr(func, "_cutile_python_stub") or func.__module__ == ct.Tile.__module__:
            raise UnsupportedOperation(f"the CPU interpreter has no ct.{name}: add it to OPERATIONS in {__name__}")
        return func.__wrapped__(*args, **kwargs)  # a tile function of the kernel's own, marked with @ct.function


@cache
def _torch_dtype(dtype) -> torch.dtype:
    if isinstance(dtype, torch.dtype):
        return dtype
    try:
        return TORCH_DTYPES[dtype.name]
    except KeyError:
        raise UnsupportedOperation(f"the CPU interpreter has no dtype {dtype.name}") from None


@cache
def _cutile_dtype(dtype: torch.dtype) -> ct.DType:
    for name, candidate in TORCH_DTYPES.items():
        if candidate is dtype:
            return getattr(ct, name)
    raise UnsupportedOperation(f"the CPU interpreter has no dtype {dtype}")


# --- Arithmetic ------------------------------------------------------------------------------------------------------


def _operands(x, y):
    """Both operands for torch. A Python number takes the tile's dtype; two tiles meet in their common one."""
    if isinstance(x, ct.Tile) and isinstance(y, ct.Tile):
        x, y = x.tensor, y.tensor
        if x.dtype != y.dtype:  # said outright, because torch lets a 0-d tensor give way to the other's dtype
            common = torch.promote_types(x.dtype, y.dtype)
            x, y = x.to(common), y.to(common)
        return x, y
    return (x.tensor if isinstance(x, ct.Tile) else x), (y.tensor if isinstance(y, ct.Tile) else y)


def _flush(tensor: torch.Tensor) -> torch.Tensor:
    """Subnormal float32 numbers become zeros of the same sign."""
    if tensor.dtype != torch.float32:
        return tensor
    return tensor * (tensor.abs() >= torch.finfo(torch.float32).tiny)  # keeps signs, infinities and NaN


ROUNDINGS = (None, ct.RoundingMode.RN, ct.RoundingMode.FULL, ct.RoundingMode.APPROX)


def _check_rounding(mode) -> None:
    if mode not in ROUNDINGS:
        raise UnsupportedOperation(f"the CPU interpreter rounds to nearest even only, not rounding_mode={mode}")


def _elementwise(function, operands, rounding_mode, flush_to_zero) -> Tile:
    _check_rounding(rounding_mode)
    if flush_to_zero:
        operands = [_flush(x) if isinstance(x, torch.Tensor) else x for x in operands]
    result = function(*operands)
    return Tile(_flush(result) if flush_to_zero else result)


def _binary(function):
    def operation(x, y, /, *, rounding_mode=None, flush_to_zero=False, propagate_nan=False):
        if not (isinstance(x, ct.Tile) or isinstance(y, ct.Tile)):
            x = torch.tensor(x)
        x, y = _operands(x, y)
        if propagate_nan:
            raise UnsupportedOperation("the CPU interpreter has no propagate_nan=True")
        return _elementwise(function, (x, y), rounding_mode, flush_to_zero)

    return operation


def _unary(function):
    def operation(x, /, *, rounding_mode=None, flush_to_zero=False):
        x = x.tensor if isinstance(x, ct.Tile) else torch.tensor(x, dtype=torch.float32)
        return _elementwise(function, (x,), rounding_mode, flush_to_zero)

    return operation


def _as_tensors(function):
    """``function`` of two tensors, where a Python number may come as one of them (torch.fmax takes no number)."""

    def wrapped(x, y):
        if not isinstance(x, torch.Tensor):
            x = torch.tensor(x, dtype=y.dtype)
        if not isinstance(y, torch.Tensor):
            y = torch.tensor(y, dtype=x.dtype)
        return function(x, y)

    return wrapped


def _where(condition, x, y, /) -> Tile:
    x, y = _operands(x, y)
    return Tile(torch.where(condition.tensor, x, y))


def _mma(x, y, /, acc, *, use_fast_acc=False) -> Tile:
    x, y, acc = x.tensor, y.tensor, acc.tensor
    if _in_fp8(x) or _in_fp8(y):
        if x.dtype != y.dtype:
            raise ct.TileTypeError(f"x and y must have the same dtype, got {x.dtype} and {y.dtype}")
        if acc.dtype != torch.float32:
            raise UnsupportedOperation(f"the CPU interpreter adds fp8 products in float32 only, not in {acc.dtype}")
        x, y = (tile.expand(*acc.shape[:-2], *tile.shape[-2:]) for tile in (x, y))
        # float32 adds a product to acc, or the tensor cores do.
        return Tile(tensor_cores.product(x, y, acc) if use_fast_acc else acc + tensor_cores.product(x, y))
    if x.dtype.is_floating_point and acc.dtype == torch.float32:
        # A product of two 16-bit numbers is exact in float32, so only the sums round, as on the tensor cores.
        return Tile(torch.baddbmm(acc, x.float(), y.float()) if x.ndim == 3 else torch.addmm(acc, x.float(), y.float()))
    return Tile(acc + x.to(acc.dtype) @ y.to(acc.dtype))


def _matmul(x, y, /) -> Tile:
    x, y = x.tensor, y.tensor
    if _in_fp8(x) or _in_fp8(y):  # cuTile 1.7 adds these in float16
        raise UnsupportedOperation("the CPU interpreter has no ct.matmul in fp8: take ct.mma with a float32 tile")
    return Tile(x @ y)


def _in_fp8(x: torch.Tensor) -> bool:
    return x.itemsize == 1 and x.dtype.is_floating_point


# --- Reductions ------------------------------------------------------------------------------------------------------


def _reduction(function):
    def operation(
        x, /, axis=None, *, keepdims=False, rounding_mode=None, flush_to_zero=False, propagate_nan=False
    ) -> Tile:
        if propagate_nan:
            raise UnsupportedOperation("the CPU interpreter has no propagate_nan=True")
        axes = tuple(range(x.ndim)) if axis is None else axis if isinstance(axis, tuple) else (axis,)
        return _elementwise(lambda t: function(t, axes, keepdims), (x.tensor,), rounding_mode, flush_to_zero)

    return operation


def _extremum(reduce, neutral: float):
    def function(tensor, axes, keepdims):
        result = reduce(tensor, dim=axes, keepdim=keepdims)
        if tensor.dtype.is_floating_point and result.isnan().any():  # torch keeps NaN, cuTile ignores it by default
            result = reduce(tensor.nan_to_num(neutral, float("inf"), float("-inf")), dim=axes, keepdim=keepdims)
        return result

    return function


def _prod(tensor, axes, keepdims):
    for axis in sorted((a % tensor.ndim for a in axes), reverse=True):
        tensor = tensor.prod(dim=axis, keepdim=keepdims)
    return tensor


def _sum(tensor, axes, keepdims):
    return tensor.sum(dim=axes, keepdim=keepdims, dtype=tensor.dtype)


# --- Memory ----------------------------------------------------------------------------------------------------------


def _axis_order(order, rank: int) -> tuple[int, ...]:
    named = {"C": tuple(range(rank)), "F": tuple(reversed(range(rank)))}
    return named[order] if isinstance(order, str) else tuple(order)


def _tuple(value) -> tuple:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _window(array, index, shape, order, check_bounds: bool):
    """The part of ``array`` (axes in ``order``) under the tile at ``index``, clipped at the array's end."""
    tensor = array.tensor.permute(_axis_order(order, array.ndim))
    starts = [operator.index(i) * n for i, n in zip(_tuple(index), shape, strict=True)]
    for axis, (start, size, length) in enumerate(zip(starts, shape, tensor.shape)):
        if not 0 <= start < length:
            raise IndexError(
                f"the tile at index {_tuple(index)} lies entirely outside the array: along axis {axis} it starts at "
                f"{start}, the array has {length} elements there (undefined on a GPU)"
            )
        if not check_bounds and start + size > length:
            raise IndexError(
                f"check_bounds=False, but the tile at index {_tuple(index)} ends at {start + size} along axis {axis} "
                f"of {length} elements (undefined on a GPU)"
            )
    return tensor[tuple(slice(start, start + size) for start, size in zip(starts, shape))]


def _load(
    array,
    /,
    index,
    shape,
    *,
    order="C",
    padding_mode=ct.PaddingMode.UNDETERMINED,
    check_bounds=True,
    latency=None,
    allow_tma=None,
    memory_order=None,
    memory_scope=None,
) -> Tile:
    if _tuple(shape) == ():  # a scalar: one element
        return Tile(array.tensor[tuple(operator.index(i) for i in _tuple(index))].clone())
    shape = _tuple(shape)
    window = _window(array, index, shape, order, check_bounds)
    if tuple(window.shape) == shape:
        return Tile(window.clone())
    padding = PADDING[padding_mode]
    tile = torch.full(shape, padding if window.dtype.is_floating_point else 0, dtype=window.dtype)
    tile[tuple(slice(0, n) for n in window.shape)] = window
    return Tile(tile)


def _store(
    array,
    /,
    index,
    tile,
    *,
    order="C",
    check_bounds=True,
    latency=None,
    allow_tma=None,
    memory_order=None,
    memory_scope=None,
) -> None:
    value = tile.tensor if isinstance(tile, ct.Tile) else torch.tensor(tile)
    if value.ndim == 0:
        value = value.expand((1,) * array.ndim)
    window = _window(array, index, tuple(value.shape), order, check_bounds)
    window.copy_(value[tuple(slice(0, n) for n in window.shape)])


def _atomic_add(array, indices, update, /, *, check_bounds=True, memory_order=None, memory_scope=None) -> Tile:
    """Blocks run one after another here, so that additions never meet; in which order they add is fixed.

    What is returned for an index that stands twice in one tile is what was there before either.
    """
    places = torch.broadcast_tensors(
        *(i.tensor if isinstance(i, ct.Tile) else torch.tensor(i) for i in _tuple(indices))
    )
    inside = torch.ones_like(places[0], dtype=torch.bool)
    for place, length in zip(places, array.shape, strict=True):
        inside &= (place >= 0) & (place < length)
    if not check_bounds and not inside.all():
        raise IndexError(
            "check_bounds=False, but an index of ct.atomic_add lies outside the array (undefined on a GPU)"
        )
    kept = tuple(place[inside].long() for place in places)
    old = torch.zeros(inside.shape, dtype=array.tensor.dtype)
    old[inside] = array.tensor[kept]
    added = update.tensor if isinstance(update, ct.Tile) else torch.tensor(update)
    added = added.to(array.tensor.dtype).expand(inside.shape)[inside]
    array.tensor.index_put_(kept, added, accumulate=True)
    return Tile(old)


def _num_tiles(array, /, axis, shape, order="C") -> int:
    axis = range(array.ndim)[axis]
    length = array.shape[_axis_order(order, array.ndim)[axis]]
    return -(-length // _tuple(shape)[axis])


# --- Shapes and values -----------------------------------------------------------------------------------------------


def _full(shape, fill_value, dtype) -> Tile:
    value = fill_value.tensor.item() if isinstance(fill_value, ct.Tile) else fill_value
    return Tile(torch.full(_tuple(shape), value, dtype=_torch_dtype(dtype)))


def _arange(size, /, *, dtype, start=0, step=1) -> Tile:
    return Tile(torch.arange(size, dtype=_torch_dtype(dtype)) * step + start)


def _astype(x, dtype, /, *, rounding_mode=None) -> Tile:
    _check_rounding(rounding_mode)
    return Tile(x.tensor.to(_torch_dtype(dtype)))


def _expand_dims(x, /, axis) -> Tile:
    if isinstance(axis, int):
        return Tile(x.tensor.unsqueeze(axis))
    return Tile(x.tensor[axis])  # x[:, None] arrives here as the index itself


def _transpose(x, /, axis0=None, axis1=None) -> Tile:
    return Tile(x.tensor.transpose(*((0, 1) if axis0 is None else (axis0, axis1))))


def _extract(x, /, index, shape) -> Tile:
    starts = [operator.index(i) * n for i, n in zip(_tuple(index), _tuple(shape), strict=True)]
    return Tile(x.tensor[tuple(slice(s, s + n) for s, n in zip(starts, _tuple(shape)))].clone())


# --- Looking inside --------------------------------------------------------------------------------------------------


def _print(*args, sep=" ", end="\n") -> None:
    builtins.print(*args, sep=sep, end=end)


def _printf(format, *args) -> None:
    """C's printf over tiles: a specifier is applied to every element of the tile that it stands for."""
    tiles = iter(args)

    def fill(match) -> str:
        if match[0] == "%%":
            return "%"
        values = next(tiles)
        values = values.tensor.flatten().tolist() if isinstance(values, ct.Tile) else [values]
        specifier = re.sub(r"(hh|h|ll|l|z|j|t|L)(?=[a-zA-Z]$)", "", match[0])
        return ", ".join(specifier % value for value in values)

    sys.stdout.write(re.sub(r"%%|%[-+ #0]*\d*(?:\.\d+)?(?:hh|h|ll|l|z|j|t|L)?[diuoxXeEfFgGaA]", fill, format))


def _assert(condition, /, message=None) -> None:
    if not condition.tensor.all():
        raise AssertionError(message or "ct.assert_ found an element that is False")


def _static_assert(condition, message=None, /) -> None:
    if not condition:
        raise ct.TileStaticAssertionError(f"Static assertion failed: {message or ''}")


OPERATIONS = {
    # memory
    "load": _load,
    "store": _store,
    "num_tiles": _num_tiles,
    "atomic_add": _atomic_add,
    # making tiles
    "full": _full,
    "zeros": lambda shape, dtype: _full(shape, 0, dtype),
    "ones": lambda shape, dtype: _full(shape, 1, dtype),
    "arange": _arange,
    "astile": lambda value, /, *, dtype: _full((), value, dtype),
    # shapes
    "reshape": lambda x, /, shape: Tile(x.tensor.reshape(_tuple(shape))),
    "permute": lambda x, /, axes: Tile(x.tensor.permute(axes)),
    "transpose": _transpose,
    "expand_dims": _expand_dims,
    "broadcast_to": lambda x, /, shape: Tile(x.tensor.expand(_tuple(shape))),
    "cat": lambda tiles, /, axis: Tile(torch.cat([t.tensor for t in tiles], dim=axis)),
    "extract": _extract,
    "Tile.item": lambda x: Tile(x.tensor.reshape(())),
    "astype": _astype,
    "bitcast": lambda x, /, dtype: Tile(x.tensor.view(_torch_dtype(dtype))),
    "pack_to_bytes": lambda x, /: Tile(x.tensor.contiguous().view(torch.uint8).flatten()),
    "assume_divisible_by": lambda x, divisor: x,
    # matrix products and reductions
    "mma": _mma,
    "matmul": _matmul,
    "sum": _reduction(_sum),
    "prod": _reduction(_prod),
    "max": _reduction(_extremum(torch.amax, float("-inf"))),
    "min": _reduction(_extremum(torch.amin, float("inf"))),
    # elementwise, of two tiles
    "add": _binary(operator.add),
    "sub": _binary(operator.sub),
    "mul": _binary(operator.mul),
    "truediv": _binary(operator.truediv),
    "floordiv": _binary(operator.floordiv),
    "mod": _binary(operator.mod),
    "pow": _binary(operator.pow),
    "minimum": _binary(_as_tensors(torch.fmin)),
    "maximum": _binary(_as_tensors(torch.fmax)),
    "bitwise_and": _binary(operator.and_),
    "bitwise_or": _binary(operator.or_),
    "bitwise_xor": _binary(operator.xor),
    "bitwise_lshift": _binary(operator.lshift),
    "bitwise_rshift": _binary(operator.rshift),
    "greater": _binary(operator.gt),
    "greater_equal": _binary(operator.ge),
    "less": _binary(operator.lt),
    "less_equal": _binary(operator.le),
    "equal": _binary(operator.eq),
    "not_equal": _binary(operator.ne),
    "where": _where,
    # elementwise, of one tile
    "exp": _unary(torch.exp),
    "exp2": _unary(torch.exp2),
    "log": _unary(torch.log),
    "log2": _unary(torch.log2),
    "sqrt": _unary(torch.sqrt),
    "rsqrt": _unary(torch.rsqrt),
    "tanh": _unary(torch.tanh),
    "floor": _unary(torch.floor),
    "ceil": _unary(torch.ceil),
    "abs": _unary(torch.abs),
    "negative": _unary(torch.neg),
    "bitwise_not": _unary(torch.bitwise_not),
    "isnan": _unary(torch.isnan),
    # looking inside
    "print": _print,
    "printf": _printf,
    "assert_": _assert,
    "static_assert": _static_assert,
    "static_eval": lambda value, /: value,
    "static_iter": lambda values, /: values,
    "ensure_constant": lambda value, /: value,
}
