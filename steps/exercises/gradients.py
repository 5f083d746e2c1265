"""The five products of the backward pass, in PyTorch: step formulas."""

from tutorial_lib.exercises import Plain, Wrong

NAMES = ("d_query", "d_key", "d_value")


def problems(chance):
    from tutorial_lib.problem import Problem

    def length():
        return chance.randint(40, 90)

    one = {"batch": 1, "heads": 2, "head_dim": 64}
    keys = length()
    yield Problem(**one, seq_len_q=length(), seq_len_kv=length())
    yield Problem(**one, seq_len_q=keys, seq_len_kv=keys, causal=True)
    yield Problem(**one, seq_len_q=keys, seq_len_kv=keys + 30, causal=True, scale=0.3)
    yield Problem(batch=1, heads=2, seq_len_q=600, seq_len_kv=600, head_dim=128, dtype="bfloat16", scale=0.5)
    yield Problem(**one, seq_len_q=keys, seq_len_kv=keys, scale=8.0)


class OwnAttention(Exception):
    """The answer calls PyTorch's own attention."""


def forbidding():
    """A context in which PyTorch's own attention is refused."""
    from torch.overrides import TorchFunctionMode

    class Forbid(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            if "scaled_dot_product" in getattr(function, "__name__", ""):
                raise OwnAttention
            return function(*args, **(kwargs or {}))

    return Forbid()


def judge(function, chance):
    import torch

    from tutorial_lib.accuracy import compare, first_difference
    from tutorial_lib.passes import BACKWARD

    for problem in problems(chance):
        inputs = BACKWARD.inputs(problem, chance.getrandbits(32))
        exact = BACKWARD.reference(problem, inputs)
        allowed = BACKWARD.yardstick(problem, inputs, exact)
        q, k, v, o, lse, do = (x.clone() for x in inputs)
        hidden = torch.zeros(q.shape[2], k.shape[2], dtype=torch.bool)
        if problem.causal:
            hidden = torch.ones_like(hidden).triu(1)
        try:
            with forbidding():
                mine = function(q, k, v, o, lse, do, hidden, problem.effective_scale)
        except OwnAttention:
            return "That calls PyTorch's own attention. Write the five products out."
        if not isinstance(mine, tuple) or len(mine) != 3:
            return f"The result must be three gradients, `d_query, d_key, d_value`; got {type(mine).__name__}."
        for name, x, like, its, error in zip(NAMES, mine, (q, k, v), exact, allowed, strict=True):
            if not isinstance(x, torch.Tensor) or x.shape != like.shape:
                came = list(x.shape) if isinstance(x, torch.Tensor) else type(x).__name__
                return f"On {problem.describe()}: {name} must be {list(like.shape)}; got {came}."
            found = compare(x.to(like.dtype), its, error)
            if not found.correct:
                told = first_difference(x.to(like.dtype), its, found.limit)
                if like is not q:  # its rows are keys
                    told = told.replace("query", "key").replace("queries", "keys")
                given = q, k, v, o, lse, do, hidden, problem.effective_scale
                return f"On {problem.describe()}, {name}: {told}{EXERCISE.recognised([(given, mine)], 0.03)}"
    return None


EXERCISE = Plain(
    name="gradients",
    function="gradients",
    hints=(
        "A product C = A B has the gradients dA = dC B^T and dB = A^T dC. O = P V is such a product, and so is "
        "S = scale Q K^T. `x.mT` transposes the last two dimensions.",
        "d_value = weights.mT @ do and d_weights = do @ v.mT, in float32. D is (do * o).sum(-1, keepdim=True).",
        "d_scores = weights * (d_weights - row_sum); then d_query = d_scores @ k * scale and "
        "d_key = d_scores.mT @ q * scale.",
    ),
    solution="""
def gradients(q, k, v, o, lse, do, hidden, scale):
    q, k, v, o, do = (x.float() for x in (q, k, v, o, do))
    weights = torch.exp(q @ k.mT * scale - lse[..., None])
    weights = weights.masked_fill(hidden, 0.0)
    d_value = weights.mT @ do
    d_weights = do @ v.mT
    row_sum = (do * o).sum(-1, keepdim=True)
    d_scores = weights * (d_weights - row_sum)
    d_query = d_scores @ k * scale
    d_key = d_scores.mT @ q * scale
    return d_query, d_key, d_value
""",
    wrong=(
        Wrong("the row's sum is not subtracted from dP", old="(d_weights - row_sum)", new="d_weights"),
        Wrong("dQ lacks the scale: a score is scale times q k^T", old="d_scores @ k * scale", new="d_scores @ k"),
        Wrong("dK lacks the scale: a score is scale times q k^T", old="d_scores.mT @ q * scale", new="d_scores.mT @ q"),
        Wrong(
            "the scale is left out: a score is scale times q k^T, and both factors' gradients have the scale",
            old="d_query = d_scores @ k * scale\n    d_key = d_scores.mT @ q * scale",
            new="d_query = d_scores @ k\n    d_key = d_scores.mT @ q",
        ),
        Wrong("the weights of hidden pairs are not zero", old="weights.masked_fill(hidden, 0.0)", new="weights"),
        Wrong(
            "the sum that is subtracted goes over the queries: it belongs to a query, over its keys",
            old="row_sum = (do * o).sum(-1, keepdim=True)",
            new="row_sum = (weights * d_weights).sum(-2, keepdim=True)",
        ),
        Wrong("two gradients", "must be three", old="return d_query, d_key, d_value", new="return d_query, d_key"),
    ),
    debrief="Every fused backward kernel computes just these lines, a tile at a time.",
    by=judge,
)
