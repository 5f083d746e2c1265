"""Small Gluon kernels of the chapters that come before a part, each with one thing to show.

``first_kernels`` belongs to chapter 100_explicit. ``steps.primers.show`` shows a kernel's text and its machine code.
``barriers`` and ``roles`` belong to chapter 199_barriers. ``steps.primers.simulated`` runs their kernels, as they are,
broken, or with a learner's function.
"""
