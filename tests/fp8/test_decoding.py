"""Decoding with keys and values in fp8, on the CPU: right, with scales of their heads, and with cheap conversions."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from steps import get_step
from steps.core.step import Unsupported
from steps.writing.written import write_step
from tests.checking import assert_right
from tests.expected import same_compilers
from tests.shapes import problem as sixteen_bits
from tutorial_lib import accuracy, passes, reference
from tutorial_lib.accuracy import compare
from tutorial_lib.problem import FP8, Problem
from tutorial_lib.quantize import dequantized

STEP = get_step("fp8_kv")
STEPS = [get_step("fp8_dequantized"), STEP]
PASS = passes.QUANTIZED


def problem(**changes) -> Problem:
    decoding = {"batch": 2, "heads": 4, "seq_len_q": 1, "seq_len_kv": 300, "causal": False, "kv_dtype": FP8}
    return sixteen_bits(**{**decoding, **changes})


SHAPES = [
    problem(kv_heads=2),
    problem(dtype="bfloat16", heads=8, kv_heads=1, head_dim=128, seq_len_kv=1024),
    problem(dtype="bfloat16", batch=1, kv_heads=2, seq_len_q=4, seq_len_kv=513, head_dim=80),
    problem(batch=1, heads=6, kv_heads=2, seq_len_q=3, seq_len_kv=77, head_dim=256),
    problem(batch=1, heads=3, kv_heads=3, seq_len_kv=1, head_dim=32),
    problem(dtype="bfloat16", batch=1, heads=16, kv_heads=1, seq_len_q=4, seq_len_kv=200, head_dim=128, scale=0.5),
]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda p: p.slug)
@pytest.mark.parametrize("step", STEPS, ids=lambda s: s.name)
def test_a_step_is_right(step, shape, device="cpu"):
    if step is not STEP and shape.scale:
        pytest.skip("K times its scale is rounded, and of large scores that is more than rounded weights cost")
    assert_right(step, shape, device)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda p: p.slug)
def test_one_block_or_many_is_right_with_its_log_sum_exp(shape, monkeypatch):
    """Where there are more blocks than tiles of keys, some have no keys."""
    q, k, v, *scales = inputs = PASS.inputs(shape, 1)
    exact = dequantized((q, k, v), scales, torch.float64)
    expected, lse = reference.attention_and_lse_float64(*exact, False, shape.scale)
    error = PASS.yardstick(shape, inputs, (expected,))[0].in_float32
    for splits in (1, 3):
        monkeypatch.setattr("steps.everyday.decoding.number_of_splits", lambda *_, splits=splits: splits)
        o, found = replace(STEP).attention(q, k, v, scale=shape.scale, return_lse=True, **PASS.scales(inputs))
        assert compare(o, expected, error).correct
        torch.testing.assert_close(found.double(), lse, rtol=1e-5, atol=1e-4)


def test_every_number_of_e4m3_comes_through_the_kernel(device="cpu"):
    """One key has all the weight, so the output is its value. With two of them the score is the number that K holds."""
    codes = torch.arange(256, dtype=torch.uint8, device=device)
    codes[[127, 255]] = 0  # NaN
    v = codes.view(torch.float8_e4m3fn).view(2, 1, 1, 128)
    q = torch.zeros(2, 1, 1, 128, dtype=torch.float16, device=device)
    assert torch.equal(STEP.attention(q, torch.zeros_like(v), v).float(), v.float())
    for place in range(0, 128, 5):
        q.zero_()[..., place] = 1.0
        _, lse = STEP.attention(q, v, v, scale=1.0, return_lse=True)
        torch.testing.assert_close(lse, v[..., place].float(), rtol=1e-4, atol=1e-5)


def test_queries_too_large_for_float16_are_no_trouble(device="cpu"):
    shape = problem(dtype="bfloat16", kv_heads=2, head_dim=128)
    q, k, v, *scales = PASS.inputs(shape, 1, device)
    q[0] *= 2.0**100
    q[1] *= 2.0**-100
    for row, scale in ((0, 2.0**-103), (1, 2.0**97)):
        inputs = tuple(x[row : row + 1] for x in (q, k, v, *scales))
        asked = replace(shape, batch=1, scale=scale)
        [exact] = PASS.reference(asked, inputs)
        [found] = PASS.call(STEP, asked, inputs)
        verdict = compare(found, exact, PASS.yardstick(asked, inputs, (exact,))[0].in_float32)
        assert verdict.correct, verdict.explain()


def test_the_offset_keeps_many_small_weights():
    """One key has almost all weight and no value. The weights of the others are below 2^-25, and add up."""
    q, k, v = (torch.zeros(1, 1, n, 64) for n in (1, 4001, 4001))
    q[..., 0], k[..., 7, 0], v[..., :7, :], v[..., 8:, :] = 1.0, 18.0, 1.0, 1.0
    exact = reference.attention_float64(q, k, v, False, 1.0)
    found = STEP.attention(q.bfloat16(), *(x.to(torch.float8_e4m3fn) for x in (k, v)), scale=1.0)
    torch.testing.assert_close(found.double(), exact, rtol=0.01, atol=0.0)


@pytest.mark.parametrize("step", STEPS, ids=lambda s: s.name)
def test_scales_are_those_of_their_heads_and_one_where_none_is_given(step):
    shape = problem(kv_heads=2)
    q, k, v, *_ = PASS.inputs(shape, 1)
    scales = {name: torch.empty(2, 2).uniform_(0.001, 0.1) for name in ("k_scale", "v_scale")}
    for given in (scales, {}, {"v_scale": scales["v_scale"]}):
        ones = tuple((dict.fromkeys(scales, torch.ones(2, 2)) | given).values())
        exact = reference.attention_float64(*dequantized((q, k, v), ones, torch.float64), False, 0.01)
        error = accuracy.max_error(reference.fp8_attention(q, k, v, ones, False, 0.01), exact)
        found = compare(step.attention(q, k, v, scale=0.01, **given), exact, error)
        assert found.correct, found.explain()


@pytest.mark.parametrize("step", STEPS, ids=lambda s: s.name)
def test_any_strides_and_outputs(step):
    shape = problem(dtype="bfloat16", seq_len_q=2)
    q, k, v, *_ = PASS.inputs(shape, 1)
    expected = step.attention(q, k, v)
    assert expected.dtype == torch.bfloat16
    apart = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    odd = [torch.empty(*x.shape[:3], 77, dtype=x.dtype)[..., 5:69].copy_(x) for x in (q, k, v)]
    moved = [torch.empty(x.numel() + 1, dtype=x.dtype)[1:].view(x.shape).copy_(x) for x in (q, k, v)]
    for tensors in (apart, odd, moved):
        assert torch.equal(step.attention(*tensors), expected)
    for out in (torch.empty_like(expected), torch.empty(2, 2, 4, 64, dtype=torch.bfloat16).transpose(1, 2)):
        assert step.attention(q, k, v, out=out.fill_(float("nan"))) is out and torch.equal(out, expected)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"q_scale": torch.ones(1, 2)}, "q_scale must be None for q in torch.float16"),
        ({"k_scale": torch.ones(2)}, r"k_scale must be .*\[1, 2\].*got \(2,\)"),
        ({"v_scale": 0.5}, "v_scale must be .*got float"),
        ({"out_dtype": torch.bfloat16}, "out_dtype must be torch.float16, got torch.bfloat16"),
        ({"out": torch.zeros(1, 4, 1, 64)}, "out's dtype must be torch.float16, got torch.float32"),
        ({"v": torch.zeros(1, 2, 64, 64)}, "v must be float8_e4m3fn, got torch.float32"),
        ({"scale": -1.0}, "scale must be above 0, got -1.0"),
    ],
)
def test_bad_requests_are_told_in_one_line(more, told):
    q, k = torch.zeros(1, 4, 1, 64).half(), torch.zeros(1, 2, 64, 64).to(torch.float8_e4m3fn)
    for step in STEPS:
        with pytest.raises(ValueError, match=told) as error:
            step.attention(**{"q": q, "k": k, "v": k, **more})
        assert "\n" not in str(error.value)


def test_what_the_step_does_not_take():
    assert "queries in 16 bits" in STEP.unsupported(sixteen_bits(dtype=FP8, causal=False), "sm_90")
    assert STEP.unsupported(sixteen_bits(causal=False), "sm_90").startswith("takes inputs in float8_e4m3fn")
    assert "no causal mask" in STEP.unsupported(problem(causal=True), "sm_90")
    assert "at most 64 queries" in STEP.unsupported(problem(seq_len_q=65), "sm_90")
    assert "numbers in fp8" in STEP.unsupported(problem(), "sm_80") and STEP.unsupported(problem(), "sm_121") is None
    assert get_step("split_kv").unsupported(problem(), "sm_90") == "takes no keys and values alone in fp8"
    with pytest.raises(Unsupported, match="takes inputs in"):
        STEP.compile(sixteen_bits())
    with pytest.raises(ValueError, match="kv_dtype must be float8_e4m3fn where it is not dtype, got 'bfloat16'"):
        problem(kv_dtype="bfloat16")


def test_a_problem_tells_the_dtype_of_its_keys():
    shape = STEP.default_problem
    assert "_bf16_kvfp8_" in shape.slug and "bf16 kv=fp8" in shape.describe()
    assert Problem(**shape.as_dict()) == shape and replace(shape, kv_dtype="bfloat16").kv_dtype is None
    assert shape.order != replace(shape, kv_dtype=None).order
    inputs = PASS.inputs(small := replace(shape, seq_len_kv=100), 1)
    assert PASS.tensor_bytes(small) == sum(x.nbytes for x in (*inputs, *PASS.poisoned(inputs)))


def test_the_step_written_out_does_the_same():
    shape = problem(kv_heads=2, head_dim=128)
    assert_right(write_step(STEP, shape, "cpu"), shape)


@same_compilers
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_conversions_cost_little(dtype):
    """An instruction converts two numbers, words bring these to the lanes, and nothing goes through float32."""
    shape = replace(STEP.default_problem, dtype=dtype)
    made, of_16_bits = STEP.compile(shape), get_step("split_kv").compile(replace(shape, kv_dtype=None))
    assert not made.spilled_bytes
    hot = Counter(instruction.opcode for instruction in made.hot_body)
    its, theirs = STEP.key(shape), get_step("split_kv").key(replace(shape, kv_dtype=None))
    numbers = 2 * its * shape.head_dim // 128  # of K and V, a thread's
    weights = 16 * its // 128
    assert hot["F2FP"] == (numbers + weights) // 2 and not hot["HADD2"]
    assert "LDS.U8" not in made.texts.sass and "LDS.U16" not in made.texts.sass
    assert len(made.hot_body) / its < 1.1 * len(of_16_bits.hot_body) / theirs
