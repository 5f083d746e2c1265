"""The fp8 steps on a GPU: right, also in long sequences and in CUDA graphs; what the peer takes; the command."""

import math
import secrets
from dataclasses import replace

import pytest
import torch

from steps import get_step, run
from steps.measuring.measure import Settings, measure
from steps.reference.peers import QUANTIZED_PEERS
from tests.checking import assert_right, skip_unless_taken
from tests.fp8 import test_decoding as decoding
from tests.fp8.test_steps import INSIDE, KERNELS, QUANTIZED, SHAPES, assert_right_lse, problem
from tests.gpu.tensor_cores import by_library, cases, measured, same
from tutorial_lib import reference
from tutorial_lib.passes import QUANTIZED as PASS

pytestmark = pytest.mark.gpu

LARGE = [
    problem(batch=4, heads=32, seq_len_q=4096, seq_len_kv=4096, head_dim=128),
    problem(batch=2, heads=8, kv_heads=2, seq_len_q=5000, seq_len_kv=5000, head_dim=128),
    problem(batch=1, heads=8, seq_len_q=3001, seq_len_kv=5003, head_dim=128, causal=False),
    problem(batch=1, heads=8, seq_len_q=5003, seq_len_kv=3001, head_dim=64),
    problem(batch=1, heads=4, seq_len_q=4096, seq_len_kv=4096, head_dim=256),
    problem(batch=3, heads=40, kv_heads=8, seq_len_q=257, seq_len_kv=1000, head_dim=112),
]


@pytest.mark.parametrize("shape", SHAPES + LARGE, ids=lambda p: p.slug)
@pytest.mark.parametrize("step", (*QUANTIZED, *INSIDE), ids=lambda s: s.name)
def test_a_step_is_right_on_the_gpu(step, shape):
    assert_right(step, shape, "cuda")


@pytest.mark.parametrize("shape", [SHAPES[0], *LARGE[1:4]], ids=lambda p: p.slug)
@pytest.mark.parametrize("step", KERNELS, ids=lambda s: s.name)
def test_the_log_sum_exp_on_the_gpu(step, shape):
    skip_unless_taken(step, shape)
    assert_right_lse(step, shape, "cuda")


@pytest.mark.parametrize("step", KERNELS, ids=lambda s: s.name)
def test_equal_inputs_give_equal_bits(step):
    shape = LARGE[1]
    assert PASS.repeat_difference(step, shape, PASS.inputs(shape, secrets.randbits(32), "cuda"), 10) == 0


@pytest.mark.parametrize("step", KERNELS, ids=lambda s: s.name)
def test_a_cuda_graph_computes_with_what_the_tensors_then_hold(step):
    step, shape = replace(step), LARGE[3]
    inputs = PASS.inputs(shape, 1, "cuda")
    [out] = PASS.poisoned(inputs)
    PASS.call(step, shape, inputs, (out,))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        PASS.call(step, shape, inputs, (out,))
    others = PASS.inputs(shape, 2, "cuda")
    for x, other in zip(inputs, others):
        x.copy_(other)
    out.fill_(float("nan"))
    graph.replay()
    [expected] = PASS.call(step, shape, others)
    assert torch.equal(out, expected)


def test_sums_of_long_rows_are_kept_in_two_levels():
    """A needle in a long haystack: many equal small products are added to one that is large, and was there first.

    Scores are in base 2, so that all weights are numbers of e4m3, and nothing but the sums is rounded.
    """
    q, k, v = (torch.zeros(1, 1, n, 64, device="cuda") for n in (64, 65536, 65536))
    q[..., 0], k[..., -1, 0] = 1.0, 6.0
    v[..., -1, :], v[..., :-1, :] = 448.0, 0.5
    exact = reference.attention_float64(q, k, v, False, math.log(2))
    tensors = [x.to(torch.float8_e4m3fn) for x in (q, k, v)]
    how = {"scale": math.log(2), "out_dtype": torch.float16}
    errors = {
        name: ((get_step(name).attention(*tensors, **how).double() - exact).abs().max() / exact.max()).item()
        for name in ("p_offset", "two_level_accumulation", "cutile_fast_acc", "cutile_fp8")
    }
    assert max(errors["two_level_accumulation"], errors["cutile_fp8"]) < 0.005, errors
    assert errors["p_offset"] > 0.4, errors  # it visits the needle first, and loses all that comes after it


def test_the_tensor_cores_add_bit_for_bit_as_the_simulator_does():
    for what, given in cases(4, "cuda", secrets.randbits(32)):
        assert same(measured(*given), by_library(*given)).all(), what


def test_two_levels_lose_little_of_131072_keys():
    shape = problem(batch=1, heads=2, seq_len_q=256, seq_len_kv=131072, head_dim=128, causal=False)
    inputs = PASS.inputs(shape, secrets.randbits(32), "cuda")
    [exact] = PASS.reference(shape, inputs)

    def error(o):
        return (o.double() - exact).square().mean().sqrt().item()

    in_float32 = error(reference.fp8_attention(*inputs[:3], inputs[3:], False, None, 8))
    for name in ("two_level_accumulation", "cutile_fp8"):
        o = get_step(name).attention(*inputs[:3], out_dtype=torch.float16, **PASS.scales(inputs))
        assert error(o) < 1.5 * in_float32, (name, error(o), in_float32)


