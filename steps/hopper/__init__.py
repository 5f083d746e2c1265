"""Part 30 to 39, and on from 120: kernels for Hopper in Gluon.

``variant`` says what there is to choose and what follows; ``pipeline`` brings tiles to shared memory, ``softmax`` works
on scores, ``consumer`` multiplies, ``pairs`` lets two blocks share what is fetched, ``kernel`` puts them together.
"""
