"""Tiles dealt to blocks: each once, fairly, and heads that run together fit in L2 together."""

import dataclasses

import pytest
import torch

from steps import get_step
from steps.core import order
from steps.core.fused import tiles_visited
from steps.core.tiles import Tile
from tutorial_lib.architectures import REFERENCE_GPUS
from tutorial_lib.problem import Problem

TILE = Tile(128, 128)
CAUSAL = Problem(batch=4, heads=32, seq_len_q=4096, seq_len_kv=4096, head_dim=128, causal=True)
PROBLEMS = [
    CAUSAL,
    dataclasses.replace(CAUSAL, causal=False),
    dataclasses.replace(CAUSAL, seq_len_q=1000, seq_len_kv=3000, batch=1),
    dataclasses.replace(CAUSAL, seq_len_q=1, seq_len_kv=1, batch=1, heads=1, kv_heads=1),
    dataclasses.replace(CAUSAL, heads=30, kv_heads=3, seq_len_q=777, seq_len_kv=777),
    dataclasses.replace(CAUSAL, seq_len_q=16384, seq_len_kv=16384, batch=1, heads=7, kv_heads=7),
]


WIDE = dataclasses.replace(CAUSAL, heads=16, kv_heads=16, head_dim=256)
LATE = [
    dataclasses.replace(WIDE, batch=batch, seq_len_q=n, seq_len_kv=n)
    for batch, n in ((4, 1024), (4, 2048), (4, 4096), (2, 8192))
]


def ends(problem, tile, blocks, **how) -> list[int]:
    """What each block has to do, in tiles of keys."""
    a_head = order.tiles_a_head(problem, tile)
    return [
        sum(order.length(problem, tile, n % a_head) for n in tiles)
        for tiles in order.deal(problem, tile, blocks, **how)
    ]


@pytest.mark.parametrize(("query", "blocks"), [(128, 132), (256, 66)], ids=["blocks", "pairs"])
@pytest.mark.parametrize("problem", LATE, ids=lambda p: p.slug)
def test_with_an_even_end_the_last_block_ends_sooner(problem, query, blocks):
    tile = Tile(query, 64)
    before, now = ends(problem, tile, blocks), ends(problem, tile, blocks, balanced_tail=True)
    assert sum(before) == sum(now) and max(now) < 0.98 * max(before)
    numbers = sorted(number for tiles in order.deal(problem, tile, blocks, balanced_tail=True) for number in tiles)
    assert numbers == list(range(order.tiles_a_head(problem, tile) * problem.heads * problem.batch))


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.slug)
def test_every_tile_is_dealt_once_and_fairly(problem):
    """Dealing to whoever is free first ends at most one longest tile after the average (Graham 1966)."""
    dealt, a_head = order.deal(problem, TILE, 132), order.tiles_a_head(problem, TILE)
    numbers = sorted(number for tiles in dealt for number in tiles)
    assert numbers == list(range(a_head * problem.heads * problem.batch))
    assert all(dealt) and len(dealt) <= 132
    shares = order.shares(problem, TILE, 132)["LPT lists"]
    assert max(shares) <= sum(shares) / 132 + max(order.length(problem, TILE, i) for i in range(a_head))


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.slug)
def test_a_section_fits_and_divides_the_heads(problem):
    heads = order.section_heads(problem)
    keys_and_values = 2 * 2 * problem.seq_len_kv * problem.head_dim * heads / problem.group_size
    assert heads == 1 or keys_and_values <= order.SECTION_BYTES
    in_section = order.SECTIONS.section(problem)
    assert 1 <= in_section <= heads and problem.batch * problem.heads % in_section == 0
    assert order.NATURAL.section(problem) == order.DEALT.section(problem) == 0


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.slug)
def test_the_lists_are_as_long_as_was_said_and_hold_all_tiles_that_are_visited(problem):
    blocks, (dealt, starts) = order.DEALT.blocks(problem, TILE, torch.device("cpu"))
    number, length = order.DEALT.lengths(problem, TILE, "sm_90")
    assert len(dealt) == number == starts[-1] and blocks == len(starts) - 1
    assert length == len(order.deal(problem, TILE, REFERENCE_GPUS["sm_90"].multiprocessors)) + 1
    assert order.NATURAL.lengths(problem, TILE, "sm_90") == ()
    in_head = dealt % order.tiles_a_head(problem, TILE)
    visited = sum(order.length(problem, TILE, int(i)) - order.START for i in in_head)
    assert visited == tiles_visited(problem, TILE)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.slug)
def test_an_even_end_changes_the_lists_only_where_it_is_worth_it(problem):
    before, now = order.deal(problem, TILE, 132), order.deal(problem, TILE, 132, balanced_tail=True)
    loads = ends(problem, TILE, 132), ends(problem, TILE, 132, balanced_tail=True)
    assert before == now or max(loads[1]) * (1 + order.WORTH) < max(loads[0])
    assert problem != CAUSAL or before == now


