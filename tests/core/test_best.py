"""The front door: the fastest recorded step, and a word where the record is not of what was asked."""

import dataclasses
import itertools
import operator
import statistics

import pytest

import steps
from steps import Unsupported
from steps.core import choice, cost
from steps.core.choice import best
from steps.core.cost import Estimate, Model
from steps.core.ladder import owner_of, part_of
from steps.core.recorded import as_run, recorded_candidates, recorded_runs, recorded_sweeps
from steps.core.tiles import Tile
from steps.core.work import Work
from tests.results.recorded import RECORDED, recorded
from tutorial_lib.files import RESULTS
from tutorial_lib.passes import FORWARD
from tutorial_lib.problem import Problem
from tutorial_lib.records import FRONT_DOOR
from tutorial_lib.results import best_of, of_most_problems

H100 = Problem(batch=4, heads=32, seq_len_q=4096, seq_len_kv=4096, head_dim=128, causal=True)


def _holds_the_fastest_kind(run) -> bool:
    """Hopper's kernels take nothing beyond 256; windows and decoding have kernels of their own."""
    problem = run.the_problem()
    own = problem.features or FORWARD.by_bytes(problem)
    return ("everyday" if own else "hopper" if problem.head_dim <= 256 else "gluon") in {m.part for m in run.by_speed()}


WHOLE = [r for r in of_most_problems(RECORDED) if _holds_the_fastest_kind(r)]


@pytest.mark.parametrize("run", WHOLE, ids=lambda r: r.the_problem().slug)
def test_what_is_recorded_is_answered_by_its_own_record(run):
    choice = best(run.the_problem(), run.machine["arch"], RECORDED)
    fastest, chosen = run.by_speed()[0], run.measurement(choice.step.name)
    assert f"{chosen.tflops:.0f} TFLOPS" in choice.why and "Not measured" not in choice.why
    assert not run.is_faster(fastest, chosen)


def test_the_answer_does_not_flip_between_kernels_of_the_same_code():
    """Whichever of two steps with the same code was a little faster, the earlier one is the answer."""
    run = recorded("b4_h32_s4096_d128_fp16_causal", "nvidia-h200")  # which holds both in its own rounds
    twins = [run.measurement(name) for name in ("pv_wait_after_max", "reverse_kv_order")]
    assert twins[0].code == twins[1].code
    answers = []
    for first, second in (twins, twins[::-1]):
        faster = first.model_copy(update={"tflops": 2 * second.tflops})
        steps = [faster if m.name == first.name else m for m in run.steps]
        answers.append(best(run.the_problem(), "sm_90", [run.model_copy(update={"steps": steps})]).step.name)
    assert len(set(answers)) == 1 and "reverse_kv_order" not in answers


def test_what_is_the_best_is_said_by_its_verdicts():
    """A step that is called the same as an earlier one is never the best of both."""
    for run in RECORDED:
        timed = run.by_speed()
        chosen = best_of(run, timed)
        assert not any(run.is_faster(m, chosen) for m in timed), run.the_problem().slug
        before = list(
            itertools.takewhile(lambda m, chosen=chosen: m is not chosen, (m for m in run.steps if m in timed))
        )
        assert all(any(run.is_faster(other, m) for other in timed) for m in before), run.the_problem().slug


def test_a_record_without_some_kind_of_kernel_does_not_know_the_fastest():
    run = recorded("b1_h8_s8192_d128_fp16_full", "nvidia-h100-80gb-hbm3")
    assert run not in WHOLE
    choice = best(run.the_problem(), run.machine["arch"], RECORDED)
    assert choice.step.backend == "hopper" and choice.why.startswith("Not measured: B=1 H=8 S=8192 D=128 fp16 full")
    alone = best(run.the_problem(), run.machine["arch"], [run]).step.name  # nothing else is there
    assert alone in [m.name for m in run.by_speed()[:2]]


