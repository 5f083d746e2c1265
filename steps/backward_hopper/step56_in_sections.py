"""Step 56, which goes on from step 54: the longest blocks begin first.

Under a causal mask the block with the first keys has as many turns as there are tiles of queries, and that with the
last keys one or two. A GPU starts blocks in the order of their numbers, head after head so far: near the end of the
kernel long blocks begin, while other SMs have nothing left to do. The fewer blocks there are, as
with short sequences, the more this counts. Here the blocks of 16 kv heads are a section, and of a section the longest
begin. It is no larger, so that several blocks of a head run at a time and find the same Q and dO in L2.

Without a mask all blocks are as long, and nothing changes. Nor with grouped heads, at head_dim 256, or with more than
4096 queries: a trial on an H100, which is not recorded, found sections slower there. A hypothesis why: L2 does not hold
Q, dO and dQ of 16 heads.
"""

from steps.backward_hopper import step54_groups_apart

STEP = step54_groups_apart.STEP.evolve(
    number=56,
    name="in_sections",
    title="Longest blocks first, in sections of heads",
    change="Under a causal mask, the longest blocks of several heads begin before their shorter ones.",
    sections=True,
)
