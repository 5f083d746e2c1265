"""Step 72: copies straight into LDS.

gfx950 can copy 16 bytes a lane from memory to LDS, past the registers (buffer_load_dwordx4 ... lds). The copy goes on
by itself, as cp.async does on NVIDIA's: a kernel begins it, commits what it has begun as a group, and waits later until
so many groups are left. So LDS gets two tiles of K and of V: one is used while the next one comes.

Three things are AMD's own. A wave waits for its own copies only, so that all waves must meet behind the wait; the
compiler sees to that. The lanes of one copy must fill 1024 bytes in a row, as the hardware knows one address in LDS for
the whole wave. Padding could only stand behind these; a swizzle that stays within a row goes with them: chunks of 16
bytes change places, and the lanes exchange their addresses in memory instead. With 64 banks of 4 bytes, 16 lanes that
read 16 bytes of different rows of K find them in different banks. Reads of V, which are transposed, meet four rows that
follow each other, and find them in the same banks still (``tutorial_lib.layouts``, a model). And the kernel says
itself when it has waited, by ``load_shared_relaxed``, and when all waves have read a tile, by a barrier, before the
next copy overwrites it. Triton 3.9 would see to both: with ordinary reads and without that barrier it makes the same
code. Before, it waited for all copies in front of every ordinary read of LDS.

What to expect: memory's latency is hidden behind a turn of the loop, and no register holds what only passes through.
"""

from steps.cdna import step71_mfma
from steps.cdna.variant import Transfer

STEP = step71_mfma.STEP.evolve(
    number=72,
    name="direct",
    title="Direct to LDS",
    change="Tiles go straight to LDS, swizzled: the next one is copied while this one is used.",
    transfer=Transfer(direct=True, stages=2, swizzle=True),
)
