"""Steps 600 to 604: kernels for Blackwell in Gluon. They are compiled and simulated; none of them was timed.

Three kernels read from top to bottom: ``together``, whose warps all do the same, ``roles``, and ``correction``, which
has one more role. They are made of pieces: ``columns`` says where scores, weights and outputs lie in tensor memory,
``sharing`` what TMA brings, to one block or two, ``taking`` which tiles of queries a block computes, and ``softmax``
what is done with scores. ``variant`` has constants and layouts, and ``skeleton`` launches.
"""

# Modules of pieces that kernels are made of. A piece that a kernel uses once is written out where it is used.
PIECES = ("columns", "roles", "sharing", "softmax", "taking")
