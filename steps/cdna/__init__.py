"""Part 70 to 79: kernels for AMD's CDNA GPUs, in Triton and in Gluon. Compiled and simulated here, and not timed."""
