"""The gradient of attention sinks: what is left of dS where a score has no value, summed over rows."""

from tutorial_lib.exercises import Plain, Wrong


def judge(function, chance):
    import torch

    from tutorial_lib.passes import BACKWARD
    from tutorial_lib.problem import Problem

    for batch, causal in ((1, False), (2, True), (3, True)):
        length = chance.randint(30, 70)
        problem = Problem(
            batch=batch,
            heads=4,
            kv_heads=2,
            seq_len_q=length,
            seq_len_kv=length,
            head_dim=32,
            causal=causal,
            sinks=True,
        )
        inputs = BACKWARD.inputs(problem, chance.getrandbits(32))
        exact = BACKWARD.reference(problem, inputs)
        limit = 2 * BACKWARD.yardstick(problem, inputs, exact)[3]
        _, _, _, o, lse, do, sinks = inputs
        mine = function(*(x.clone() for x in (sinks, o, lse, do)))
        if not isinstance(mine, torch.Tensor) or mine.shape != sinks.shape:
            came = list(mine.shape) if isinstance(mine, torch.Tensor) else type(mine).__name__
            return f"On {problem.describe()} the result must be a number for each head, [4]; got {came}."
        wrong = ~((mine.double() - exact[3]).abs() <= limit)
        if wrong.any():
            head = int(wrong.nonzero()[0])
            right, yours = exact[3][head].item(), mine[head].item()
            told = f"the gradient of head {head}'s sink should be {right:.4g}, and yours is {yours:.4g}."
            return f"On {problem.describe()} {told}{EXERCISE.recognised([((sinks, o, lse, do), mine)], 0.01)}"
    return None


EXERCISE = Plain(
    name="sink_gradient",
    function="sink_gradient",
    hints=(
        "For every score dS = P (dP - delta). The sink is a score, too, and lse holds it. What is its P? And dP is the "
        "product of dO with the value: what is it, where there is no value?",
        "The sink's P in a row is exp(sink - lse), and its dP is 0. So each row gives -exp(sink - lse) * delta. Here "
        "delta is (o * do).sum(-1).",
        "All rows of a head have the same sink, in every batch: sum over axes 0 and 2 of [batch, heads, seq_len]. "
        "`sinks[:, None]` has the axis of the rows.",
    ),
    solution="""
def sink_gradient(sinks, o, lse, do):
    delta = (o.float() * do.float()).sum(-1)
    weight = torch.exp(sinks[:, None] - lse)
    return -(weight * delta).sum((0, 2))
""",
    wrong=(
        Wrong("the sign is left out: dS = P (dP - delta), and dP is 0", old="return -(", new="return ("),
        Wrong("the row's delta is left out", old="(weight * delta)", new="weight"),
        Wrong("the weight of the sink is left out", old="(weight * delta)", new="delta"),
        Wrong("only the first of the batch is summed", old=".sum((0, 2))", new="[0].sum(-1)"),
        Wrong("it is a mean: all rows add up", old=".sum((0, 2))", new=".mean((0, 2))"),
        Wrong("the sink's weight is exp(sink), divided by no sum", old="sinks[:, None] - lse", new="sinks[:, None]"),
        Wrong("a number for each row", "a number for each head, [4]", old=".sum((0, 2))", new=""),
    ),
    debrief="A backward kernel needs no line for sinks: with a log-sum-exp that holds the sink its weights and its dS "
    "are right. These three lines are all that is left to do.",
    by=judge,
)
