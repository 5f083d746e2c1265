"""The first exercise: how many operations the two matrix products of attention take."""

from tutorial_lib.exercises import Plain, Wrong


def count(queries: int, keys: int, head_dim: int, causal: bool) -> int:
    pairs = sum(min(query + 1, keys) for query in range(queries)) if causal else queries * keys
    return 4 * head_dim * pairs


def judge(function, chance):
    for causal, more in ((False, 0), (True, 0), (True, 7), (True, -7)):
        queries = chance.randint(20, 300)
        case = queries, queries + more, chance.choice((64, 128, 256)), causal
        if (mine := function(*case)) != (right := count(*case)):
            shown = f"{mine:,}" if isinstance(mine, int | float) else f"`{mine!r}`"
            call = f"`operations(queries={case[0]}, keys={case[1]}, head_dim={case[2]}, causal={causal})`"
            return f"{call} must be {right:,}, and yours gives {shown}. {advice(mine, *case)}".strip()
    return None


def advice(mine, queries: int, keys: int, head_dim: int, causal: bool) -> str:
    """What the mistake looks like, as far as it is a usual one."""
    right, diagonal = count(queries, keys, head_dim, causal), 4 * head_dim * min(queries, keys)
    if mine == right // 2:
        return (
            "That is half of it. There are two products, q @ k.T and weights @ v, and each multiplication goes with an "
            "addition."
        )
    if mine == right // 4:
        return "That is a quarter of it: count both products, and in each of them multiplications and additions."
    if not causal:
        return ""
    if mine == count(queries, keys, head_dim, False):
        return "That counts all pairs; with `causal`, query i does not see key j where j > i."
    unseen = 4 * head_dim * sum(min(query, keys) for query in range(queries))
    if mine in (unseen, right - diagonal):
        return "The diagonal is missing: query 0 sees key 0, query 1 sees keys 0 and 1."
    if mine in (2 * head_dim * queries * keys, 4 * head_dim * (queries * keys // 2)):
        return "Half of all pairs is nearly right, but not exactly: query 0 sees one key, query 1 two, and so on."
    if keys < queries:
        return f"There are only {keys} keys: no query can see more than {keys}, and all later queries see all of them."
    if keys > queries:
        return f"Query i sees keys 0 to i, so the last {keys - queries} keys are seen by no query."
    return "Query 0 sees one key, query 1 two, and so on."


EXERCISE = Plain(
    name="operations",
    function="operations",
    hints=(
        "Every pair of a query and a key that it sees has one dot product of head_dim numbers in q @ k.T. What does "
        "the same pair cost in weights @ v?",
        "A pair costs 2 * head_dim operations in each product. Without a mask there are queries * keys pairs. With the "
        "mask, query i sees the keys 0 to i: that is how many? And what if there are fewer keys than that?",
        "With the mask, pairs is the sum of min(i + 1, keys) over all queries i. The result is 4 * head_dim * pairs.",
    ),
    solution="""
def operations(queries, keys, head_dim, causal):
    pairs = queries * keys
    if causal:
        pairs = sum(min(query + 1, keys) for query in range(queries))
    return 4 * head_dim * pairs
""",
    wrong=(
        Wrong("one product counted", "There are two products", old="4 * head_dim", new="2 * head_dim"),
        Wrong("multiplications of one product", "a quarter of it", old="4 * head_dim", new="head_dim"),
        Wrong("the mask forgotten", "counts all pairs", old="if causal:", new="if False:"),
        Wrong("the diagonal forgotten", "The diagonal is missing", old="query + 1, keys", new="query, keys"),
        Wrong(
            "half of the square",
            "nearly right",
            old="sum(min(query + 1, keys) for query in range(queries))",
            new="pairs // 2",
        ),
        Wrong("fewer keys than queries", "no query can see more", old="min(query + 1, keys)", new="query + 1"),
    ),
    debrief="Both products cost the same: 2 * head_dim operations for every pair, and the mask leaves about half of "
    "the pairs.",
    by=judge,
)
