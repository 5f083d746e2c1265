"""The backward steps: right on every shape, whatever the strides, and clear about what they do not take."""

import secrets
from dataclasses import replace

import pytest
import torch

from steps import GRADIENTS, STEPS, Unsupported, get_step
from steps.backward_cutile import kernel
from steps.core.ladder import kernels_of, part_of
from steps.core.problems import HEADLINE, standard
from tests.checking import asked, assert_right
from tests.distinct import core, distinct, first_and_last, named
from tests.selection import sampled
from tests.shapes import HARD, PADDED, SHAPES, problem
from tutorial_lib import reference
from tutorial_lib.passes import BACKWARD, FORWARD
from tutorial_lib.problem import Problem

CUTILE = [step for step in kernels_of("backward") if step.backend == "cutile"]


def gives(*gradients):
    """A step that has these gradients for everything."""
    write = lambda *_, out, **__: [place.copy_(x) for place, x in zip(out, gradients, strict=True)]
    return type("Gives", (), {"gradients": write})()


CASES = distinct(kernels_of("backward"), SHAPES)


@sampled(core=core(CASES, always=HARD))
@pytest.mark.parametrize(("step", "shape"), CASES, ids=named)
def test_a_step_is_correct(step, shape):
    assert_right(step, shape)


WIDENED = distinct(
    [step for step in kernels_of("backward") if step.pads_head_dim], [*PADDED[::3], replace(PADDED[1], head_dim=48)]
)


@sampled(core=first_and_last(WIDENED))
@pytest.mark.parametrize(("step", "shape"), WIDENED, ids=named)
def test_head_dims_between_are_filled_up_with_zeros(step, shape):
    assert_right(step, shape)


@pytest.mark.parametrize("shape", [s for s in SHAPES if s.scale != 0.0][::4], ids=lambda p: p.slug)
def test_the_reference_is_what_autograd_says(shape):
    inputs = BACKWARD.inputs(shape, secrets.randbits(32))
    q, k, v = (x.double().requires_grad_() for x in inputs[:3])
    keys, values = (x.repeat_interleave(shape.group_size, 1) for x in (k, v))
    scores = q @ keys.transpose(-1, -2) * shape.effective_scale
    if shape.causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), float("-inf"))
    expected = torch.autograd.grad(scores.softmax(-1) @ values, (q, k, v), inputs[5].double())
    torch.testing.assert_close(torch.logsumexp(scores, -1).float(), inputs[4])
    for mine, its in zip(BACKWARD.reference(shape, inputs), expected, strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-9, atol=1e-12)


def test_what_is_left_of_many_sums_that_cancel_is_allowed():
    """Every query sees one key, so that dq and dk are zero but for rounding; with this seed PyTorch errs little."""
    shape = problem(batch=1, heads=1, seq_len_q=20000, seq_len_kv=1, causal=False)
    inputs = BACKWARD.inputs(shape, 7)
    exact = BACKWARD.reference(shape, inputs)
    allowed = BACKWARD.yardstick(shape, inputs, exact)
    assert not exact[0].any() and not exact[1].any()
    assert BACKWARD.check(get_step("folded_lse"), shape, inputs, exact, allowed).correct
    dq, dk, dv = get_step("folded_lse").gradients(*inputs)
    assert not BACKWARD.check(gives(dq, dk + 1, dv), shape, inputs, exact, allowed).correct


def test_a_reference_in_pieces_is_the_same(monkeypatch):
    shape = problem(kv_heads=2, seq_len_q=100, seq_len_kv=70)
    inputs = BACKWARD.inputs(shape, 0)
    whole = BACKWARD.reference(shape, inputs)
    monkeypatch.setattr(reference, "SCORE_BYTES", 8 * 70 * 13)  # 13 rows at a time
    for mine, its in zip(BACKWARD.reference(shape, inputs), whole, strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("left_out", ["a row of dq", "a tile of dk", "the scale", "the mask", "D"])
def test_what_is_wrong_is_found(left_out):
    """The rule of correctness catches what a kernel might forget."""
    step, shape = get_step("folded_lse"), problem(seq_len_q=130, seq_len_kv=130)
    of = asked("backward", shape)
    inputs = q, k, v, o, lse, do = of.inputs
    dq, dk, dv = step.gradients(*inputs, causal=True)
    if left_out == "a row of dq":
        dq[1, 2, 64] = 0
    elif left_out == "a tile of dk":
        dk[0, 1, 64:128] = 0
    elif left_out == "the scale":
        dq = dq / shape.effective_scale
    elif left_out == "the mask":
        dq, dk, dv = step.gradients(*inputs, causal=False)
    else:
        dq, dk, dv = step.gradients(q, k, v, torch.zeros_like(o), lse, do, causal=True)

    assert not of.check(gives(dq, dk, dv)).correct


LAID_OUT = distinct(kernels_of("backward"), [problem(heads=2, seq_len_q=96, seq_len_kv=80, kv_heads=1)])


@sampled(core=first_and_last(LAID_OUT))
@pytest.mark.parametrize(("step", "shape"), LAID_OUT, ids=named)
def test_any_strides_will_do_and_outputs_may_be_given(step, shape):
    inputs = q, k, v, o, lse, do = asked("backward", shape).inputs
    expected = step.gradients(*inputs, causal=True)
    transposed = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v, o)]
    columns = do.transpose(2, 3).contiguous().transpose(2, 3)
    out = BACKWARD.poisoned(inputs)
    found = step.gradients(*transposed, lse.transpose(1, 2).contiguous().transpose(1, 2), columns, True, out=out)
    assert all(mine is place for mine, place in zip(found, out, strict=True))
    for mine, its in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, its, rtol=2e-2, atol=2e-3)  # PyTorch may sum in another order


