"""Steps 300 to 307: attention for Hopper whose inputs are in fp8, in Gluon; steps 306 and 307 are in cuTile.

``kernel`` has a producer warp and two warpgroups that compute, as ``steps.hopper.overlapped`` has. ``products`` holds
what steps replace in it: how V and the weights come to the PV product, and how its sums are kept. ``transpose`` writes
V transposed. ``skeleton`` says which step has which. ``cutile`` is the skeleton of step 306, whose kernel is that of
``steps.cutile``, and ``decoding`` that of step 307, whose kernel is that of ``steps.everyday``.
"""
