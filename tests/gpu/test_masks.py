"""Windows, soft caps, packed sequences and groups in a tile, on a GPU: right, ready once, and what peers take."""

import secrets
from dataclasses import replace

import pytest
import torch

from steps import get_step
from steps.reference.peers import PEERS
from tests.backward.test_masks import BEST, TAKING
from tests.backward.test_masks import SHAPES as GRADIENTS
from tests.backward.test_packed import BEST as OF_PACKED
from tests.backward.test_packed import SHAPES as PACKED_GRADIENTS
from tests.checking import asked, assert_right
from tests.everyday.test_masks import CAPS, MASKED, PACKED, WINDOWS, packed, takers
from tutorial_lib import packing
from tutorial_lib.hardware import describe_machine
from tutorial_lib.passes import FORWARD
from tutorial_lib.problem import Problem

pytestmark = pytest.mark.gpu

BAND = Problem(batch=2, heads=8, kv_heads=2, seq_len_q=5000, seq_len_kv=5000, head_dim=128, causal=True, window=1024)
LARGE = [
    BAND,
    replace(BAND, head_dim=64, window=300, dtype="bfloat16"),
    replace(BAND, head_dim=256, batch=1, window=4096),
    replace(BAND, window=None, softcap=50.0),
    packed((3000, 1, 129, 777, 2048), heads=8, head_dim=128),
    packed(tuple(range(1, 200)), heads=8, causal=False, dtype="bfloat16"),
    replace(BAND, window=None, causal=False, seq_len_q=16, heads=64, kv_heads=8, dtype="bfloat16"),
    replace(BAND, window=None, heads=64, kv_heads=1, seq_len_q=1000, seq_len_kv=1000),
]


def unable(step, shape) -> str | None:
    return step.unsupported(shape, describe_machine("cuda")["arch"])


@pytest.mark.parametrize("shape", MASKED + LARGE, ids=lambda p: p.slug)
def test_who_takes_a_mask_is_right_on_the_gpu(shape):
    tried = 0
    for step in takers(shape):
        if (step.takes or step.name == "pack_gqa") and not unable(step, shape):
            accuracy = asked("forward", shape, "cuda").check(step)
            assert accuracy.correct, f"{step.label}: {accuracy.explain()}"
            tried += 1
    assert tried


@pytest.mark.parametrize("shape", [WINDOWS[3], CAPS[0], PACKED[2], PACKED[-2], *LARGE[:2]], ids=lambda p: p.slug)
@pytest.mark.parametrize("peer", [peer for peer in PEERS if peer.takes], ids=lambda p: p.name)
def test_peers_are_told_the_mask(peer, shape):
    if reason := unable(peer, shape):
        pytest.skip(reason)
    try:
        accuracy = asked("forward", shape, "cuda").check(peer)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        pytest.skip(f"{peer.name} cannot run it here: {error}")
    assert accuracy.correct, accuracy.explain()


@pytest.mark.parametrize("name", ["varlen", "pack_gqa", "hopper_varlen"])
def test_one_launch_serves_all_lengths_on_the_gpu(name):
    step = replace(get_step(name))
    for lengths in ((1000, 3, 77), (1, 1078, 1), (360, 360, 360)):
        assert_right(step, packed(lengths, head_dim=128), "cuda")
    assert len(step.launches) == 1


@pytest.mark.parametrize("name", ["varlen", "hopper_varlen"])
def test_a_cuda_graph_reads_where_sequences_begin_when_it_is_replayed(name):
    step, shape = get_step(name), packed((1000, 3, 77), head_dim=128)
    q, k, v, begins, _ = FORWARD.inputs(shape, secrets.randbits(32), "cuda")
    out = torch.empty_like(q)
    step.attention(q, k, v, True, out=out, cu_seqlens_q=begins)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step.attention(q, k, v, True, out=out, cu_seqlens_q=begins)
    for lengths in ((80, 500, 500), (1, 2, 1077)):
        other = packed(lengths, head_dim=128)
        begins.copy_(packing.cu_seqlens(other.lengths, "cuda"))
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        [exact] = FORWARD.reference(other, (q, k, v, begins, begins))
        torch.testing.assert_close(out.double(), exact, atol=5e-3, rtol=1e-2)


def test_blocks_in_two_streams_do_not_take_each_others_tiles():
    """Launches of one kind that run at the same time count in places of their own."""
    step, shape = get_step("hopper_varlen"), packed((3000, 1, 129, 777, 2048), heads=8, head_dim=128)
    inputs = FORWARD.inputs(shape, secrets.randbits(32), "cuda")
    [exact] = FORWARD.reference(shape, inputs)
    q, k, v, begins, _ = inputs
    streams = [torch.cuda.Stream() for _ in range(3)]
    outs = [torch.full_like(q, float("nan")) for _ in range(30)]
    torch.cuda.synchronize()
    for n, out in enumerate(outs):
        with torch.cuda.stream(streams[n % len(streams)]):
            step.attention(q, k, v, True, out=out, cu_seqlens_q=begins)
    torch.cuda.synchronize()
    for out in outs:
        torch.testing.assert_close(out.double(), exact, atol=5e-3, rtol=1e-2)


@pytest.mark.parametrize("step", TAKING, ids=lambda step: step.name)
@pytest.mark.parametrize("shape", [*GRADIENTS, BAND, LARGE[1], LARGE[3]], ids=lambda p: p.slug)
def test_gradients_under_a_mask_are_right_on_the_gpu(shape, step):
    if step not in BEST and shape not in (GRADIENTS[2], GRADIENTS[4]):
        pytest.skip("the best steps are asked for all")
    assert_right(step, shape, "cuda")


@pytest.mark.parametrize("step", OF_PACKED, ids=lambda step: step.name)
@pytest.mark.parametrize("shape", [*PACKED_GRADIENTS, *LARGE[4:6]], ids=lambda p: p.slug)
def test_gradients_of_packed_sequences_are_right_on_the_gpu(shape, step):
    assert_right(step, shape, "cuda")


@pytest.mark.parametrize("step", OF_PACKED, ids=lambda step: step.name)
def test_a_launch_for_their_gradients_serves_other_lengths_on_the_gpu(step):
    step = replace(step)
    for lengths in ((1000, 3, 77), (1, 1078, 1), (360, 360, 360)):
        assert_right(step, packed(lengths, head_dim=128), "cuda")
    assert len(step.launches) == 1


@pytest.mark.parametrize("name", ["varlen", "hopper_varlen"])
def test_packed_sequences_leave_their_neighbours_alone(name):
    """A tile of queries that is not full writes nothing behind its sequence, and reads no NaN from there."""
    shape = packed((100, 200, 50), head_dim=128, causal=False)
    q, k, v, begins, _ = FORWARD.inputs(shape, secrets.randbits(32), "cuda")
    [exact] = FORWARD.reference(shape, (q, k, v, begins, begins))
    k[100:300], v[100:300] = float("nan"), float("nan")  # of the sequence in the middle
    o = get_step(name).attention(q, k, v, cu_seqlens_q=begins)
    for part in (slice(0, 100), slice(300, 350)):
        torch.testing.assert_close(o[part].double(), exact[part], atol=5e-3, rtol=1e-2)