def test_only_the_last_section_has_more_heads():
    """What comes before it is dealt as ever, so that L2 holds it."""
    problem, tile = LATE[2], Tile(128, 64)
    a_head, heads = order.tiles_a_head(problem, tile), problem.batch * problem.heads
    lengths = [order.length(problem, tile, i) for i in range(a_head)]
    larger = -(-132 * max(lengths) // sum(lengths)) + order.section_heads(problem)  # at most, as sections are whole
    before, now = order.deal(problem, tile, 132), order.deal(problem, tile, 132, balanced_tail=True)
    assert before != now
    for one, other in zip(before, now):
        early = [n for n in one if n // a_head < heads - larger]
        assert early and other[: len(early)] == early


def test_dealing_is_fairer_than_taking_turns_where_lengths_differ():
    shares = order.shares(CAUSAL, TILE, 132)
    in_turn, free, lists = shares.values()
    assert sum(lists) == sum(in_turn) == sum(free)
    assert max(shares["LPT lists"]) < 1.01 * sum(shares["LPT lists"]) / 132
    assert max(in_turn) > max(free) > max(lists)
    longest = order.length(CAUSAL, TILE, order.tiles_a_head(CAUSAL, TILE) - 1)
    assert max(free) - min(free) <= longest  # nobody starts while another is free earlier


def test_the_longest_tiles_of_a_section_come_first():
    first = [tiles[0] % order.tiles_a_head(CAUSAL, TILE) for tiles in order.deal(CAUSAL, TILE, 8)]
    assert min(first) > order.tiles_a_head(CAUSAL, TILE) / 2


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.slug)
def test_blocks_count_where_all_tiles_are_as_long_and_else_are_dealt(problem):
    asked = problem, TILE, torch.device("cpu")
    number, lists = order.COUNTED.blocks(*asked)
    assert number == order.DEALT.blocks(*asked)[0] == len(order.deal(problem, TILE, number))
    if problem.causal:
        assert lists is order.DEALT.blocks(*asked)[1]
        assert order.COUNTED.lengths(problem, TILE, "sm_90") == order.DEALT.lengths(problem, TILE, "sm_90")
    else:
        assert order.COUNTED.lengths(problem, TILE, "sm_90") == ()
        lengths = {order.length(problem, TILE, i) for i in range(order.tiles_a_head(problem, TILE))}
        assert len(lengths) == 1  # so counting is fair


def test_a_section_may_be_asked_to_be_larger():
    everything = order.Order(persistent=False, section_bytes=2**40)
    assert everything.section(CAUSAL) == CAUSAL.batch * CAUSAL.heads
    assert order.SECTIONS.section(CAUSAL) < everything.section(CAUSAL)
    a_head = order.tiles_a_head(CAUSAL, TILE)
    heads = [tiles[0] // a_head for tiles in order.deal(CAUSAL, TILE, a_head, section_bytes=None)]
    assert set(heads) == {0}  # dealt head after head
    assert len({tiles[0] // a_head for tiles in order.deal(CAUSAL, TILE, a_head)}) > 1


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.slug)
def test_what_blocks_take_is_all_tiles_with_the_longest_of_a_section_first(problem):
    cpu = torch.device("cpu")
    blocks, (tiles, starts) = order.TAKEN.blocks(problem, TILE, cpu)
    number = order.tiles_a_head(problem, TILE) * problem.heads * problem.batch
    assert blocks == min(number, order.processors(cpu)) and starts.tolist() == [0, number]
    assert tiles.tolist() == order.deal(problem, TILE, 1)[0] and sorted(tiles.tolist()) == list(range(number))
    _, (_, others) = order.TAKEN.blocks(problem, TILE, cpu)
    assert others.data_ptr() != starts.data_ptr()  # launches that run at the same time count for themselves


@pytest.mark.parametrize(
    "ways",
    [
        {"taken": True, "counted": True},
        {"taken": True, "persistent": False},
        {"taken": True, "computed": True},
        {"computed": True, "persistent": False},
    ],
)
def test_an_order_is_one_of_its_kinds(ways):
    with pytest.raises(ValueError, match="an order is counted, or taken"):
        order.Order(**{"persistent": True, "section_bytes": None, **ways})


def test_lists_that_end_evenly_set_a_step_apart_where_they_differ():
    """With the machine code of the step before: what runs is not the same, and it is not called so."""
    assert (
        get_step("row_max_ilp_multicast").order.balanced_tail and get_step("no_redundant_barriers").order.balanced_tail
    )
    now, before = get_step("balanced_tail"), get_step("split_head_dim")
    for seq_len, same in ((4096, False), (16384, True)):
        shape = Problem(
            batch=32768 // seq_len, heads=8, seq_len_q=seq_len, seq_len_kv=seq_len, head_dim=256, causal=True
        )
        mine, other = now.compile(shape), before.compile(shape)
        assert mine.sass == other.sass and mine.same_code(other) is same
