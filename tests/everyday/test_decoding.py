"""Decoding: the steps are right for what they are for, however many parts there are, and say what they refuse."""

import dataclasses
import math
import re
import secrets

import pytest
import torch

from steps import Unsupported, get_step
from steps.core.ladder import kernels_of
from steps.core.problems import DECODING
from steps.everyday import decoding
from steps.everyday.decoding import MERGE, START, DecodeStep, merged_at_once, number_of_splits
from tests.checking import Asked, asked, assert_right
from tutorial_lib import interpreter
from tutorial_lib.architectures import REFERENCE_GPUS
from tutorial_lib.passes import FORWARD
from tutorial_lib.problem import Problem
from tutorial_lib.reference import log_sum_exp

DECODES = [step for step in kernels_of("forward") if isinstance(step, DecodeStep)]
SPLIT = [step for step in DECODES if step.split]


def decoding_of(**changes) -> Problem:
    fields = {"batch": 2, "heads": 8, "kv_heads": 2, "seq_len_q": 1, "seq_len_kv": 1000, "head_dim": 128}
    return Problem(**fields | changes)


SHAPES = [
    decoding_of(),
    decoding_of(dtype="bfloat16", seq_len_q=16, seq_len_kv=1024),
    decoding_of(heads=6, seq_len_q=3, seq_len_kv=333, head_dim=64, scale=-0.3),
    decoding_of(batch=1, heads=64, kv_heads=1, seq_len_q=5, seq_len_kv=700, head_dim=64),  # several tiles a group
    decoding_of(batch=1, heads=2, seq_len_q=2, seq_len_kv=1, head_dim=32),
    decoding_of(head_dim=256, seq_len_kv=400, scale=0.0),
    decoding_of(head_dim=64, seq_len_q=64, seq_len_kv=130, dtype="bfloat16"),
    decoding_of(heads=6, seq_len_q=3, seq_len_kv=300, head_dim=80, dtype="bfloat16"),  # in tiles of 128 columns
]


@pytest.fixture(params=[3, 40])
def multiprocessors(request, monkeypatch):
    """So many SMs that keys are split into few parts, or into many, of which some hold no key. Merging is free."""
    monkeypatch.setattr(decoding, "MERGE", 0)
    monkeypatch.setattr(decoding, "processors", lambda device: request.param)
    return request.param


@pytest.mark.parametrize("shape", SHAPES, ids=lambda p: p.slug)
@pytest.mark.parametrize("step", DECODES, ids=lambda s: s.name)
def test_a_step_is_right(step, shape, multiprocessors):
    step = dataclasses.replace(step)  # nothing is ready yet
    assert_right(step, shape)
    inputs = asked("forward", shape).inputs
    _, lse = step.attention(*inputs, scale=shape.scale, return_lse=True)
    expected = log_sum_exp(inputs[0], inputs[1], False, shape.effective_scale)
    torch.testing.assert_close(lse, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("step", DECODES, ids=lambda s: s.name)
def test_any_strides_will_do(step, multiprocessors):
    step = dataclasses.replace(step)
    shape = decoding_of(seq_len_q=2)
    q, k, v = FORWARD.inputs(shape, secrets.randbits(32))
    expected = step.attention(q, k, v)
    behind = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]  # heads behind the sequence
    out = torch.full_like(behind[0], float("nan"))
    assert torch.equal(step.attention(*behind), expected)
    assert step.attention(*behind, out=out) is out and torch.equal(out, expected)


@pytest.mark.parametrize("step", DECODES, ids=lambda s: s.name)
def test_a_query_that_is_nan_gets_nan_and_no_other(step, multiprocessors):
    q, k, v = FORWARD.inputs(decoding_of(seq_len_q=2), 1)
    q[1, 3, 1, 5] = math.nan
    o = dataclasses.replace(step).attention(q, k, v)
    assert o[1, 3, 1].isnan().all() and o.isnan().any(-1).sum() == 1


