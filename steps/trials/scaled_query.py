"""Trial: Q is multiplied by the scale once, before the first product, instead of every score.

Step scaled_query does so on AMD's CDNA. What is saved is little: the subtraction of the maximum is then an addition
instead of a fused multiply-add, and a row's maximum needs no multiplication. What it costs: Q goes from shared memory
to registers and back, and is rounded to 16 bits once more.

Found on an H100: the rounds do not tell it from the step as it is, and the error is larger. Chapter 701_mfma shows the
record.
"""

from __future__ import annotations

from dataclasses import dataclass

from steps import get_step
from steps.core.problems import FULL, HEADLINE, standard
from steps.trials.trial import Trial
from steps.writing.written import edited, write_step

CONSUMER = "@gluon.jit\ndef consume("
SCALE = '''@gluon.jit
def scale_in_place(query, scale):
    """Multiply a part's queries [query, head_dim] where they are, before wgmma reads them there."""
    LANES: gl.constexpr = HEAD_DIM // 8
    ROWS_16_BYTES: gl.constexpr = gl.BlockedLayout([1, 8], [32 // LANES, LANES], [4, 1], [1, 0])
    scaled = query.load(ROWS_16_BYTES).to(gl.float32) * scale
    query.store(scaled.to(query.dtype))
    fence_async_shared()


'''
FIRST = "    scores = issue_scores(part_of(tiles.query, 0, part), tiles.key, 0)\n"
NEXT = "            await_tile(barriers.query_full, query_turn + 1, QUERY_STAGES)\n"
# Text, and no functions that are named: nothing that begins the first product for a tile of queries knows the scale.
EDITS = (
    (CONSUMER, SCALE + CONSUMER),
    (FIRST, "    scale_in_place(part_of(tiles.query, 0, part), scale)\n" + FIRST),
    (NEXT, NEXT + "            scale_in_place(part_of(tiles.query, query_turn + 1, part), scale)\n"),
    ("in_one_chain(scores) * scale", "in_one_chain(scores)"),
    ("exp2(scores * scale - row_max[:, None])", "exp2(scores - row_max[:, None])"),
)


@dataclass(frozen=True)
class ScaledQuery(Trial):
    """For head_dim up to 128, where the first product for the next queries is begun early."""

    def version(self, value, problem, **named):
        step = write_step(get_step(self.base), problem, **named)
        return edited(step, *EDITS) if value == "on" else step


TRIAL = ScaledQuery(
    name="scaled_query",
    question="Would it be faster to multiply Q by the scale once, instead of every score?",
    base="pv_wait_after_max",
    values=("off", "on"),
    problems=(standard(head_dim=64), FULL, HEADLINE),
)
