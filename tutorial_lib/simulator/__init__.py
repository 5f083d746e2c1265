"""Gluon kernels on the CPU: their own source, with torch tensors for tiles, in simulated time.

``launch`` runs a kernel. ``machine`` holds what the model of time knows of an SM; ``processor`` the blocks that an SM
holds, and who goes next; ``block`` the roles of a block, their clocks and what is under way; ``cluster`` two blocks
that share tiles; ``order`` who knows of whose accesses to shared memory; ``values`` and ``memory`` tiles in registers
and in shared memory; ``translate`` makes a Python function of a kernel; ``language``, ``ampere``, ``hopper``,
``blackwell`` and ``cdna`` are the operations; ``under_way`` tells what ran under products. What it is good for, and
what it cannot see: README.md beside this file.
"""