def test_decoding_is_answered_by_records_of_decoding():
    """Bytes decide there: what is fastest at as many queries as keys tells nothing."""
    decoding = Problem(batch=8, heads=64, kv_heads=8, seq_len_q=1, seq_len_kv=20000, head_dim=128, dtype="float16")
    choice = best(decoding, "sm_90", RECORDED)
    assert choice.record.the_problem().seq_len_q == 1 and part_of(owner_of(choice.step).number).name == "everyday"


@pytest.mark.parametrize("queries", [2, 4, 8])
def test_several_queries_are_not_left_to_an_attention_that_splits_no_keys(queries):
    """PyTorch's splits the keys of a single query alone: nobody recorded several with as few heads as here."""
    runs = [run for run in RECORDED if run.the_problem().seq_len_kv != 2048]
    asked = Problem(batch=1, heads=32, seq_len_q=queries, seq_len_kv=15000, head_dim=128, dtype="float16")
    choice = best(asked, "sm_90", runs)
    assert choice.of_baseline > 1.5 and choice.beats_sdpa("sm_90")
    alone = best(dataclasses.replace(asked, seq_len_q=1), "sm_90", runs)
    assert alone.of_baseline < choice.of_baseline / 1.5


def test_one_query_takes_both_as_long_as_on_near_records():
    """Where a step was no faster than PyTorch's attention, none is expected to be, though none was timed there."""
    asked = Problem(batch=8, heads=64, seq_len_q=1, seq_len_kv=30000, head_dim=128, dtype="bfloat16")
    ratios = [r.by_speed()[0].tflops / r.measurement("sdpa").tflops for r in WHOLE if r.the_problem().seq_len_q == 1]
    assert min(ratios) < best(asked, "sm_90", WHOLE).of_baseline < max(ratios) <= 1


def test_what_pytorchs_attention_has_to_do():
    asked = dataclasses.replace(H100, batch=1, heads=4, kv_heads=2, seq_len_q=1, seq_len_kv=132 * 128, causal=False)
    assert Work.of_sdpa(asked, "sm_90").iterations == 2  # of two heads, split over all places
    several = dataclasses.replace(asked, seq_len_q=2)
    assert Work.of_sdpa(several, "sm_90").iterations == 132  # of one head
    window = dataclasses.replace(H100, window=128)
    whole = dataclasses.replace(H100, causal=False)
    assert Work.of_sdpa(window, "sm_90") == Work.of_sdpa(whole, "sm_90")  # a mask in memory
    assert Work.of_sdpa(dataclasses.replace(H100, head_dim=80), "sm_90").head_dim == 128


def test_a_row_of_a_sweep_is_a_run_of_the_step_that_was_chosen():
    """It tells the model what its step and PyTorch's attention took."""
    [sweep, *_] = recorded_sweeps(RESULTS)
    rows = [row for row in sweep.of("forward") if not row.fell_back and not row.the_problem().features]
    for row in rows[:3]:
        run = as_run(sweep, row)
        assert run.the_problem() == row.the_problem() and [m.name for m in run.steps] == ["sdpa", *row.steps]
        took = row.milliseconds
        for m, name in zip(run.steps, ("sdpa", FRONT_DOOR), strict=True):
            assert m.latency_ms.median == pytest.approx(statistics.median(took[name])) and m.host_us == row.host_us.get(
                name
            )
            assert m.tflops == pytest.approx(FORWARD.operations(row.the_problem()) / m.latency_ms.median / 1e9)
            assert [r.latency_ms[m.name] for r in run.rounds if m.name in r.latency_ms] == took[name]
        assert run.steps[1].speedup_vs_baseline.median == pytest.approx(row.ratio("sdpa").median)
    left = next(row for row in sweep.of("forward") if row.fell_back)
    assert [m.name for m in as_run(sweep, left).steps] == ["sdpa"]


def test_a_run_of_one_step_compares_nothing():
    """Though the step that is expected to be the fastest goes on from it."""
    run = recorded("b4_h32_s4096_d128_fp16_causal")
    own = dataclasses.replace(run.the_problem(), seq_len_q=4200, seq_len_kv=4200)
    alone = [m for m in run.steps if m.name in ("sdpa", "pv_wait_after_max")]
    one = run.model_copy(update={"problem": own.as_dict(), "inside": [], "peers": [], "steps": alone})
    choice = best(own, "sm_90", [*WHOLE, one])
    assert choice.step.name != "pv_wait_after_max" and "Not measured" in choice.why


