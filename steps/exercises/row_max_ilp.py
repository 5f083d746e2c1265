"""The maximum of every row by several chains of comparisons: in the text, and in the machine code of it."""

from steps.core.problems import standard
from steps.exercises.in_kernel import InKernel
from tutorial_lib.compiler import CompilerError
from tutorial_lib.exercises import Wrong, source_of
from tutorial_lib.sass import one_behind_another

ARCH = "sm_90"
MASKED = standard(head_dim=64, causal=True)  # where ptxas does one row after the other
MOST = 0.1  # of the comparisons may wait for the one right before


class Chains(InKernel):
    """Numbers and layouts on the simulator, and then how the comparisons stand in a turn of the compiled loop."""

    def judge(self, function, chance):
        wrong = super().judge(function, chance)
        if wrong and "tiles of different layouts" in wrong:
            return (
                "Your maxima are spread over the lanes otherwise than those of before, and are used together with "
                "them. gl.convert_layout(x, gl.SliceLayout(1, ACCUMULATOR)) gives them the layout of a row's numbers."
            )
        if wrong:
            return wrong
        try:
            compiled = self.kernel(MASKED, source_of(function)).compile(MASKED, ARCH)
        except CompilerError:
            return (
                "On the simulator the numbers are right, but Triton does not compile this. Shapes must be known when "
                "it compiles: write `scores.shape[0]` where you need it, or `rows: gl.constexpr = scores.shape[0]`."
            )
        return in_chains(compiled)


def in_chains(compiled) -> str | None:
    """None if few comparisons of a turn wait for the one right before them."""
    comparisons, behind = one_behind_another(compiled.hot_body, "FMNMX")
    if comparisons == 0:
        return "The numbers are right, but a turn has no comparison (FMNMX) that could be judged: use gl.max."
    if behind > MOST * comparisons:
        return (
            f"The numbers are right. But of the {comparisons} comparisons (FMNMX) of a turn, {behind} read what the "
            "one right before them has written. So a lane still has nothing to do between two of them. Give it several "
            "chains: in which axis is a chain, and which axes are left when it is at its end? If you have several, "
            "ptxas put them one behind another: cut the columns along another axis."
        )
    return None


EXERCISE = Chains(
    name="row_max_ilp",
    step="row_max_ilp",
    function="highest",
    replaces="in_four_chains",
    kinds=(  # with scores so large that weights overflow where a maximum is too small: else it would do no harm
        {"head_dim": 64, "causal": True, "heads": 1, "scale": 1.0},
        {"head_dim": 128, "heads": 1, "scale": 1.0},
        {"head_dim": 256, "causal": True, "heads": 1, "scale": 1.0},
    ),
    lengths=(256, 384),
    multiple=128,
    schedules=1,
    hints=(
        "gl.max(x, axis) makes a chain along that axis, for every place of the other axes. The lane is an axis, too: "
        "[rows, columns // 8, 4, 2], as lanes have 2 of 8 columns.",
        "gl.max(parts, 1) of that shape makes two chains for a row, one for each of the pair. Cut the second axis in "
        "two for four: [rows, 2, columns // 16, 4, 2], and the chain is along axis 2.",
        "Then put the ends together: gl.max(gl.max(ends, 3), 1) is [rows, 4], one maximum a lane. The last gl.max is "
        "between the lanes. At the end comes the layout that the other numbers of a row have.",
    ),
    solution="""
def highest(scores):
    parts = gl.reshape(scores, [scores.shape[0], 2, scores.shape[1] // 16, 4, 2])
    ends = gl.max(parts, 2)
    own = gl.max(gl.max(ends, 3), 1)
    return gl.convert_layout(gl.max(own, 1), gl.SliceLayout(1, ACCUMULATOR))
""",
    wrong=(
        Wrong(
            "one chain, as before",
            "several chains",
            source="""
def highest(scores):
    return gl.max(scores, 1)
""",
        ),
        Wrong(
            "the layout of the pieces",
            "spread over the lanes otherwise",
            old="gl.convert_layout(gl.max(own, 1), gl.SliceLayout(1, ACCUMULATOR))",
            new="gl.max(own, 1)",
        ),
        Wrong(
            "a shape in a variable",
            "Shapes must be known",
            old="    parts = gl.reshape(scores, [scores.shape[0], 2,",
            new="    rows = scores.shape[0]\n    parts = gl.reshape(scores, [rows, 2,",
        ),
        Wrong(
            "a shape that fits one head_dim alone",
            "cannot run",
            old="scores.shape[1] // 16, 4, 2]",
            new="8, 4, 2]",
        ),
        Wrong(
            "half of the columns",
            "wrong number",
            old="own = gl.max(gl.max(ends, 3), 1)",
            new="own = gl.max(ends, 3).permute((0, 2, 1)).split()[0]",
        ),
        Wrong(
            "pairs first, and then one chain a row",
            "several chains",
            old="""    parts = gl.reshape(scores, [scores.shape[0], 2, scores.shape[1] // 16, 4, 2])
    ends = gl.max(parts, 2)
    own = gl.max(gl.max(ends, 3), 1)
""",
            new="""    parts = gl.reshape(scores, [scores.shape[0], scores.shape[1] // 8, 4, 2])
    own = gl.max(gl.max(parts, 3), 1)
""",
        ),
    ),
    debrief="The order of a maximum does not matter, so nothing has to be one chain. Of a sum it does matter a little: "
    "other chains round otherwise.",
)
