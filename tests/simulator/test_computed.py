"""Step hopper_static_scheduler: blocks of short sequences compute which tiles of queries are theirs."""

import dataclasses

import pytest
import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from steps import get_step
from steps.core.order import deal, length, tiles_a_head
from steps.hopper.lib import COMPUTED, Work
from tests.shapes import problem
from tutorial_lib.problem import Problem
from tutorial_lib.simulator.run import launch


@gluon.jit
def own_numbers(times, whose, when, lines, tiles, variant: gl.constexpr):
    """How often a tile of queries is computed, by which block, and where it stands in the order."""
    work = Work(None, None, None, tiles, None, None, None, lines)
    n, last = variant.schedule.own(work, variant)
    while n < last:
        number = variant.schedule.number(work, n, variant)
        gl.atomic_add(times + number, 1)
        gl.store(whose + number, gl.program_id(0))
        gl.store(when + number, n)
        n = variant.schedule.hear(n, last, 0, work, variant)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("batch", "heads", "seq_len"), [(8, 32, 512), (3, 5, 300), (1, 1, 128), (32, 32, 256), (8, 32, 384)]
)
@pytest.mark.parametrize("places", [132, 114, 131])
def test_each_tile_is_computed_once_and_blocks_have_about_as_much(places, batch, heads, seq_len, causal):
    shape = problem(batch=batch, heads=heads, seq_len_q=seq_len, seq_len_kv=seq_len, head_dim=128, causal=causal)
    variant = get_step("hopper_static_scheduler").variant(shape)
    assert variant.schedule is COMPUTED
    a_head, lines = tiles_a_head(shape, variant.tile), batch * heads
    blocks = min(get_step("hopper_static_scheduler").order.places(shape, variant.tile, places), lines * a_head)
    times, whose, when = (torch.zeros(lines * a_head, dtype=torch.int32) for _ in range(3))
    launch(own_numbers, (blocks,), (times, whose, when, lines, a_head, variant), 4)
    assert times.eq(1).all()
    lengths = torch.tensor([length(shape, variant.tile, i) for i in range(a_head)]).repeat(lines)
    loads = torch.zeros(blocks, dtype=torch.int64).index_add_(0, whose.long(), lengths)
    dealt = max(int(lengths[tiles].sum()) for tiles in deal(shape, variant.tile, blocks))
    assert loads.max() <= dealt + lengths.max(), "lists would let the last block end sooner"
    rounds = (when // blocks).reshape(lines, a_head)
    assert (
        rounds.amax(1) - rounds.amin(1) <= 1
    ).all()  # who needs the same keys and values runs at about the same time


def test_longer_sequences_and_packed_ones_are_as_before():
    step, before = get_step("hopper_static_scheduler"), get_step("pv_wait_after_max")
    long = problem(batch=1, heads=2, seq_len_q=600, seq_len_kv=600, head_dim=128)
    assert step.variant(long) == before.variant(long)
    packed = Problem.packed((100, 30), heads=2, kv_heads=2, head_dim=128, causal=True)
    assert step.variant(packed) == before.variant(packed)
    short = dataclasses.replace(long, seq_len_q=500)
    assert step.variant(short).schedule is COMPUTED and step.compile(short).ptx.count("ld.global") == 0