def test_on_candidates_nothing_that_was_timed_is_faster_than_the_choice():
    """PyTorch's attention is one of them."""
    [record, *_] = recorded_candidates(RESULTS)
    for row in record.rows:
        run, choice = as_run(record, row), best(row.the_problem(), record.machine["arch"])
        chosen = run.measurement(choice.step.name if choice.beats_sdpa(record.machine["arch"]) else "sdpa")
        assert chosen and not any(run.is_faster(m, chosen) for m in run.everybody), choice.why


def test_a_record_of_slow_steps_alone_does_not_answer():
    """Of every kind of kernel there is a step in it, or it is no answer: others may be faster."""
    run = recorded("b4_h32_s4096_d128_fp16_full")
    own = dataclasses.replace(run.the_problem(), seq_len_q=4200, seq_len_kv=4200)
    few = [m for m in run.steps if m.name in ("sdpa", "wgmma")]
    slow = run.model_copy(update={"problem": dataclasses.asdict(own), "inside": [], "peers": [], "steps": few})
    assert best(own, "sm_90", [*RECORDED, slow]).step.name != "wgmma"


def test_what_was_not_measured_is_answered_by_the_model():
    near = dataclasses.replace(H100, seq_len_q=5000, seq_len_kv=5000, batch=3)
    choice = best(near, "sm_90", RECORDED)
    assert choice.step.backend == "hopper" and choice.beats_sdpa("sm_90")
    assert choice.why.startswith(f"Not measured: {near.describe()} on sm_90. By a model of ")
    elsewhere = best(H100, "sm_120", RECORDED)
    assert elsewhere.step.unsupported(H100, "sm_120") is None and "on sm_120. By a model" in elsewhere.why
    assert not elsewhere.beats_sdpa("sm_120")


def test_a_model_of_records_without_what_is_asked_for_says_so():
    runs = [run for run in RECORDED if not run.the_problem().features]
    assert " records, " in best(dataclasses.replace(H100, batch=3), "sm_90", runs).why
    capped = dataclasses.replace(H100, softcap=30.0, window=128)
    assert " records without sliding window or soft cap, " in best(capped, "sm_90", runs).why


@pytest.mark.parametrize(
    ("length", "ratio", "host_us", "ours"),
    [
        (64, 0.985, (20.0, 60.0), True),
        (64, 0.975, (20.0, 60.0), False),  # slower on the GPU, by our verdict
        (64, 0.985, (60.0, 20.0), False),  # and slower on the host
        (64, 0.985, (None, 60.0), False),  # nobody knows
        (3000, 0.985, (20.0, 60.0), True),  # a GPU that needs longer than our host, and not than PyTorch's
        (16384, 0.985, (20.0, 60.0), False),  # both hosts are done before the GPU
        (3000, 1.001, (60.0, 20.0), True),
    ],
)
def test_where_the_gpu_takes_as_long_for_both_the_host_decides(length, ratio, host_us, ours, monkeypatch):
    """What it needs for a call of ours and of PyTorch's, as the records have it."""
    small, runs = dataclasses.replace(H100, batch=1, heads=1, kv_heads=1, seq_len_q=length, seq_len_kv=length), []
    monkeypatch.setattr(Model, "of_baseline", lambda self, *asked: ratio)
    for run in WHOLE:
        timed = [m.model_copy(update={"host_us": host_us[m.name == "sdpa"]}) for m in run.steps]
        runs.append(run.model_copy(update={"steps": timed, "inside": []}))
    choice = best(small, "sm_90", runs)
    assert choice.beats_sdpa("sm_90") is ours and f"{ratio:.2f} times as fast" in choice.why
    assert ("but the host needs longer for a call of that" in choice.why) is (ours and ratio < 1)


