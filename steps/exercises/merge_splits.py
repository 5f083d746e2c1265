"""Outputs over splits of the keys, put together by the log-sum-exp of each split."""

from tutorial_lib.exercises import Compared, Wrong


def right(outputs, lse):
    """In float64."""
    weights = lse.double().softmax(0)
    return (weights[:, :, None] * outputs).sum(0).float(), lse.double().logsumexp(0).float()


def cases(chance):
    """Three splits of four rows; in later cases a split has no key for a row, and rows differ widely."""
    import torch

    for level in (0.0, 3.0, 200.0):  # e to the power of 200 is more than float32 holds
        generator = torch.Generator().manual_seed(chance.getrandbits(32))
        outputs = torch.randn(3, 4, 8, generator=generator)
        lse = level * torch.arange(1, 5) + 2 * torch.randn(3, 4, generator=generator)
        if level:
            lse[1, 2], outputs[1, 2] = float("-inf"), 0.0
        yield outputs, lse


def told(outputs, lse) -> str:
    splits = "; ".join(", ".join(f"{x:.3g}" for x in row) for row in lse.T.tolist())
    return f"The log-sum-exps of the splits are, row by row: {splits}."


EXERCISE = Compared(
    name="merge_splits",
    function="merged",
    cases=cases,
    right=right,
    named=lambda outputs, lse: "merged(outputs, lse)",
    told=told,
    close=1e-4,
    hints=(
        "A split's output is a mean of its values, weighted by exponentials of its scores, and divided by their sum. "
        "The log-sum-exp is the logarithm of that sum. So a split counts as much as its sum.",
        "The weights of the splits are exp(lse) divided by the sum of exp(lse) over the splits: a softmax over them. "
        "As in any softmax, subtract the largest first, or exp grows too large.",
        "high = lse.amax(0); weight = torch.exp(lse - high); total = weight.sum(0). The output is the sum of weight[:, "
        ":, None] * outputs over the splits, divided by total[:, None], and the log-sum-exp is high + log(total).",
    ),
    solution="""
def merged(outputs, lse):
    high = lse.amax(0)
    weight = torch.exp(lse - high)
    total = weight.sum(0)
    output = (weight[:, :, None] * outputs).sum(0) / total[:, None]
    return output, high + torch.log(total)
""",
    wrong=(
        Wrong(
            "all splits count as much",
            source="def merged(outputs, lse):\n    return outputs.mean(0), lse.logsumexp(0)",
        ),
        Wrong("the largest is not subtracted, and exp overflows", old="high = lse.amax(0)", new="high = 0 * lse[0]"),
        Wrong("the largest of all rows is subtracted, and exp becomes 0", old="lse.amax(0)", new="lse.amax()"),
        Wrong("the output is not divided by the sum of the weights", old=" / total[:, None]", new=""),
        Wrong("the log-sum-exp is relative to the largest", old="high + torch", new="torch"),
        Wrong("the log-sum-exps are the weights", old="weight = torch.exp(lse - high)", new="weight = lse - high"),
    ),
    debrief="A split counts as much as the sum of its exponentials, and nothing else of it has to be known. So splits "
    "can be put together in any order and in any number. A split without a key has minus infinity for a log-sum-exp, "
    "and counts nothing.",
)
