"""Step 58: dQ goes to shared memory without bank conflicts.

A part hands its dQ to TMA through shared memory, in float32. TMA's swizzle changes the places of 16-byte chunks within
a row. wgmma leaves a lane pairs of columns, and the pairs of a row's four lanes are two chunks. Two neighbouring rows
have the same two chunks, in another order: their lanes meet in the same banks, and the store takes twice the turns.

Here a lane has four columns side by side, as in step fours. It stores whole chunks, and in odd rows the halves of every
128 bytes change places: two rows then fill all 32 banks. Nobody but the last small kernel reads the sums, and it knows.
At head_dim 256 dQ does not go through shared memory, and nothing changes.

To expect, as a hypothesis: two warp groups store 32 KB a turn at head_dim 128, which took 512 cycles of shared memory
and takes 256 now. The products of a turn take the tensor cores 2560 cycles, and shared memory is busy for most of them.
"""

from steps.backward_hopper import adding, step57_alternate

STEP = step57_alternate.STEP.evolve(
    number=58,
    name="even_banks",
    title="dQ without bank conflicts",
    change="dQ goes to shared memory in chunks of four columns of a lane, so that every store meets every bank once.",
    adding=adding.FOURS_BY_TMA,
)
