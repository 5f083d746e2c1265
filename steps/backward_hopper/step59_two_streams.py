"""Step 59: a call in two halves, on two streams.

A backward pass is three kernels, one behind the other. ``prepare`` adds up dO times O and clears the sums for dQ, the
large kernel multiplies, and ``scaled`` rounds the sums. The small ones take the time that device memory needs for their
bytes, and leave the tensor cores idle. Their share is larger the shorter the sequences are: the bytes grow with the
length, and the products with its square.

Here a call is cut in two halves, of the batch or of the heads, and the second half goes to a second stream. Its large
kernel needs nothing of the first half. Calls with few blocks stay whole, as the host pays for twice the launches.

To expect, as a hypothesis: SMs that the first large kernel leaves idle at its end take blocks of the second, and
``scaled`` of the first half runs beside that. ``prepare`` of the second half does not run beside products: it is ready
before the first large kernel may begin.
"""

from steps.backward_hopper import step58_even_banks

STEP = step58_even_banks.STEP.evolve(
    number=59,
    name="two_streams",
    title="Two halves on two streams",
    change="A call is cut in two halves on two streams, so that one may multiply while dQ of the other is scaled.",
    two_streams=True,
)
