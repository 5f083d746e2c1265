"""Every step computes attention, on the CPU, over the shapes it promises; what it cannot do it refuses in words."""

import dataclasses
import pickle
import re
import secrets
from itertools import product

import pytest
import torch

import steps
from steps import STEPS, get_step
from steps.blackwell.skeleton import BlackwellStep
from steps.cdna.skeleton import AmdStep
from steps.cdna.softmax import SCALE_QUERY
from steps.core.fused import FusedStep
from steps.core.ladder import kernels_of
from steps.core.order import Order
from steps.core.problems import HEADLINE
from steps.core.step import PADDING, PIECE, Unsupported
from steps.cutile.skeleton import CuTileStep
from steps.cutile.variant import Latency, MaskLoop
from steps.everyday.decoding import DecodeStep
from steps.gluon.skeleton import GluonStep
from steps.hopper.skeleton import HopperStep
from steps.writing.written import write_step
from tests.checking import Asked, asked, assert_right
from tests.distinct import core, distinct, first_and_last, named
from tests.selection import ALL, sampled
from tests.shapes import HARD, PADDED, SHAPES, problem
from tutorial_lib.accuracy import compare, cosine, rounding_step, worst
from tutorial_lib.passes import FORWARD
from tutorial_lib.reference import attention_and_lse_float64, attention_float64, sdpa_error


def decodes(shape) -> bool:
    """Whether it is what the decoding steps are for; tests/everyday has shapes of their own."""
    return not shape.causal and shape.seq_len_q <= 64


CUTILE = [step for step in kernels_of("forward") if isinstance(step, CuTileStep)]
GLUON = [step for step in kernels_of("forward") if isinstance(step, GluonStep)]
HOPPER = [step for step in kernels_of("forward") if isinstance(step, HopperStep)]
BLACKWELL = [step for step in kernels_of("forward") if isinstance(step, BlackwellStep)]
CDNA = [step for step in kernels_of("forward") if isinstance(step, AmdStep)]


def with_log_sum_exp(step, of: Asked) -> torch.Tensor:
    """The output of a call that is asked for the log-sum-exp, too, which is right."""
    q, [out] = of.inputs[0], FORWARD.poisoned(of.inputs)
    o, lse = step.attention(*of.inputs, of.problem.causal, of.problem.scale, out=out, return_lse=True)
    assert o is out and lse.shape == q.shape[:-1] and lse.dtype == torch.float32
    rounded_again = getattr(step, "scaling", None) == SCALE_QUERY  # Q, which is of 16 bits
    atol = 8 * torch.finfo(q.dtype).eps if rounded_again else 2e-4
    torch.testing.assert_close(lse.double(), of.lse, rtol=1e-5, atol=atol)
    return o


ON_CPU = [s for s in kernels_of("forward")[1:] if s.runs_on_cpu]
CASES = [(s, shape) for s, shape in distinct(ON_CPU, SHAPES) if not isinstance(s, DecodeStep) or decodes(shape)]


@sampled(core=core(CASES, always=HARD))
@pytest.mark.parametrize(("step", "shape"), CASES, ids=named)
def test_step_is_correct(step, shape, pytestconfig):
    """Output and log-sum-exp of one call; and without the log-sum-exp, with which kernels differ, the same output."""
    of = asked("forward", shape)
    o = with_log_sum_exp(step, of)
    accuracy = compare(o, *of.exact, *of.allowed)
    assert accuracy.correct, accuracy.explain()
    if shape in HARD or pytestconfig.option.selection == ALL:
        [plain] = FORWARD.call(step, shape, of.inputs, FORWARD.poisoned(of.inputs))
        torch.testing.assert_close(plain, o, rtol=0, atol=0)


@pytest.mark.parametrize("shape", HARD, ids=lambda p: p.slug)
def test_pytorchs_own_gives_the_log_sum_exp_too(shape):
    with_log_sum_exp(STEPS[0], asked("forward", shape))


WIDENED = distinct([s for s in kernels_of("forward") if s.pads_head_dim], PADDED)


@sampled(core=core(WIDENED, always=PADDED[:1]))
@pytest.mark.parametrize(("step", "shape"), WIDENED, ids=named)
def test_head_dims_between_are_filled_up_with_zeros(step, shape):
    assert_right(step, shape)


APART = distinct(HOPPER, [problem(heads=2, seq_len_q=192, seq_len_kv=192, scale=1.0)])


