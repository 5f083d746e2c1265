"""Two CTAs that share what TMA brings: who waits for whom before a copy to both, and who tells whom."""

from steps.exercises.in_kernel import InKernel
from tutorial_lib.exercises import Wrong

OWN_WAIT = "    mbarrier.wait(empty.index(stage), iteration // STAGES & 1 ^ 1)\n"
OTHERS_WAIT = "        mbarrier.wait(there.index(stage), iteration // STAGES & 1)\n"
TELLS = "        tell_the_other(there.index(stage))\n"

EXERCISE = InKernel(
    name="fetch_or_free",
    step="kv_multicast",
    function="fetch_or_free",
    kinds=(
        {"heads": 1, "head_dim": 128, "causal": True},
        {"heads": 2, "kv_heads": 1, "head_dim": 128, "dtype": "bfloat16"},
    ),
    lengths=(400, 520),
    typical=(
        # --- in the source ---
        (
            r"# source(?!.*fetch_for_both)",
            "Nobody asks for the tile: `fetch_for_both` is not called.",
        ),
        (
            r"# source(?!.*if asks)",
            "Both producers ask for the same tile, each for both CTAs, so every slot is filled twice. Only the one "
            "that `asks` may call `fetch_for_both`.",
        ),
        (
            r"a deadlock.*# source(?!.*tell_the_other)",
            "The producer that asks waits until the other CTA's slot is free, and nobody tells it. The one that does "
            "not ask must arrive at `there` of the other CTA.",
        ),
        # --- not in order ---
        (
            r"(race on tiles|more arrivals).*# source(?!.*wait\(there)",
            "The copy fills the slot of both CTAs. The producer that asks knows only that its own slot is "
            "free: it must also wait for `there`, at which the other one tells.",
        ),
        (
            r"(race on tiles|more arrivals).*# source.*tell_the_other(?!.*fetch_for_both).*wait\(empty",
            "The other CTA is told that the slot is free before it is: the wait for `empty` must stand in front of "
            "`tell_the_other`.",
        ),
        (
            r"(race on tiles|more arrivals).*# source(?!.*wait\(empty)",
            "A tile is announced for a slot whose last tile is still there: both producers must wait until the slot "
            "of their own CTA is free.",
        ),
        # --- nobody can go on ---
        (
            r"a deadlock.*1 of 1 arrivals missing, -\d+ bytes missing",
            "A tile came to a CTA that had not announced it. The copy brings bytes to both, and each CTA announces to "
            "its own `full` what it gets.",
        ),
        (
            r"a deadlock.*barriers.there\[\d\] with parity 1 \(1 phases? ",
            "The first wait for `there` passes at once, and so each later one waits for a phase too many. A fresh "
            "`empty` counts as free; a fresh `there` does not, because the other CTA tells of the first use, too.",
        ),
        (
            r"a deadlock.*barriers.there\[\d\] with parity",
            "A producer waits for `there`, and nobody arrives there. The barrier is that of the CTA that asks, so it "
            "takes `tell_the_other`, an arrival at a barrier of the other CTA.",
        ),
        (
            r"a deadlock",
            "Go through the four questions for each producer: is its own slot free, what does it announce, whom does "
            "it wait for, and whom does it tell?",
        ),
        (
            r"race on tiles|more arrivals",
            "A slot is filled while somebody may still read it. A copy to both may begin only when both slots are "
            "free.",
        ),
    ),
    hints=(
        "A copy to both needs two slots that are free and two barriers that count bytes. What can each producer see "
        "by itself, and what must it be told?",
        "Both producers wait for `empty` of their own CTA, and both announce the bytes to their own `full`. Only then "
        "does the one that does not ask tell the other. The one that asks waits for that before the copy.",
        "The wait for `empty` has the parity iteration // STAGES & 1 ^ 1, so that it passes at once in the first "
        "round. The wait for `there` has the parity iteration // STAGES & 1: the other CTA tells in the first round, "
        "too.",
    ),
    solution="""
def fetch_or_free(asks, array, at, ring, full, empty, there, iteration):
    stage = iteration % STAGES
    mbarrier.wait(empty.index(stage), iteration // STAGES & 1 ^ 1)
    announce(full, ring, stage)
    if asks:
        mbarrier.wait(there.index(stage), iteration // STAGES & 1)
        fetch_for_both(array, at, full.index(stage), ring.index(stage))
    else:
        tell_the_other(there.index(stage))
""",
    wrong=(
        Wrong("the other's slot is not waited for", "it must also wait for `there`", old=OTHERS_WAIT, new=""),
        Wrong("nobody tells", "nobody tells it", old=TELLS, new="        pass\n"),
        Wrong(
            "tells before its own slot is free",
            "before it is",
            source="""
def fetch_or_free(asks, array, at, ring, full, empty, there, iteration):
    stage = iteration % STAGES
    if asks:
        mbarrier.wait(empty.index(stage), iteration // STAGES & 1 ^ 1)
        announce(full, ring, stage)
        mbarrier.wait(there.index(stage), iteration // STAGES & 1)
        fetch_for_both(array, at, full.index(stage), ring.index(stage))
    else:
        tell_the_other(there.index(stage))
        mbarrier.wait(empty.index(stage), iteration // STAGES & 1 ^ 1)
        announce(full, ring, stage)
""",
        ),
        Wrong("its own slot is not waited for", "the slot of their own CTA", old=OWN_WAIT, new=""),
        Wrong(
            "only who asks waits and announces",
            "had not announced it",
            source="""
def fetch_or_free(asks, array, at, ring, full, empty, there, iteration):
    stage = iteration % STAGES
    if asks:
        mbarrier.wait(empty.index(stage), iteration // STAGES & 1 ^ 1)
        announce(full, ring, stage)
        mbarrier.wait(there.index(stage), iteration // STAGES & 1)
        fetch_for_both(array, at, full.index(stage), ring.index(stage))
    else:
        mbarrier.wait(empty.index(stage), iteration // STAGES & 1 ^ 1)
        tell_the_other(there.index(stage))
""",
        ),
        Wrong(
            "both ask",
            "Both producers ask",
            source="""
def fetch_or_free(asks, array, at, ring, full, empty, there, iteration):
    stage = iteration % STAGES
    mbarrier.wait(empty.index(stage), iteration // STAGES & 1 ^ 1)
    announce(full, ring, stage)
    fetch_for_both(array, at, full.index(stage), ring.index(stage))
""",
        ),
        Wrong(
            "the wait for the other is passable at first",
            "waits for a phase too many",
            old="there.index(stage), iteration // STAGES & 1)",
            new="there.index(stage), iteration // STAGES & 1 ^ 1)",
        ),
        Wrong(
            "arrives at its own barrier",
            "must arrive at `there` of the other CTA",
            old="tell_the_other(there.index(stage))",
            new="mbarrier.arrive(there.index(stage), count=1)",
        ),
    ),
    debrief="A multicast copy fills a slot of both CTAs. The producer that asks waits until both are free. The other "
    "one arrives at `there` once its own slot is free and its bytes are announced. So one CTA can be ahead of the "
    "other by no more than the length of the ring.",
)
