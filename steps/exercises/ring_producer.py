"""The producer's side of a small ring: two copies, one barrier."""

from steps.exercises.produce import copies_overlap
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
            "You announced more bytes than TMA brings: does every copy that you ask for report to the barrier `ready` "
            "of this place?",
        ),
        (
            r"deadlock.*produce 1 waits for ring.free\[0\] with parity 0 \(0 phases",
            "The producer waits for place 0 to be given back before anybody has used it. In the first round the wait "
            "for `free` must pass at once.",
        ),
        (
            r"deadlock.*produce 1 waits for ring.free",
            "The producer waits for a phase of `free` that does not come. How often has this place been used?",
        ),
        (
            r"deadlock.*consume 0 waits for ring.ready.*arrivals missing",
            "The consumer waits for a place that nobody announced: which place does this tile belong to?",
        ),
        (
            r"race on[^\n]*read by wgmma",
            "The consumer multiplies a tile that has not come yet. `ready` must count the bytes of both tiles before "
            "its phase is complete.",
        ),
        (
            r"race on",
            "TMA writes into a place that the consumer may still be reading. The wait for `free` must come before the "
            "copies, and name the parity of this use of the place.",
        ),
        (
            r"more arrivals than.*# source.*expect\(.*expect\(",
            "`expect` is an arrival, and the barrier wants one a phase: announce the bytes of both copies together.",
        ),
        (
            r"more arrivals than",
            "The producer announces a tile for a place whose last tile has not come yet: nothing holds it back. The "
            "wait for `free` must come before the copies, and name the parity of this use of the place.",
        ),
        (
            r"first wrong number",
            "Everything is in order, but the tiles are not the right ones: look at the coordinates.",
        ),
    ),
    hints=(
        "Which place does tile n have, and how often was it used before? Wait until it is free, announce the bytes, "
        "ask for both tiles.",
        "The place is n % STAGES, and it was used n // STAGES times. The wait for `free` has the parity n // STAGES & "
        "1 ^ 1.",
        "Both copies report to `ring.ready.index(stage)`: announce 2 * TILE_BYTES once. Tile n of a begins at [0, n * "
        "SIDE], tile n of b at [n * SIDE, 0].",
    ),
    solution="""
def bring(a, b, ring, n):
    stage = n % STAGES
    mbarrier.wait(ring.free.index(stage), n // STAGES & 1 ^ 1)
    mbarrier.expect(ring.ready.index(stage), 2 * TILE_BYTES)
    tma.async_load(a, [0, n * SIDE], ring.ready.index(stage), ring.a.index(stage))
    tma.async_load(b, [n * SIDE, 0], ring.ready.index(stage), ring.b.index(stage))
""",
    wrong=(
        Wrong("free starts closed", "In the first round", old=" ^ 1", new=""),
        Wrong(
            "the parity of the turn", "How often has this place been used", old="n // STAGES & 1 ^ 1", new="n & 1 ^ 1"
        ),
        Wrong("bytes of one tile", "count the bytes of both tiles", old="2 * TILE_BYTES", new="TILE_BYTES"),
        Wrong(
            "no wait for free",
            "nothing holds it back",
            old="mbarrier.wait(ring.free.index(stage), n // STAGES & 1 ^ 1)",
            new="pass",
        ),
        Wrong(
            "free is waited for behind the copies",
            "must come before the copies",
            source="""
def bring(a, b, ring, n):
    stage = n % STAGES
    mbarrier.expect(ring.ready.index(stage), 2 * TILE_BYTES)
    tma.async_load(a, [0, n * SIDE], ring.ready.index(stage), ring.a.index(stage))
    tma.async_load(b, [n * SIDE, 0], ring.ready.index(stage), ring.b.index(stage))
    mbarrier.wait(ring.free.index(stage), n // STAGES & 1 ^ 1)
""",
        ),
        Wrong(
            "the copies are waited for",
            "never for a copy to end",
            source="""
def bring(a, b, ring, n):
    stage = n % STAGES
    mbarrier.wait(ring.free.index(stage), n // STAGES & 1 ^ 1)
    mbarrier.expect(ring.ready.index(stage), 2 * TILE_BYTES)
    tma.async_load(a, [0, n * SIDE], ring.ready.index(stage), ring.a.index(stage))
    tma.async_load(b, [n * SIDE, 0], ring.ready.index(stage), ring.b.index(stage))
    mbarrier.wait(ring.ready.index(stage), n // STAGES & 1)
""",
        ),
        Wrong("the rows of b do not move", "look at the coordinates", old="[n * SIDE, 0]", new="[0, 0]"),
        Wrong("always the same parity", "nothing holds it back", old="n // STAGES & 1 ^ 1", new="1"),
        Wrong(
            "announced twice",
            "announce the bytes of both copies together",
            source="""
def bring(a, b, ring, n):
    stage = n % STAGES
    mbarrier.wait(ring.free.index(stage), n // STAGES & 1 ^ 1)
    mbarrier.expect(ring.ready.index(stage), TILE_BYTES)
    tma.async_load(a, [0, n * SIDE], ring.ready.index(stage), ring.a.index(stage))
    mbarrier.expect(ring.ready.index(stage), TILE_BYTES)
    tma.async_load(b, [n * SIDE, 0], ring.ready.index(stage), ring.b.index(stage))
""",
        ),
    ),
    debrief="Wait until the place is free, announce all bytes once, ask for the tiles. The producer never waits for a "
    "copy to end: that is the consumer's wait.",
)
