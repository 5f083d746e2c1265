"""Part 30 to 39: kernels for Hopper in Gluon.

``variant`` says what there is to choose and what follows; ``pipeline`` brings tiles to shared memory, ``softmax`` works
on scores, ``consumer`` multiplies, ``kernel`` puts them together and launches.
"""
