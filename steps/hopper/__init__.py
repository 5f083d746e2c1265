"""Part 30 to 39, and on from 120: kernels for Hopper in Gluon.

A kernel is a generation, a module that reads from top to bottom: ``one_by_one``, ``producer``, ``overlapped``,
``linked``, ``ahead``. All are made of pieces, which know of no step: ``lib`` has shared memory, mbarriers, loads and
schedules, ``products`` what wgmma multiplies, ``softmax`` what is done with scores, ``loop`` the loop that overlaps
both, ``rest`` its turns, ``packed``, ``pairs`` and ``pieces`` what some problems need. ``skeleton`` says which step
has which.
"""

# Modules of pieces that kernels are made of. A piece that a kernel uses once is written out where it is used.
PIECES = ("lib", "packed", "pieces", "products", "softmax")