def test_two_levels_buy_digits_on_random_inputs():
    """Root mean square errors: of long rows most of it is what the tensor cores' sums over tiles lose."""
    shape = problem(batch=1, heads=8, seq_len_q=8192, seq_len_kv=8192)
    inputs = PASS.inputs(shape, secrets.randbits(32), "cuda")
    [exact] = PASS.reference(shape, inputs)
    errors = {}
    for name in ("p_offset", "two_level_accumulation"):
        [out] = PASS.call(get_step(name), shape, inputs)
        errors[name] = (out.double() - exact).square().mean().sqrt().item()
    assert errors["two_level_accumulation"] < 0.5 * errors["p_offset"], errors


@pytest.mark.parametrize("shape", [LARGE[0], LARGE[1], LARGE[4]], ids=lambda p: p.slug)
def test_the_peer_takes_the_scales(shape):
    peer = QUANTIZED_PEERS[0]  # FlashAttention-3
    skip_unless_taken(peer, shape)
    assert_right(peer, shape, "cuda")


@pytest.mark.parametrize("shape", [LARGE[0], LARGE[4]], ids=lambda p: p.slug)
def test_errors_are_no_larger_than_the_peers(shape):
    """Root mean squares, against the inputs before they were quantised, as users see them."""
    peer = QUANTIZED_PEERS[0]  # FlashAttention-3
    skip_unless_taken(peer, shape)
    shape, seed = replace(shape, batch=1, heads=8, kv_heads=8), secrets.randbits(32)
    inputs = PASS.inputs(shape, seed, "cuda")
    exact = reference.attention_float64(*PASS.whole_inputs(shape, seed, "cuda"), shape.causal)
    errors = [
        (PASS.call(step, shape, inputs)[0].double() - exact).square().mean().sqrt().item()
        for step in (peer, get_step("p_offset"), get_step("two_level_accumulation"))
    ]
    assert max(errors[1:]) < 1.02 * errors[0], errors


def test_they_are_measured_beside_one_another():
    shape = replace(LARGE[1], seq_len_q=2048, seq_len_kv=2048)
    made, _, _ = measure(shape, list(QUANTIZED), list(QUANTIZED_PEERS), Settings(device="cuda", seed=1, rounds=2))
    assert made.direction == "fp8" and [m.status for m in made.steps] == ["measured"] * len(QUANTIZED)
    assert made.ceiling.tflops and made.measurement("pv_fp8").speedup_vs_baseline


def test_the_command_measures_them(tmp_path):
    words = "--dtype float8_e4m3fn --seq-len 512 --batch 1 --heads 2 --steps 300-306 --iterations 1 --output-dir"
    assert run.main([*words.split(), str(tmp_path)]) == 0


OF_KEYS = [
    decoding.problem(**shape)
    for shape in (
        {"batch": 8, "heads": 64, "kv_heads": 8, "head_dim": 128, "seq_len_kv": 32768, "dtype": "bfloat16"},
        {"batch": 1, "heads": 8, "kv_heads": 8, "head_dim": 128, "seq_len_kv": 65536},
        {"batch": 64, "heads": 28, "kv_heads": 4, "head_dim": 128, "seq_len_q": 4, "seq_len_kv": 1000},
        {"batch": 3, "heads": 16, "kv_heads": 2, "head_dim": 64, "seq_len_q": 8, "seq_len_kv": 5003},
        {"batch": 2, "heads": 8, "kv_heads": 1, "head_dim": 256, "seq_len_kv": 9001, "dtype": "bfloat16"},
    )
]


@pytest.mark.parametrize("shape", decoding.SHAPES + OF_KEYS, ids=lambda p: p.slug)
@pytest.mark.parametrize("step", decoding.STEPS, ids=lambda s: s.name)
def test_decoding_of_keys_in_fp8_is_right_on_the_gpu(step, shape):
    decoding.test_a_step_is_right(step, shape, "cuda")
    if step.name != PASS.baseline:  # of PyTorch's own kernels nobody says so
        assert PASS.repeat_difference(step, shape, PASS.inputs(shape, 1, "cuda"), 10) == 0


def test_every_number_comes_through_the_kernel_and_rows_of_any_size_on_the_gpu():
    decoding.test_every_number_of_e4m3_comes_through_the_kernel("cuda")
    decoding.test_queries_too_large_for_float16_are_no_trouble("cuda")


def test_decoding_of_keys_in_fp8_is_measured(tmp_path):
    words = "--dtype bfloat16 --kv-dtype float8_e4m3fn --seq-len 8192 --seq-len-q 1 --heads 64 --kv-heads 8"
    assert run.main([*words.split(), "--iterations", "1", "--output-dir", str(tmp_path)]) == 0
