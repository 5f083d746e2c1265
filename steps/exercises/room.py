"""What fits in an SM's shared memory beside Q, K and V: how many columns of the output at a time."""

from tutorial_lib.exercises import Plain, Wrong

SHARED = 232448  # bytes that a block can have on sm_90: 227 KiB


def right(head_dim, queries, query_tiles, keys, stages):
    held = query_tiles * queries * head_dim + 2 * stages * keys * head_dim
    columns = head_dim
    while columns and 2 * (held + queries * columns) > SHARED:
        columns //= 2
    return columns


def judged(function, chance):
    cases = [(256, 128, 1, 64, 2), (128, 128, 2, 128, 2), (64, 192, 2, 128, 2), (256, 128, 2, 64, 2)]
    cases += [(256, 64, 1, 64, 3), (256, 128, 1, 128, 1), (128, 128, 2, 128, 3), (256, 128, 1, 80, 2)]
    cases.append((128, 192, 2, 128, 2))
    chance.shuffle(cases)
    for case in cases:
        mine, needed = function(*case), right(*case)
        if mine != needed:
            head_dim, queries, query_tiles, keys, stages = case
            parts = {
                "Q": 2 * query_tiles * queries * head_dim,
                "K": 2 * stages * keys * head_dim,
                "V": 2 * stages * keys * head_dim,
            }
            told = ", ".join(f"{name} {size:,}" for name, size in parts.items())
            column = 2 * queries
            left = SHARED - sum(parts.values())
            return (
                f"head_dim {head_dim}, tiles of Q: {query_tiles} of {queries}, {stages} stages of {keys} keys: the answer "
                f"is {needed} columns, and yours gives {mine}. In bytes: {told}, a column of the output {column}; so "
                f"{left:,} are left."
            )
    return None


EXERCISE = Plain(
    name="room",
    function="output_columns",
    by=judged,
    hints=(
        "Count the bytes that Q, K and V hold first. An element has 2 bytes; K and V have as many tiles as the ring "
        "has stages, and Q has query_tiles.",
        "held = 2 * head_dim * (query_tiles * queries + 2 * stages * keys). The output of a block has a row for each "
        "of its queries, not for each tile of them that waits.",
        "Begin with columns = head_dim and halve (columns //= 2) as long as held + 2 * queries * columns is more than "
        "SHARED. Where nothing fits at all, this ends with 0.",
    ),
    solution="""
def output_columns(head_dim, queries, query_tiles, keys, stages):
    SHARED = 232448
    held = 2 * head_dim * (query_tiles * queries + 2 * stages * keys)
    columns = head_dim
    while columns and held + 2 * queries * columns > SHARED:
        columns //= 2
    return columns
""",
    wrong=(
        Wrong("elements, not bytes", "In bytes", old="held = 2 * head_dim", new="held = head_dim"),
        Wrong("V is forgotten", "V ", old="2 * stages * keys", new="stages * keys"),
        Wrong("one stage", "2 stages", old="2 * stages * keys", new="2 * keys"),
        Wrong("one tile of queries", "tiles of Q: 2", old="query_tiles * queries", new="queries"),
        Wrong(
            "the output of both tiles",
            "columns",
            old="2 * queries * columns",
            new="2 * query_tiles * queries * columns",
        ),
        Wrong("all or nothing", "columns", old="columns //= 2", new="columns = 0"),
    ),
    debrief="At head_dim 256 there is room for half of the output. Up to 128 there is room for a second tile of Q and "
    "for all of the output, which is why this step is for head_dim 256 alone.",
)
