"""Outputs over splits of the keys, put together by the log-sum-exp of each split."""

import torch

from tutorial_lib.exercises import Plain, Wrong

SPLITS, ROWS, HEAD_DIM = 3, 4, 8


def judge(function, chance):
    for level in (0.0, 3.0, 200.0):  # e to the power of 200 is more than float32 holds
        generator = torch.Generator().manual_seed(chance.getrandbits(32))
        outputs = torch.randn(SPLITS, ROWS, HEAD_DIM, generator=generator)
        lse = level + 2 * torch.randn(SPLITS, ROWS, generator=generator)
        if level:
            lse[1, 2], outputs[1, 2] = float("-inf"), 0.0
        mine = function(outputs.clone(), lse.clone())
        if not isinstance(mine, tuple) or len(mine) != 2:
            return f"It must return the output and its log-sum-exp; yours returns {type(mine).__name__}."
        o, total = mine
        for name, found, shape in (("The output", o, (ROWS, HEAD_DIM)), ("The log-sum-exp", total, (ROWS,))):
            if not isinstance(found, torch.Tensor) or tuple(found.shape) != shape:
                return f"{name} must have shape {shape}; yours has {getattr(found, 'shape', found)}."
        weights = lse.double().softmax(0)
        expected = (weights[:, :, None] * outputs.double()).sum(0)
        if not torch.allclose(o.double(), expected, rtol=1e-4, atol=1e-4):
            row = int((o.double() - expected).abs().nan_to_num(float("inf")).amax(1).argmax())
            told = ", ".join(f"{x:.3g}" for x in lse[:, row].tolist())
            return (
                f"Row {row} has splits with the log-sum-exps {told}. Its first output must be "
                f"{expected[row, 0]:.4g}, and yours is {o[row, 0]:.4g}."
            )
        if not torch.allclose(total.double(), lse.double().logsumexp(0), rtol=1e-4, atol=1e-4):
            expected = lse[:, 0].logsumexp(0)
            return f"The output is right. The log-sum-exp of row 0 must be {expected:.4g}, and yours is {total[0]:.4g}."
    return None


EXERCISE = Plain(
    name="merge_splits",
    function="merged",
    by=judge,
    hints=(
        "A split's output is a mean of its values, weighted by exponentials of its scores, and divided by their sum. "
        "What that sum was, the log-sum-exp tells: it is its logarithm. So a split counts as much as its sum.",
        "The weights of the splits are exp(lse) divided by the sum of exp(lse) over the splits: a softmax over them. "
        "As in any softmax, take the largest off first, or exp grows too large.",
        "high = lse.amax(0); weight = torch.exp(lse - high); total = weight.sum(0). The output is the sum of "
        "weight[:, :, None] * outputs over the splits, divided by total[:, None], and the log-sum-exp is high + "
        "log(total).",
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
            "Its first output must be",
            source="""
def merged(outputs, lse):
    return outputs.mean(0), lse.logsumexp(0)
""",
        ),
        Wrong("the largest is not taken off", "and yours is nan", old="high = lse.amax(0)", new="high = 0 * lse[0]"),
        Wrong("not divided by the sum of the weights", "Its first output must be", old=" / total[:, None]", new=""),
        Wrong("the log-sum-exp is relative to the largest", "The output is right.", old="high + torch", new="torch"),
        Wrong(
            "the log-sum-exps are the weights",
            "Its first output must be",
            old="weight = torch.exp(lse - high)",
            new="weight = lse - high",
        ),
    ),
    debrief="A split counts as much as the sum of its exponentials, and nothing else of it has to be known. So splits "
    "can be put together in any order and in any number. A split without a key has minus infinity for a log-sum-exp, "
    "and counts nothing.",
)
