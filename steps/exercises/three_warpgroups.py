"""Three warpgroups that issue their products in turn: an mbarrier for each, on which the one before arrives."""

from steps.exercises.in_kernel import InKernel
from tutorial_lib.exercises import Wrong
from tutorial_lib.simulator.under_way import products

KEYS = 128  # of a tile


def issued_in_turn(run, problem) -> str | None:
    """Whether warpgroups begin the two products of an iteration one after the other, 0, 1, 2, 0 and so on."""
    a_tile = 2 * -(-problem.seq_len_kv // KEYS)  # products of a warpgroup for a tile of queries
    for roles in products(run).values():
        seen: dict[str, int] = {}
        ordered = []
        for role in roles:
            number = seen[role] = seen.get(role, -1) + 1
            if 0 < number % a_tile < a_tile - 1:  # neither the first QK product nor the last PV product
                ordered.append(int(role.split()[-1]))
        for n, (group, right) in enumerate(zip(ordered, (n // 2 % 3 for n in range(len(ordered))), strict=True)):
            if group != right:
                so_far = ", ".join(map(str, ordered[: n + 1]))
                return (
                    "the numbers are right, but the consumers do not keep the order. Of the products inside the loop, "
                    f"these consumers begin one after the other: {so_far}; the last must be consumer {right}. A "
                    "consumer may hand its turn on only when it has begun both of its products."
                )
    return None


ISSUE_BOTH = """
def issue_both(query, weights, accumulator, tiles, barriers, iteration, query_iteration, warpgroup: gl.constexpr):
    n = iteration - query_iteration  # all tiles but the first of every tile of queries
    return issue_in_turn(query, weights, accumulator, tiles, barriers, iteration, n, warpgroup)
"""

EXERCISE = InKernel(
    name="three_warpgroups",
    step="three_warpgroups",
    function="issue_in_turn",
    replaces="",
    functions={"issue_both": ISSUE_BOTH},
    kinds=({"heads": 2, "kv_heads": 1},),
    lengths=(384, 768),
    multiple=384,
    watch=issued_in_turn,
    lacking=(("mbarrier.arrive(", "Nobody hands the turn on: an arrival on the next consumer's barrier is missing."),),
    hints=(
        "Every consumer has a barrier of its own, barriers.turns.index(warpgroup), and one arrival completes a phase "
        "of it. Who arrives on a consumer's barrier tells it that it is its turn. Which consumer does that, and when?",
        "For its n-th turn consumer 1 waits for phase n of its barrier, so the parity is n & 1. A fresh barrier lets a "
        "wait for parity 1 pass. Consumer 0 has the first turn with nobody before it: it waits for the other parity.",
        "mbarrier.wait(barriers.turns.index(warpgroup), n & 1 ^ FIRST) before the first product, where FIRST is 1 for "
        "consumer 0 and else 0. After both: mbarrier.arrive(barriers.turns.index((warpgroup + 1) % WARPGROUPS), "
        "count=1).",
    ),
    solution="""
def issue_in_turn(query, weights, accumulator, tiles, barriers, iteration, n, warpgroup: gl.constexpr):
    FIRST: gl.constexpr = 1 if warpgroup == 0 else 0
    await_tile(barriers.key_full, iteration + 1, STAGES)
    mbarrier.wait(barriers.turns.index(warpgroup), n & 1 ^ FIRST)
    scores = issue_scores(query, tiles.key, iteration + 1)
    await_tile(barriers.value_full, iteration, STAGES)
    accumulator = issue_output(weights, tiles.value, iteration, accumulator)
    mbarrier.arrive(barriers.turns.index((warpgroup + 1) % WARPGROUPS), count=1)
    return scores, accumulator
""",
    wrong=(
        Wrong("nobody has the first turn", "a deadlock", old="1 if warpgroup == 0 else 0", new="0"),
        Wrong("everybody has the first turn", "a deadlock", old="1 if warpgroup == 0 else 0", new="1"),
        Wrong("handed to oneself", "a deadlock", old="(warpgroup + 1) % WARPGROUPS", new="warpgroup"),
        Wrong("no way round", "place 3 of 3", old="(warpgroup + 1) % WARPGROUPS", new="warpgroup + 1"),
        Wrong("the turn is not handed on", "Nobody hands the turn on", without="mbarrier.arrive("),
        Wrong("the parity never changes", "a deadlock", old="n & 1 ^ FIRST", new="FIRST"),
        Wrong(
            "handed on behind the first product",
            "both of its products",
            without="mbarrier.arrive(",
            behind="scores = issue_scores(",
        ),
    ),
    debrief="A turn is an mbarrier with one arrival. The parity of the n-th wait is the parity of n, and the consumer "
    "that begins waits for the other one, which a fresh barrier lets pass.",
)
