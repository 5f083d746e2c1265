"""The producer's side of a small ring: two copies, one barrier."""

from steps.exercises.in_kernel import copies_overlap
from steps.primers.simulated import InPrimer, simulated, text_of, with_function
from tutorial_lib.exercises import Wrong, source_of


class RingProducer(InPrimer):
    """Also refuses a producer that is right, and waits for its copies."""

    def judge(self, function, chance):
        wrong = super().judge(function, chance)
        if wrong is None:
            text = with_function(text_of(self.primer), self.function, source_of(function))
            _, run = simulated(text, self.case, chance, trace=True, **self.how)
            wrong = copies_overlap(run, None)
        return wrong and wrong[0].upper() + wrong[1:]


EXERCISE = RingProducer(
    name="ring_producer",
    primer="roles",
    case="matmul",
    how={},
    function="bring",
    typical=(
        (
            r"deadlock.*-\d+ bytes missing",
            "More bytes came than you announced. Two tiles report to this barrier, so their bytes are announced "
            "together.",
        ),
        (
            r"deadlock.*[1-9]\d* bytes missing",
            "You announced more bytes than TMA brings: does every copy that you ask for report to the barrier `full` "
            "of this slot?",
        ),
        (
            r"deadlock.*produce 1 waits for ring.empty\[0\] with parity 0 \(0 phases",
            "The producer waits for slot 0 to be given back before anybody has used it. In the first round the wait "
            "for `empty` must pass at once.",
        ),
        (
            r"deadlock.*produce 1 waits for ring.empty",
            "The producer waits for a phase of `empty` that does not come. How often has this slot been used?",
        ),
        (
            r"deadlock.*consume 0 waits for ring.full.*arrivals missing",
            "The consumer waits for a slot that nobody announced: which slot does this tile belong to?",
        ),
        (
            r"race on[^\n]*read by wgmma",
            "The consumer multiplies a tile that has not come yet. `full` must count the bytes of both tiles before "
            "its phase is complete.",
        ),
        (
            r"race on",
            "TMA writes into a slot that the consumer may still be reading. The wait for `empty` must come before the "
            "copies, and name the parity of this use of the slot.",
        ),
        (
            r"more arrivals than.*# source.*expect\(.*expect\(",
            "`expect` is an arrival, and the barrier wants one a phase: announce the bytes of both copies together.",
        ),
        (
            r"more arrivals than",
            "The producer announces a tile for a slot whose last tile has not come yet: nothing holds it back. The "
            "wait for `empty` must come before the copies, and name the parity of this use of the slot.",
        ),
        (
            r"first wrong number",
            "Everything is in order, but the tiles are not the right ones: look at the coordinates.",
        ),
    ),
    hints=(
        "Which slot does tile n have, and how often was it used before? Wait until it is empty, announce the bytes, "
        "ask for both tiles.",
        "The slot is n % STAGES, and it was used n // STAGES times. The wait for `empty` has the parity n // STAGES & "
        "1 ^ 1.",
        "Both copies report to `ring.full.index(stage)`: announce 2 * TILE_BYTES once. Tile n of a begins at [0, n * "
        "SIDE], tile n of b at [n * SIDE, 0].",
    ),
    solution="""
def bring(a, b, ring, n):
    stage = n % STAGES
    mbarrier.wait(ring.empty.index(stage), n // STAGES & 1 ^ 1)
    mbarrier.expect(ring.full.index(stage), 2 * TILE_BYTES)
    tma.async_load(a, [0, n * SIDE], ring.full.index(stage), ring.a.index(stage))
    tma.async_load(b, [n * SIDE, 0], ring.full.index(stage), ring.b.index(stage))
""",
    wrong=(
        Wrong("empty starts closed", "In the first round", old=" ^ 1", new=""),
        Wrong(
            "the parity of the tile", "How often has this slot been used", old="n // STAGES & 1 ^ 1", new="n & 1 ^ 1"
        ),
        Wrong("bytes of one tile", "count the bytes of both tiles", old="2 * TILE_BYTES", new="TILE_BYTES"),
        Wrong(
            "no wait for empty",
            "nothing holds it back",
            old="mbarrier.wait(ring.empty.index(stage), n // STAGES & 1 ^ 1)",
            new="pass",
        ),
        Wrong(
            "empty is waited for behind the copies",
            "must come before the copies",
            without="mbarrier.wait(",
            behind="tma.async_load(b",
        ),
        Wrong(
            "the copies are waited for",
            "never for a copy to end",
            source="""
def bring(a, b, ring, n):
    stage = n % STAGES
    mbarrier.wait(ring.empty.index(stage), n // STAGES & 1 ^ 1)
    mbarrier.expect(ring.full.index(stage), 2 * TILE_BYTES)
    tma.async_load(a, [0, n * SIDE], ring.full.index(stage), ring.a.index(stage))
    tma.async_load(b, [n * SIDE, 0], ring.full.index(stage), ring.b.index(stage))
    mbarrier.wait(ring.full.index(stage), n // STAGES & 1)
""",
        ),
        Wrong("the rows of b do not move", "look at the coordinates", old="[n * SIDE, 0]", new="[0, 0]"),
        Wrong("always the same parity", "nothing holds it back", old="n // STAGES & 1 ^ 1", new="1"),
        Wrong(
            "announced twice",
            "announce the bytes of both copies together",
            old="2 * TILE_BYTES)",
            new="TILE_BYTES)\n    mbarrier.expect(ring.full.index(stage), TILE_BYTES)",
        ),
    ),
    debrief="Wait until the slot is empty, announce all bytes once, ask for the tiles. The producer never waits for a "
    "copy to end: that is the consumer's wait.",
)
