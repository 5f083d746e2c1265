"""Part 500: the backward pass for Hopper, in Gluon.

A kernel is a generation, a module that reads from top to bottom: ``together``, ``apart``, and ``spare``, where warps
beside the producer help. All are made of pieces, which know of no step: ``lib`` has shared memory, mbarriers, loads and
what a block computes, ``products`` what wgmma multiplies, ``adding`` how dQ is added, ``roles`` what warpgroups do at
head_dim 256. ``rows`` has the small kernels around. ``skeleton`` says which step has which.
"""

# Modules of pieces that kernels are made of. A piece that a kernel uses once is written out where it is used.
PIECES = ("adding", "lib", "products", "rows", "spare")
