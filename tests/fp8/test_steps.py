"""The fp8 steps on the CPU: right, in order, and refused with one line what they do not take."""

import secrets
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from steps import QUANTIZED as ALL
from steps import get_step
from steps.core.ladder import kernels_of
from steps.core.quantized import ones_where_none
from steps.core.step import Unsupported
from steps.fp8.step306_cutile_fp8 import OFFSET
from steps.fp8.transpose import KEYS
from steps.writing.written import write_step
from tests.checking import asked, assert_right, faults
from tests.expected import same_compilers
from tests.shapes import problem as sixteen_bits
from tutorial_lib import accuracy, passes, reference, tensor_cores
from tutorial_lib.accuracy import compare
from tutorial_lib.problem import E5M2, FP8, Problem
from tutorial_lib.quantize import dequantize
from tutorial_lib.simulator.run import watched

QUANTIZED = [step for step in ALL if "fp8" in step.takes]  # of others: test_decoding.py
INSIDE = [step for step in kernels_of("fp8") if step.inside]
KERNELS = [step for step in (*QUANTIZED, *INSIDE) if step.backend != "torch"]
GLUON = [step for step in KERNELS if step.backend == "hopper"]
IN_FP8 = [step for step in KERNELS if step not in GLUON or step.values.transposed]  # both products


def problem(**changes) -> Problem:
    return sixteen_bits(dtype=FP8, **changes)


SHAPES = [
    problem(batch=1, heads=4, kv_heads=2, head_dim=128, seq_len_q=200, seq_len_kv=300),
    problem(heads=2, seq_len_q=130, seq_len_kv=513, causal=False),
    problem(heads=2, seq_len_q=1, seq_len_kv=1),
    problem(batch=1, heads=2, seq_len_q=1, seq_len_kv=200, causal=False, head_dim=128),
    problem(heads=2, seq_len_q=300, seq_len_kv=77),
    problem(batch=1, heads=2, seq_len_q=256, seq_len_kv=256, head_dim=128),
    problem(batch=1, heads=2, seq_len_q=129, seq_len_kv=150, head_dim=256),
    problem(batch=1, heads=6, kv_heads=2, head_dim=80, seq_len_q=65, seq_len_kv=200),
    problem(batch=1, heads=2, head_dim=32, scale=0.5),
    problem(batch=1, heads=1, seq_len_q=400, seq_len_kv=400),  # a diagonal through several tiles, of 192 queries, too
    replace(problem(heads=2, kv_heads=1, seq_len_q=130, seq_len_kv=300), dtype=E5M2),
    replace(problem(batch=1, heads=2, head_dim=128, seq_len_q=70, seq_len_kv=1, causal=False), dtype=E5M2),
    replace(problem(batch=1, heads=1, head_dim=256, seq_len_q=129, seq_len_kv=257), dtype=E5M2),
]


CASES = [(step, shape) for shape in SHAPES for step in (*QUANTIZED, *INSIDE) if not step.unsupported(shape, "sm_90")]


@pytest.mark.parametrize(("step", "shape"), CASES, ids=lambda x: getattr(x, "name", None) or x.slug)
def test_a_step_is_right(step, shape):
    assert_right(step, shape)


@pytest.mark.parametrize("step", IN_FP8, ids=lambda s: s.name)
def test_the_error_is_that_of_weights_rounded_as_the_step_says(step):
    """Of long rows of small weights, on which an offset tells."""
    shape = problem(batch=1, heads=1, seq_len_q=64, seq_len_kv=2048, causal=False)
    its = asked("fp8", shape)
    of_values = tensor_cores.product if step.sums_in_tensor_cores(shape) else reference.in_float32
    how = its.inputs[3:], False, None, step.offset_of_weights, (tensor_cores.product, of_values)
    own = reference.fp8_attention(*its.inputs[:3], *how)
    [out] = its.kind.call(step, shape, its.inputs)
    found = compare(out, its.exact[0], accuracy.max_error(own, its.exact[0]))
    assert found.correct, found.explain()


def test_steps_say_which_offset_they_round_with():
    without = {"fp8_dequantized", "qk_fp8", "pv_fp8", "permuted_keys"}
    for step in (*ALL, *INSIDE):
        assert step.offset_of_weights == (0 if step.name in without else OFFSET)


