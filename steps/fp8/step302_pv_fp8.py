"""Step 302: the PV product in fp8, too.

The weights are rounded to e4m3, which leaves them 3 bits behind the leading one. In 8 bits wgmma reads both factors
along the dimension that it sums over. For the PV product that is the keys, and V has its rows along head_dim. A kernel
of its own writes V transposed before (``steps.fp8.transpose``), and its time is a part of the step's.

wgmma takes the weights from registers. It wants four neighbours of a row in one register, and the QK product has left
two of them in one lane, and two in another. So lanes exchange weights.
"""

from steps.fp8 import step301_qk_fp8
from steps.fp8.products import TRANSPOSED

STEP = step301_qk_fp8.STEP.evolve(
    number=302,
    name="pv_fp8",
    title="PV product in fp8",
    change="The weights are rounded to e4m3, and V is transposed before the kernel runs: the PV product is in fp8.",
    values=TRANSPOSED,
)
