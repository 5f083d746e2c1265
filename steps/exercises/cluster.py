"""What each block of a cluster computes, and what it fetches for all of them."""

from tutorial_lib.exercises import Plain, Wrong


def _judge(function, chance):
    for cluster, query, key in [(2, 128, 128), (4, 256, 128), (2, 128, 64), (1, 64, 128)]:
        clusters = chance.randint(2, 4)
        told = f"Clusters of {cluster}, tiles of {query} queries and {key} keys: "
        parts = [function(block, cluster, query, key) for block in range(clusters * cluster)]
        for block, part in enumerate(parts):
            if len(part) != 2 or not all(isinstance(one, range) for one in part):
                return told + f"`part({block}, ...)` must give two ranges, of queries and of keys, not {part!r}."
            if len(part[0]) != query // cluster:
                return told + f"block {block} holds {len(part[0])} queries, not {query // cluster}: {part[0]}."
            if len(part[1]) != key // cluster:
                return told + (
                    f"block {block} fetches {len(part[1])} keys of each tile, {part[1]}. It has to fetch only "
                    f"{key // cluster}: multicast brings it the rest."
                )
        for first in range(0, len(parts), cluster):
            members = parts[first : first + cluster]
            who = f"blocks {first} to {first + cluster - 1} are a cluster. "
            queries = sorted(n for part in members for n in part[0])
            begin = first // cluster * query
            if queries != list(range(begin, begin + query)):
                return (
                    told
                    + who
                    + (
                        f"They share the tile of the queries {begin} to {begin + query - 1}, and yours hold "
                        f"{', '.join(str(part[0]) for part in members)}."
                    )
                )
            if sorted(n for part in members for n in part[1]) != list(range(key)):
                return (
                    told
                    + who
                    + (
                        f"Together they have to fetch the keys 0 to {key - 1} of each tile, each of them once, and "
                        f"yours fetch {', '.join(str(part[1]) for part in members)}."
                    )
                )
    return None


EXERCISE = Plain(
    name="cluster",
    function="part",
    by=_judge,
    hints=(
        "Blocks 0 and 1 are a cluster, 2 and 3 the next. Which cluster is block 5 in, and which of its blocks is it?",
        "block // cluster is the number of the cluster, and so of its tile of queries; block % cluster is the block's "
        "rank in it.",
        "The tile begins with query block // cluster * tile_query. A block of rank r holds the r-th part of it, and "
        "fetches the r-th part of the keys: range(rank * keys, (rank + 1) * keys) with keys = tile_key // cluster.",
    ),
    solution="""
def part(block, cluster, tile_query, tile_key):
    number, rank = block // cluster, block % cluster
    queries, keys = tile_query // cluster, tile_key // cluster
    first = number * tile_query + rank * queries
    return range(first, first + queries), range(rank * keys, (rank + 1) * keys)
""",
    wrong=(
        Wrong(
            "number and rank are swapped",
            "are a cluster",
            old="block // cluster, block % cluster",
            new="block % cluster, block // cluster",
        ),
        Wrong(
            "every block fetches all keys",
            "multicast brings it the rest",
            old="range(rank * keys, (rank + 1) * keys)",
            new="range(tile_key)",
        ),
        Wrong(
            "both fetch the same half",
            "each of them once",
            old="range(rank * keys, (rank + 1) * keys)",
            new="range(keys)",
        ),
        Wrong("every block holds all queries", "queries, not", old="first + queries)", new="first + tile_query)"),
        Wrong("a tile for each block", "share the tile", old="number * tile_query", new="block * tile_query"),
    ),
    debrief="A block computes its part of the queries with all keys, and fetches its part of the keys for all. So what "
    "is fetched is divided by the cluster, and registers are as before.",
)
