"""The backward pass for Hopper, in Gluon.

``variant`` says what there is to choose and what follows; ``pipeline`` brings tiles to shared memory, ``consumer``
multiplies, ``adding`` adds to dQ, ``rows`` has the small kernels before and after, ``kernel`` puts them together.
"""
