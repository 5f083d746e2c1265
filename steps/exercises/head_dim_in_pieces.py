"""head_dim in pieces: what is a sum over pieces, and what has pieces of its own."""

from tutorial_lib.exercises import Plain, Wrong

QUERIES, KEYS, PIECE = 5, 7, 4


def judge(function, chance):
    import torch

    for pieces in (1, 2, 4):
        generator = torch.Generator().manual_seed(chance.getrandbits(32))
        drawn = {"Q": QUERIES, "K": KEYS, "V": KEYS}
        held = {
            name: torch.randn(rows, pieces * PIECE, generator=generator, dtype=torch.float64)
            for name, rows in drawn.items()
        }
        loaded = []

        def load(name, c, held=held, loaded=loaded):
            loaded.append((name, c))
            return held[name][:, c * PIECE : (c + 1) * PIECE]

        scale = chance.uniform(0.5, 1.5)
        weights = torch.softmax(scale * held["Q"] @ held["K"].T, dim=1)
        right, found = weights @ held["V"], function(load, pieces, scale)
        if tuple(found.shape) != tuple(right.shape):
            return (
                f"With {pieces} pieces of {PIECE} columns the output must be {list(right.shape)}, and yours is "
                f"{list(found.shape)}. Every piece of V gives its own columns of the output."
            )
        if len(loaded) != 3 * pieces:
            return f"With {pieces} pieces, {3 * pieces} must be loaded, each once; yours loads {len(loaded)}: {loaded}."
        if not torch.allclose(found, right, atol=1e-9):
            return _told(pieces, scale, held, found)
    return None


def _told(pieces: int, scale: float, held: dict, found) -> str:
    """Which mistake gives these numbers."""
    import torch

    cut = [[x[:, c * PIECE : (c + 1) * PIECE] for c in range(pieces)] for x in held.values()]
    each = [scale * q @ k.T for q, k in zip(*cut[:2])]
    apart = torch.cat([torch.softmax(s, dim=1) @ v for s, v in zip(each, cut[2])], dim=1)
    plain = torch.softmax(held["Q"] @ held["K"].T, dim=1) @ held["V"]
    wrong = f"With {pieces} pieces the output is wrong: row 0 begins with {found[0, 0].item():.4f}."
    if torch.allclose(found, apart):
        return f"{wrong} It has a softmax for every piece. A score is the sum over all pieces, and has one softmax."
    if torch.allclose(found, plain):
        return f"{wrong} The scale is missing."
    if torch.allclose(found, torch.softmax(each[-1], dim=1) @ held["V"]):
        return f"{wrong} The scores hold the last piece only: add up the products of all pieces."
    return wrong


EXERCISE = Plain(
    name="head_dim_in_pieces",
    function="attention",
    by=judge,
    hints=(
        "A score is the product of a whole row of Q and a whole row of K: a sum over head_dim. What can be done "
        "before all "
        "pieces of that sum are there?",
        "First a loop over pieces that adds load('Q', c) @ load('K', c).T to the scores. Then one softmax. Then a "
        "second "
        "loop over pieces of V.",
        "scores = sum(load('Q', c) @ load('K', c).T for c in range(pieces)); weights = torch.softmax(scale * scores, "
        "dim=1); "
        "and the output is torch.cat of weights @ load('V', c) along dim 1.",
    ),
    solution="""
def attention(load, pieces, scale):
    scores = 0
    for c in range(pieces):
        scores = scores + load("Q", c) @ load("K", c).T
    weights = torch.softmax(scale * scores, dim=1)
    output = [weights @ load("V", c) for c in range(pieces)]
    return torch.cat(output, dim=1)
""",
    wrong=(
        Wrong(
            "a softmax for every piece",
            "a softmax for every piece",
            source="""
def attention(load, pieces, scale):
    output = []
    for c in range(pieces):
        weights = torch.softmax(scale * load("Q", c) @ load("K", c).T, dim=1)
        output.append(weights @ load("V", c))
    return torch.cat(output, dim=1)
""",
        ),
        Wrong(
            "pieces of the output are added up",
            "gives its own columns",
            old="torch.cat(output, dim=1)",
            new="sum(output)",
        ),
        Wrong("the scale is forgotten", "The scale is missing", old="scale * scores", new="scores"),
        Wrong("only the last piece counts", "the last piece only", old="scores + load", new="load"),
        Wrong(
            "below one another", "gives its own columns", old="torch.cat(output, dim=1)", new="torch.cat(output, dim=0)"
        ),
    ),
    debrief="Scores are summed over pieces, and outputs lie side by side. The softmax stands between them and needs "
    "whole "
    "scores, so a tile of keys takes two passes over head_dim: one over K, one over V.",
)
