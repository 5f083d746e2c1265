"""Step 152: the kernel's blocks take their tiles one by one, so that one that begins late delays nobody.

The kernel of step copy_engines has dealt its tiles of queries to all SMs before it starts. The deal assumes that all SMs begin
at once and are equally fast. A kernel over several GPUs begins while others still run on some SMs, and computes while
copies use the same memory. Here a block takes the next tile from a counter when it is ready for one
(``steps.hopper.lib.take_next``). Pairs of blocks, as in step kv_multicast, cannot share what each takes for itself. On two
H200 this step was no faster than step copy_engines: see its record, and the chapter on step zigzag.
"""

from steps.parallel import step150_copy_engines

STEP = step150_copy_engines.STEP.evolve(
    number=152,
    name="tiles_taken",
    title="Tiles are taken, not dealt",
    change="The kernel's blocks take the next tile of queries when they are ready for one; before, each had a list.",
    fork=True,
    taking=True,
)