def test_parts_without_a_key_count_nothing(monkeypatch):
    """Five tiles in four parts: two, two, one, none."""
    monkeypatch.setattr(decoding, "number_of_splits", lambda *_: 4)
    assert_right(dataclasses.replace(get_step("split_kv")), decoding_of(seq_len_kv=290))


@pytest.mark.parametrize("columns", [8, 16, 32])
@pytest.mark.parametrize("splits", [1, 2, 31, 70])
def test_merging_is_exact_up_to_float32(splits, columns):
    """Parts of any log-sum-exp, one of them empty. A tile has rows for 2 members and 4 queries; there are 3 queries.

    Rows without a query hold NaN, and the kernel must not read them.
    """
    torch.manual_seed(secrets.randbits(32))
    batch, kv_heads, members, queries, head_dim = 2, 2, 4, 3, 32
    shape = (splits + 1, batch, kv_heads, members, queries)
    parts, lse = torch.randn(*shape, head_dim), 20 * torch.randn(shape)
    lse[splits // 2 + 1], parts[splits // 2 + 1] = float("-inf"), 0
    out, whole = torch.full((*shape[1:], head_dim), float("nan")), torch.full(shape[1:], float("nan"))
    padded = [torch.nn.functional.pad(x, (*fill, 0, 1), value=float("nan")) for x, fill in ((parts, (0, 0)), (lse, ()))]
    kept = padded[0].reshape(splits + 1, -1, head_dim), padded[1].reshape(splits + 1, -1)
    at_once, _ = merged_at_once(splits + 1, head_dim)
    merge = decoding._merge(at_once, columns, 2, 4, True)
    interpreter.launch((queries * -(-head_dim // columns), kv_heads * members, batch), merge, (*kept, (out, whole)))
    weights = torch.softmax(lse.double(), 0)
    torch.testing.assert_close(out.double(), (weights[..., None] * parts).sum(0), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(whole.double(), torch.logsumexp(lse.double(), 0), rtol=1e-6, atol=1e-5)


def test_the_count_is_zero_again_behind_every_launch(monkeypatch):
    """So the same place serves the next launch, which merges at its own last block, and no other."""
    monkeypatch.setattr(decoding, "number_of_splits", lambda *_: 3)
    kept = torch.zeros(4, dtype=torch.int32)
    monkeypatch.setattr(decoding, "each_stream", lambda make, device: lambda: kept)
    step, shape = dataclasses.replace(get_step("last_block_merges")), decoding_of(seq_len_kv=290)
    for _ in range(2):
        accuracy = Asked("forward", shape, "cpu").check(step)
        assert accuracy.correct and not kept.any()


def test_what_a_block_stores_is_visible_before_it_counts():
    """In machine code: all warps have stored, a fence for the whole GPU, the addition, and no stale lines are left."""
    code = get_step("last_block_merges").compile(DECODING).sass
    order = [op for op in re.findall(r"\b(STG|BAR\.SYNC|MEMBAR\.ALL\.GPU|ATOMG|CCTL\.IVALL|LDG)\b", code)]
    at = order.index("ATOMG")
    assert order.count("ATOMG") == 1 and order[at - 1] == "MEMBAR.ALL.GPU" and order[at + 1] == "CCTL.IVALL"
    before, behind = order[:at], order[at:]
    assert "BAR.SYNC" in before[len(before) - before[::-1].index("STG") :], "a barrier between the stores and the fence"
    assert "BAR.SYNC" in behind[: behind.index("LDG")], "a barrier between the addition and the loads of other parts"


# --- how many parts ---


def test_as_many_splits_as_fill_the_gpu_and_no_more():
    assert number_of_splits(tiles=512, groups=64, at_a_time=264) == 4  # 256 blocks of 264
    assert number_of_splits(tiles=512, groups=264, at_a_time=264) == 1
    assert number_of_splits(tiles=512, groups=8, at_a_time=264) == 32  # 16 tiles each; with 33 some would have 16, too
    assert number_of_splits(tiles=1, groups=1, at_a_time=264) == 1
    assert number_of_splits(tiles=16, groups=128, at_a_time=264) == 1  # half the SMs' slots; merging would cost more


def test_tiles_are_larger_where_keys_are_few_and_count_as_more():
    step, short = get_step("split_kv"), dataclasses.replace(DECODING, seq_len_kv=4096)
    assert (step.key(short), step.key(DECODING)) == (128, 64)
    assert step.key(dataclasses.replace(short, seq_len_q=4)) == 64  # of 32 rows, whose registers would spill
    assert get_step("paged").key(dataclasses.replace(short, page_size=64)) == 64
    assert number_of_splits(tiles=8, groups=8, at_a_time=264, size=2) == 8
    assert number_of_splits(tiles=8, groups=8, at_a_time=264) == 1
    few = dataclasses.replace(short, batch=1, seq_len_kv=1000)
    assert step.tile_size(few) == 2 and step.splits(few, 132) == 8


@pytest.mark.parametrize("groups", [1, 7, 64, 100, 265, 1000])
@pytest.mark.parametrize("tiles", [1, 5, 128, 513])
def test_the_splits_chosen_take_the_fewest_tiles_in_turn(tiles, groups):
    def longest(splits: int) -> int:
        """Blocks dealt out one by one, each to the slot that is free first: what the last one ends after."""
        free = [0] * 264
        for _ in range(groups * splits):
            free.sort()
            free[0] += -(-tiles // splits) + START
        return max(free) + MERGE * (splits > 1)

    chosen = number_of_splits(tiles, groups, 264)
    others = {1, 2, 3, 4, 8, 16, 33, tiles} & set(range(1, tiles + 1))
    assert 1 <= chosen <= tiles and all(longest(chosen) <= longest(splits) for splits in others)


def test_a_launch_has_the_splits_of_its_problem():
    step = get_step("split_kv")
    assert step.splits(DECODING, 132) == 4 and get_step("group_rows").splits(DECODING, 132) == 1
    one = dataclasses.replace(DECODING, batch=1)
    assert step.splits(one, 132) == 32
    assert step.scratch_bytes(one) >= 4 * 32 * 128 * 129 and get_step("group_rows").scratch_bytes(one) == 0
    assert step.compile(one).blocks == 8 * 32


def test_partial_results_have_room_on_every_gpu_and_none_where_nothing_is_split():
    """More SMs do not always mean more splits: fewer may leave less of their last round empty."""
    step = get_step("split_kv")
    for shape in (decoding_of(batch=4, kv_heads=8, heads=32, seq_len_kv=23151, head_dim=128), decoding_of()):
        splits = max(step.splits(shape, gpu.multiprocessors) for gpu in REFERENCE_GPUS.values())
        partial = 4 * step.rows(shape) * (step.in_tiles(shape).head_dim + 1)
        assert step.scratch_bytes(shape) == (splits * partial if splits > 1 else 0)
    short = decoding_of(batch=64, kv_heads=8, heads=32, seq_len_kv=100)
    assert step.scratch_bytes(short) == 0 < get_step("paged").scratch_bytes(dataclasses.replace(short, page_size=16))


@pytest.mark.parametrize("step", SPLIT, ids=lambda s: s.name)
def test_where_nothing_is_split_nothing_is_merged(step, monkeypatch):
    """The kernel is that of step group_rows, on the GPU that is there, not on the one that a compiler is asked for."""
    many, alone = dataclasses.replace(DECODING, batch=64), get_step("group_rows")
    assert step.splits(many, 132) == 1 and step.compile(many).code == alone.compile(many).code
    assert step.what_runs(many, "sm_90") == alone.what_runs(many, "sm_90")
    assert step.compile(DECODING).code != alone.compile(DECODING).code
    shape = decoding_of(seq_len_kv=3000)
    inputs, kernels = FORWARD.inputs(shape, secrets.randbits(32)), []
    monkeypatch.setattr(interpreter, "launch", lambda grid, kernel, arguments: kernels.append(len(arguments)))
    for processors, passed in ((1, 5), (100, 6 if step.merges_apart else 8)):
        monkeypatch.setattr(decoding, "processors", lambda device, n=processors: n)
        dataclasses.replace(step).attention(*inputs)
        assert kernels[0] == passed
        kernels.clear()


# --- what is compiled, and what is refused ---


@pytest.mark.parametrize("step", DECODES, ids=lambda s: s.name)
def test_a_kernel_uses_the_tensor_cores_and_tma_and_two_blocks_share_an_sm(step):
    made = step.compile(step.default_problem).as_dict()
    assert made["blocks_per_sm"] == 2 and made["spilled_bytes"] == 0
    assert made["hot_loop"]["tensor core"] and made["hot_loop"]["bulk copy"] and not made["hot_loop"]["global memory"]


@pytest.mark.parametrize("head_dim", [32, 64, 128, 256])
@pytest.mark.parametrize("seq_len_q", [1, 4, 16, 64])
def test_every_kernel_compiles_and_as_many_blocks_share_an_sm_as_splits_are_counted_for(head_dim, seq_len_q):
    shape = dataclasses.replace(DECODING, head_dim=head_dim, seq_len_q=seq_len_q, dtype="float16")
    step = get_step("split_kv")
    compiled, tile = step.compile(shape), step.variant(shape, "sm_90").tile
    rows = 8 * seq_len_q  # of a group
    assert tile.query == min(64, max(16, rows))
    assert bool(compiled.other_kernels) == (step.splits(shape, 132) > 1)
    assert compiled.as_dict()["blocks_per_sm"] == step.kernel(step.variant(shape, "sm_90"))[1].occupancy
    assert step.groups(shape) == 8 * rows // tile.query or tile.query == 16
    assert not compiled.spilled_bytes


@pytest.mark.parametrize("splits", [2, 16, 33])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_many_blocks_that_merge_share_an_sm(head_dim, splits):
    shape = dataclasses.replace(DECODING, head_dim=head_dim)
    made = get_step("split_kv").compile_merge(shape, splits, "sm_90").as_dict()
    assert made["blocks_per_sm"] >= 8 and not made["spilled_bytes"]


@pytest.mark.parametrize("step", DECODES, ids=lambda s: s.name)
def test_no_loop_spills_however_many_queries_there_are(step):
    for head_dim, seq_len_q in ((128, 16), (256, 64)):
        made = step.compile(dataclasses.replace(step.default_problem, head_dim=head_dim, seq_len_q=seq_len_q))
        assert made.as_dict()["hot_loop"]["spill"] == 0


@pytest.mark.parametrize("seq_len_q", [65, 128])
@pytest.mark.parametrize("head_dim", [32, 256])
def test_more_queries_than_a_tile_has_rows_are_refused_and_the_step_that_is_named_takes_them(head_dim, seq_len_q):
    shape = decoding_of(head_dim=head_dim, seq_len_q=seq_len_q)
    in_pages = dataclasses.replace(shape, page_size=16)
    for name, wanted, taker in (("split_kv", shape, "pack_gqa"), ("paged", in_pages, "gathered")):
        refused = get_step(name).unsupported(wanted, "sm_90")
        assert refused == f"made for decoding, at most 64 queries a head, got {seq_len_q}: take step {taker}"
        assert get_step(taker).unsupported(wanted, "sm_90") is None


def test_what_is_no_decoding_is_refused_by_name():
    step = get_step("split_kv")
    with pytest.raises(Unsupported, match="ask for no causal mask"):
        step.attention(*FORWARD.inputs(decoding_of(), 0), causal=True)
    assert "pages of keys and values" in step.unsupported(decoding_of(page_size=16), "sm_90")


def test_a_head_dim_between_tiles_is_filled_up_and_partial_results_have_room_for_it():
    step, shape = get_step("split_kv"), decoding_of(head_dim=80)
    full = dataclasses.replace(shape, head_dim=128)
    assert step.variant(shape, "sm_90") == step.variant(full, "sm_90")
    assert step.scratch_bytes(shape) == step.scratch_bytes(full)
    assert "head_dim must be one of" in get_step("paged").unsupported(decoding_of(head_dim=80, page_size=16), "sm_90")