@pytest.mark.parametrize(("step", "shape"), APART, ids=named)
def test_a_maximum_is_that_of_all_keys(step, shape):
    """Any number near it would do, but for weights that overflow: so with scores that lie far apart."""
    assert_right(step, shape)


LATE = [
    problem(batch=1, heads=2, causal=False, dtype="bfloat16", seq_len_q=4, seq_len_kv=300),
    problem(batch=1, heads=2, causal=False, dtype="bfloat16", seq_len_q=150, seq_len_kv=300),
    problem(batch=1, heads=2, dtype="bfloat16", seq_len_q=300, seq_len_kv=300),
]
LATE_CASES = [(s, shape) for s, shape in distinct(ON_CPU, LATE) if not isinstance(s, DecodeStep) or decodes(shape)]


def right_where_scores_are_finite(step, shape, device="cpu") -> None:
    """Of keys of which the first tiles give scores of minus infinity alone: less itself, that would be NaN."""
    q, k, v = FORWARD.inputs(shape, secrets.randbits(32), device)
    q.fill_(1.0)
    k[:, :, :140, 0] = -torch.inf
    exact, exact_lse = attention_and_lse_float64(q, k, v, shape.causal, None)
    sees = exact_lse.isfinite()  # under the mask the first queries see such keys alone, and have no result
    o, lse = step.attention(q, k, v, shape.causal, return_lse=True)
    assert sees.any()
    eps = torch.finfo(q.dtype).eps
    torch.testing.assert_close(o[sees].double(), exact[sees], rtol=0, atol=2 * eps * v.abs().max().item())
    torch.testing.assert_close(lse[sees].double(), exact_lse[sees], rtol=0, atol=8 * eps)


@sampled(core=first_and_last(LATE_CASES))
@pytest.mark.parametrize(("step", "shape"), LATE_CASES, ids=named)
def test_the_first_tiles_of_keys_may_hold_no_finite_score(step, shape):
    right_where_scores_are_finite(step, shape)


def test_the_log_sum_exp_comes_behind_the_output_that_is_given():
    shape = problem(head_dim=64)
    q, k, v = FORWARD.inputs(shape, 0)
    for name in ("sdpa", "static_scheduler", "gluon_larger_tile", "pv_wait_after_max"):
        out = torch.empty(q.shape[0], q.shape[2], q.shape[1], q.shape[3], dtype=q.dtype).transpose(1, 2)
        o, lse = get_step(name).attention(q, k, v, causal=True, out=out, return_lse=True)
        assert o is out and torch.isfinite(lse).all()


def test_a_kernel_from_a_text_has_no_log_sum_exp():
    shape = problem(head_dim=64)
    with pytest.raises(Unsupported, match="without the log-sum-exp"):
        write_step(get_step("static_scheduler"), shape, "cpu").attention(
            *FORWARD.inputs(shape, 0), causal=True, return_lse=True
        )


def test_a_head_dim_without_tiles_is_refused_and_who_takes_it_is_said():
    shape = problem(head_dim=96)
    refused = get_step("swizzle").unsupported(shape, "sm_90")
    assert refused == f"head_dim must be one of 32, 64, 128, 256, got 96 ({PADDING})"
    named = [*CUTILE, *HOPPER, *(step for step in kernels_of("backward") if step.backend != "blackwell")]
    assert named and all(step.unsupported(shape, "sm_90") is None for step in named)
    for head_dim in (100, 264):
        with pytest.raises(Unsupported, match=f"head_dim must be a multiple of {PIECE} up to 256, got {head_dim}"):
            get_step("epilogue_overlap").compile(problem(head_dim=head_dim))


LAID_OUT = distinct(CUTILE + GLUON + HOPPER + BLACKWELL + CDNA, [problem(heads=2, seq_len_q=70, seq_len_kv=96)])


@sampled(core=first_and_last(LAID_OUT))
@pytest.mark.parametrize(("step", "shape"), LAID_OUT, ids=named)
def test_any_strides_will_do(step, shape):
    """What a launch passes of them is a skeleton's, and the same in all of its steps."""
    q, k, v = asked("forward", shape).inputs
    expected = step.attention(q, k, v, True)
    transposed = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]  # heads behind the sequence
    assert torch.equal(step.attention(*transposed, True), expected)
    columns = [x.transpose(2, 3).contiguous().transpose(2, 3) for x in (q, k, v)]  # head_dim is not contiguous
    assert torch.equal(step.attention(*columns, True), expected)


