"""The model of a sequence over several GPUs: it counts what the steps compute and send, and its limits hold."""

import dataclasses

import pytest

from steps.core.problems import LONG
from steps.parallel.model import LINKS, Link, iterations, key_bytes, least_tokens, seconds, sent_bytes, share_of_ideal
from tutorial_lib.passes import FORWARD
from tutorial_lib.problem import Problem

RATE = 600e12
FREE = Link("a link that takes no time", 1e30, "made up")
SLOW = LINKS[-1]


def total(found) -> list[float]:
    """Seconds that each rank computes."""
    ranks = max(iteration.rank for iteration in found) + 1
    return [
        sum(iteration.end - iteration.begin for iteration in found if iteration.rank == rank) for rank in range(ranks)
    ]


@pytest.mark.parametrize("name", ["ring", "double_buffering", "zigzag"])
@pytest.mark.parametrize("causal", [True, False])
def test_all_operations_are_counted_once(name, causal):
    problem = dataclasses.replace(LONG, causal=causal)
    assert sum(total(iterations(name, problem, 4, RATE, SLOW))) == pytest.approx(FORWARD.operations(problem) / RATE)


def test_without_a_mask_or_in_a_zigzag_nobody_waits_where_sending_is_free():
    full = dataclasses.replace(LONG, causal=False)
    for name, problem in (
        ("ring", full),
        ("double_buffering", full),
        ("zigzag", LONG),
        ("ulysses", LONG),
        ("gather", full),
    ):
        assert share_of_ideal(name, problem, 8, RATE, FREE) == pytest.approx(1)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_in_order_the_last_rank_has_nearly_twice_its_share(ranks):
    for name in ("ring", "double_buffering", "gather"):
        assert share_of_ideal(name, LONG, ranks, RATE, FREE) == pytest.approx(ranks / (2 * ranks - 1))


def test_a_ring_that_waits_pays_for_every_turn():
    send = key_bytes(LONG, 4) / SLOW.rate
    full = dataclasses.replace(LONG, causal=False)
    assert seconds("ring", full, 4, RATE, SLOW) == pytest.approx(seconds("ring", full, 4, RATE, FREE) + 3 * send)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kv_heads", [32, 8])
@pytest.mark.parametrize("link", LINKS, ids=lambda link: link.name)
def test_a_link_keeps_up_from_the_length_that_is_told(link, kv_heads, causal):
    """In iterations but a rank's own, which is half a part under the mask as the others are in a zigzag."""
    ranks = 8
    for factor, hidden in ((1.01, True), (0.9, False)):
        base = dataclasses.replace(LONG, kv_heads=kv_heads, causal=causal)
        tokens = 2 * round(factor * least_tokens(base, RATE, link) / 2)
        problem = dataclasses.replace(base, seq_len_q=ranks * tokens, seq_len_kv=ranks * tokens)
        assert (share_of_ideal("zigzag", problem, ranks, RATE, link) > 0.9999) is hidden


def test_heads_send_less_than_keys_where_ranks_are_many():
    """And with grouped heads later than without."""
    grouped = dataclasses.replace(LONG, kv_heads=8)
    fewer = [n for n in (2, 4, 8, 16, 32) if sent_bytes("ulysses", LONG, n) < sent_bytes("ring", LONG, n)]
    assert fewer == [4, 8, 16, 32]
    fewer = [n for n in (2, 4, 8) if sent_bytes("ulysses", grouped, n) < sent_bytes("ring", grouped, n)]
    assert fewer == [8]


def test_a_rank_waits_for_the_slower_of_its_own_work_and_its_neighbours_part():
    """Two ranks by hand: units of a part's time, sending takes half of one."""
    problem = Problem(batch=1, heads=1, seq_len_q=64, seq_len_kv=64, head_dim=16, causal=True)
    part = FORWARD.operations(dataclasses.replace(problem, seq_len_q=32, seq_len_kv=32, causal=False))
    link = Link("made up", key_bytes(problem, 2) / 0.5, "made up")
    found = {(t.rank, t.number): (t.begin, t.end) for t in iterations("ring", problem, 2, part, link)}
    assert found == {(0, 0): (0.5, 1.0), (1, 0): (0.5, 1.0), (0, 1): (1.0, 1.0), (1, 1): (1.0, 2.0)}
    found = {(t.rank, t.number): (t.begin, t.end) for t in iterations("double_buffering", problem, 2, part, link)}
    assert found == {(0, 0): (0.0, 0.5), (1, 0): (0.0, 0.5), (0, 1): (0.5, 0.5), (1, 1): (0.5, 1.5)}
