"""How Hopper's tensor cores add in fp8, and what is right then, on the CPU. ``tests.gpu.tensor_cores`` asks a GPU."""

from dataclasses import dataclass, replace

import pytest
import torch

from steps import get_step
from steps.core.quantized import TorchQuantized
from tests.fp8.test_steps import problem
from tests.gpu.tensor_cores import Rule, by_library, cases, measured, same
from tutorial_lib import passes, reference, tensor_cores
from tutorial_lib.tensor_cores import FRACTION_BITS, product

HOPPER = Rule(13, "zero", with_sum=True, group=32, normalized=False, kept=13)
LONG = problem(batch=1, heads=1, seq_len_q=32, seq_len_kv=5003, head_dim=128, causal=False)
TILE = slice(1024, 1024 + 128)


@pytest.mark.parametrize(("what", "given"), list(cases(1)), ids=lambda x: x if isinstance(x, str) else "")
def test_products_are_those_of_the_rule_and_the_simulator_has_the_same(what, given):
    expected = HOPPER.add(*given)
    assert same(by_library(*given), expected).all()
    assert same(measured(*given), expected).all()
    others = [replace(HOPPER, **change) for change in ({"fraction_bits": 12}, {"rounded": "down"}, {"with_sum": False})]
    told = [not same(rule.add(*given), expected).all() for rule in others]
    assert any(told) or what in ("a sum alone", "normal factors, no sum"), what


def test_a_product_of_any_shape():
    """Rows in pieces, a depth that is no multiple of 32, no sum, views, and NaN, which stays where it is."""
    a, b = (torch.randn(n, m).mul(100).to(torch.float8_e4m3fn) for n, m in ((300, 77), (90, 77)))
    c = torch.randn(300, 90) * 1e4
    padded = [torch.cat([x.float(), torch.zeros(len(x), 19)], 1).to(x.dtype) for x in (a, b)]
    expected = product(padded[0][:130], padded[1].T, c[:130])
    assert torch.equal(product(a, b.T, c)[:130], expected)
    assert torch.equal(product(a, b.T), product(a, b.T, torch.zeros_like(c)))
    exact = a.double() @ b.double().T + c
    assert 0 < (product(a, b.T, c) - exact).abs().max() < 3 * 64 * 2.0**-FRACTION_BITS * 448 * 4 * 100
    c[3, 4] = float("nan")
    assert product(a, b.T, c).isnan().nonzero().tolist() == [[3, 4]]
    wide = a.float()
    wide[5, 6] = float("nan")
    assert product(wide.to(a.dtype), b.T).isnan().any(1).nonzero().flatten().tolist() == [5]


@dataclass(frozen=True, kw_only=True)
class Summed(TorchQuantized):
    """Attention in fp8 by ``made``."""

    in_tensor_cores: bool = True
    offset_of_weights: int = 8

    def sums_in_tensor_cores(self, problem):
        return self.in_tensor_cores


def made(
    broken=lambda weights, v: (weights, v),
    scale_of_value=None,
    adds=product,
    in_tensor_cores=True,
    rounds=8,
    offset_of_weights=8,
):
    """A step that says where its sums are, and its offset; broken: what becomes of the weights and of V before they are
    multiplied; rounds: the offset that it has.
    """

    def attention(q, k, v, causal, scale, scales, dtype):
        scales = *scales[:2], scales[2] if scale_of_value is None else scale_of_value
        return reference.fp8_attention(
            q, k, v, scales, causal, scale, rounds, (product, lambda weights, v: adds(*broken(weights, v)))
        ).to(dtype)

    return Summed(
        name="summed",
        title="",
        change="",
        number=None,
        default_problem=LONG,
        function=attention,
        in_tensor_cores=in_tensor_cores,
        offset_of_weights=offset_of_weights,
    )


def without_a_tile(weights, v):
    v = v.clone()
    v[:, TILE] = 0
    return weights, v


def with_a_tile_twice(weights, v):
    return torch.cat([weights, weights[..., TILE]], -1), torch.cat([v, v[:, TILE]], 1)


@pytest.fixture(scope="module")
def asked():
    inputs = passes.QUANTIZED.inputs(LONG, 5)
    exact = passes.QUANTIZED.reference(LONG, inputs)
    return inputs, exact, passes.QUANTIZED.yardstick(LONG, inputs, exact)


