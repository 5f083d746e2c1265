"""Part 20 to 29: kernels in Gluon with the instructions of Ampere. The skeleton is in ``kernel``."""
