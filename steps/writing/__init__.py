"""A kernel's text: the source of one kernel, as one plain piece of Python, made from the skeleton that runs.

``flat.flatten`` is the way in. ``fold`` finds out what is left of each function when its constants are known,
``program`` writes that down with names for the constants, ``tidy`` takes away what has lost its purpose, ``prune``
takes away fields that nothing reads and what docstrings say of what is gone, ``inline`` writes functions that are
called once where they are called, ``once`` takes away what is then said twice; ``values`` and ``trees`` are what they
share. ``shown`` takes away parameters of the kernel itself that nothing reads, which its launch passes on.
``written`` makes a step's text, and a step of a text; ``functions`` puts other functions in place of a kernel's.
"""
