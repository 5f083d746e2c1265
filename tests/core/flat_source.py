"""Functions for the tests of ``steps.writing.flat``: small skeletons with switches, as plain Python."""

from dataclasses import dataclass
from typing import NamedTuple

from triton.experimental.gluon import language as gl

LIMIT = 10


@dataclass(frozen=True)
class Choice:
    """A switch and two numbers that go together."""

    doubled: bool
    width: int
    stages: int = 2


@dataclass(frozen=True)
class Choices:
    """One switch, and another."""

    one: Choice
    other: Choice


class Pair(NamedTuple):
    """Two numbers, and more. offset: what is added; spare: what other kernels read.

    beside: what other kernels read, too. It may be nothing.
    """

    first: object
    offset: object
    second: object
    spare: object
    beside: object = None


def double(x):
    """Twice x."""
    return x + x


def triple(x):
    """Three times x."""
    return x + x + x


def widen(x, choice):
    """x times the width, doubled or not."""
    if choice.doubled:  # noqa: SIM108  a branch is what is to be tested
        x = double(x)  # said beside the line
    else:
        x = -x
    # said before the line
    return x * choice.width


def branches(x, choice):
    """A switch that is known, and a test that is not."""
    x = widen(x, choice)
    if x > LIMIT:
        return x
    return x if choice.stages > 1 else -x


def hole(x, how, choice):
    """A function that is handed in."""
    total = 0
    for n in range(choice.stages):
        total += how(x + n)
    return total


def structure(x, choice):
    """A tuple with names, and a name that is taken.

    choice: what is compiled in. It is gone.

    Why it is so stays in the source.
    """
    width = x + 1
    pair = Pair(width, 0, x * choice.width, width, beside=None)
    return pair.first - pair.second + pair.offset


def slot(iteration, choice):
    """Twice the iteration's slot in a ring: a sum in place of the parameter needs parentheses."""
    found = iteration % choice.stages
    return found * 2


def sum_once(x, choice):
    """The parameter is read once, so the argument stands in its place."""
    found = slot(x + 1, choice)
    return found


def slot_and_number(n, choice):
    """A number from a slot, and the number itself: the parameter is read twice."""
    found = n % choice.stages * 10
    found = found + n
    return found


def explained(x, choice):
    """As ``widen``, where nothing is doubled (``triple``). As ``explained``, which is there."""
    LN2: gl.constexpr = 0.6931471805599453
    found = slot_and_number(x + 1, choice)
    return found * LN2


def said_again(x, choice):
    """The same twice, and then with another number."""
    # three numbers
    row = x * 2
    found = [row]
    # three numbers
    row = x * 2
    found = found + [(row + 1)]  # noqa: RUF005
    x = x + 1
    row = x * 2
    return found[0] + found[1] + row


def one_more(x):
    """x and one."""
    return x + 1


def at_most(x):
    """x, but no more than the limit."""
    if x > LIMIT:
        x = LIMIT
    return x


def one_list(x, choice):
    """Two lists, of which one is in parentheses, are one list."""
    return ([x, x + 1]) + [choice.width]  # noqa: RUF005


def in_short(x, choice):
    """A function that is one expression, and one that changes what it is given."""
    y = one_more(x) * choice.width
    y = at_most(y)
    return y


def largest_and_last(x):
    """Two numbers; ``last`` is another one, which is read until the end."""
    last = x + 1
    kept = x
    for n in range(3):
        kept = kept * 2 + n
        x = x + last
    return x, kept


def crossed(x, choice):
    """The caller calls by a name what the callee has for something else."""
    largest, last = largest_and_last(x)
    return largest * choice.width - last


def both_ways(x, choices):
    """The same function, called with two constants."""
    return widen(x, choices.one) + widen(x, choices.other)


def idle(x, choice):
    """Two values that nothing reads."""
    tiles = gl.cdiv(x, choice.width)  # noqa: F841
    loaded = gl.load(x)  # noqa: F841
    return x


def ends_early(x, choice):
    """What stands behind a return that is taken is gone."""
    if choice.doubled:
        return x
    y = undefined_here(x)  # noqa: F821
    return y


def strange(x, choice):
    """A name that nothing explains."""
    return nowhere(x) if choice.doubled else x  # noqa: F821
