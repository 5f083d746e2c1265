"""The front door: the fastest recorded step, and a word where the record is not of what was asked."""

import dataclasses
import itertools

import pytest

import steps
from steps import Unsupported
from steps.core.choice import MANY_WAVES, best, waves
from steps.core.ladder import owner_of, part_of
from tests.results.recorded import RECORDED, recorded
from tutorial_lib.passes import FORWARD
from tutorial_lib.problem import Problem
from tutorial_lib.results import best_of, of_one_machine

H100 = Problem(batch=4, heads=32, seq_len_q=4096, seq_len_kv=4096, head_dim=128, causal=True)


def _holds_the_fastest_kind(run) -> bool:
    """Hopper's kernels take nothing beyond 256; windows and decoding have kernels of their own."""
    problem = run.the_problem()
    own = problem.features or FORWARD.by_bytes(problem)
    return ("everyday" if own else "hopper" if problem.head_dim <= 256 else "gluon") in {m.part for m in run.by_speed()}


WHOLE = [r for r in of_one_machine(RECORDED) if _holds_the_fastest_kind(r)]


@pytest.mark.parametrize("run", WHOLE, ids=lambda r: r.the_problem().slug)
def test_what_is_recorded_is_answered_by_its_own_record(run):
    choice = best(run.the_problem(), run.machine["arch"], RECORDED)
    fastest, chosen = run.by_speed()[0], run.measurement(choice.step.name)
    assert f"{chosen.tflops:.0f} TFLOPS" in choice.why and "nearest" not in choice.why
    assert not run.is_faster(fastest, chosen)


def test_the_answer_does_not_flip_between_kernels_of_the_same_code():
    """Whichever of two steps with the same code was a little faster, the earlier one is the answer."""
    run = recorded("b4_h32_s1024_d64_fp16_causal")  # which holds both in its own rounds
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
    run = recorded("b1_h8_s8192_d128_fp16_full")
    assert run not in WHOLE
    choice = best(run.the_problem(), run.machine["arch"], RECORDED)
    assert choice.step.backend == "hopper" and "S=8192 D=128 fp16 full" in choice.why
    assert choice.why.endswith(
        f"to {run.the_problem().describe()} on sm_90, of which only some kinds of kernels were measured."
    )
    assert (
        best(run.the_problem(), run.machine["arch"], [run]).step.name == run.by_speed()[0].name
    )  # nothing else is there


def test_decoding_is_answered_by_records_of_decoding():
    """Bytes decide there: what is fastest at as many queries as keys tells nothing."""
    decoding = Problem(batch=8, heads=64, kv_heads=8, seq_len_q=1, seq_len_kv=20000, head_dim=128, dtype="float16")
    choice = best(decoding, "sm_90", RECORDED)
    assert choice.record.the_problem().seq_len_q == 1 and part_of(owner_of(choice.step).number).name == "everyday"


def test_a_record_of_slow_steps_alone_does_not_answer():
    """Of the fastest kind there is a step in it, and not the one that is the fastest elsewhere."""
    run = recorded("b4_h32_s4096_d128_fp16_full")
    own = dataclasses.replace(run.the_problem(), seq_len_q=4200, seq_len_kv=4200)
    few = [m for m in run.steps if m.name in ("sdpa", "wgmma")]
    changes = {"problem": dataclasses.asdict(own), "inside": [], "peers": []}
    slow = run.model_copy(update={**changes, "steps": few})
    assert best(own, "sm_90", [*RECORDED, slow]).record.the_problem() != own
    last = run.model_copy(update={**changes, "steps": [*few, run.measurement("pv_wait_after_max")]})
    assert best(own, "sm_90", [*RECORDED, last]).record.the_problem() == own


def test_unknown_territory_falls_back_with_a_word():
    near = dataclasses.replace(H100, seq_len_q=5000, seq_len_kv=5000, batch=3)
    choice = best(near, "sm_90", RECORDED)
    assert choice.step.name == best(H100, "sm_90", RECORDED).step.name
    assert f"the nearest record to {near.describe()} on sm_90, which was not measured" in choice.why
    elsewhere = best(H100, "sm_120", RECORDED)
    assert elsewhere.step.unsupported(H100, "sm_120") is None and "on sm_120, which was not measured" in elsewhere.why


def test_of_records_that_differ_in_the_groups_of_heads_the_nearest_answers():
    """The same length with eight times the group is as far as an eighth of the length."""
    run = recorded(H100.slug)

    def like(**changes):
        return run.model_copy(update={"problem": run.problem | changes})

    alone, grouped = like(), like(kv_heads=4, seq_len_q=8192, seq_len_kv=8192)
    asked = dataclasses.replace(H100, kv_heads=4)
    assert best(asked, "sm_90", [alone, grouped]).record is grouped
    assert best(H100, "sm_90", [grouped, alone]).record is alone
    shorter = dataclasses.replace(asked, seq_len_q=1024, seq_len_kv=1024)
    assert best(shorter, "sm_90", [like(seq_len_q=1024, seq_len_kv=1024), grouped]).record is not grouped
    assert "H=32/4 S=8192" in best(asked, "sm_90", [alone, grouped]).why


def test_a_problem_of_few_blocks_is_nearer_to_another_of_few_than_to_one_as_long_of_many():
    run = recorded(H100.slug)
    asked, few, many = (
        dataclasses.replace(H100, batch=batch, heads=heads, kv_heads=heads, seq_len_q=length, seq_len_kv=length)
        for batch, heads, length in ((1, 4, 1024), (1, 4, 2048), (32, 32, 1024))
    )
    runs = [run.model_copy(update={"problem": dataclasses.asdict(problem)}) for problem in (many, few)]
    assert best(asked, "sm_90", runs).record is runs[1]
    assert best(dataclasses.replace(asked, batch=64), "sm_90", runs).record is runs[0]
    assert waves(asked, "sm_90") == 8 * 4 / 132 and waves(many, "sm_90") == waves(H100, "sm_90") == MANY_WAVES


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
            run.model_copy(update={"problem": problem.as_dict(), "date": date, "steps": [packed]})
            for problem, date in zip((ragged, even), dates)
        ]
        for problem, mine in zip((ragged, even), runs):
            choice = best(problem, "sm_90", runs)
            assert choice.record is mine and "nearest" not in choice.why
        assert "nearest" in best(other, "sm_90", runs).why


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
