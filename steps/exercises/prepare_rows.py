"""What the small kernel makes of each query's row, so that the loop need not: step preprocess_kernel."""

from tutorial_lib.exercises import Compared, Wrong


def cases(chance):
    """o and do [query, head_dim] in float16, lse [query]; in the second case the first rows see no key."""
    import torch

    for hidden in (0, chance.randint(1, 20)):
        rows = chance.randint(70, 110)  # never head_dim: a sum along the wrong axis is found out
        anew = torch.Generator().manual_seed(chance.getrandbits(32))
        o, do = torch.randn(2, rows, 64, generator=anew).half()
        lse = 3 * torch.randn(rows, generator=anew)
        lse[:hidden] = float("-inf")
        yield o, do, lse


def named(o, do, lse) -> str:
    return f"prepare(o, do, lse) for {len(lse)} queries, of which {int(lse.isinf().sum())} see no key"


EXERCISE = Compared(
    name="prepare_rows",
    function="prepare",
    cases=cases,
    named=named,
    told=lambda *_: "In base 2, a weight is 2 ** (score / ln 2 - number), and it is 0 in a row that sees no key.",
    close=1e-4,
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
        Wrong(
            "rows that see no key keep minus infinity for a number, so that 2 ** (anything - number) is not zero",
            old="torch.where(lse > -torch.inf, lse, torch.inf)",
            new="lse",
        ),
        Wrong("the log-sum-exp stays in base e", old=" / math.log(2)", new=""),
        Wrong("a sum over the queries", "must be (a tensor", old=".sum(-1)", new=".sum(0)"),
        Wrong(
            "the products are added in 16 bits",
            old="(o.float() * do.float()).sum(-1)",
            new="(o * do).sum(-1).float()",
        ),
    ),
    debrief="The loop of step preprocess_kernel loads both numbers, and does nothing with them but subtract.",
)
