"""Attention as the formula reads, with a causal mask and grouped heads: step naive."""

from tutorial_lib.exercises import Plain, Wrong


def problems(chance):
    from tutorial_lib.problem import Problem

    def length():
        return chance.randint(40, 90)

    one = {"batch": 1, "heads": 2, "head_dim": 64}
    keys = length()
    yield Problem(**one, seq_len_q=length(), seq_len_kv=length())
    yield Problem(**one, seq_len_q=keys, seq_len_kv=keys, causal=True)
    yield Problem(**one, seq_len_q=keys, seq_len_kv=keys + 30, causal=True, scale=0.3)
    yield Problem(batch=2, heads=6, kv_heads=2, seq_len_q=keys + 10, seq_len_kv=keys, head_dim=32, causal=True)
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
    from tutorial_lib.passes import FORWARD

    for problem in problems(chance):
        q, k, v = FORWARD.inputs(problem, chance.getrandbits(32))
        inputs = q, k, v, problem.causal, problem.effective_scale
        [exact] = FORWARD.reference(problem, (q, k, v))
        [allowed] = FORWARD.yardstick(problem, (q, k, v), [exact])
        try:
            with forbidding():
                mine = function(q.clone(), k.clone(), v.clone(), *inputs[3:])
        except OwnAttention:
            return "That calls PyTorch's own attention. Write the formula out: two products, with the softmax between."
        if not isinstance(mine, torch.Tensor) or mine.shape != q.shape or mine.dtype != q.dtype:
            came = f"{list(mine.shape)}, {mine.dtype}" if isinstance(mine, torch.Tensor) else type(mine).__name__
            return f"On {problem.describe()}: the result must be {list(q.shape)}, {q.dtype}, as q is; got {came}."
        found = compare(mine, exact, allowed)
        if found.correct:
            continue
        told = [f"On {problem.describe()}: {first_difference(mine, exact, found.limit)}"]
        if (mine.double() - exact).abs().mean() < 0.01:
            told.append(
                f"Most of it is nearly right, but the largest error is {found.max_error:.2g} where {found.limit:.2g} "
                "is allowed: something is rounded to 16 bits too early. Compute the scores in float32, from q.float() "
                "and k.float()."
            )
        else:
            told.append(EXERCISE.recognised([(inputs, mine)], 0.02).strip())
        return " ".join(told)
    return None


EXERCISE = Plain(
    name="formula",
    function="attention",
    hints=(
        "q is [batch, heads, query, head_dim]. `k.transpose(-2, -1)` is [batch, heads, head_dim, key], and `@` "
        "multiplies the last two dimensions. Only k and v have fewer heads, and the heads of a group are neighbors.",
        "torch.repeat_interleave repeats each head in place. For the mask, torch.ones(queries, keys, dtype=torch.bool) "
        ".triu(1) is true where key > query; masked_fill sets scores there to minus infinity.",
        "scores = q.float() @ k.float().transpose(-2, -1) * scale; then the mask; then torch.softmax(scores, dim=-1); "
        "at the end weights.to(q.dtype) @ v.",
    ),
    solution="""
def attention(q, k, v, causal, scale):
    group = q.shape[1] // k.shape[1]
    k = k.repeat_interleave(group, dim=1)
    v = v.repeat_interleave(group, dim=1)
    scores = q.float() @ k.float().transpose(-2, -1) * scale
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(hidden, -math.inf)
    weights = torch.softmax(scores, dim=-1)
    return weights.to(q.dtype) @ v
""",
    wrong=(
        Wrong(
            "the heads are repeated in the wrong order: neighbouring heads of the queries share a head of the keys; "
            "`repeat_interleave` does that, and `repeat` does not",
            old="k = k.repeat_interleave(group, dim=1)\n    v = v.repeat_interleave(group, dim=1)",
            new="k = k.repeat(1, group, 1, 1)\n    v = v.repeat(1, group, 1, 1)",
        ),
        Wrong("the scale is forgotten: scores must be multiplied by `scale`", old=" * scale", new=""),
        Wrong(
            "the scale is 1 / sqrt(head_dim) though another is given: use `scale`",
            old=" * scale",
            new=" / math.sqrt(q.shape[-1])",
        ),
        Wrong("the mask is forgotten", old="if causal:", new="if False:"),
        Wrong("the mask hides the diagonal, too: a query must see its own key", old="triu(1)", new="triu()"),
        Wrong("the mask hides the keys of the past, and leaves those of the future", old="triu(1)", new="tril(-1)"),
        Wrong(
            "the mask is moved to the right for more keys than queries: here key j is hidden from query i where j > i, "
            "also when the lengths differ",
            old="triu(1)",
            new="triu(max(0, k.shape[2] - q.shape[2]) + 1)",
        ),
        Wrong(
            "hidden scores are set to 0, whose exponential is not 0: they must be minus infinite",
            old="-math.inf",
            new="0.0",
        ),
        Wrong(
            "the softmax goes over the queries: the weights of a query must sum to 1 over its keys",
            old="dim=-1",
            new="dim=-2",
        ),
        Wrong(
            "no maximum is subtracted before the exponential, which is infinite for a large score: torch.softmax does "
            "that",
            old="torch.softmax(scores, dim=-1)",
            new="torch.exp(scores) / torch.exp(scores).sum(-1, keepdim=True)",
        ),
        Wrong("scores in 16 bits", "rounded to 16 bits too early", old="q.float() @ k.float()", new="q @ k"),
        Wrong(
            "PyTorch's own attention",
            "PyTorch's own attention",
            old="return weights.to(q.dtype) @ v",
            new="return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)",
        ),
        Wrong("the result in float32", "as q is", old="weights.to(q.dtype) @ v", new="weights @ v.float()"),
    ),
    debrief="Each of these lines is a kernel of its own, and each of the matrices [query, key] goes to device memory "
    "and comes back.",
    by=judge,
)