REPEATED = distinct(kernels_of("backward"), [problem(batch=1, heads=2, seq_len_q=65, seq_len_kv=65)])


@sampled(core=first_and_last(REPEATED))
@pytest.mark.parametrize(("step", "shape"), REPEATED, ids=named)
def test_new_contents_give_new_gradients(step, shape):
    """Nothing is remembered of what tensors held: they are changed in place."""
    first, second = (BACKWARD.inputs(shape, seed) for seed in (1, 2))
    wanted = [x.clone() for x in step.gradients(*second, causal=True)]
    step.gradients(*first, causal=True)
    for mine, its in zip(first, second, strict=True):
        mine.copy_(its)
    for mine, its in zip(step.gradients(*first, causal=True), wanted, strict=True):
        assert torch.equal(mine, its)


BLIND = distinct(kernels_of("backward")[1:], [problem(batch=1, heads=1, causal=False)])


@sampled(core=first_and_last(BLIND))
@pytest.mark.parametrize(("step", "shape"), BLIND, ids=named)
def test_a_query_that_sees_nothing_gets_zeros(step, shape):
    """Nobody masks so here, but the log-sum-exp of no score is minus infinity, and no NaN may come of it."""
    q, k, v, o, lse, do = BACKWARD.inputs(shape, 3)
    expected = step.gradients(q, k, v, o, lse, do)
    lse[0, 0, 5], o[0, 0, 5] = float("-inf"), 0
    found = step.gradients(q, k, v, o, lse, do)
    assert not found[0][0, 0, 5].any() and all(x.isfinite().all() for x in found)
    assert torch.equal(found[0][0, 0, 6:], expected[0][0, 0, 6:])


def test_bad_arguments_are_named():
    step = get_step("two_kernels")
    q, k, v, o, lse, do = BACKWARD.inputs(problem(), 0)
    with pytest.raises(ValueError, match=r"lse must have shape .*, torch.float32 on cpu, got \(2, 4, 128\), torch.f"):
        step.gradients(q, k, v, o, lse.half(), do)
    with pytest.raises(ValueError, match=r"do must have shape .*, got \(2, 4, 127, 64\)"):
        step.gradients(q, k, v, o, lse, do[:, :, 1:])
    with pytest.raises(ValueError, match=r"o must have shape .*, got NoneType"):
        step.gradients(q, k, v, None, lse, do)
    with pytest.raises(ValueError, match=r"q must .*got NoneType"):
        step.gradients(None, k, v, o, lse, do)
    with pytest.raises(ValueError, match="out must be 3 tensors"):
        step.gradients(q, k, v, o, lse, do, out=(q, k))
    with pytest.raises(ValueError, match=r"out's dk must be a tensor .* that requires no gradients"):
        step.gradients(q, k, v, o, lse, do, out=(q, k.clone().requires_grad_(), v))
    with pytest.raises(ValueError, match="out's dv must be a tensor with shape"):
        step.gradients(q, k, v, o, lse, do, out=(q, k, v[:1]))
    with pytest.raises(Unsupported, match="head_dim must be a multiple of 8"):
        step.gradients(*BACKWARD.inputs(problem(head_dim=44), 0))
    with pytest.raises(Unsupported, match="computes gradients"):
        step.attention(q, k, v)


def test_a_direction_has_its_own_steps():
    assert {step.direction for step in STEPS} == {"forward"}
    assert {step.direction for step in GRADIENTS} == {"backward"}
    numbers = [step.number for step in GRADIENTS]
    assert numbers == sorted(set(numbers))
    assert {part_of(number).name for number in numbers} == {"backward", "backward_hopper", "blackwell"}