def test_the_offset_keeps_many_small_weights():
    """Two keys with a score of 7, of which one is visited first, and a thousand with 0, whose weights of e^-7 add up.

    Without the offset they are less than half of the least number of e4m3, and all of them are lost.
    """
    q, k, v = (torch.zeros(1, 1, n, 64) for n in (1, 1026, 1026))
    q[..., 0], k[..., [0, -1], 0], v[..., 1:-1, :] = 1.0, 7.0, 1.0
    [exact] = reference.attention_float64(q, k, v, False, 1.0)[..., 0].flatten().tolist()
    tensors = [x.to(torch.float8_e4m3fn) for x in (q, k, v)]
    names = ("permuted_keys", "p_offset", "cutile_fp8")
    lost, *kept = (get_step(name).attention(*tensors, scale=1.0).float() for name in names)
    assert exact > 0.3 and not lost.any()
    assert all((found - exact).abs().max() < 0.03 for found in kept)


@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[4]], ids=lambda p: p.slug)
@pytest.mark.parametrize("step", KERNELS, ids=lambda s: s.name)
def test_the_log_sum_exp(step, shape):
    assert_right_lse(step, shape)


def assert_right_lse(step, shape, device="cpu"):
    q, k, v, *scales = inputs = passes.QUANTIZED.inputs(shape, secrets.randbits(32), device)
    exact = [dequantize(x, scale, torch.float64) for x, scale in zip((q, k, v), scales)]
    _, expected = reference.attention_and_lse_float64(*exact, shape.causal)
    by_name = passes.QUANTIZED.scales(inputs)
    o, lse = step.attention(q, k, v, shape.causal, return_lse=True, **by_name)
    torch.testing.assert_close(lse.double(), expected, rtol=1e-3, atol=3e-3)  # the tensor cores add up QK products
    assert torch.equal(o, step.attention(q, k, v, shape.causal, **by_name))


def test_a_scale_that_is_left_out_is_in_float32():
    torch.set_default_dtype(torch.float64)
    try:
        scales = ones_where_none({"k_scale": None}, (2, 2), "cpu")
    finally:
        torch.set_default_dtype(torch.float32)
    assert scales["k_scale"].dtype == torch.float32


@pytest.mark.parametrize("step", QUANTIZED, ids=lambda s: s.name)
def test_scales_are_those_of_their_heads_and_one_where_none_is_given(step):
    shape = problem(heads=4, kv_heads=2)
    q, k, v, *_ = passes.QUANTIZED.inputs(shape, 1)
    scales = {name: torch.empty(2, 2).uniform_(0.001, 0.1) for name in ("q_scale", "k_scale", "v_scale")}
    plain = [x.float() for x in (q, k, v)]
    for given in (scales, {}):
        ones = dict.fromkeys(scales, torch.ones(2, 2)) | given
        asked = [dequantize(x, s, torch.float64) for x, s in zip(plain, ones.values())]
        exact = reference.attention_float64(*asked, True, 0.01)
        how = tuple(ones.values()), True, 0.01, 0, (tensor_cores.product, reference.in_float32)
        error = accuracy.max_error(reference.fp8_attention(q, k, v, *how), exact)
        found = compare(step.attention(q, k, v, True, 0.01, **given), exact, error)
        assert found.correct, found.explain()


@pytest.mark.parametrize("step", QUANTIZED, ids=lambda s: s.name)
def test_any_strides_and_outputs(step):
    shape = problem(batch=2, heads=2, seq_len_q=70, seq_len_kv=90, causal=False)
    q, k, v, *_ = passes.QUANTIZED.inputs(shape, 1)
    expected = step.attention(q, k, v)
    assert expected.dtype == torch.bfloat16
    apart = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    odd = [torch.empty(*x.shape[:3], 77, dtype=x.dtype)[..., 5:69].copy_(x) for x in (q, k, v)]
    for tensors in (apart, odd):
        assert torch.equal(step.attention(*tensors), expected)
    for out in (torch.empty_like(expected), torch.empty(2, 70, 2, 64, dtype=torch.bfloat16).transpose(1, 2)):
        assert step.attention(q, k, v, out=out.fill_(float("nan"))) is out and torch.equal(out, expected)
    half = step.attention(q, k, v, out_dtype=torch.float16)
    assert half.dtype == torch.float16 and (half.float() - expected.float()).abs().max() < 1


