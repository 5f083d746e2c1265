"""Step 130: the last block of a head scales dQ.

Behind the large kernel of step even_banks comes a small one, ``scaled``. It reads the sums for dQ from device memory, scales
and rounds them, and writes dQ, while the tensor cores have nothing to do. Here it is gone. Every block counts itself
when it has added all that it adds to dQ. The block that finds all others of its head counted does what ``scaled`` did,
for this head. Step last_merges has the same idea in decoding. With grouped heads the kernels stay as they were: there
a block adds to dQ of all query heads of its kv head, and the last one would have to scale all of these.

To expect, as a hypothesis: the sums of a head have just been added to, so L2 holds them, and the other SMs multiply
meanwhile. Only behind the last blocks of all nothing is left to multiply.
"""

from steps.backward_hopper import last, step58_even_banks

STEP = step58_even_banks.STEP.evolve(
    number=130,
    name="last_scales",
    title="The last block scales dQ",
    change="The last block of a head scales and rounds dQ, in place of a kernel of its own behind all of them.",
    fork=True,
    end=last.scale_if_last,
)