def test_the_check_fails_a_wrong_result():
    """The rule is worth something: an error beyond it, a missing element and a NaN all fail."""
    shape = problem()
    inputs = FORWARD.inputs(shape, secrets.randbits(32))
    exact = attention_float64(*inputs, True)
    yardstick = sdpa_error(inputs, exact, True, None)
    limit = 2 * yardstick + rounding_step(exact, torch.float16)

    class Writes:
        """A step that writes what a function does with the output."""

        direction = "forward"

        def __init__(self, write):
            self.write = write

        def attention(self, q, k, v, causal, scale, out):
            self.write(out)
            return out

    def found(write):
        return FORWARD.check(Writes(write), shape, inputs, (exact,), (yardstick,))

    def wrong_by(amount):
        def write(out):
            out.copy_(exact)
            out.view(-1)[17] += amount

        return found(write)

    def leaves_one_out(out):
        out.view(-1)[1:] = exact.view(-1)[1:]

    assert wrong_by(0.0).correct
    assert not wrong_by(3 * limit).correct
    assert not wrong_by(float("nan")).correct
    assert not found(leaves_one_out).correct


def test_of_several_outputs_the_worst_counts():
    """A wrong one, NaN or not, or else the one nearest to what is allowed."""
    exact = torch.ones(1, 1, 2, 2, dtype=torch.float64)
    right, near, nan = (exact.half() + offset for offset in (0.0, 1e-3, float("nan")))
    found = [compare(output, exact, 1e-3) for output in (right, near, nan)]
    assert worst(found) is found[2] and worst(found[:2]) is found[1] and not found[2].correct


def test_the_cosine_is_told_as_others_publish_it():
    """And none of a vector that has no direction."""
    exact = torch.tensor([[[[3.0, 4.0]], [[0.0, 1.0]]]], dtype=torch.float64)
    assert cosine(exact, exact) == pytest.approx(1) and cosine(-2 * exact, exact) == pytest.approx(-1)
    turned = torch.tensor([[[[4.0, -3.0]], [[1.0, 0.0]]]])
    assert cosine(turned, exact) == 0
    assert cosine(turned * 0, exact) is None and cosine(turned * float("nan"), exact) is None


def test_reference_agrees_with_a_direct_computation():
    shape = problem(heads=4, kv_heads=2, seq_len_q=50, seq_len_kv=70)
    q, k, v = (x.double() for x in FORWARD.inputs(shape, 1))
    k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    hidden = torch.ones(50, 70, dtype=torch.bool).triu(1)
    scores = (q @ k.transpose(-2, -1) / 8).masked_fill(hidden, float("-inf"))
    torch.testing.assert_close(attention_float64(*FORWARD.inputs(shape, 1), True), scores.softmax(-1) @ v)


def test_reference_in_chunks_is_the_same(monkeypatch):
    inputs = FORWARD.inputs(problem(seq_len_q=100, seq_len_kv=130), 1)
    whole = attention_float64(*inputs, True)
    monkeypatch.setattr("tutorial_lib.reference.SCORE_BYTES", 8 * 130 * 7)  # seven rows at a time
    torch.testing.assert_close(attention_float64(*inputs, True), whole)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": lambda q: q[0]}, "q must have 4 dimensions"),
        ({"q": lambda q: q.float()}, "q must be float16 or bfloat16"),
        ({"k": lambda k: k.bfloat16()}, "k must have q's dtype"),
        ({"k": lambda k: k[..., :32]}, "k must be"),
        ({"v": lambda v: v[:, :, :5]}, "v must have k's shape"),
        ({"k": lambda k: k[:, :3], "v": lambda v: v[:, :3]}, "kv_heads must divide heads"),
        ({"k": lambda k: k[:, :, :0], "v": lambda v: v[:, :, :0]}, "seq_len_kv must be a whole number of at least 1"),
        ({"q": lambda q: "tensor"}, "q must be a torch.Tensor"),
    ],
)
@pytest.mark.parametrize("step", [STEPS[0], STEPS[-1]], ids=lambda s: s.name)
def test_bad_arguments_are_named(step, change, message):
    q, k, v = FORWARD.inputs(problem(), 0)
    arguments = {"q": q, "k": k, "v": v}
    arguments |= {name: spoil(arguments[name]) for name, spoil in change.items()}
    with pytest.raises(ValueError, match=message):
        step.attention(**arguments)