def test_v_is_transposed_with_zeros_behind_its_end():
    """The kernel of step permuted_keys alone: its order of keys, and padding that no weight turns into NaN."""
    from steps.core.launch import gluon_launcher
    from steps.fp8.transpose import WARPS, Constants, transpose

    v = torch.randn(2, 3, 150, 80).to(torch.float8_e4m3fn)
    for name in ("pv_fp8", "permuted_keys"):
        step = get_step(name)
        constants = Constants(step.variant(problem(heads=3, head_dim=80, seq_len_kv=150)).head_dim, step.values.order)
        out = torch.full((2, 3, 80, 160), float("nan")).to(v.dtype)
        passed = (v, v.stride(), out, 150, 3, 160, 80, constants)
        blocks = (-(-160 // KEYS.value), 3, 2)
        gluon_launcher(transpose, blocks, passed, WARPS.value, v.device, moving=(0, 2))(v, out)
        keys = torch.arange(160)
        if name == "permuted_keys":  # of 16, halves of fours of pairs become fours of halves of pairs
            keys = keys.view(10, 2, 4, 2).transpose(1, 2).reshape(160)
        padded = torch.cat([v.float(), torch.zeros(2, 3, 10, 80)], 2)
        assert torch.equal(out.float(), padded[:, :, keys].mT)


@pytest.mark.parametrize("seed", [None, 1, 2])
@pytest.mark.parametrize("step", GLUON, ids=lambda s: s.name)
def test_under_any_latencies_it_is_in_order(step, seed):
    assert not faults(step, SHAPES[-1] if step.name == "fp8_three_warpgroups" else SHAPES[0], seed)


def test_the_simulator_multiplies_twice_as_fast_in_8_bits():
    busy = []
    for name in ("qk_fp8", "pv_fp8"):  # two QK products, the second in vain, and a PV product, in 16 bits and in 8
        shape = problem(batch=1, heads=1, head_dim=128, causal=False)
        with watched() as watch:
            passes.QUANTIZED.call(get_step(name), shape, passes.QUANTIZED.inputs(shape, 1))
        busy.append(max(run.busy["tensor cores"] for run in watch.runs))
    assert busy[0] / busy[1] == pytest.approx(4 / 3)


@pytest.mark.parametrize(("name", "arch"), [("p_offset", None), ("cutile_fp8", "cpu")])
def test_a_step_written_out_does_the_same(name, arch):
    step = get_step(name)
    shape = replace(step.default_problem, batch=1, heads=2, kv_heads=2, seq_len_q=256, seq_len_kv=256)
    assert_right(write_step(step, shape, arch), shape)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"q": torch.float32}, "q must be float8_e4m3fn or float8_e5m2 or float16 or bfloat16, got torch.float32"),
        ({"k": torch.bfloat16}, r"k must have q.s dtype .torch.float8_e4m3fn., got torch.bfloat16"),
        ({"v": torch.float8_e5m2}, r"v must have q.s dtype .torch.float8_e4m3fn., got torch.float8_e5m2"),
    ],
)
def test_other_dtypes_are_refused_by_name(changes, told):
    tensors = {name: torch.zeros(1, 2, 64, 64, dtype=torch.float8_e4m3fn) for name in "qkv"}
    tensors |= {name: torch.zeros(1, 2, 64, 64, dtype=dtype) for name, dtype in changes.items()}
    for step in QUANTIZED:
        with pytest.raises(ValueError, match=told):
            step.attention(**tensors)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"q_scale": torch.ones(2)}, r"q_scale must be .*\[1, 2\].*got \(2,\)"),
        ({"k_scale": torch.ones(1, 2, dtype=torch.float64)}, "k_scale must be .*float32"),
        ({"v_scale": 0.5}, "v_scale must be .*got float"),
        ({"v_scale": torch.ones(1, 4)[:, ::2]}, r"v_scale must be .*strides \(4, 2\)"),
        ({"q_scale": np.ones((1, 2))}, r"q_scale must be .*got ndarray"),
        ({"out_dtype": torch.float32}, "out_dtype must be torch.float16 or torch.bfloat16"),
        ({"out_dtype": [torch.float16]}, "out_dtype must be torch.float16 or torch.bfloat16"),
        ({"out": torch.zeros(1, 2, 64, 64)}, "out's dtype must be torch.float16 or torch.bfloat16, got torch.float32"),
        ({"out": torch.zeros(1, 2, 64, 32, dtype=torch.bfloat16)}, "out must be a tensor with shape"),
        ({"scale": -1.0}, "scale must be above 0, got -1.0"),
        ({"scale": "x"}, "scale must be a number"),
        ({"causal": "yes"}, "causal must be True or False"),
    ],
)
def test_bad_requests_are_told_in_one_line(more, told):
    tensors = [torch.zeros(1, 2, 64, 64, dtype=torch.float8_e4m3fn)] * 3
    for step in QUANTIZED:
        with pytest.raises(ValueError, match=told) as error:
            step.attention(*tensors, **more)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["q", "q_scale", "k_scale", "v_scale"])
