"""Part 50 to 59, 130 to 139 and 160 to 169: the backward pass for Hopper, in Gluon.

A kernel is a generation, a module that reads from top to bottom: ``together``, ``output_buffer``, and ``spare``, where
warps beside the producer help. All are made of pieces, which know of no step: ``lib`` has shared memory, mbarriers,
loads and what a block computes, ``products`` what wgmma multiplies, ``adding`` how dQ is added, ``roles`` what parts do
at head_dim 256, ``last`` and ``spare`` who scales dQ. ``rows`` has the small kernels around. ``skeleton`` says which
step has which.
"""

# Modules of pieces that kernels are made of. A piece that a kernel uses once is written out where it is used.
PIECES = ("lib", "products")
