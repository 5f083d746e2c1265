"""Two parts of attention, over different keys, put together by the log-sum-exp of each."""

from tutorial_lib.exercises import Compared, Wrong


def right(o, lse, part_o, part_lse):
    """By a softmax over both parts, in float64."""
    import torch

    both = torch.stack((lse, part_lse)).double()
    outputs = torch.stack((o, part_o)).double() * both.softmax(0)[..., None]
    return outputs.sum(0).float(), both.logsumexp(0).float()


def cases(chance):
    """Ordinary scores; such whose exponential no format of numbers holds, or is 0 in any; one part far ahead."""
    import torch

    generator = torch.Generator().manual_seed(chance.getrandbits(60))
    for spread, level in ((1.0, 3.0), (1.0, 2000.0), (1.0, -2000.0), (60.0, 0.0)):
        o, part_o = torch.randn(2, 1, 2, 6, 16, generator=generator)
        lse, part_lse = level + spread * torch.randn(2, 1, 2, 6, generator=generator)
        yield o, lse, part_o, part_lse


def named(o, lse, part_o, part_lse) -> str:
    ranges = [f"{x.min().item():.5g} to {x.max().item():.5g}" for x in (lse, part_lse)]
    return f"merge_parts(...) with lse from {ranges[0]}, part_lse from {ranges[1]}"


EXERCISE = Compared(
    name="merge_parts",
    function="merge_parts",
    cases=cases,
    right=right,
    named=named,
    close=1e-4,
    hints=(
        "The weights of the first part add up to exp(lse), and those of the other to exp(part_lse). Which share of all "
        "weights has the other part?",
        "Its share is exp(part_lse) / (exp(lse) + exp(part_lse)). Divide both by exp(part_lse): what is left is "
        "1 / (1 + exp(lse - part_lse)), which is a function that PyTorch has.",
        "share = torch.sigmoid(part_lse - lse), with an axis more to multiply outputs. The output is o + share * "
        "(part_o - o), and torch.logaddexp gives the log-sum-exp of both.",
    ),
    solution="""
def merge_parts(o, lse, part_o, part_lse):
    share = torch.sigmoid(part_lse - lse)[..., None]
    return o + share * (part_o - o), torch.logaddexp(lse, part_lse)
""",
    wrong=(
        Wrong(
            "the exponentials themselves are taken, which overflow or become 0: use differences of the two only",
            source="""
def merge_parts(o, lse, part_o, part_lse):
    a, b = lse.exp()[..., None], part_lse.exp()[..., None]
    return (a * o + b * part_o) / (a + b), torch.logaddexp(lse, part_lse)
""",
        ),
        Wrong(
            "each output is multiplied by the other's weight: a part with larger scores must count more",
            old="part_lse - lse",
            new="lse - part_lse",
        ),
        Wrong(
            "the output is the mean of both: a part whose keys have larger scores must count more",
            old="torch.sigmoid(part_lse - lse)[..., None]",
            new="0.5",
        ),
        Wrong(
            "the output is the sum of both: each is normalized already, so that their weights must add up to 1",
            old="o + share * (part_o - o)",
            new="o + part_o",
        ),
        Wrong("log-sum-exps are added", old="torch.logaddexp(lse, part_lse)", new="lse + part_lse"),
        Wrong(
            "the larger log-sum-exp is kept: a third part would be put to it with the wrong weight",
            old="torch.logaddexp(lse, part_lse)",
            new="torch.maximum(lse, part_lse)",
        ),
        Wrong(
            "the log-sum-exp is the logarithm of a sum that overflows, or becomes 0",
            old="torch.logaddexp(lse, part_lse)",
            new="(lse.exp() + part_lse.exp()).log()",
        ),
        Wrong("the output alone", "must be (a tensor", old=", torch.logaddexp(lse, part_lse)", new=""),
    ),
    debrief="A part needs nothing of the others but its output and one number a row. So parts can be computed in any "
    "order, on any GPU, and put together as they come: it is the online softmax with tiles that are far apart.",
)