def test_a_kernel_refuses_tensors_whose_gradients_it_would_lose(name):
    tensors = {x: torch.ones(1, 2, 64, 64).to(torch.float8_e4m3fn) for x in "qkv"} | {name: torch.ones(1, 2)}
    if name == "q":
        tensors["q"] = tensors["k"].clone()
    tensors[name].requires_grad_()
    told = f"{name} must require no gradients.*take steps.attention with the inputs in 16 bits, which"
    with pytest.raises(ValueError, match=told):
        get_step("p_offset").attention(**tensors)
    with torch.no_grad():
        get_step("p_offset").attention(**tensors)


def test_what_no_step_takes():
    step = get_step("pv_fp8")
    assert "head_dim must be a multiple of 16 up to 256, got 72" in step.unsupported(problem(head_dim=72), "sm_90")
    told = get_step("qk_fp8").unsupported(problem(head_dim=256), "sm_90")
    assert told == "head_dim must be at most 128, as V in 16 bits takes room, got 256"
    assert step.unsupported(problem(window=5), "sm_90") == "takes no sliding window"
    told = "takes inputs in float8_e4m3fn, not in float8_e5m2"
    assert get_step("cutile_fp8").unsupported(replace(problem(), dtype=E5M2), "sm_90") == told
    assert "not in float16" in step.unsupported(sixteen_bits(), "sm_90")
    assert "sm_90 alone" in step.unsupported(problem(), "sm_100")
    in_cutile = get_step("cutile_fp8")
    assert "made of numbers in fp8" in in_cutile.unsupported(problem(), "sm_89")
    assert in_cutile.unsupported(problem(), "sm_100") is None
    assert "heads * seq_len * head_dim" in in_cutile.unsupported(problem(seq_len_kv=2**23), "sm_90")
    assert step.unsupported(sixteen_bits(kv_dtype=FP8), "sm_90") == "takes no keys and values alone in fp8"
    for other in ("exp2", "producer", "sdpa"):
        assert get_step(other).unsupported(problem(), "sm_90") == "takes no inputs in fp8"
    with pytest.raises(Unsupported):
        step.compile(sixteen_bits())


@same_compilers
@pytest.mark.parametrize("step", GLUON, ids=lambda s: s.name)
def test_the_tensor_cores_multiply_in_8_bits(step):
    compiled = step.compile(step.default_problem)
    text = compiled.texts.sass
    assert ("HGMMA" in text) != step.values.transposed and "QGMMA.64x128x32.F32.E4M3.E4M3" in text
    assert not compiled.spilled_bytes
    # In the loop lanes exchange the maxima of two rows, in two turns. Step pv_fp8 alone exchanges weights, too.
    hot = Counter(instruction.opcode for instruction in compiled.hot_body)
    exchanging = step.name == "pv_fp8"
    assert hot["SHFL"] == (20 if exchanging else 4)
    assert hot["F2FP"] == 32 and (hot["PRMT"] > 0) == exchanging


@same_compilers
def test_of_e5m2_the_types_of_factors_alone_change():
    """The weights stay e4m3; the loop has as many instructions."""
    step = get_step("p_offset")
    usual, made = (step.compile(replace(step.default_problem, dtype=dtype)) for dtype in (FP8, E5M2))
    for factors in ("E5M2.E5M2", "E4M3.E5M2"):  # of the QK and of the PV product
        assert f"QGMMA.64x128x32.F32.{factors}" in made.texts.sass
    assert "E4M3.E4M3" not in made.texts.sass and not made.spilled_bytes
    assert len(made.hot_body) == len(usual.hot_body) and made.registers == usual.registers


@same_compilers
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("causal", [False, True])
def test_in_cutile_both_products_are_in_8_bits_and_nothing_spills(head_dim, causal):
    step = get_step("cutile_fp8")
    made = step.compile(replace(step.default_problem, head_dim=head_dim, causal=causal))
    assert "QGMMA" in made.texts.sass and "HGMMA" not in made.texts.sass
    assert not made.spilled_bytes


@same_compilers
def test_in_cutile_float32_adds_up_the_tiles_where_that_is_asked_for():
    """An addition for each of a thread's sums: 128 queries and 128 columns are those of 256 threads."""
    both = [get_step(name) for name in ("cutile_fp8", "cutile_fast_acc")]
    bodies = [step.compile(step.default_problem).hot_body for step in both]
    own, fast = (Counter(instruction.opcode for instruction in body)["FADD"] for body in bodies)
    assert own - fast == 128 * 128 // 256
