"""Trial: persistent blocks take the next tile of queries from a counter, and no list is dealt to them.

The deal stands on an estimate: a tile of queries costs as many iterations as it has tiles of keys, and one more. It
cannot know that one SM is slower than another, or is still busy with the kernel before. What is taken needs no
estimate, and costs an addition in global memory for every tile of queries (``steps.hopper.lib.take_next``).

Found on an H100: under a causal mask it is slower, most on a short sequence; without a mask it gains less than what
counts as noise. Chapter 604_two_cta_mma shows the record.
"""

from __future__ import annotations

from steps import get_step
from steps.core.problems import FULL, HEADLINE, standard
from steps.trials.trial import Trial

STEP = "pv_wait_after_max"
# Off is the step with its lists.
TRIAL = Trial(
    name="taken",
    question="Would it be faster if each block took the next tile when ready, and had no list made in advance?",
    base=STEP,
    made=lambda value, _: get_step(STEP).taking_tiles() if value == "on" else get_step(STEP),
    values=("off", "on"),
    problems=(HEADLINE, FULL, standard(head_dim=64, causal=True), standard(1024, causal=True), standard(head_dim=256)),
)
