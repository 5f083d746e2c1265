"""The warp that begins all products: what it waits for before each of them. In the kernel of step warp_roles."""

from steps.exercises.in_kernel import InKernel
from tutorial_lib.exercises import Wrong

EXERCISE = InKernel(
    name="products_warp",
    step="warp_roles",
    function="begin_products",
    replaces="multiply_part",
    kinds=({"causal": True}, {"seq_len_q": 90, "head_dim": 128, "heads": 1}),
    lengths=(300, 600),
    typical=(
        (
            r"# source(?!.*wait\(barriers\.weights_full)",
            "The PV product begins before the weights are there: nothing waits for the softmax.",
        ),
        (
            r"# source(?!.*wait\(barriers\.output_full)",
            "The next scores come where the weights are, and the PV product may still read them. The PTX ISA promises "
            "no order between products with different accumulators.",
        ),
        (
            r"race on[^\n]*read by tcgen05\.mma.*after: written by tcgen05\.mma",
            "A wait for the weights is there, and passes too early. `weights_full` completes once a turn: in turn n "
            "its phase number n must be over.",
        ),
        (
            r"race on[^\n]*written by tcgen05\.mma.*after: read by tcgen05\.mma",
            "A wait for the PV product is there, and passes too early: the next scores overwrite weights that are "
            "still read. In turn n the PV product of a part is its number n.",
        ),
        (
            r"multiply \d waits for barriers\.output_full",
            "The warp waits for a PV product that it has not begun: nobody else begins it.",
        ),
        (r"deadlock", "Somebody waits for ever. Which barrier does the message name, and who should complete it?"),
        (r"race on", "A product begins before what it reads is there, or before what it overwrites was read."),
    ),
    hints=(
        "Two waits are missing, one in front of each product. What does the PV product read that the softmax writes? "
        "And what lies in the columns into which the next scores come?",
        "In front of the PV product wait for `barriers.weights_full`. In front of the QK product wait until the PV "
        "product of this part and turn has ended: `barriers.output_full`.",
        "Both are `mbarrier.wait(barriers.NAME.index(part), turn & 1)`. Each of these barriers completes once a turn: "
        "the parity is that of the turn.",
    ),
    solution="""
def begin_products(tiles, columns, barriers, part, turn, j, end):
    weights = weights_of(columns, part, tiles.key.dtype)
    output = columns.output.index(part)
    mbarrier.wait(barriers.weights_full.index(part), turn & 1)
    issue_output(weights, tiles.value, turn, output, j > 0, barriers.output_full.index(part))
    if j + 1 < end:
        query = part_of(tiles.query, part)
        scores = columns.scores.index(part)
        mbarrier.wait(barriers.output_full.index(part), turn & 1)
        issue_scores(query, tiles.key, turn + 1, scores, barriers.scores_full.index(part))
""",
    wrong=(
        Wrong(
            "the weights are not waited for",
            "nothing waits for the softmax",
            old="    mbarrier.wait(barriers.weights_full.index(part), turn & 1)\n",
            new="",
        ),
        Wrong(
            "the PV product is not waited for",
            "no order between products with different accumulators",
            old="        mbarrier.wait(barriers.output_full.index(part), turn & 1)\n",
            new="",
        ),
        Wrong(
            "the parity of a producer",
            "A wait for the weights is there, and passes too early",
            old="weights_full.index(part), turn & 1",
            new="weights_full.index(part), turn & 1 ^ 1",
        ),
        Wrong(
            "the parity of the next turn",
            "A wait for the PV product is there, and passes too early",
            old="output_full.index(part), turn & 1",
            new="output_full.index(part), turn + 1 & 1",
        ),
        Wrong(
            "the scores in place of the output",
            "no order between products with different accumulators",
            old="mbarrier.wait(barriers.output_full.index(part)",
            new="mbarrier.wait(barriers.scores_full.index(part)",
        ),
        Wrong(
            "waits before it has begun",
            "a PV product that it has not begun",
            source="""
def begin_products(tiles, columns, barriers, part, turn, j, end):
    weights = weights_of(columns, part, tiles.key.dtype)
    output = columns.output.index(part)
    mbarrier.wait(barriers.weights_full.index(part), turn & 1)
    mbarrier.wait(barriers.output_full.index(part), turn & 1)
    issue_output(weights, tiles.value, turn, output, j > 0, barriers.output_full.index(part))
    if j + 1 < end:
        query = part_of(tiles.query, part)
        scores = columns.scores.index(part)
        issue_scores(query, tiles.key, turn + 1, scores, barriers.scores_full.index(part))
""",
        ),
    ),
    debrief="While the warp waits for a PV product, the softmax of the other part goes on. Without this wait "
    "the result may be right on every run that you try, and no document promises it.",
)
