"""What the small kernel makes of each query's row, so that the loop need not: step preprocess_kernel."""

from tutorial_lib.exercises import Plain, Wrong


def judge(function, chance):
    import math

    import torch

    for hidden in (0, chance.randint(1, 20)):
        rows, head_dim = chance.randint(70, 110), 64  # never square: a sum along the wrong axis is found out
        anew = torch.Generator().manual_seed(chance.getrandbits(32))
        o, do = (torch.randn(rows, head_dim, generator=anew).half() for _ in range(2))
        lse = 3 * torch.randn(rows, generator=anew)
        lse[:hidden] = -torch.inf  # the first rows see no key
        made = function(o.clone(), do.clone(), lse.clone())
        if not isinstance(made, tuple) or len(made) != 2:
            came = f"{len(made)} of them" if isinstance(made, tuple) else type(made).__name__
            return f"The result must be two tensors, `row_sum, number`; got {came}."
        for name, x in zip(("row_sum", "number"), made, strict=True):
            if not isinstance(x, torch.Tensor) or x.shape != lse.shape or x.dtype != torch.float32:
                came = f"{list(x.shape)} in {x.dtype}" if isinstance(x, torch.Tensor) else type(x).__name__
                return f"{name} must be [{rows}] in torch.float32, a number for each query; got {came}."
        row_sum, number = made
        exact = (o.double() * do.double()).sum(-1)
        if not torch.allclose(row_sum.double(), exact, rtol=1e-4, atol=1e-3):
            return "row_sum is not the sum over head_dim of do * o, computed in float32."
        scores = 3 * torch.randn(rows, 8, generator=anew)
        wanted = torch.exp(scores - lse[:, None])
        wanted[:hidden] = 0.0
        weights = 2 ** (scores / math.log(2) - number[:, None])
        if not weights[:hidden].eq(0).all():
            return (
                f"{hidden} rows see no key, and their log-sum-exp is minus infinity. Their weights must be 0, and the "
                f"first comes out as {weights[0, 0].item():.3g}: which number makes 2 ** (anything - number) zero?"
            )
        if not torch.allclose(weights, wanted, rtol=1e-3, atol=1e-6):
            n = int((weights - wanted).abs().amax(1).argmax())
            right, mine = wanted[n, 0].item(), weights[n, 0].item()
            return (
                f"A weight of row {n} must be {right:.4g}, and with your number {number[n].item():.4g} it is "
                f"{mine:.4g}. The log-sum-exp {lse[n].item():.4g} is in base e."
            )
    return None


EXERCISE = Plain(
    name="prepare_rows",
    function="prepare",
    hints=(
        "row_sum is D, the sum over head_dim of dO times O. Take both as float32 before you multiply.",
        "e ** (s - lse) is 2 ** (s / ln 2 - lse / ln 2). So number is lse / math.log(2), where the row sees a key.",
        "A row that sees no key has lse = minus infinity. With plus infinity in its place 2 ** (s - number) is zero: "
        "`torch.where(lse > -torch.inf, lse, torch.inf)`.",
    ),
    solution="""
def prepare(o, do, lse):
    row_sum = (o.float() * do.float()).sum(-1)
    number = torch.where(lse > -torch.inf, lse, torch.inf) / math.log(2)
    return row_sum, number
""",
    wrong=(
        Wrong("rows that see no key", "see no key", old="torch.where(lse > -torch.inf, lse, torch.inf)", new="lse"),
        Wrong("base e", "base e", old=" / math.log(2)", new=""),
        Wrong("a sum over the queries", "for each query", old=".sum(-1)", new=".sum(0)"),
        Wrong(
            "summed in 16 bits",
            "not the sum",
            old="(o.float() * do.float()).sum(-1)",
            new="(o * do).sum(-1).float()",
        ),
    ),
    debrief="The loop of step preprocess_kernel loads both numbers, and does nothing with them but subtract.",
    by=judge,
)
