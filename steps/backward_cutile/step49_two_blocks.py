"""Step 49: tiles, warps and blocks an SM as a search found them.

A block of the steps before takes so many registers that an SM holds one, and at head_dim 128 so much shared memory.
While its four warps wait, or compute what stands between two products, nobody else is there to use the tensor cores.
The hint ``occupancy=2`` asks the compiler for code that leaves room for a second block: fewer registers, and fewer
tiles under way. At head_dim 128 the kernel for dQ is faster still with one block of larger tiles and eight warps.

``python -m steps.search --direction backward`` times each kernel over tiles, warps and this hint. The launch rules
(``steps/core/rules.toml``, tables ``searched_keys`` and ``searched_queries``) hold the fastest for an architecture and
head_dim. Where they hold none, the step is the one before.
"""

from steps.backward_cutile import step48_prepared

STEP = step48_prepared.STEP.evolve(
    number=49,
    name="two_blocks",
    title="Found by a search: two blocks an SM",
    change="Tiles, warps and blocks an SM of both kernels are those that a recorded search found fastest.",
    searched=True,
)
