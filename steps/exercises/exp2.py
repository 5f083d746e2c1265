"""Powers of two: the scale absorbs the change of base."""

from types import SimpleNamespace

from steps.core.tiles import Tile
from steps.exercises.in_cutile import InCuTile
from tutorial_lib.exercises import Wrong, define


class Work:
    """What is done to every score before its exponential, counted by a function that gets stand-ins for its tiles."""

    def __init__(self):
        self.multiplied, self.subtracted, self.exp, self.kept = [], 0, False, False
        self.ct = SimpleNamespace(
            max=lambda x, axis=None, keepdims=False: self._maximum(x),
            maximum=lambda a, b: Stand(self, whole=_whole(a) or _whole(b)),
            exp=lambda x, **_: self._exponential(x, exp=True),
            exp2=lambda x, flush_to_zero=False, **_: self._exponential(x, kept=not flush_to_zero),
        )

    def _maximum(self, x):
        x.use("max")
        return Stand(self)

    def _exponential(self, x, exp=False, kept=False):
        self.exp, self.kept = self.exp or exp, self.kept or kept
        return Stand(self, whole=_whole(x))

    @property
    def instructions(self) -> int:
        """Of each score; a product that is used once, in a subtraction, makes one instruction with it."""
        fused = sum(product.uses == ["minus"] for product in self.multiplied)
        return len(self.multiplied) + self.subtracted - fused


class Stand:
    """A number for each score, if whole, or else for each row, or one."""

    def __init__(self, work, whole=False):
        self.work, self.whole, self.uses = work, whole, []

    def use(self, how):
        self.uses.append(how)
        return self

    def __mul__(self, other):
        made = Stand(self.work, self.use("times").whole or _whole(other))
        if made.whole:
            self.work.multiplied.append(made)
        return made

    def __sub__(self, other):
        made = Stand(self.work, self.use("minus").whole or _whole(other))
        if isinstance(other, Stand):
            other.use("minus")
        self.work.subtracted += made.whole
        return made

    __rmul__ = __truediv__ = __mul__
    __add__ = __radd__ = __rsub__ = __sub__

    def __neg__(self):
        return self * -1.0


def _whole(x) -> bool:
    return getattr(x, "whole", False)


def work_of(exercise, source: str, chance) -> str | None:
    """The plain softmax gives the same numbers, with more work."""
    work = Work()
    own = define(source, exercise.function, ct=work.ct, INVERSE_LN2=1.4426950408889634)
    try:
        own(Stand(work, whole=True), Stand(work), 0.125)
    except Exception:
        return None  # what the stand-ins do not know is not counted
    if work.exp:
        return "The output is right, but `ct.exp` is still there. Use `ct.exp2` for the weights and the correction."
    if work.kept:
        return (
            "The output is right, but a `ct.exp2` still takes care of subnormal numbers, which costs instructions: "
            "give it `flush_to_zero=True`."
        )
    if work.instructions > 1:
        return (
            f"The output is right, but every score takes {work.instructions} instructions before its exponential, and "
            "one is enough. Take the maximum of the scores as they are, and multiply the maximum. Then `scores * scale "
            "- new_max` is the only line that multiplies or subtracts all scores."
        )
    return None


EXERCISE = InCuTile(
    name="exp2",
    step="exp2",
    function="softmax_exp2",
    last=work_of,
    kinds=(
        {"causal": True, "heads": 1},
        {"dtype": "bfloat16", "kv_heads": 1},
        {"causal": True, "heads": 3, "scale": 8.0},  # a maximum that is not the largest score shows
    ),
    lengths=(130, 220),
    tile=Tile(64, 32),  # some rows see no key of a tile that others see
    hints=(
        "e^x is 2^(x / ln 2). The exponent is scores * scale minus a maximum. Which of its factors can take 1 / ln 2 "
        "along, so that no score is multiplied twice?",
        "Multiply scale by INVERSE_LN2 first. With that scale everything is in units of powers of two: the exponents "
        "of weights, the maximum, and the exponent of correction. The order of work is that of softmax_exp.",
        "The new maximum is that of row_max and of ct.max(scores, axis=1, keepdims=True) * scale. weights are "
        "ct.exp2(scores * scale - new_max, flush_to_zero=True), and correction is the same of row_max - new_max.",
    ),
    solution="""
def softmax_exp2(scores, row_max, scale):
    scale = scale * INVERSE_LN2
    new_max = ct.maximum(row_max, ct.max(scores, axis=1, keepdims=True) * scale)
    weights = ct.exp2(scores * scale - new_max, flush_to_zero=True)
    correction = ct.exp2(row_max - new_max, flush_to_zero=True)
    return weights, correction, new_max
""",
    wrong=(
        Wrong(
            "the base changes and the scale does not, so that e is taken for 2",
            old="scale = scale * INVERSE_LN2",
            new="scale = scale * 1.0",
        ),
        Wrong("the scale is multiplied by ln 2, and not by 1 / ln 2", old="* INVERSE_LN2", new="/ INVERSE_LN2"),
        Wrong(
            "the weights are powers of 2, and the correction is still a power of e",
            old="ct.exp2(row_max - new_max, flush_to_zero=True)",
            new="ct.exp(row_max - new_max)",
        ),
        Wrong(
            "the maximum is that of scores without the scale, so that weights are far below 1 and vanish in 16 bits",
            old="keepdims=True) * scale)",
            new="keepdims=True))",
        ),
        Wrong("the maximum is not subtracted", old="scores * scale - new_max", new="scores * scale"),
        Wrong(
            "the maximum is that of this tile alone, which is minus infinity for a row that sees no key of it",
            old="ct.maximum(row_max, ct.max(scores, axis=1, keepdims=True) * scale)",
            new="ct.max(scores, axis=1, keepdims=True) * scale",
        ),
        Wrong(
            "the old maximum is scaled again",
            "scale=8",
            old="ct.maximum(row_max, ct.max(scores, axis=1, keepdims=True) * scale)",
            new="ct.maximum(row_max, ct.max(scores, axis=1, keepdims=True)) * scale",
        ),
        Wrong(
            "powers of e",
            "`ct.exp` is still there",
            source="""
def softmax_exp2(scores, row_max, scale):
    scores = scores * scale
    new_max = ct.maximum(row_max, ct.max(scores, axis=1, keepdims=True))
    weights = ct.exp(scores - new_max)
    correction = ct.exp(row_max - new_max)
    return weights, correction, new_max
""",
        ),
        Wrong(
            "subnormal weights are kept",
            "takes care of subnormal",
            old="scores * scale - new_max, flush_to_zero=True",
            new="scores * scale - new_max",
        ),
        Wrong(
            "all scores are scaled first",
            "every score takes 2 instructions",
            source="""
def softmax_exp2(scores, row_max, scale):
    scores = scores * (scale * INVERSE_LN2)
    new_max = ct.maximum(row_max, ct.max(scores, axis=1, keepdims=True))
    weights = ct.exp2(scores - new_max, flush_to_zero=True)
    correction = ct.exp2(row_max - new_max, flush_to_zero=True)
    return weights, correction, new_max
""",
        ),
        Wrong("the correction is the wrong way round", old="row_max - new_max", new="new_max - row_max"),
    ),
    debrief="The factor 1 / ln 2 costs nothing: the scale, which every score is multiplied by anyway, takes it along. "
    "Subtracting the maximum then makes one fused multiply-add of both.",
)
