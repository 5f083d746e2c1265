"""Steps 600 to 604: kernels for Blackwell in Gluon. They are compiled and simulated; none of them was timed.

``variant`` says what there is to choose and what follows; ``columns`` where scores, weights and outputs lie in tensor
memory; ``softmax`` what is done with scores; ``together`` is the kernel whose warps all do the same, ``roles`` the one
whose warps have roles; ``kernel`` puts them together, and ``skeleton`` launches.
"""

# Modules of pieces that kernels are made of. A piece that a kernel uses once is written out where it is used.
PIECES = ("columns", "softmax", "taking", "together")
