"""Part 200 to 299: kernels for Hopper in Gluon.

``one_by_one`` is a kernel without roles. In ``kernel`` a producer warp fetches, and warpgroups compute, as their
generation says. That is a module which reads from top to bottom: ``producer``, ``overlapped``, ``epilogue_overlap``,
``ahead``. All are made of pieces, which know of no step: ``lib`` has shared memory, mbarriers, loads and schedules,
``products`` what wgmma multiplies, ``softmax`` what is done with scores, ``loop`` the loop that overlaps both, ``rest``
its iterations, ``packed``, ``pairs``, ``panels`` and ``pieces`` what some problems need. ``skeleton`` says which step
has which, and ``conditions`` for which problems.
"""

# Modules of pieces that kernels are made of. A piece that a kernel uses once is written out where it is used.
PIECES = ("lib", "loop", "packed", "panels", "pieces", "products", "rest", "softmax")