def test_what_a_pass_costs():
    """Five products in place of two, of 2 operations a pair; a long problem's memory is that of its tensors."""
    assert BACKWARD.operations(HEADLINE) == 2.5 * FORWARD.operations(HEADLINE)
    small = Problem(batch=1, heads=1, seq_len_q=2, seq_len_kv=3, head_dim=64, causal=False)
    inputs = BACKWARD.inputs(small, 0)
    held = sum(x.numel() * x.element_size() for x in (*inputs, *inputs[:3]))
    assert BACKWARD.tensor_bytes(small) == BACKWARD.least_bytes(small) == held
    assert BACKWARD.needed_bytes(small, check=True) > BACKWARD.needed_bytes(small, check=False) > held
    narrow = replace(small, head_dim_v=16)
    sizes = [x.numel() for x in BACKWARD.inputs(narrow, 0)[:4]]  # q, k, v and o
    for check, exact in ((False, sizes[3:]), (True, sizes)):  # in float64: o, and to check dq, dk and dv
        scores = 5 * reference.SCORE_BYTES + 5 * 4 * 2 * 3 if check else 0  # of the reference, and of PyTorch
        assert BACKWARD.needed_bytes(narrow, check) == BACKWARD.tensor_bytes(narrow) + 8 * sum(exact) + scores


