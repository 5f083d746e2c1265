"""Trial: a scale of K for each 64 keys, in place of one for each head.

A tile of keys has two such scales, so columns of the scores have a factor each: it is multiplied before the maxima are
found. Here the factors are computed, and equal, so that what comes out is right. A kernel would also load them, and
multiply columns of the weights by the scales of V: this is the least that it would cost.
"""

from __future__ import annotations

from dataclasses import replace

from steps.core.problems import FULL, HEADLINE, standard
from steps.trials.trial import Trial
from tutorial_lib.problem import FP8

# A block's number has less than 31 bits, which the compiler does not know.
BESIDE = """
def of_blocks(scores, scale):
    column = gl.arange(0, scores.shape[1], gl.SliceLayout(0, scores.type.layout))
    other = scale + (gl.program_id(0) >> 30).to(gl.float32)
    return gl.where(column < 64, scale, other)[None, :]
"""
RAISE_MAXIMA = """
def raise_maxima(scores, row_max, scale):
    return gl.maximum(row_max, gl.max(scores * of_blocks(scores, scale), 1) - OFFSET)
"""
WEIGH = """
def weigh(scores, row_max, scale):
    return exp2(scores * of_blocks(scores, scale) - row_max[:, None])
"""

TRIAL = Trial(
    name="block_scales",
    question="How much would step p_offset slow down with a scale of K for each 64 keys?",
    base="p_offset",
    values=("off", "on"),
    problems=tuple(replace(shape, dtype=FP8) for shape in (HEADLINE, FULL, standard(head_dim=256, causal=True))),
    functions=lambda value: {"raise_maxima": RAISE_MAXIMA, "weigh": WEIGH} if value == "on" else {},
    beside=BESIDE,
)
