"""Step 142: blocks of short sequences compute which tiles of queries are theirs.

A block of step at_maxima loads where its list begins and ends, and then its first number, before it can ask TMA for
anything: three loads, of which the last waits for the others. A head of a short sequence has few tiles of queries, and
the block needs few turns for each. The loads are a part of its time that counts.

Here the n-th of b blocks computes the tiles n, n + b, n + 2 b and so on, of an order that a formula gives: head after
head. So blocks that need the same keys and values run at the same time, and L2 holds these. Under a causal mask tiles
differ in length, and with 132 blocks and four tiles a head a block would always get, say, the first tile of a head. So
the tiles of a head change places from turn to turn. That comes out even where the blocks are a multiple of a head's
tiles. On an H100 they are, up to four tiles; on other GPUs a few SMs get no block. Beyond four tiles blocks read lists
as before. With 512 tokens under the mask the step is not faster than at_maxima, and once slower (chapter 120).
"""

import dataclasses

from steps.core.order import DEALT
from steps.core.problems import standard
from steps.hopper import step39_at_maxima

STEP = step39_at_maxima.STEP.evolve(
    number=142,
    name="computed_tiles",
    title="No lists for short sequences",
    change="Where a head has up to four tiles of queries, blocks compute which are theirs, and read no lists.",
    fork=True,
    default_problem=dataclasses.replace(standard(256), batch=32),
    order=dataclasses.replace(DEALT, computed=True),
)
