"""The consumer's side of a small ring: wait, multiply, wait for the product, give the place back."""

from steps.primers.simulated import InPrimer
from tutorial_lib.exercises import Wrong

EXERCISE = InPrimer(
    name="ring_consumer",
    primer="roles",
    case="matmul",
    how={},
    function="take",
    typical=(
        (
            r"deadlock.*produce 1 waits for ring.free",
            "The producer waits for a place that the consumer does not give back. Who arrives at `free`?",
        ),
        (
            r"deadlock.*consume 0 waits for ring.ready\[0\] with parity 1 \(1 phases",
            "The consumer waits for a phase of `ready` that comes only later. In the first round it has parity 0.",
        ),
        (r"deadlock.*consume 0 waits for ring.ready", "The consumer waits for a phase of `ready` that does not come."),
        (
            r"race on.*# source.*arrive\(.*warpgroup_mma_wait\(",
            "The place is given back before the product is over: TMA fills it while wgmma still reads it.",
        ),
        (
            r"race on",
            "wgmma reads a tile before it has come. Is there a wait for `ready`, and does it name the parity of this "
            "use of the place?",
        ),
        (r"more arrivals than", "The place was given back twice in one round: `free` was made for one arrival."),
        (
            r"first wrong number",
            "Everything is in order, but the sums are wrong: are the products of all tiles added to the same `sums`?",
        ),
    ),
    hints=(
        "Four statements behind the place's number: wait until the tile is there, begin the product, wait for it, give "
        "the place back.",
        "The wait for `ready` has the parity n // STAGES & 1. `warpgroup_mma(a, b, sums, is_async=True)` returns at "
        "once: the product is over behind `warpgroup_mma_wait(0, deps=[sums])`.",
        "`mbarrier.arrive(ring.free.index(stage), count=1)` comes last. What you return is what the second wait "
        "returned.",
    ),
    solution="""
def take(ring, n, sums):
    stage = n % STAGES
    mbarrier.wait(ring.ready.index(stage), n // STAGES & 1)
    sums = warpgroup_mma(ring.a.index(stage), ring.b.index(stage), sums, is_async=True)
    sums = warpgroup_mma_wait(0, deps=[sums])
    mbarrier.arrive(ring.free.index(stage), count=1)
    return sums
""",
    wrong=(
        Wrong(
            "given back before the product is over",
            "before the product is over: TMA fills it",
            source="""
def take(ring, n, sums):
    stage = n % STAGES
    mbarrier.wait(ring.ready.index(stage), n // STAGES & 1)
    sums = warpgroup_mma(ring.a.index(stage), ring.b.index(stage), sums, is_async=True)
    mbarrier.arrive(ring.free.index(stage), count=1)
    sums = warpgroup_mma_wait(0, deps=[sums])
    return sums
""",
        ),
        Wrong(
            "never given back",
            "that the consumer does not give back",
            old="mbarrier.arrive(ring.free.index(stage), count=1)",
            new="pass",
        ),
        Wrong("the producer's parity", "before it has come", old="n // STAGES & 1", new="n // STAGES & 1 ^ 1"),
        Wrong("the parity of the turn", "name the parity of this use", old="n // STAGES & 1", new="n & 1"),
        Wrong(
            "the tile is not waited for",
            "before it has come",
            old="mbarrier.wait(ring.ready.index(stage), n // STAGES & 1)",
            new="pass",
        ),
        Wrong(
            "only the last product",
            "are the products of all tiles added",
            old="sums, is_async",
            new="no_sums(), is_async",
        ),
        Wrong("given back twice", "twice in one round", old="count=1", new="count=2"),
    ),
    debrief="A place is given back behind the wait for the product that read it, not behind the instruction that began "
    "it. The wait costs time here; from step intra_warpgroup_overlap on, another product runs under it.",
)
