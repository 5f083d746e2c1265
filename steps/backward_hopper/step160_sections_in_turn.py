"""Step 160: in turn, without a mask, with heads side by side.

In step adder the blocks of a head begin one right after the other, and without a mask they all begin with the first tile
of queries. A block may add to it when the one before has, and learns of that by way of global memory. If that takes as
long as a block takes for a tile, the last block of a head begins to add as many tiles late as there are blocks before
it. Meanwhile it can compute one tile ahead, and no more.

Here blocks begin in sections of heads, as in step in_sections: first the block with the first keys of every head of a section,
then those with the next keys. So a block begins when the one before it in its head has been at work for a while. It
still waits for blocks with lower numbers alone, which have begun.

To expect, as a hypothesis: what was lost to these waits is gained where there is no mask.

Under a causal mask nothing changes: the block with the last keys comes first, and has the fewest tiles.

What came since step adder is in here, too, where it goes together with turns: whole lines at head_dim 256 (step whole_lines),
kernels that begin early (138), and the newest rows first (139).
"""

from steps.backward_hopper import adding, lib, rows, step132_adder
from steps.core.problems import standard

STEP = step132_adder.STEP.evolve(
    number=160,
    name="sections_in_turn",
    title="Heads side by side, in turn",
    change="Without a mask, blocks in turn begin in sections of heads, so that a block's turn has come when it begins.",
    fork=True,
    sections=True,
    wide_adding=adding.LINES,
    begin=lib.EARLY,
    line_of_block=rows.last_head_first,
    default_problem=standard(4096, causal=False),
)
