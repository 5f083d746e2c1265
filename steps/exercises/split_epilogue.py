"""What fits in an SM's shared memory beside Q, K and V: how many columns of the output at a time."""

from tutorial_lib.exercises import Plain, Wrong

SHARED = 232448  # bytes that a block can have on sm_90: 227 KiB


def columns(head_dim, queries, query_tiles, keys, stages, size=2, copies=2, outputs=1, least=2):
    """The right answer; with other numbers behind it, what people find who forget something."""
    held = size * head_dim * (query_tiles * queries + copies * stages * keys)
    found = head_dim
    while found and held + size * outputs * queries * found > SHARED:
        found = found // 2 if least == 2 else 0
    return found


MISTAKES = {
    "It looks as if you counted elements: each has 2 bytes.": lambda d, q, n, k, s: columns(d, q, n, k, s, size=1),
    "It looks as if V was forgotten: it has as many tiles as K.": lambda d, q, n, k, s: columns(
        d, q, n, k, s, copies=1
    ),
    "It looks as if the rings had one stage.": lambda d, q, n, k, s: columns(d, q, n, k, 1),
    "It looks as if there were one tile of queries.": lambda d, q, n, k, s: columns(d, q, 1, k, s),
    "The output of only one tile of queries leaves at a time.": lambda d, q, n, k, s: columns(d, q, n, k, s, outputs=n),
    "Half of the columns may fit where not all do, or a quarter.": lambda d, q, n, k, s: columns(
        d, q, n, k, s, least=0
    ),
}


def judged(function, chance):
    cases = [(256, 128, 1, 64, 2), (128, 128, 2, 128, 2), (64, 192, 2, 128, 2), (256, 128, 2, 64, 2)]
    cases += [(256, 64, 1, 64, 3), (256, 128, 1, 128, 1), (128, 128, 2, 128, 3), (256, 128, 1, 80, 2)]
    cases += [(128, 192, 2, 128, 2), (256, 64, 2, 64, 2), (256, 64, 2, 64, 3)]
    chance.shuffle(cases)
    mine = [function(*case) for case in cases]
    for case, found in zip(cases, mine, strict=True):
        if found != columns(*case):
            head_dim, queries, query_tiles, keys, stages = case
            ring = 2 * stages * keys * head_dim
            held = 2 * query_tiles * queries * head_dim
            seen = [told for told, mistake in MISTAKES.items() if mine == [mistake(*case) for case in cases]]
            told = (
                f"head_dim {head_dim}, tiles of Q: {query_tiles} of {queries}, {stages} stages of {keys} keys: the "
                f"answer is {columns(*case)} columns, and yours gives {found}. In bytes: Q {held:,}, K and V {ring:,} "
                f"each, a column of the output {2 * queries}; so {SHARED - held - 2 * ring:,} are left."
            )
            return " ".join([told, *seen])
    return None


EXERCISE = Plain(
    name="split_epilogue",
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
        Wrong("elements, not bytes", "you counted elements", old="held = 2 * head_dim", new="held = head_dim"),
        Wrong("V is forgotten", "V was forgotten", old="2 * stages * keys", new="stages * keys"),
        Wrong("one stage", "had one stage", old="2 * stages * keys", new="2 * keys"),
        Wrong("one tile of queries", "one tile of queries", old="query_tiles * queries", new="queries"),
        Wrong(
            "the output of both tiles",
            "The output of only one tile",
            old="2 * queries * columns",
            new="2 * query_tiles * queries * columns",
        ),
        Wrong("all or nothing", "Half of the columns", old="columns //= 2", new="columns = 0"),
    ),
    debrief="At head_dim 256 there is room for half of the output. Up to 128 there is room for a second tile of Q and "
    "for all of the output, which is why this step is for head_dim 256 alone.",
)
