"""Values that a function gives, beside those that it should give: are they of one kind, are they equal, what differs?

A value is a number, a word, None, a tensor, or a tuple or dictionary of such. One of NumPy's numbers, or a tensor or
array without axes, counts as the number that it holds, but for a tensor beside a tensor.
"""

from __future__ import annotations

import math
import sys

ORDER = ("first", "second", "third")


def is_tensor(x: object) -> bool:
    """Whether it is a PyTorch tensor; does not import PyTorch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def _number(x: object) -> object:
    """The number that it holds, where it has no axes; any other value as it is."""
    return x.item() if hasattr(x, "item") and getattr(x, "ndim", None) == 0 else x


def fits(mine: object, right: object) -> bool:
    """Whether a value is of the kind of the right one: a number, as many values, a tensor of its shape.

    None may stand for a number.
    """
    if is_tensor(right):
        return is_tensor(mine) and mine.shape == right.shape
    mine = _number(mine)
    if isinstance(right, tuple | list):
        return isinstance(mine, tuple | list) and len(mine) == len(right) and all(map(fits, mine, right))
    if isinstance(right, dict):
        return isinstance(mine, dict) and mine.keys() == right.keys() and all(fits(mine[k], right[k]) for k in right)
    if isinstance(right, bool | str):
        return isinstance(mine, type(right))
    return mine is None or not isinstance(right, int | float) or isinstance(mine, int | float)


def kind_of(x: object) -> str:
    """Of which kind a value is, in words."""
    if is_tensor(x):
        return f"a tensor {list(x.shape)}"
    if isinstance(x, tuple | list):
        return f"({', '.join(map(kind_of, x))})"
    if isinstance(x, dict):
        return f"a dictionary of {', '.join(map(repr, x))}"
    words = {bool: "True or False", int: "a whole number", float: "a number", str: "a word"}
    return words.get(type(x), type(x).__name__)


def shown(x: object) -> str:
    """A value as a message holds it; of a tensor the kind."""
    if isinstance(x, tuple | list):
        return f"({', '.join(map(shown, x))})"
    if isinstance(x, dict):
        return f"{{{', '.join(f'{key!r}: {shown(value)}' for key, value in x.items())}}}"
    x = _number(x)
    return kind_of(x) if is_tensor(x) else f"{x:,.6g}" if isinstance(x, float) else repr(x)


def alike(a: object, b: object, close: float) -> bool:
    """Whether two values are equal; floats and tensors up to this share of them, and NaN to NaN."""
    if not (is_tensor(a) and is_tensor(b)):
        a, b = _number(a), _number(b)
    if is_tensor(a) or is_tensor(b):
        import torch

        same_kind = is_tensor(a) and is_tensor(b) and a.shape == b.shape
        return same_kind and torch.allclose(a.double(), b.double(), close, close, equal_nan=True)
    if isinstance(a, tuple | list) and isinstance(b, tuple | list):
        return len(a) == len(b) and all(alike(*pair, close) for pair in zip(a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(alike(a[key], b[key], close) for key in a)
    if isinstance(a, float) or isinstance(b, float):
        if not (isinstance(a, int | float) and isinstance(b, int | float)):
            return False
        return math.isclose(a, b, rel_tol=close) or (math.isnan(a) and math.isnan(b))
    return a == b


def difference(mine: object, right: object, close: float) -> str:
    """What differs between two values of one kind, to follow what they are called; close: as ``alike`` has it."""
    if is_tensor(right):
        import torch

        wrong = ~torch.isclose(mine.double(), right.double(), close, close, equal_nan=True)
        place = tuple(wrong.nonzero()[0].tolist())
        told = f"is {mine[place].item():.4g} at {list(place)}, where it must be {right[place].item():.4g}"
        return f"{told}; {int(wrong.sum())} of {wrong.numel()} numbers are wrong"
    if isinstance(right, tuple) and any(map(is_tensor, right)):
        n = next(n for n, pair in enumerate(zip(mine, right)) if not alike(*pair, close))
        return f"has a {ORDER[n]} result that {difference(mine[n], right[n], close)}"
    return f"must be {shown(right)}, and yours gives {shown(mine)}"
