"""Step 26, on the fork of step shared_kv: Q in registers.

Q is the same in every turn of the loop. It goes through the buffer of K once and stays in registers, in the layout of
a left factor: its shared memory is gone, and so are its ldmatrix in every turn. The price is head_dim / 4 registers a
thread.
"""

from steps.core.problems import few_heads
from steps.gluon import step25_shared_kv

STEP = step25_shared_kv.STEP.evolve(
    number=26,
    name="q_registers",
    title="Q in registers",
    change="Q goes through K's buffer once and is held in registers.",
    default_problem=few_heads(),
    query_in_registers=True,
)
