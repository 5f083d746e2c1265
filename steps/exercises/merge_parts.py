"""Two parts of attention, over different keys, put together by the log-sum-exp of each."""

from tutorial_lib.exercises import Plain, Wrong

MISTAKES = (  # what is computed, and what is said
    (
        lambda o, lse, p, part_lse: p + (part_lse - lse).sigmoid()[..., None] * (o - p),
        "each output is multiplied by the other's weight: a part with larger scores must count more",
    ),
    (
        lambda o, lse, p, part_lse: (o + p) / 2,
        "it is the mean of both: a part whose keys have larger scores must count more",
    ),
    (
        lambda o, lse, p, part_lse: o + p,
        "it is the sum of both: each is normalised already, so that their weights must add up to 1",
    ),
)


def judge(function, chance) -> str | None:
    import torch

    from tutorial_lib.reference import attention_and_lse_float64

    generator = torch.Generator().manual_seed(chance.getrandbits(60))

    def random(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    cases = (
        ("ordinary scores", 0.3, 0.0),
        ("scores near 2000, whose exponential no number format holds", 0.3, 2000.0),
        ("scores near -2000, whose exponential is 0 in any", 0.3, -2000.0),
        ("one part with far larger scores", 60.0, 0.0),
    )
    for what, scale, moved in cases:
        first, second = chance.randint(1, 20), chance.randint(1, 20)
        q, k, v = random(1, 2, 6, 16), random(1, 2, first + second, 16), random(1, 2, first + second, 16) + 0.5

        def over(keys, q=q, k=k, v=v, scale=scale, moved=moved):
            o, lse = attention_and_lse_float64(q, k[:, :, keys], v[:, :, keys], scale=scale)
            return o.float(), (lse + moved).float()

        (o, lse), part = over(slice(0, first)), over(slice(first, None))
        exact, exact_lse = over(slice(None))
        given = o.clone(), lse.clone(), part[0].clone(), part[1].clone()
        mine = function(*given)
        if wrong := _told(mine, exact, exact_lse, (o, lse, *part)):
            return f"With {what}, {first} and {second} keys: {wrong}"
    return None


def _told(mine, exact, exact_lse, given) -> str | None:
    import torch

    if not (isinstance(mine, tuple) and len(mine) == 2 and all(isinstance(x, torch.Tensor) for x in mine)):
        return f"Two tensors must come back, the output and the log-sum-exp. This came: `{type(mine).__name__}`."
    o, lse = mine
    if o.shape != exact.shape or lse.shape != exact_lse.shape:
        wanted = f"{tuple(exact.shape)} and {tuple(exact_lse.shape)}"
        return f"the shapes must be {wanted}, and are {tuple(o.shape)} and {tuple(lse.shape)}."
    if o.isnan().any() or lse.isnan().any():
        return "NaN comes out: an exponential overflowed, or everything became 0. Use differences of the two only."
    if not lse.isfinite().all():
        return "the log-sum-exp comes out infinite: the exponential of one of them overflowed, or became 0."
    if (o - exact).abs().max() > 1e-4:
        for how, why in MISTAKES:
            if (o - how(*given)).abs().max() < 1e-5:
                return f"the output is wrong: {why}."
        return f"the output is wrong by up to {(o - exact).abs().max().item():.2g}."
    if (lse - exact_lse).abs().max() > 1e-4 * (1 + exact_lse.abs().max()):
        difference = (lse - exact_lse).abs().max().item()
        return (
            f"the output is right, and the log-sum-exp is wrong by up to {difference:.2g}: a third part would be put "
            "to it with the wrong weight."
        )
    return None


EXERCISE = Plain(
    name="merge_parts",
    function="merge_parts",
    by=judge,
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
            "the exponentials themselves",
            "an exponential overflowed",
            source="""
def merge_parts(o, lse, part_o, part_lse):
    a, b = lse.exp()[..., None], part_lse.exp()[..., None]
    return (a * o + b * part_o) / (a + b), torch.logaddexp(lse, part_lse)
""",
        ),
        Wrong(
            "the other part's share",
            "each output is multiplied by the other's weight",
            old="part_lse - lse",
            new="lse - part_lse",
        ),
        Wrong("the mean", "it is the mean of both", old="torch.sigmoid(part_lse - lse)[..., None]", new="0.5"),
        Wrong("the sum", "it is the sum of both", old="o + share * (part_o - o)", new="o + part_o"),
        Wrong(
            "the sum of the logarithms",
            "the output is right, and the log-sum-exp is wrong",
            old="torch.logaddexp(lse, part_lse)",
            new="lse + part_lse",
        ),
        Wrong(
            "the larger log-sum-exp",
            "the output is right, and the log-sum-exp is wrong",
            old="torch.logaddexp(lse, part_lse)",
            new="torch.maximum(lse, part_lse)",
        ),
        Wrong(
            "the logarithm of the sum, by itself",
            "comes out infinite",
            old="torch.logaddexp(lse, part_lse)",
            new="(lse.exp() + part_lse.exp()).log()",
        ),
        Wrong("the output alone", "Two tensors must come back", old=", torch.logaddexp(lse, part_lse)", new=""),
    ),
    debrief="A part needs nothing of the others but its output and one number a row. So parts can be computed in any "
    "order, on any GPU, and put together as they come: it is the online softmax with tiles that are far apart.",
)
