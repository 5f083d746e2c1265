"""Integers as a kernel computes with them when it runs. What is known when it is compiled divides as Python does."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator

import torch


class Int(int):
    """A scalar integer. It is Python's, and does not wrap around; but it divides towards zero."""

    def to(self, dtype) -> Int:
        return Int(self)


def quotient(x, y):
    """``x // y`` of integers as Triton computes it at run time: towards zero, as in C. Python rounds down."""
    if isinstance(x, torch.Tensor) or isinstance(y, torch.Tensor):
        return torch.div(x, y, rounding_mode="trunc")
    down = int(x) // int(y)
    return down + 1 if down < 0 and down * int(y) != int(x) else down


def remainder(x, y):
    """``x % y`` likewise: with the sign of ``x``."""
    return x - quotient(x, y) * y


DIVISIONS = {"floordiv": quotient, "mod": remainder}
OF_PYTHON = ("add", "sub", "mul", "and", "or", "xor", "lshift", "rshift")
BINARY = {name: getattr(operator, f"__{name}__") for name in OF_PYTHON} | DIVISIONS


def _binary(function: Callable, swapped: bool) -> Callable:
    """A method of ``Int`` whose result is one of those integers, too."""

    def compute(self, other):
        if not isinstance(other, int):
            return NotImplemented
        pair = (int(other), int(self)) if swapped else (int(self), int(other))
        return Int(function(*pair))

    return compute


def _unary(function: Callable) -> Callable:
    return lambda self: Int(function(int(self)))


for _name, _function in BINARY.items():
    setattr(Int, f"__{_name}__", _binary(_function, False))
    setattr(Int, f"__r{_name}__", _binary(_function, True))
for _function in (operator.neg, operator.pos, operator.invert):
    setattr(Int, f"__{_function.__name__}__", _unary(_function))


def integers(*bounds) -> Iterator[Int]:
    """``range`` in a kernel. Its numbers exist when the kernel runs; those of ``static_range`` do before."""
    return map(Int, range(*bounds))
