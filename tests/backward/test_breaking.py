"""Every synchronisation of the backward kernels for Hopper is taken out, loosened or flipped, and is missed."""

import pytest

from steps import get_step
from steps.writing.written import write_step
from tests.selection import sampled
from tests.shapes import few_at_once, problem, zeros_alone
from tests.simulator.places import check_that_all_is_missed
from tests.simulator.test_breaking import AGAIN, BY_ITSELF, ONE_MORE, ONLY_SPEED, OTHER_PARITY, WITHOUT

QUERIES_FIRST = "the producer has waited for Q's slot in the same iteration, which is free later than dO's"
FREE_SAYS_SO = (
    "the wait for the slot of this iteration's dS says so, too: who has freed it had written dS of the one before"
)
WRITTEN_SAYS_SO = "the wait until global memory is written stands before, and waits for more"
ONE_CLOCK = "in the simulator all warps of a role have one clock; on a GPU they meet, as one thread counts for all"
STORES = "tma.store_wait(0)"
OF_D_OUTPUT = "mbarrier.wait(barriers.d_output_empty.index(slot), used)"
OF_D_SCORES = "mbarrier.wait(barriers.d_scores_full.index(other & 1), iteration - 1 >> 1 & 1)"
TURN = "mbarrier.wait(barriers.turns.index(warpgroup), iteration & 1 ^ FIRST)"
ITS_TURN = {(WITHOUT, TURN): ONLY_SPEED, (OTHER_PARITY, TURN): ONLY_SPEED}
OF_ALL = {(WITHOUT, OF_D_OUTPUT): QUERIES_FIRST}
# What is not missed, and why: step and head_dim -> (way, statement) -> reason.
HARMLESS = {
    ("async_products", 64): OF_ALL | {(WITHOUT, "gl.barrier()"): BY_ITSELF},
    ("decoupled_warpgroups", 64): OF_ALL | {(WITHOUT, OF_D_SCORES): FREE_SAYS_SO},
    ("decoupled_warpgroups", 256): {},
    ("backward_ping_pong", 128): OF_ALL | {(WITHOUT, OF_D_SCORES): FREE_SAYS_SO} | ITS_TURN,
    ("deterministic", 64): OF_ALL
    | {
        (WITHOUT, OF_D_SCORES): FREE_SAYS_SO,
        (WITHOUT, "gl.barrier()"): AGAIN,  # warps meet for the wait in front of it
        (WITHOUT, STORES): WRITTEN_SAYS_SO,
        (ONE_MORE, STORES): WRITTEN_SAYS_SO,
    },
    ("dq_writer_warp", 64): OF_ALL | {(WITHOUT, OF_D_SCORES): FREE_SAYS_SO, (WITHOUT, "gl.barrier()"): ONE_CLOCK},
    ("two_dq_writers", 64): OF_ALL | {(WITHOUT, OF_D_SCORES): FREE_SAYS_SO, (WITHOUT, "gl.barrier()"): ONE_CLOCK},
    ("two_dq_writers", 256): {(WITHOUT, "gl.barrier()"): ONE_CLOCK},
    ("fused_pre_post", 64): OF_ALL
    | {
        (WITHOUT, OF_D_SCORES): FREE_SAYS_SO,
        (WITHOUT, "gl.barrier()"): ONE_CLOCK,
    },
    ("cta_per_query_head", 64): OF_ALL
    | {
        (WITHOUT, OF_D_SCORES): FREE_SAYS_SO,
        (WITHOUT, "gl.barrier()"): ONE_CLOCK,
        (WITHOUT, STORES): WRITTEN_SAYS_SO,
        (ONE_MORE, STORES): WRITTEN_SAYS_SO,
    },
    ("joint_release", 64): OF_ALL | {(WITHOUT, OF_D_SCORES): FREE_SAYS_SO},
    ("k_registers", 64): OF_ALL | {(WITHOUT, OF_D_SCORES): FREE_SAYS_SO},
    ("delta_accumulator", 128): OF_ALL | {(WITHOUT, OF_D_SCORES): FREE_SAYS_SO},
    ("deferred_reduce_add", 64): OF_ALL | {(WITHOUT, OF_D_SCORES): FREE_SAYS_SO},
    ("tma_zero_fill", 64): OF_ALL | {(WITHOUT, OF_D_SCORES): FREE_SAYS_SO, (WITHOUT, "gl.barrier()"): ONE_CLOCK},
}
HEADS = {"fused_pre_post": (5, 5), "cta_per_query_head": (6, 2), "tma_zero_fill": (5, 5)}


ENDS = [{head_dim: name for name, head_dim in each} for each in (HARMLESS, reversed(HARMLESS))]  # first and last


@sampled(core=lambda name, head_dim: any(ends[head_dim] == name for ends in ENDS))
@pytest.mark.parametrize(("name", "head_dim"), HARMLESS, ids=lambda x: str(x))
def test_every_synchronisation_is_missed(name, head_dim, monkeypatch, pytestconfig):
    (zeros_alone if name == "tma_zero_fill" else few_at_once)(monkeypatch)
    heads, kv_heads = HEADS.get(name, (2, 1))
    masked = name != "deferred_reduce_add"
    # Several iterations, and a single one; where there is a mask the second has a block that no query sees.
    lengths = ((450, 130), (130, 130)) if heads == 2 else ((300, 130), (150, 300))
    fields = {"batch": 1, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "causal": masked}
    lengths = lengths if masked else ((450, 256), (130, 256))
    shapes = [problem(seq_len_q=queries, seq_len_kv=keys, **fields) for queries, keys in lengths]

    harmless = dict.fromkeys(HARMLESS[name, head_dim])
    check_that_all_is_missed(write_step(get_step(name), shapes[0]), shapes, lambda _: harmless, pytestconfig)
