"""Trial: the same as ``pairs`` in a load that goes on, where energy decides: at three head dimensions and two lengths.

``python -m steps.trials pairs_going_on --sustained --peers flash_attn_4,sdpa_cudnn`` has recorded it.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from steps.core.grids import MASKS
from steps.core.problems import standard
from steps.trials.pairs import TRIAL as PAIRS

LENGTHS, HEAD_DIMS = (4096, 16384), (64, 128, 256)

TRIAL = replace(
    PAIRS,
    name="pairs_going_on",
    question="And in a load that goes on without rest, where the power limit decides?",
    problems=tuple(standard(*shape) for shape in product(LENGTHS, HEAD_DIMS, MASKS)),
)