def test_of_a_long_row_the_tensor_cores_lose_more_than_rounding_does_and_that_is_allowed_to_who_says_so(asked):
    inputs, exact, allowed = asked
    found = passes.QUANTIZED.check(made(), LONG, inputs, exact, allowed)
    assert found.correct and found.max_error > 2.5 * allowed[0].in_float32
    errors = passes.QUANTIZED.errors_by_cause(LONG, 5, exact, allowed, made())
    of_inputs, of_weights, of_sums = errors
    assert of_sums > 2 * of_weights > 0
    whole = reference.attention_float64(*passes.FORWARD.inputs(replace(LONG, dtype="bfloat16"), 5), False)
    assert of_inputs == (whole - exact[0]).abs().max().item() > 0
    told = passes.QUANTIZED.told_by_cause(LONG, errors)
    assert f"quantized inputs {of_inputs:.0e}, rounded weights {of_weights:.0e}, sums in tensor cores" in told
    alone = passes.QUANTIZED.errors_by_cause(LONG, 5, exact, allowed, made(in_tensor_cores=False))
    assert alone == (of_inputs, of_weights, 0.0) and "sums" not in passes.QUANTIZED.told_by_cause(LONG, alone)
    assert not passes.QUANTIZED.check(made(in_tensor_cores=False), LONG, inputs, exact, allowed).correct
    assert passes.QUANTIZED.check(made(adds=reference.in_float32), LONG, inputs, exact, allowed).correct


def test_the_measure_rounds_weights_with_the_step_s_own_offset(monkeypatch):
    """A step that says 2^8 and rounds without it is wrong where most weights are small, and is right if it says so."""
    shape = replace(LONG, seq_len_q=16, scale=2 * LONG.effective_scale)
    inputs = passes.QUANTIZED.inputs(shape, 5)
    exact = passes.QUANTIZED.reference(shape, inputs)
    allowed = passes.QUANTIZED.yardstick(shape, inputs, exact)

    def correct(**offsets):
        step = made(adds=reference.in_float32, in_tensor_cores=False, **offsets)
        return passes.QUANTIZED.check(step, shape, inputs, exact, allowed).correct

    assert correct() and not correct(rounds=0) and correct(rounds=0, offset_of_weights=0)
    of_8, of_0 = (made(offset_of_weights=offset) for offset in (8, 0))
    monkeypatch.setattr(passes.Quantized, "yardstick", None)  # nothing is computed twice
    less, more = (passes.QUANTIZED.errors_by_cause(shape, 5, exact, allowed, step)[1] for step in (of_8, of_0))
    assert 2 * less < more


def test_no_losses_are_allowed_to_a_gpu_that_has_none(asked, monkeypatch):
    for major, lossy in ((9, True), (10, False), (12, True)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, major=major: (major, 0))
        assert tensor_cores.lossy_on(torch.device("cuda")) == lossy
    assert tensor_cores.lossy_on(torch.device("cpu"))
    inputs, exact, _ = asked
    monkeypatch.setattr(tensor_cores, "lossy_on", lambda _: False)
    allowed = passes.QUANTIZED.yardstick(LONG, inputs, exact)
    assert not passes.QUANTIZED.check(made(), LONG, inputs, exact, allowed).correct
    assert passes.QUANTIZED.check(made(adds=reference.in_float32), LONG, inputs, exact, allowed).correct


@pytest.mark.parametrize(
    "wrong",
    [
        made(without_a_tile),
        made(with_a_tile_twice),
        made(scale_of_value=torch.ones(1, 1)),
        made(lambda weights, v: (weights.roll(1, -1), v)),
    ],
    ids=["a tile is forgotten", "a tile counts twice", "a scale is forgotten", "keys moved"],
)
def test_what_is_wrong_in_a_long_row_is_found(asked, wrong):
    assert not passes.QUANTIZED.check(wrong, LONG, *asked).correct


def test_a_kernel_that_says_so_is_right_in_a_long_row():
    shape = replace(LONG, seq_len_q=16, seq_len_kv=3000)
    inputs = passes.QUANTIZED.inputs(shape, 6)
    exact = passes.QUANTIZED.reference(shape, inputs)
    [allowed] = passes.QUANTIZED.yardstick(shape, inputs, exact)
    errors = {}
    for name in ("p_offset", "two_level_accumulation"):
        found = passes.QUANTIZED.check(get_step(name), shape, inputs, exact, (allowed,))
        assert found.correct, found.explain()
        errors[name] = found.max_error
    assert errors["p_offset"] > 1.5 * errors["two_level_accumulation"]


def test_several_products_at_once_are_those_products(monkeypatch):
    """Whole or in pieces, along each of their dimensions."""
    a, b = (torch.randn(shape).to(torch.float8_e4m3fn) for shape in ((3, 9, 70), (3, 70, 11)))
    c = torch.randn(3, 9, 11)
    each = torch.stack([product(*one) for one in zip(a, b, c)])
    assert torch.equal(product(a, b, c), each)
    for piece in (32 * 9 * 11, 32 * 40, 32):
        monkeypatch.setitem(tensor_cores.PIECE, "cpu", piece)
        assert torch.equal(product(a, b, c), each)
