"""The mask in Gluon: indices of queries and of keys in the slices of the scores' layout."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from steps.exercises.in_kernel import InKernel
from tutorial_lib.exercises import Wrong
from tutorial_lib.problem import Problem

TILE = 64


@dataclass(frozen=True, kw_only=True)
class WithShortKeys(InKernel):
    """On problems with a causal mask, a last tile of keys that is not full, and more queries than keys."""

    def problems(self, chance: random.Random) -> list[Problem]:
        found = []
        for kind in self.kinds:
            keys = 2 * TILE - chance.randint(5, 60)
            queries = 2 * TILE + chance.randint(1, 60)
            lengths = {"seq_len_q": queries, "seq_len_kv": keys}
            found.append(Problem(**{"batch": 1, "heads": 1, "head_dim": 64, "causal": True, **lengths, **kind}))
        return found

    def judge(self, function, chance):
        wrong = super().judge(function, chance)
        if wrong and (found := re.search(r"of (\d+) queries are wrong, from (\d+) to", wrong)):
            keys = int(re.search(r"S=\d+x(\d+)", wrong)[1])
            if (first := int(found[2])) >= keys:
                return f"{wrong} There are {keys} keys: the queries from {keys} on see a key that is not there."
            if first >= TILE:  # the first query of a block may lack a key that hardly counts
                return f"{wrong} The first block of queries is right, the second is not: what does it begin with?"
        if wrong and "is added to a tile whose layout lacks" in wrong:
            wrong += (
                "\nAn index of queries lies along axis 0 of the scores, so its layout is the one that lacks axis 1. "
                "For "
                "keys it is the other way round."
            )
        return wrong


EXERCISE = WithShortKeys(
    name="masked_scores",
    step="explicit",
    function="hide",
    kinds=({}, {"dtype": "bfloat16"}),
    schedules=1,
    hints=(
        "The scores have axis 0 for queries and axis 1 for keys. query[:, None] adds axis 1 to a tile that lacks it, "
        "so query needs the slice of ACCUMULATOR that lacks axis 1. And key?",
        "Query number first_query + 0, 1, 2 ... of this block; key number first_key + 0, 1, 2 ... of this tile. A "
        "query may see a key where the key's number is at most its own, and where the key exists.",
        "query uses gl.SliceLayout(1, ACCUMULATOR), key uses gl.SliceLayout(0, ACCUMULATOR). seen is (key[None, :] <= "
        "query[:, None]) & (key[None, :] < seq_len_kv); elsewhere the score is minus infinity.",
    ),
    solution="""
def hide(scores, first_query, first_key, seq_len_kv):
    query = first_query + gl.arange(0, TILE_QUERY, gl.SliceLayout(1, ACCUMULATOR))
    key = first_key + gl.arange(0, TILE_KEY, gl.SliceLayout(0, ACCUMULATOR))
    seen = (key[None, :] <= query[:, None]) & (key[None, :] < seq_len_kv)
    return gl.where(seen, scores, float("-inf"))
""",
    wrong=(
        Wrong(
            "the slices are swapped",
            "An index of queries lies along axis 0",
            source="""
def hide(scores, first_query, first_key, seq_len_kv):
    query = first_query + gl.arange(0, TILE_QUERY, gl.SliceLayout(0, ACCUMULATOR))
    key = first_key + gl.arange(0, TILE_KEY, gl.SliceLayout(1, ACCUMULATOR))
    seen = (key[None, :] <= query[:, None]) & (key[None, :] < seq_len_kv)
    return gl.where(seen, scores, float("-inf"))
""",
        ),
        Wrong("the diagonal is hidden", "The whole row is NaN", old="<= query", new="< query"),
        Wrong("first_query is forgotten", "The first block of queries is right", old="first_query + gl", new="gl"),
        Wrong("the end of the keys is forgotten", "see a key that is not there", old="< seq_len_kv", new="< 100000"),
        Wrong("hidden scores become zero", "wrong number", old='float("-inf")', new="0.0"),
        Wrong("the mask is turned round", "wrong number", old="<= query", new=">= query"),
    ),
    debrief="Every index has a layout, too: the slice of the tile that it shall be compared with. So each lane knows "
    "the rows and columns of its own registers, and nothing is exchanged.",
)