@sampled(core=lambda arch: arch == "sm_90")  # the others have fewer facts to hold
@pytest.mark.parametrize("step", CUTILE, ids=lambda s: s.name)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_120"])
def test_a_step_compiles(step, arch):
    compiled = step.compile(standard(), arch)
    rule = step._rule("keys", standard(), arch)
    tile = rule.choice.tile
    tiles = 4 * 32 * (4096 // tile.query) * (4096 // tile.key)
    assert compiled.kv_tiles == (tiles if step.adds else None)
    kinds = {
        kernel.ORDERED_ATOMICS: {"ATOMG.E.ADD.F32"},
        kernel.RELAXED_ATOMICS: {"REDG.E.ADD.F32"},
        kernel.OWN_KERNEL: set(),
    }
    found = {kind for kind in ("ATOMG.E.ADD.F32", "REDG.E.ADD.F32", "RED.E.ADD.F32") if kind in compiled.sass}
    assert arch != "sm_90" or found == kinds[step.d_query]
    if arch == "sm_90":
        assert compiled.spilled_bytes <= rule.spilled
        assert ("LDG.E.64" in compiled.sass) is not step.prepared  # by threads, where TMA could not fill in infinity


@pytest.mark.parametrize("make", ["make_row_sums", "make_prepare", "make_scaled"])
def test_a_small_kernel_compiles(make):
    import cuda.tile as ct
    from cuda.tile.compilation import CallingConvention, KernelSignature, ScalarConstraint

    from steps.backward_cutile.skeleton import ROWS, SMALL
    from steps.cutile.launching import compiled_when_launched
    from steps.cutile.skeleton import array
    from tutorial_lib import compiler

    shape = standard()
    numbers = (shape.batch, shape.heads, shape.seq_len_q)
    x, sums, number = array((*numbers, 128), ct.float16), array((*numbers, 128), ct.float32), array(numbers, ct.float32)
    taken = {
        "make_row_sums": [x, x, number],
        "make_prepare": [x, x, number, number, number],
        "make_scaled": [sums, x, ScalarConstraint(ct.float32)],
    }
    signature = KernelSignature(taken[make], CallingConvention.cutile_python_v1(), symbol="small")
    function = getattr(kernel, make)(get_step("preprocess_kernel").variant(shape, ROWS))
    compiled = compiler.compile_cutile(compiled_when_launched(function, SMALL), signature, "sm_90", ROWS.scores, 4)
    assert compiled.spilled_bytes == 0 and "HGMMA" not in compiled.sass


def test_numbers_that_are_prepared_take_memory_of_their_own():
    shape = problem()
    before, after = (get_step(name).scratch_bytes(shape) for name in ("longest_first", "preprocess_kernel"))
    assert after - before == 4 * shape.batch * shape.heads * shape.seq_len_q


@pytest.mark.parametrize("shape", [problem(batch=1, heads=4, kv_heads=2, seq_len_q=100, seq_len_kv=330), problem()])
def test_tiles_are_counted_as_the_kernel_visits_them(shape, monkeypatch):
    """By the interpreter, tile by tile. With more keys than queries, some tiles of keys are seen by nobody."""
    from steps.core.gradients import tiles_visited

    visits, original = [], kernel.back_through_softmax
    monkeypatch.setattr(kernel, "back_through_softmax", lambda *given: visits.append(1) or original(*given))
    step = get_step("folded_lse")
    step.gradients(*BACKWARD.inputs(shape, 0), causal=shape.causal)
    assert len(visits) == tiles_visited(shape, step.configured(shape, "cpu").keys.tile)


@pytest.mark.parametrize(
    "name", ["ordered_atomics", "longest_first", "transposed_scores", "decoupled_warpgroups", "deterministic"]
)
def test_a_kernel_from_a_file_is_the_step(name, capsys, tmp_path):
    from steps.show import main as show
    from steps.writing.written import read_step

    path, step = tmp_path / "mine.py", get_step(name)
    assert show([name, "--output", str(path)]) == 0
    mine = read_step(path)
    assert mine.direction == "backward"
    its, own = (one.compile(standard(causal=True)) for one in (mine, step))
    assert its.code == own.code or its.figures.ptx == own.figures.ptx is not None
    assert "variant" not in mine.text
    assert mine.deterministic == step.deterministic and mine.scratch_bytes(standard()) == step.scratch_bytes(standard())
    path.write_text(
        path.read_text(encoding="utf-8").replace("def fmha_backward(", "def fmha_backward(("), encoding="utf-8"
    )
    with pytest.raises(ValueError, match="is not Python"):
        read_step(path)


@pytest.mark.parametrize("name", ["folded_lse", "mask_loops", "decoupled_warpgroups", "deterministic"])
def test_a_kernel_from_a_text_runs(name):
    """Written for the CPU; and what is changed in it is what runs."""
    from steps.writing.written import edited, write_step

    shape, step = problem(batch=1, heads=2, kv_heads=1, seq_len_q=200, seq_len_kv=330), get_step(name)
    mine = write_step(step, shape, "cpu" if step.backend == "cutile" else None)
    assert_right(mine, shape)
    added = {
        "cutile": ("d_value = ct.mma(", "d_value = 0.9 * ct.mma("),
        "hopper": ("weights = exp2(", "weights = 0.9 * exp2("),
    }
    wrong = edited(mine, added[step.backend])
    assert not asked("backward", shape).check(wrong).correct


def test_forward_passes_are_remembered_and_no_more_than_a_few():
    from steps.reference.autograd import KEPT, passes_of

    baseline = get_step("sdpa_gradients")
    for length in range(1, 2 * KEPT):
        shape = problem(batch=1, heads=1, seq_len_q=length, seq_len_kv=length)
        baseline.gradients(*BACKWARD.inputs(shape, 0), causal=True)
        assert len(passes_of(baseline.function)) <= KEPT


def test_the_run_of_the_other_direction(capsys, tmp_path, monkeypatch):
    from steps.core.recorded import read_run, recorded_runs
    from steps.run import main
    from tutorial_lib.worker import Inline

    monkeypatch.setattr("steps.measuring.measure.Worker", Inline)
    asked = ["--direction", "backward", "--seq-len", "70", "--head-dim", "64", "--output-dir", str(tmp_path)]
    assert main([*asked, "--steps", "40,two_kernels"]) == 0
    out = capsys.readouterr().out
    assert "Attention's gradients, step by step" in out and out.count("yes") == 2
    [path] = tmp_path.glob("*/*_backward/results.json")
    run = read_run(path)
    assert run.direction == "backward" and [m.correct for m in run.steps] == [True, True]
    assert not recorded_runs(tmp_path, "forward")
    assert main([*asked, "--steps", "epilogue_overlap"]) == 2
    assert "must be steps of the backward pass, got 204 epilogue_overlap" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda x: None, 0.0),
        (lambda x: x.view(-1)[0].add_(0.5), 0.5),
        (lambda x: x.view(-1)[0].fill_(float("nan")), float("inf")),
        (lambda x: x.view(-1)[1].neg_(), 5e-324),
    ],
    ids=["same", "other number", "nan", "sign of zero"],
)
def test_calls_that_differ_are_told(change, expected):
    """By the fourth call, in one number."""
    calls = []

    class Step:
        @staticmethod
        def gradients(*_, **__):
            made = [torch.zeros(1, 1, 2, 4, dtype=torch.float16) for _ in range(3)]
            calls.append(made)
            if len(calls) == 4:
                change(made[1])
            return tuple(made)

    shape = problem(batch=1, heads=1, kv_heads=1, seq_len_q=2, seq_len_kv=2)
    assert BACKWARD.repeat_difference(Step(), shape, (None,) * 6, 6) == expected
    assert len(calls) == 6 or expected == float("inf")
