"""Part 300 to 399: attention for Hopper whose inputs are in fp8, in Gluon.

``kernel`` has a producer warp and two warpgroups that compute, as ``steps.hopper.overlapped`` has. ``products`` holds
what steps replace in it: how V and the weights come to the PV product, and how its sums are kept. ``transpose`` writes
V transposed. ``skeleton`` says which step has which.
"""
