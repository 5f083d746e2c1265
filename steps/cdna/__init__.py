"""Steps 700 to 704: kernels for AMD's CDNA GPUs, in Triton and in Gluon. Compiled and simulated here, and not timed."""
