"""Turns at the tensor cores: whose barrier a group waits at, with which parity, and at whose it arrives."""

from steps.exercises.in_kernel import InKernel
from steps.writing.written import plainly
from tutorial_lib.exercises import Wrong, explained, source_of
from tutorial_lib.simulator.under_way import products

SCHEDULES = 6


class InTurn(InKernel):
    """Also refuses a kernel whose groups begin their QK products in another order than in turn."""

    def judge(self, function, chance):
        if wrong := super().judge(function, chance):
            return wrong
        source, problem = source_of(function), self.problems(chance)[0]
        for _ in range(SCHEDULES):
            if wrong := self.order(problem, source, chance.getrandbits(32)):
                return wrong
        return None

    def order(self, problem, source: str, seed: int) -> str | None:
        from tutorial_lib.passes import pass_of
        from tutorial_lib.simulator.block import KernelError
        from tutorial_lib.simulator.run import watched

        step = self.kernel(problem, source)
        kind = pass_of(step)
        inputs = kind.inputs(problem, seed)
        with watched(seed, trace=True) as watch:
            try:
                kind.call(step, problem, inputs, kind.poisoned(inputs))
            except KernelError as error:
                return explained(f"a deadlock:\n\n```\n{plainly(str(error))}\n```", self.typical, source)
        [begun] = products(watch.runs[0]).values()  # of the one block
        scores = [role for n, role in enumerate(begun) if begun[:n].count(role) % 2 == 0]  # QK, PV, QK, ...
        for n, role in enumerate(scores):
            if role != f"consume {n % 2}":
                seen = ", ".join(role.split()[1] for role in scores[: n + 1])
                return (
                    "The numbers are right, but there are no turns: the groups begin their QK products in the order "
                    f"{seen}. A group waits at its own barrier until the other group has arrived there; only the first "
                    "wait of group 0 passes by itself."
                )
        return None


EXERCISE = InTurn(
    name="take_turns",
    step="ping_pong",
    function="scores_in_turn",
    edits=(
        (
            """\
        # Wait until it is this part's turn to issue products, for the n-th time. Part 0 has the first turn.
        FIRST: gl.constexpr = 1 if part == 0 else 0
        mbarrier.wait(barriers.turns.index(part), turn & 1 ^ FIRST)
        # Begin the QK product [query, key]. K and Q lie in shared memory.
        none = gl.full([ROWS, TILE_KEY], 0.0, gl.float32, ACCUMULATOR)
        key = tiles.key.index(turn % STAGES).reshape([TILE_KEY, HEAD_DIM])
        scores = warpgroup_mma(query, key.permute((1, 0)), none, use_acc=False, is_async=True)
        scores = warpgroup_mma_wait(0, deps=[scores])
        mbarrier.arrive(barriers.turns.index((part + 1) % PARTS), count=1)
""",
            """\
        none = gl.full([ROWS, TILE_KEY], 0.0, gl.float32, ACCUMULATOR)
        key = tiles.key.index(turn % STAGES).reshape([TILE_KEY, HEAD_DIM])
        scores = scores_in_turn(query, key.permute((1, 0)), none, barriers.turns, turn, part)
""",
        ),
    ),
    kinds=({"heads": 1, "seq_len_q": 128},),
    lengths=(640, 896),
    multiple=128,
    typical=(
        (
            r"consume 0 waits for barriers.turns\[0\] with parity 0 \(0 .*key_free\[0\].* 2 of 2 arrivals missing",
            "Both groups wait for their first turn. Nobody has arrived anywhere yet, so one of them must be let "
            "through: the first wait of group 0 names the parity that a fresh barrier lets pass.",
        ),
        (
            r"a deadlock.*barriers.turns",
            "A group waits for a turn that does not come. At whose barrier does it wait, and at whose does it arrive "
            "when it has begun its product? Only the first wait of group 0 passes by itself.",
        ),
        (
            r"more arrivals",
            "A turn is given to a group that has not taken its last one yet: a group gives the turn on only when it "
            "had it.",
        ),
    ),
    hints=(
        "`turns` holds a barrier for each group, made for one arrival: *your turn*. A group waits at its own, and "
        "arrives at the other's.",
        "For turn number `turn` group 1 waits for phase `turn` of its barrier, whose parity is turn & 1. Group 0 is "
        "one phase ahead: its first wait must pass at once.",
        "Wait at `turns.index(part)` with parity `turn & 1 ^ 1 - part`, begin the product, wait for it, and arrive at "
        "`turns.index(1 - part)`.",
    ),
    solution="""
def scores_in_turn(query, key, none, turns, turn, part):
    mbarrier.wait(turns.index(part), turn & 1 ^ 1 - part)
    scores = warpgroup_mma(query, key, none, use_acc=False, is_async=True)
    scores = warpgroup_mma_wait(0, deps=[scores])
    mbarrier.arrive(turns.index(1 - part), count=1)
    return scores
""",
    wrong=(
        Wrong(
            "gives the turn to itself", "at whose does it arrive", old="turns.index(1 - part)", new="turns.index(part)"
        ),
        Wrong(
            "waits at the other's barrier",
            "At whose barrier does it wait",
            old="wait(turns.index(part)",
            new="wait(turns.index(1 - part)",
        ),
        Wrong("nobody may begin", "Both groups wait for their first turn", old=" ^ 1 - part", new=""),
        Wrong("both may begin", "wait of group 0 passes by itself", old=" ^ 1 - part", new=" ^ 1"),
        Wrong("group 1 begins", "wait of group 0 passes by itself", old=" ^ 1 - part", new=" ^ part"),
        Wrong(
            "nobody waits",
            "there are no turns",
            old="mbarrier.wait(turns.index(part), turn & 1 ^ 1 - part)",
            new="pass",
        ),
        Wrong("the turn is kept", "does it arrive", old="mbarrier.arrive(turns.index(1 - part), count=1)", new="pass"),
    ),
    debrief="An mbarrier for each group makes a baton: wait at your own, arrive at the other's. Who goes first is "
    "decided by a parity, not by an arrival before the loop.",
)
