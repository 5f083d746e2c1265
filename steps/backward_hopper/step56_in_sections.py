"""Step 56, which goes on from step groups_apart: the longest blocks begin first.

Under a causal mask the block with the first keys has as many turns as there are tiles of queries, and that with the
last keys one or two. A GPU starts blocks in the order of their numbers, head after head so far: near the end of the
kernel long blocks begin, while other SMs have nothing left to do. The fewer blocks there are, as
with short sequences, the more this counts. Here the kv heads are cut into sections, and of a section the longest begin.
A section has about 264 blocks, two for each SM: 132 SMs take as long for all of them as for the longest. It is no
larger, so that several blocks of a head run at a time and find the same Q and dO in L2.

Without a mask all blocks are as long, and nothing changes. Nor with grouped heads: a trial on an H100, which is not
recorded, found sections slower there. A hypothesis why: L2 does not hold Q, dO and dQ of so many heads.
"""

from steps.backward_hopper import step54_groups_apart

STEP = step54_groups_apart.STEP.evolve(
    number=56,
    name="in_sections",
    title="Longest blocks first, in sections of heads",
    change="Under a causal mask, the longest blocks of several heads begin before their shorter ones.",
    sections=True,
)
