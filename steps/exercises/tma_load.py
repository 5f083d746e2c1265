"""A load with TMA: announce the bytes, ask for the box, wait for the phase."""

from steps.primers.simulated import InPrimer
from tutorial_lib.exercises import Wrong

EXERCISE = InPrimer(
    name="tma_load",
    primer="barriers",
    case="double",
    how={},
    function="load_box",
    typical=(
        (
            r"deadlock.*1 of 1 arrivals missing, -\d+ bytes",
            "Bytes came that nobody had announced, and nobody arrived: `expect` does both, and must come first.",
        ),
        (
            r"deadlock.*-\d+ bytes missing",
            "TMA brought more bytes than you announced. The barrier counts bytes: rows times columns is a number of "
            "elements.",
        ),
        (
            r"deadlock.*[1-9]\d* bytes missing",
            "The barrier still waits for bytes that nobody brings. Does what you announce agree with the box, and have "
            "you asked TMA for it?",
        ),
        (
            r"deadlock.*1 of 1 arrivals missing",
            "Nobody arrives at the barrier in the phase that is waited for: either `expect`, which is the arrival, is "
            "missing, or the wait names the wrong parity.",
        ),
        (
            r"more arrivals than",
            "Somebody arrives too often. `expect` is an arrival, too, and the barrier was made for one arrival a "
            "phase.",
        ),
        (
            r"race on place",
            "The kernel goes on before the bytes have come. Is there a wait, and does it name the parity of this use, "
            "which changes from one use to the next?",
        ),
        (r"first wrong number", "The wait is in order, but the wrong rows have come: look at the coordinates."),
    ),
    hints=(
        "Three statements: announce the bytes to the barrier, ask TMA for the box, wait at the barrier.",
        "A box has ROWS * COLUMNS elements of 2 bytes. `tma.async_load(tensor, [row, column], "
        "barrier, place)` asks for it.",
        "Use 0 of the barrier completes phase 0, use 1 phase 1, and so on. The parity of phase n is n & 1.",
    ),
    solution="""
def load_box(source, row, place, ready, n):
    mbarrier.expect(ready, ROWS * COLUMNS * 2)
    tma.async_load(source, [row, 0], ready, place)
    mbarrier.wait(ready, n & 1)
""",
    wrong=(
        Wrong("elements in place of bytes", "The barrier counts bytes", old=" * 2", new=""),
        Wrong("bytes of float32", "waits for bytes that nobody brings", old=" * 2", new=" * 4"),
        Wrong("parity 0 every time", "which changes from one use to the next", old="n & 1", new="0"),
        Wrong("the other parity", "Is there a wait", old="n & 1", new="n & 1 ^ 1"),
        Wrong("no wait", "Is there a wait", old="mbarrier.wait(ready, n & 1)", new="pass"),
        Wrong(
            "nothing announced",
            "nobody had announced",
            old="mbarrier.expect(ready, ROWS * COLUMNS * 2)",
            new="pass",
        ),
        Wrong(
            "an arrival beside expect",
            "Somebody arrives too often",
            old="mbarrier.wait(",
            new="mbarrier.arrive(ready, count=1)\n    mbarrier.wait(",
        ),
        Wrong("always the first box", "look at the coordinates", old="[row, 0]", new="[0, 0]"),
        Wrong("coordinates swapped", "look at the coordinates", old="[row, 0]", new="[0, row]"),
    ),
    debrief="Every copy with TMA is these three statements. In the kernels of this part they stand in different roles: "
    "the producer announces and asks, a consumer waits.",
)
