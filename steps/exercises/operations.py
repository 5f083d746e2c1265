"""The first exercise: how many operations the two matrix products of attention take."""

from tutorial_lib.exercises import Compared, Wrong


def told(queries: int, keys: int, head_dim: int, causal: bool) -> str:
    if not causal:
        return f"There are two products, and {queries:,} times {keys:,} pairs."
    if keys < queries:
        return f"Query 0 sees one key, query 1 two, and so on; no query sees more than the {keys} that there are."
    return f"Query 0 sees one key, query 1 two, and so on; the last {keys - queries} keys are seen by no query."


def cases(chance):
    for causal, more in ((False, 0), (True, 0), (True, 7), (True, -7)):
        queries = chance.randint(20, 300)
        yield queries, queries + more, chance.choice((64, 128, 256)), causal


EXERCISE = Compared(
    name="operations",
    function="operations",
    cases=cases,
    told=told,
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
        Wrong(
            "only one product is counted, or of both the multiplications without the additions",
            old="4 * head_dim",
            new="2 * head_dim",
        ),
        Wrong("only the multiplications of one product are counted", old="4 * head_dim", new="head_dim"),
        Wrong("all pairs are counted, as without a mask", old="if causal:", new="if False:"),
        Wrong("the diagonal is left out: query 0 sees key 0", old="query + 1, keys", new="query, keys"),
        Wrong(
            "half of all pairs are counted, which is nearly right",
            old="sum(min(query + 1, keys) for query in range(queries))",
            new="pairs // 2",
        ),
        Wrong("queries are taken to see more keys than there are", old="min(query + 1, keys)", new="query + 1"),
    ),
    debrief="Both products cost the same: 2 * head_dim operations for every pair, and the mask leaves about half of "
    "the pairs.",
)
