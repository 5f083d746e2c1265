"""The backward pass for Blackwell at head_dim 256, in Gluon: compiled and simulated, and never timed.

``variant`` says what the kernels are compiled with; ``lib`` has the pieces that both large kernels share; ``keys`` is
the kernel whose clusters own keys, and computes dK and dV; ``queries`` is the one whose clusters own queries, and
computes dQ; ``skeleton`` launches.
"""

# Modules of pieces that kernels are made of. A piece that a kernel uses once is written out where it is used.
PIECES = ("lib",)