def test_bad_scale_and_out_are_named():
    q, k, v = FORWARD.inputs(problem(), 0)
    with pytest.raises(ValueError, match="scale must be a finite number, got nan"):
        STEPS[2].attention(q, k, v, scale=float("nan"))
    for of in (STEPS[2], steps):  # it would get no gradient
        with pytest.raises(ValueError, match="scale must be a number, got a tensor that requires a gradient"):
            of.attention(q, k, v, scale=torch.tensor(0.5, requires_grad=True))
    with pytest.raises(ValueError, match="out must be a tensor with shape"):
        STEPS[2].attention(q, k, v, out=torch.empty(3))
    with pytest.raises(ValueError, match="return_lse must be True or False, got a tensor"):
        STEPS[2].attention(q, k, v, return_lse=torch.ones(2))


@pytest.mark.parametrize("name", ["mma", "swizzle", "wgmma", "longest_first", "transposed_scores", "paged", "split_kv"])
def test_what_is_no_problem_is_not_compiled(name):
    for given in (None, "B=1", {}):
        with pytest.raises(ValueError, match="problem must be a Problem, got"):
            get_step(name).compile(given)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (problem(batch=70000), "batch and heads must be at most 65535"),
        (problem(seq_len_q=2**24, seq_len_kv=1, heads=2), "must be below 2\\^31"),
    ],
)
def test_what_the_hardware_cannot_index_is_refused(shape, message):
    assert re.search(message, CUTILE[0].unsupported(shape, "sm_90"))
    assert CUTILE[0].unsupported(problem(), "sm_90") is None


AMD = [step for step in kernels_of("forward") if step.made_for.startswith("gfx")]
CLUSTERS = [get_step(name) for name in ("cluster", "l2_aware", "autotuned")]
OTHERS = [  # steps, architectures that they are not for, and what is said
    (CLUSTERS, ("sm_80",), "made of clusters .* not {}"),
    (HOPPER, ("sm_80", "sm_100", "sm_120"), "wgmma, which sm_90 alone has, not {}"),
    (BLACKWELL, ("sm_80", "sm_90", "sm_110", "sm_120"), "tcgen05 and tensor memory, for sm_100 and sm_103, not for {}"),
    (AMD, ("sm_80", "sm_90", "gfx90a", "gfx1201"), "made for AMD's CDNA GPUs, gfx942 and gfx950, not for {}"),
]


@pytest.mark.parametrize(("those", "architectures", "message"), OTHERS, ids=["clusters", "Hopper", "Blackwell", "CDNA"])
def test_other_architectures_are_refused_by_name(those, architectures, message):
    """Before a compiler sees them: some would end the process."""
    for step, arch in product(those, architectures):
        with pytest.raises(Unsupported, match=message.format(arch)):
            step.compile(HEADLINE, arch)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: replaced("register_reallocation", registers=248),
            "registers must be a multiple of 8 from 24 to 240, got 248",
        ),
        (lambda: replaced("register_reallocation", registers=100), "registers must be a multiple of 8"),
        (lambda: Order(persistent=False, section_bytes=None, counted=True), "for persistent blocks"),
        (lambda: Order(persistent=True, section_bytes=None, counted=True, taken=True), "and one of these"),
        (lambda: replaced("mask_loop", mask_loop=MaskLoop(256, Latency())), "a tile whose keys its key divides"),
        (lambda: replaced("mask_loop", mask_loop=MaskLoop(0, Latency())), "a tile whose keys its key divides"),
        (lambda: replaced("exp2", mask_loop=MaskLoop(64, Latency())), "a tile whose keys its key divides"),
        (lambda: replaced("exp2", tile=(64, 64)), "tile must be a Tile"),
        (lambda: replaced("stages", tile=(64, 64)), "tile must be a Tile"),
    ],
)
def test_holes_that_do_not_go_together_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def replaced(name, **holes):
    return dataclasses.replace(get_step(name), **holes)


@pytest.mark.parametrize("step", [*kernels_of("forward"), *kernels_of("backward")], ids=lambda s: s.name)
def test_a_step_can_be_sent_to_another_process(step):
    """The worker process that runs a step gets it pickled; it is the same step on the other side, and runs the same."""
    arrived = pickle.loads(pickle.dumps(step))
    assert arrived.name == step.name and arrived.key_changes() == step.key_changes()
    if isinstance(step, FusedStep):
        assert arrived.holes() == step.holes()
        small = dataclasses.replace(step.default_problem, batch=1)
        for problem in filter(lambda p: step.unsupported(p, step.made_for) is None, (step.default_problem, small)):
            assert arrived.what_runs(problem, step.made_for) == step.what_runs(problem, step.made_for)