@pytest.mark.parametrize(
    "more",
    [{"window": 4096}, {"lengths": (4096,) * 2, "batch": 1, "seq_len_q": 8192, "seq_len_kv": 8192}],
    ids=lambda more: next(iter(more)),
)
def test_a_soft_cap_with_more_is_answered_by_the_kernel_for_soft_caps(more):
    """Nobody recorded both together; of each alone there are few records."""
    asked = dataclasses.replace(H100, softcap=50.0, **more)
    choice = best(asked, "sm_90", RECORDED)
    assert choice.step.name == "hopper_soft_cap" and choice.of_baseline is None  # PyTorch's has no soft cap


def test_no_mode_of_the_caller_reaches_the_model():
    from torch._subclasses import FakeTensorMode

    asked, runs = dataclasses.replace(H100, seq_len_q=3000, seq_len_kv=3000), list(RECORDED)
    expected = best(asked, "sm_90", runs)
    with FakeTensorMode():
        assert best(asked, "sm_90", [run.model_copy() for run in runs]).step is expected.step


def test_records_that_are_left_out_are_answered_as_fast_as_they_say():
    """Of 24 problems, each hidden from the model that answers: how much longer than the fastest takes what it names?"""
    plain = [run for run in WHOLE if not run.the_problem().features]
    longer = []
    for run in plain[:: len(plain) // 24]:
        problem, timed = run.the_problem(), {m.name: m for m in run.by_speed()}
        others = [other for other in plain if other.the_problem() != problem]
        chosen = best(problem, "sm_90", others, among=lambda step, timed=timed: step.name in timed).step
        longer.append(run.by_speed()[0].tflops / timed[chosen.name].tflops)
    assert statistics.geometric_mean(longer) < 1.03 and sorted(longer)[len(longer) // 2] < 1.01, longer


# Made-up costs of steps, in microseconds, for what ``Work.counts`` counts.
COSTS = {
    "exp2": (4.0, 0.2, 0.6, 0.0, 0.0, 0.2),
    "occupancy": (2.0, 0.4, 0.4, 0.0, 0.0, 0.4),
    "swizzle": (6.0, 0.2, 0.4, 0.0, 0.0, 0.2),
}
LENGTHS = ((1, 512), (1, 4096), (2, 2048), (4, 1000), (16, 700), (8, 8192))  # with how many sequences each is recorded


def self_attention(batch: int, length: int, causal: bool = True, **more) -> Problem:
    return dataclasses.replace(H100, batch=batch, seq_len_q=length, seq_len_kv=length, causal=causal, **more)


def microseconds(name: str, problem: Problem) -> float:
    """Three for the launch, and what was made up."""
    return 3.0 + sum(map(operator.mul, COSTS[name], steps.get_step(name).work(problem, "sm_90").counts(problem)))


def model_of(times_as_long=lambda name, problem: 1.0) -> Model:
    """The model of records on ``LENGTHS``, in which steps take that many times what was made up."""
    run = recorded(H100.slug)
    m, made = run.measurement("exp2"), []
    for (batch, length), causal in itertools.product(LENGTHS, (False, True)):
        problem, timed = self_attention(batch, length, causal), []
        for name in COSTS:
            us = 3.0 + times_as_long(name, problem) * (microseconds(name, problem) - 3.0)
            latency = m.latency_ms.model_copy(update={"median": us / 1000})
            timed.append(m.model_copy(update={"name": name, "latency_ms": latency}))
        made.append(run.model_copy(update={"problem": problem.as_dict(), "steps": timed, "inside": []}))
    return Model(made)


def times_as_expected(model: Model, problem: Problem) -> float:
    """How many times as long as made up exp2 should take."""
    return 1e6 * model.estimate("exp2", problem, "sm_90").seconds / microseconds("exp2", problem)


def test_the_model_finds_costs_that_were_made_up():
    """Times that are exactly as the model takes them to be, on new problems, too, however long or short."""
    model = model_of()
    assert model.factors == pytest.approx([1.0] * len(model.factors), rel=0.02)  # nothing is left to a whole problem
    for problem in (self_attention(3, 3000), self_attention(16, 750), self_attention(1, 65536)):
        assert times_as_expected(model, problem) == pytest.approx(1, rel=0.02)
    assert times_as_expected(model, self_attention(1, 64, heads=1, kv_heads=1)) == pytest.approx(1, rel=0.05)


def test_records_are_heard_near_them_and_not_far_away():
    """One step alone takes 0.7 times as long at one length."""
    model = model_of(lambda name, problem: 0.7 if (name, problem.seq_len_q) == ("exp2", 700) else 1.0)
    assert times_as_expected(model, self_attention(16, 750)) == pytest.approx(0.77, abs=0.04)
    assert times_as_expected(model, self_attention(3, 3000)) == pytest.approx(1, abs=0.03)


def test_costs_are_fitted_until_another_round_changes_little_and_no_longer(monkeypatch):
    """Under the causal mask all steps take 1.5 times as long, which the first round takes for costs of theirs."""

    def found(rounds: int) -> float:
        monkeypatch.setattr(cost, "ROUNDS", rounds)
        model = model_of(lambda name, problem: 1.5 if problem.causal else 1.0)
        return times_as_expected(model, self_attention(1, 64, heads=1, kv_heads=1))

    before, now, after = map(found, range(cost.ROUNDS - 1, cost.ROUNDS + 2))
    assert abs(now / before - 1) > 0.001 and abs(after / now - 1) < 0.01


def test_work_is_that_of_the_place_which_ends_last():
    tile = Tile(128, 128)
    even = Work.dealt([4, 4, 4], 2, 4, False, tile, 64)  # six blocks on four places: two of them have two
    assert (even.iterations, even.tiles) == (8, 2)
    late, early = (Work.dealt([1, 2, 9], 1, 2, longest_first, tile, 64) for longest_first in (False, True))
    assert (late.iterations, late.tiles) == (10, 2) and (early.iterations, early.tiles) == (9, 1)
    many = Work.dealt([1, 2, 3, 4], 1000, 10, True, tile, 64)  # a mean, and half a tile
    assert many.iterations == pytest.approx(1000.5) and many.tiles == 400
    causal = dataclasses.replace(H100, batch=1, heads=1, kv_heads=1, seq_len_q=300, seq_len_kv=400)
    backward = Work.of_keys(causal, tile, 1, 1, 128)  # of the keys from 300 on nobody sees any
    assert backward.iterations == 3 + 2 + 1 and backward.tiles == 4
    assert Work.of_queries(causal, tile, 1, True, tile, 128).iterations == 1 + 2 + 3


def test_of_problems_with_as_many_heads_in_all_a_problem_has_its_own_record():
    """Whichever of the two is the newer."""
    run = recorded(H100.slug)
    own, other = H100, dataclasses.replace(H100, batch=16, heads=8, kv_heads=8)
    for dates in (("2026-01-01", "2026-01-02"), ("2026-01-02", "2026-01-01")):
        runs = [
            run.model_copy(update={"problem": dataclasses.asdict(problem), "date": date})
            for problem, date in zip((own, other), dates)
        ]
        for problem, mine in zip((own, other), runs):
            for scale in (None, 0.2):
                assert best(dataclasses.replace(problem, scale=scale), "sm_90", runs).record is mine


def test_packed_sequences_are_answered_by_the_record_of_their_own_lengths():
    """Others may be as many and have as many tokens; of lengths that nobody recorded any of these answers."""
    run = recorded(H100.slug)
    common = {"heads": 32, "head_dim": 128, "causal": True}
    ragged, even, other = (
        Problem.packed(each, **common) for each in ((700, 300, 500), (500, 500, 500), (600, 600, 300))
    )
    packed = run.measurement("pv_wait_after_max").model_copy(update={"name": "hopper_varlen"})
    for dates in (("2026-01-01", "2026-01-02"), ("2026-01-02", "2026-01-01")):
        runs = [
            run.model_copy(update={"problem": problem.as_dict(), "date": date, "steps": [packed], "inside": []})
            for problem, date in zip((ragged, even), dates)
        ]
        for problem, mine in zip((ragged, even), runs):
            choice = best(problem, "sm_90", runs)
            assert choice.record is mine and "Not measured" not in choice.why
        assert "Not measured" in best(other, "sm_90", runs).why


def test_of_two_gpus_of_one_architecture_that_with_most_records_answers_also_where_the_other_is_newer():
    run = recorded(H100.slug)
    other = run.model_copy(update={"machine": run.machine | {"name": "another GPU"}, "date": "2126-01-01"})
    second = run.model_copy(update={"problem": run.problem | {"causal": False}})
    assert best(H100, "sm_90", [other, run, second]).record is run
    assert best(H100, "sm_90", [other, second]).record is other


def test_a_step_that_cannot_take_it_is_passed_over():
    wide = dataclasses.replace(H100, head_dim=512)
    assert best(wide, "sm_90", RECORDED).step.name == "head_dim_tiling"
    with pytest.raises(Unsupported, match="no recorded step takes"):
        best(H100, "sm_90", [])


def test_a_wrong_result_is_never_chosen():
    run = recorded(H100.slug)
    first = best(H100, "sm_90", [run]).step.name
    wrong = [m.model_copy(update={"correct": False}) if m.name == first else m for m in run.steps]
    assert best(H100, "sm_90", [run.model_copy(update={"steps": wrong})]).step.name != first


def test_a_device_that_is_none_is_named():
    for device in ("cpu", "tpu", "sm_1", ["sm_90"], None):
        with pytest.raises(ValueError, match="device must be a CUDA device that is here"):
            best(H100, device, RECORDED)
    for direction in ("sideways", ["forward"], None):
        with pytest.raises(ValueError, match="direction must be one of forward, backward, paged"):
            best(H100, "sm_90", RECORDED, direction)
    assert steps.best(H100, "sm_90").step.name == best(H100, "sm_90", RECORDED).step.name


def test_what_launches_of_gradients_cost_is_not_fitted():
    """Records are too long to tell, and the same three kernels are launched by all of these steps."""
    runs = [run for run in recorded_runs(RESULTS, "backward") if not run.the_problem().features]
    model, least = Model(runs), Problem(batch=1, heads=1, seq_len_q=64, seq_len_kv=64, head_dim=64)
    names = ("backward_ping_pong", "coalesced_atomics", "newest_first", "deferred_fence", "deferred_reduce_add")
    each = [1e6 * model.estimate(name, least, "sm_90").seconds for name in names]
    assert all(model.costs[name][3] == 0 for name in names)
    assert 3 * cost.LAUNCH < min(each) <= max(each) < 1.5 * min(each)


# --- steps that launch the same kernels ---


def test_what_is_known_of_a_kernel_is_known_of_every_step_that_launches_it():
    """At head_dim 256 nothing changes from newest_first to delta_accumulator, and everything at 128."""
    names = ("coalesced_atomics", "newest_first", "deferred_fence", "unordered_softmax", "delta_accumulator")
    known = {name: Estimate(1.0 + n, 0.1 * (n + 1)) for n, name in enumerate(names)}
    wide = choice._of_kernels(known, dataclasses.replace(H100, head_dim=256), "sm_90")
    assert [wide[name].seconds for name in names] == [1.0, 5.0, 5.0, 5.0, 5.0]
    assert choice._of_kernels(known, H100, "sm_90") == known


def test_of_steps_that_no_model_tells_apart_the_latest_is_taken(monkeypatch):
    names = ("k_registers", "deferred_reduce_add", "two_dq_writers")
    shape = Problem(batch=3, heads=40, seq_len_q=3000, seq_len_kv=3000, head_dim=128)

    def chosen(*seconds: float) -> str:
        expected = dict(zip(names, seconds, strict=True))
        estimate = lambda self, name, *_: Estimate(expected[name], 1.0) if name in expected else None
        monkeypatch.setattr(Model, "estimate", estimate)
        return best(shape, "sm_90", direction="backward").step.name

    assert chosen(1.0, 1.02, 1.02) == "deferred_reduce_add"  # the last is a variant inside a fork
    assert chosen(1.0, 1.05, 1.02) == "k_registers"
    assert chosen(1.05, 1.05, 1.0) == "two_dq_writers"
