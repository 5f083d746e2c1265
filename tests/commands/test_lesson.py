"""What the notebooks call, on machines that a test can stand for: with a GPU, without one, with nothing recorded."""

import dataclasses
import re
import types

import cuda.tile as ct
import pytest

from steps import get_step, summary
from steps import lesson as lessons
from steps.core.problems import HEADLINE, few_heads
from steps.core.recorded import find_recorded, recorded_runs
from steps.core.tiles import Tile
from steps.hopper import overlapped
from steps.lesson import Lesson, machine
from steps.measuring.measure import Settings, measure
from steps.trials import get_trial, recorded_trial
from tutorial_lib import limits, tables
from tutorial_lib.display import Html, code, difference
from tutorial_lib.files import RESULTS
from tutorial_lib.hardware import describe_versions
from tutorial_lib.problem import Problem
from tutorial_lib.results import Speedup, of_most_problems


def words(page) -> str:
    return "\n".join(part for part in page.parts if isinstance(part, str))


@pytest.fixture
def pretend_gpu(monkeypatch):
    """A machine whose GPU measures what the record says; returns what was asked of it."""
    run = Lesson("exp2").recorded
    asked = []

    def measure(problem, steps, peers, settings):
        asked.append((problem, [s.name for s in steps]))
        measured = [m for m in run.steps if m.name in {s.name for s in steps}]
        varied = [s for s in steps if s.name.endswith("_varied")]
        measured += [run.measurement("latency").model_copy(update={"name": s.name}) for s in varied]
        return run.model_copy(update={"steps": measured}), False, ""

    monkeypatch.setattr(lessons, "has_gpu", lambda: True)
    monkeypatch.setattr(lessons, "describe_machine", lambda device: run.machine)
    monkeypatch.setattr(lessons, "measure", measure)
    monkeypatch.setattr(summary, "has_gpu", lambda: True)
    monkeypatch.setattr(summary, "measure", measure)
    monkeypatch.setattr(lessons, "_accuracy", lambda *arguments: ["", "", "yes"])
    return asked


def test_with_a_gpu_it_measures_and_says_so(pretend_gpu):
    lesson = Lesson("exp2")
    assert "Executed on a GPU, NVIDIA H200" in words(lessons.machine(lesson.recorded))
    lesson.stand(), lesson.predict(guess=1.5)
    assert pretend_gpu == []  # the prediction comes before the number
    assert "Measured here, now" in words(lesson.time())
    assert pretend_gpu == [(lesson.problem, ["sdpa", "mma", "exp2"])]
    measured, _, ratios, beside, _ = lesson.time().parts
    assert beside.startswith("Recorded: NVIDIA") and "Recorded" not in measured
    assert all(f"Times as fast as {other}" in told for other in ("step 2 mma", "SDPA") for told in (ratios, beside))
    varied = words(lesson.vary(tile=Tile(64, 64)))
    assert "TFLOPS, measured here" in varied and pretend_gpu[-1][1] == ["exp2", "exp2_varied"]
    assert "Measured here, now" in words(summary.ceilings(summary.baseline()))


def test_where_nothing_could_be_timed_it_says_why(pretend_gpu):
    lesson = Lesson("exp2")
    failed = [m.model_copy(update={"status": "failed", "reason": "no luck", "tflops": None}) for m in lesson.run.steps]
    lesson.run = lesson.run.model_copy(update={"steps": failed})
    assert "Nothing was timed." in words(lesson.time()) and "3 exp2: failed: no luck" in words(lesson.time())


def test_without_one_it_shows_what_is_recorded_and_says_so():
    lesson = Lesson("exp2")
    told = words(lesson.time())
    assert told.startswith("Recorded, not measured here: NVIDIA H200")
    m = lesson.recorded.measurement("exp2")
    assert f"{m.speedup_vs_previous.median:.2f}×" in told and f"{m.speedup_vs_baseline.median:.2f}×" in told
    assert "needs a GPU" in words(lesson.vary(tile=Tile(64, 64)))


@pytest.mark.parametrize("name", ["mma", "producer", "naive"])
def test_a_verdict_stands_apart_from_the_factor(name):
    """``0.56× slower`` would be another number than 0.56 times as fast; and whom it is of is said once."""
    lesson = Lesson(name)
    m, told = lesson.recorded.measurement(name), words(lesson.time())
    for whom, ratio in ((f"step {lesson.previous.label}", m.speedup_vs_previous), ("SDPA", m.speedup_vs_baseline)):
        if lesson.previous.number or whom != "SDPA":
            factor = f"**{ratio.median:.2f}×** (p10–p90 {ratio.low:.2f}–{ratio.high:.2f})"
            assert f"Times as fast as {whom}: {factor}; verdict: {ratio.verdict}." in told


def test_the_loss_of_a_step_is_shown_without_the_speeds_of_the_path():
    """As the chapter does that explains the model, before any step is guessed."""
    lesson = Lesson("persistent")
    shown, path = words(lesson.lost()), words(lesson.stand())
    assert "The least time of each unit for step 8 larger_tile" in shown and shown in path
    assert "SDPA's speed" in path and "SDPA's speed" not in shown and len(lesson.lost().parts) == 3
    limit, m = lesson.limit(lesson.previous), lesson.known(lesson.previous)
    assert f"At least {1000 * limit.seconds:.3g} ms" in shown and f"{m.latency_ms.median:.3g} ms measured" in shown


def test_the_matrix_product_is_set_beside_the_tensor_cores_at_both_clocks():
    run = summary.recorded()
    told = words(summary.ceilings(run))
    for ghz, clock in ((run.machine["max_sm_clock_mhz"] / 1000, "highest clock"), (run.ceiling.clock_ghz, "it ran at")):
        share = f"{run.ceiling.tflops / (4096 * run.machine['multiprocessors'] * ghz / 1000):.0%}"
        assert re.search(rf"{share} of [^%]* {clock}, {ghz:.2f} GHz", told)
    unknown = run.model_copy(update={"ceiling": run.ceiling.model_copy(update={"clock_ghz": None})})
    assert "tensor cores" not in words(summary.ceilings(unknown))


def test_a_page_names_the_compilers_of_its_code_and_of_its_times(monkeypatch):
    monkeypatch.setattr(lessons, "has_gpu", lambda: False)
    lesson = Lesson("exp2")
    assert lesson.recorded.compilers in words(lesson.time()) and ", tileiras 13." in words(lesson.where())
    assert lesson.recorded.compilers in words(lesson.evidence()).partition("Rows with ncu were recorded")[2]
    here = lesson.recorded.model_copy(update={"versions": describe_versions()})
    others = here.model_copy(update={"versions": here.versions | {"triton": "3.0"}})
    assert "explains no time" not in words(machine(here))
    told = words(machine(others))
    assert f"Machine code here is that of {here.compilers}. The timed kernels were made by Triton 3.0, " in told


def test_a_prediction_starts_empty_and_both_are_scored_against_the_measurement():
    lesson = Lesson("exp2")
    assert words(lesson.predict()).startswith("How many times as fast as step 2 mma") and lesson.guess is None
    assert "Your guess" not in words(lesson.time())
    assert "the model allows" in words(lesson.predict(1.5)) and "Your guess: 1.5 times" in words(lesson.predict(1.5))
    measured = lesson.recorded.measurement("exp2").speedup_vs_previous.median
    told = words(lesson.time())
    assert (
        f"Your guess said 1.50, {round(100 * (1.5 / round(measured, 2) - 1))}% too high." in told
        and "The model said" in told
    )
    lesson.predict(20)
    figure = next(part for part in lesson.time().parts if not isinstance(part, str))
    [line] = [line for line in figure.axes[0].lines if line.get_label() == "your guess"]
    assert line.get_ydata()[0] < figure.axes[0].get_ylim()[1]  # it is seen, however wild


@pytest.mark.parametrize("name", ["tensor_memory", "lazy_rescaling"])
def test_a_step_that_was_never_timed_shows_no_timing_of_others(name):
    lesson = Lesson(name)
    assert lesson.arch == "sm_100" and lesson.recorded is None
    told = words(lesson.machine())
    assert "Compiled for sm_100 and simulated on the CPU, not timed" in told and "from the simulator" in told
    assert "not timed: step" in words(lesson.time()) and len(lesson.time().parts) == 1
    assert "sm_100 |" in words(lesson.evidence()) and "H100" not in words(lesson.evidence())


def test_a_step_that_is_recorded_without_its_predecessor_is_compared_with_sdpa():
    lesson = Lesson("split_kv")
    m = lesson.recorded.measurement("split_kv")
    assert m.tflops and m.speedup_vs_previous is None and lesson.rival.name == "sdpa"
    assert words(lesson.predict()).startswith("How many times as fast as step 0 sdpa")
    lesson.predict(2)
    off = round(100 * (2 / round(m.speedup_vs_baseline.median, 2) - 1))
    assert f"Your guess said 2.00, {off}% too high." in words(lesson.time())
    assert Lesson("last_block_merges").rival.name == "split_kv"


def test_what_is_recorded_on_other_problems_alone_is_not_called_untimed():
    nobodys = Problem(batch=3, heads=10, kv_heads=5, seq_len_q=7, seq_len_kv=77, head_dim=64)
    lesson = Lesson("pack_gqa", nobodys)
    assert lesson.recorded is None and lesson.never_timed
    for untimed in (
        lesson,
        Lesson("transposed_scores", HEADLINE),
    ):  # a record of the latter's lacks it
        assert "No timing of its step on its problem is recorded" in words(untimed.machine())
    assert words(lesson.predict()).startswith("Nobody has timed this step on this problem")
    told = words(lesson.time())
    assert f"No timing of {lesson.problem.describe()} is recorded" in told
    assert get_step("split_kv").default_problem.describe() in told.partition("recorded on other problems: ")[2]
    told = words(Lesson("transposed_scores", HEADLINE).time())  # a record of its problem holds others
    assert told.startswith(f"Nobody has timed step 500 transposed_scores on {HEADLINE.describe()} yet.")


def test_a_lesson_shows_a_record_that_holds_its_step_though_another_holds_more():
    problem = Lesson("two_kernels").problem
    most, held = (find_recorded(problem, direction="backward", step=name) for name in (None, "two_kernels"))
    assert most.measurement("two_kernels") is None and held.measurement("two_kernels").tflops
    assert held.machine["name"] in words(Lesson("two_kernels").time())


def test_a_prediction_of_what_was_never_timed_is_one_that_the_model_answers():
    lesson = Lesson("warp_roles")
    asked = words(lesson.predict())
    assert asked.startswith("Nobody has timed this step") and '"exponentials"' in asked
    assert "A guess is one of" in words(lesson.predict(1.5))
    told = words(lesson.predict("memory"))
    assert "Your guess: memory. By the model it is exponentials." in told and "ms" not in told.split()
    assert "In step 600 tensor_memory products and softmax take turns" in told
    assert "The model gives no answer either: no source states" in words(Lesson("plain_triton").predict("memory"))


def test_a_step_for_another_gpu_than_this_machines_is_simulated(pretend_gpu):
    """And one for this machine's is timed."""
    assert not Lesson("tensor_memory").on_gpu and Lesson("tensor_memory").never_timed
    assert "not timed" in words(Lesson("tensor_memory").time()) and pretend_gpu == []
    assert Lesson("wgmma").on_gpu and not Lesson("wgmma").never_timed


@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_100", "sm_121"])
def test_a_gpu_that_a_timed_step_is_not_for_is_as_none(pretend_gpu, monkeypatch, arch):
    """Its page says so, shows the record, and the kernel runs on the simulator."""
    monkeypatch.setattr(lessons, "describe_machine", lambda device: {"name": "Made up", "arch": arch})
    lesson = Lesson("wgmma")
    told = words(lesson.machine())
    assert told.startswith("**Executed on the CPU, as step 200 wgmma does not run on the GPU here (made of wgmma")
    assert f"not {arch}). Kernels ran on the CPU" in told and "recorded on NVIDIA H200" in told
    assert "Recorded, not measured here: NVIDIA H200" in words(lesson.time()) and pretend_gpu == []
    assert "on the simulator, on the CPU" in words(lesson.check()) and "def fmha(" in lesson.change().parts[-1].text
    assert "sm_90 |" in words(lesson.evidence())
    assert "Executed on a GPU, Made up" in words(Lesson("exp2").machine())


def test_a_machine_with_its_gpu_times_it(pretend_gpu, monkeypatch):
    monkeypatch.setattr(lessons, "describe_machine", lambda device: {"name": "B200", "arch": "sm_100"})
    lesson = Lesson("tensor_memory")
    assert lesson.on_gpu and not lesson.never_timed
    lesson.time()
    assert pretend_gpu == [(lesson.problem, ["sdpa", "wgmma", "tensor_memory"])]


@pytest.mark.parametrize("guess", ["1.2", 0, -1, True, float("nan"), [1.2]])
def test_a_guess_that_is_none_gets_one_line(guess):
    lesson = Lesson("exp2")
    [told] = lesson.predict(guess).parts
    assert "A guess is a number such as 1.5" in told and lesson.guess is None


def test_evidence_shows_what_changed_most_and_no_more():
    shown, *_ = (part for part in Lesson("occupancy").evidence().parts if part.startswith("|"))
    assert 3 <= shown.count("\n") - 1 <= 5 and "registers per thread" in shown
    assert "<details>" not in words(Lesson("occupancy").evidence())


def test_conflicts_are_set_beside_the_tiles_that_are_visited():
    tiles = 4 * 32 * sum(-(-64 * (i + 1) // 128) for i in range(4096 // 64))  # 64 queries, 128 keys, causal
    assert f"All blocks of step 6 occupancy together visit {tiles:,} tiles of keys." in words(
        Lesson("occupancy").evidence()
    )
    assert "together visit" not in words(Lesson("wgmma").evidence())  # which shows no conflicts


@pytest.mark.parametrize("name", ["mma", "exp2", "wgmma"])
def test_no_name_is_cut_off_at_the_edge_of_the_path(name):
    """A path of one bar is a low figure."""
    [figure] = [part for part in Lesson(name).stand().parts[:2] if hasattr(part, "axes")]
    figure.draw_without_rendering()
    named = [text for axes in figure.axes for text in axes.texts]
    assert any("SDPA" in text.get_text() for text in named)
    assert all(
        figure.bbox.containsx(x) and figure.bbox.containsy(y) for t in named for x, y in t.get_window_extent().corners()
    )


@pytest.mark.parametrize("name", ["naive", "formulas"])
def test_who_computes_hidden_scores_needs_twice_as_long_for_the_products(name):
    lesson = Lesson(name)
    sdpa, unfused = words(lesson.stand()), words(lesson.evidence())  # of what the step stands on, and its own
    took = [float(re.search(r"tensor cores take ([\d.]+) ms", told)[1]) for told in (sdpa, unfused)]
    assert took[1] == pytest.approx(2 * took[0], rel=0.05)
    assert "hidden scores included" in unfused and "hidden scores" not in sdpa


def test_with_nothing_recorded_it_still_teaches(tmp_path):
    lesson = Lesson("exp2", results=tmp_path)
    assert "No timing of B=4" in words(lesson.time())
    assert "The least time of each unit" in words(lesson.stand())
    assert "instructions" in words(lesson.evidence()) and "ncu" not in words(lesson.evidence())
    assert words(lesson.where()) == "No record compares step 3 exp2 with step 2 mma."


@pytest.mark.parametrize(
    ("name", "causal", "strips"),  # strips: left, top, width, height, of 512 queries and keys
    [
        ("producer", True, [(0, 256, 384, 64), (0, 320, 384, 64)]),
        ("producer", False, [(0, 256, 512, 64), (0, 320, 512, 64)]),
        ("decoupled_warpgroups", True, [(256, 256, 64, 256), (320, 256, 64, 256)]),
        ("decoupled_warpgroups", False, [(256, 0, 64, 512), (320, 0, 64, 512)]),
    ],
)
def test_a_page_draws_who_computes_which_scores(name, causal, strips):
    lesson = Lesson(name)
    lesson = Lesson(name, dataclasses.replace(lesson.problem, causal=causal))
    _, figure = lesson.block("one", "other").parts
    [axes] = figure.axes
    drawn = [patch for patch in axes.patches if hasattr(patch, "get_x")]
    assert [(p.get_x(), p.get_y(), p.get_width(), p.get_height()) for p in drawn[:2]] == strips
    told = [text.get_text() for text in axes.texts]
    assert told[:2] == ["one", "other"] and ("hidden" in told) == causal
    assert [("dQ" in text, "dV" in text) for text in told[-2:]] == [
        (name != "producer", False),
        (False, name != "producer"),
    ]


def test_where_the_path_stands_is_told_against_what_the_pass_is_compared_with():
    told, figure, *lost = Lesson("pv_fp8").stand().parts
    assert "step 300's speed" in told and "step 300's" in figure.axes[0].get_xlabel()
    assert "at step 300's clock" in lost[-1] and "SDPA" not in told + lost[-1]


def test_a_page_tells_who_arrives_at_a_barrier_and_who_waits():
    told, forward = Lesson("producer").barriers().parts
    assert "201 producer" in told
    assert "| key_empty | 2 | 2 | consume 0, consume 1 | produce 2: 1 | all warpgroups have read it |" in forward
    assert "| complete when |" in forward and "consume 1: 0 | TMA has filled it |" in forward
    assert "| query_full | 1 | 1 | produce 2, TMA | consume 0: 0, consume 1: 0 |" in forward
    _, backward = Lesson("decoupled_warpgroups").barriers().parts
    assert "| d_scores_empty | 2 | 2 | consume 0, consume 1 | consume 0: 1, consume 1: 1 |" in backward
    assert "complete when" not in backward  # its record tells that of some barriers alone
    _, of_fp8 = Lesson("fp8_three_warpgroups").barriers().parts
    assert "| value_empty | 2 | 3 | consume 0, consume 1, consume 2 | produce 3: 1 |" in of_fp8


def test_the_change_is_computed_from_the_code():
    *told, change = Lesson("swizzle").change().parts
    assert "shared_layout: no_swizzle -> swizzle" in "".join(told) and isinstance(change, Html)
    assert "- SHARED" in change.text and "+ SHARED" in change.text
    assert change.text.endswith("\n  ... def fmha(...)") and "@gluon.jit" not in change.text
    assert "+ STAGES = gl.constexpr(2)" in Lesson("stages").change().parts[-1].text
    assert "def fmha(" in Lesson("wgmma").change().parts[-1].text  # a new kernel is shown whole
    assert "reads as before" in "".join(map(str, Lesson("occupancy").change().parts))


def test_a_long_program_is_folded():
    whole, short = Lesson("wgmma").change().parts[-1], code("x = 1")
    assert whole.html.startswith(f"<details><summary>The program, {len(whole.text.splitlines())} lines</summary><pre")
    assert short.html.startswith("<pre") and short.text == "x = 1"


def test_a_step_with_a_new_feature_is_compared_with_the_step_before_on_a_problem_without_it():
    *told, change = Lesson("window").change().parts
    assert "compared with static_scheduler, which takes no sliding window" in "".join(told)
    assert "+ def left_edge(" in change.text and "\n- " in change.text
    assert "def load_key_transposed(" not in change.text  # as before


def test_what_a_hole_holds_none_for_is_told_in_its_own_words():
    found = [get_step(name).key_changes() for name in ("occupancy", "cluster", "kv_multicast", "wave_priorities")]
    assert [changes[0].partition(": ")[2].partition(" -> ")[0] for changes in found] == [
        "left to the compiler",
        "none",
        "False",
        "none",
    ]
    assert "stages: none -> 8 waves" in found[3][0] and "tile: by the launch rule -> " in found[1][1]


def test_what_a_step_refuses_is_checked_with_a_head_dim_that_it_takes_or_left_out(monkeypatch):
    monkeypatch.setattr(lessons, "_accuracy", lambda *arguments: ["", "", "yes"])
    _, rows, left_out = [*Lesson("two_cta_backward").check().parts, ""]
    assert rows.count("D=256") == rows.count("yes") == 4 and left_out == ""
    _, rows, left_out = Lesson("split_kv").check().parts
    assert "S=128 " not in rows and left_out.startswith("Left out: B=1 H=2 S=128 D=64 fp16 causal (made for decoding")


def forgets_to_subtract_the_maximum(scores, row_max, scale):
    new_max = ct.maximum(row_max, ct.max(scores, axis=1, keepdims=True) * scale)
    return ct.exp2(scores * scale), ct.exp2(row_max - new_max), new_max


def test_an_edited_kernel_is_shown_and_judged():
    lesson = Lesson("producer")
    page = lesson.edited(("used = iteration // STAGES & 1 ^ 1", "used = iteration // STAGES & 1"), length=300)
    assert page.parts[0].text == "- used = iteration // STAGES & 1 ^ 1\n+ used = iteration // STAGES & 1"
    told = words(page)
    assert "produce 2 waits for barriers.key_empty[0] with parity 0" in told and "at kernel:" in told
    assert "consume 0 waits for barriers.key_full[0]" in told and "written_" not in told  # and not for a parameter
    assert "Correct: no race" in words(lesson.edited(("used = iteration", "used = 0 + iteration"), length=300))
    with pytest.raises(ValueError, match="must stand in the kernel once, not 0 times"):
        lesson.edited(("nothing of the kind", ""))
    told = words(Lesson("explicit").edited(("async_copy.wait_group(STAGES - 1)", "pass"), length=192))
    assert "mask=(row < limit - first)" in told and "\n      called at kernel:" in told  # not every " < " is a caller


def test_where_holds_no_ratio_to_another_step():
    """Many records compare step split_epilogue with a variant, and some time it beside the step before, too."""
    rows = words(Lesson("split_epilogue").where())
    assert "| 16 | 256 | fp16 | causal |" in rows and "| 32 | 64 | fp16 | full |" not in rows
    assert "| 32 | 64 | fp16 | full |" in words(Lesson("split_epilogue", before="warpgroup_causal_bound").where())


def test_where_shows_records_of_the_gpu_and_the_compilers_of_the_page():
    lesson = Lesson("producer")
    rows = words(lesson.where())
    assert f"{lesson.recorded.machine['name']}, {lesson.recorded.day}, {lesson.recorded.compilers}:" in rows
    assert rows.count("tileiras") == 1 and "| 256 | fp16 | causal |" in rows


def test_where_shows_one_of_two_records_that_differ_in_the_dtype_alone(monkeypatch):
    lesson, runs = Lesson("producer"), of_most_problems(recorded_runs(RESULTS, "forward"))
    monkeypatch.setattr(lessons, "recorded_runs", lambda *_: runs)
    rows = words(lesson.where())
    assert "| 64 | fp16 | full |" in rows and "| bf16 |" not in rows
    compared = [
        (run.the_problem(), run.compilers, speedup.verdict)
        for run in runs
        if (m := run.measurement("producer")) and m.previous == "wgmma" and (speedup := m.speedup_vs_previous)
    ]
    shown = {(p, made_by): verdict for p, made_by, verdict in compared if p.dtype == "float16"}
    others = [
        (shown[twin], verdict)
        for p, made_by, verdict in compared
        if p.dtype == "bfloat16" and (twin := (dataclasses.replace(p, dtype="float16"), made_by)) in shown
    ]
    assert len(others) > 1 and lessons._not_shown([one == other for one, other in others]) in rows
    kept = [run for run in recorded_runs(RESULTS) if run.the_problem().dtype == "bfloat16"]
    monkeypatch.setattr(lessons, "recorded_runs", lambda *_: kept)
    alone = words(Lesson("producer").where())
    assert "| 64 | bf16 | full |" in alone and "Not shown" not in alone


def test_what_a_table_leaves_out_is_told_of_one_record_and_of_several():
    assert lessons._not_shown([]) == ""
    assert lessons._not_shown([True]).endswith("one record of these problems in bfloat16; its verdict is the same.")
    assert lessons._not_shown([False]).endswith("its verdict is another.")
    assert lessons._not_shown([True, False]).endswith(
        "2 records of these problems in bfloat16; the verdict is the same in 1."
    )


@pytest.mark.parametrize(
    ("said", "measured", "shown", "off"),
    [
        (1.004, Speedup(median=1.0551, low=1.04, high=1.06, verdict="faster"), "1.06", "6% too low"),  # and not 5%
        (2.504, Speedup(median=2.509, low=2.4, high=2.6, verdict="faster"), "2.51", "less than 1% too low"),
        (1.021, Speedup(median=1.0248, low=1.003, high=1.05, verdict="faster"), "1.025", "less than 1% too low"),
        (1.256, Speedup(median=1.264, low=1.2, high=1.3, verdict="faster"), "1.26", "which is right"),
    ],
)
def test_how_far_a_prediction_was_off_follows_from_the_numbers_on_the_page(said, measured, shown, off):
    lesson = Lesson("exp2")
    lesson._modelled = lambda: said
    assert f"**{shown}×**" in tables.times_as_fast("SDPA", measured)
    assert lesson._scored(measured) == f"The model said {said:.2f}, {off}."


PAGES = {  # what is called -> what its words hold, and what they do not
    "instructions": (
        lambda: Lesson("exp2").machine_code(r"MUFU\.EX2", lines=10),
        ["10 instructions of step 3 exp2", ", tileiras "],
    ),
    "no instruction": (lambda: Lesson("exp2").machine_code("UTCMMA"), ["has no instruction `UTCMMA`"]),
    "pieces": (lambda: Lesson("split_epilogue").inside(), ["half_output", "half_query"]),
    "pieces of other rounds": (lambda: Lesson("fast_deterministic").inside(), [lessons.EARLIER]),
    "pieces of the same rounds": (lambda: Lesson("mask_loop").inside(), ["TFLOPS were recorded"], [lessons.EARLIER]),
    "one piece": (lambda: Lesson("exp2").inside(), ["one piece"], ["half of Q"]),
    "wrong": (lambda: Lesson("exp2").vary(softmax=forgets_to_subtract_the_maximum), ["| yes | NO |"]),
    "same code": (lambda: Lesson("load_order").evidence(), ["same code, instruction for instruction"]),
    "other code": (lambda: Lesson("exp2").evidence(), [], ["same code"]),
    "no room": (lambda: Lesson("stages", few_heads(256)).vary(stages=6), ["needs 416 KiB of shared memory"]),
    "no tile": (
        lambda: Lesson("exp2").vary(tile=(64, 64)),
        ["tile must be a Tile(query, key), got (64, 64)."],
    ),
    "no hole": (lambda: Lesson("exp2").vary(tyle=3), ["No hole tyle: step 3 exp2 has load_key, softmax,"]),
    "no holes": (lambda: Lesson("naive").vary(tile=3), ["Step 1 naive has no holes: it is not a kernel"]),
    "order": (lambda: Lesson("persistent").order(), ["8 HGMMA"]),
    "order, no hole": (lambda: Lesson("persistent").order(tyle=3), ["No hole tyle: step 9 persistent has load_key,"]),
    "order, changed": (
        lambda: Lesson("epilogue_overlap").order(generation=overlapped.consume),
        ["generation=consume, ", "HGMMA"],
    ),
    "order, no holes": (
        lambda: Lesson("naive").order(tile=3),
        ["Step 1 naive has no holes: it is not a kernel"],
    ),
    "order, no kernel": (lambda: Lesson("naive").order(), ["1 naive: "]),
    "two steps": (
        lambda: summary.over("deferred_reduce_add", "coalesced_atomics"),
        ["NVIDIA H200", "| 4 | 32 | 32 | 128 | bf16 | causal | **1.0", " same |"],
        ["** same"],
    ),
    "a variant": (
        lambda: summary.over("folded_lse", "relaxed_atomics"),
        ["Variant folded_lse, times as fast as step 402 relaxed_atomics, as recorded"],
        ["step folded_lse"],
    ),
    "verdicts": (
        lambda: summary.verdicts("unordered_softmax"),
        ["| unordered_softmax | deferred_fence | 15 | 0 |"],
    ),
    "no record of both": (
        lambda: summary.over("window", "mma"),
        ["No record compares step 903 window with step 2 mma"],
    ),
}


@pytest.mark.parametrize("page", PAGES)
def test_a_page_says_what_is_so(page):
    make, there, *others = PAGES[page]
    told = words(make())
    assert all(some in told for some in there) and not any(some in told for each in others for some in each)


def test_a_unit_that_only_one_kernel_knows_is_drawn():
    """cuTile does not tell how busy shared memory is, Gluon's layouts do: the first Gluon step shows it."""
    for name in ("explicit", "swizzle"):
        figure = Lesson(name).predict(1.5).parts[1]
        assert "shared memory" in [label.get_text() for label in figure.axes[0].get_yticklabels()]


def test_what_does_not_fit_is_told(monkeypatch):
    wide = few_heads(256)
    monkeypatch.setattr(Lesson, "arch", "sm_120")
    assert "needs 160 KiB of shared memory a block; sm_120 has 99 KiB" in words(Lesson("stages", wide).evidence())


def test_a_page_shows_the_path_to_its_step_and_counts_all_of_it_at_one_clock():
    lesson = Lesson("epilogue_overlap")
    told, figure, *_ = lesson.stand().parts
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels[-3:] == ["201 producer", "202 intra_warpgroup_overlap", "203 lpt_scheduler"]
    assert not {"204 epilogue_overlap", "2 mma"} & set(labels)  # it is to be guessed; and Gluon does not stand on it
    sdpa, last = (lesson.recorded.measurement(name) for name in ("sdpa", "lpt_scheduler"))
    beside = last.speedup_vs_baseline.median
    assert f"Step 203 lpt_scheduler has {beside:.0%} of SDPA's speed." in told
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert texts[-2] == f"{last.tflops:.0f} ({beside:.0%})"
    then = lesson.recorded.as_together(last, sdpa)  # SDPA's line is of the rounds of the bars
    assert (
        then.day == (last.earlier or lesson.recorded.day)
        and texts[-1].strip() == f"SDPA {then.measurement('sdpa').tflops:.0f}"
    )
    assert sdpa.clock_ghz != last.clock_ghz
    gpu = limits.gpu_of(lesson.recorded.machine, sdpa)
    made = lesson.compile(lesson.previous).as_dict()
    assert lesson.limit(lesson.previous) == limits.limit(lesson.problem, made, gpu)


def test_a_step_that_was_not_timed_is_counted_at_the_clock_of_its_page(monkeypatch):
    lesson = Lesson("pack_gqa")
    timed, known = lesson.limit(lesson.step), Lesson.known
    monkeypatch.setattr(Lesson, "known", lambda self, step: known(self, step) if step.name != "pack_gqa" else None)
    assert lesson.limit(lesson.step) == timed


def test_of_a_difference_only_what_is_near_is_shown():
    before = "\n".join("abcdefghij")
    shown = difference(before, before.replace("b", "B").replace("i", "I"), around=1)
    assert shown.text.split("\n") == ["  a", "- b", "+ B", "  c", "  ...", "  h", "- i", "+ I", "  j"]
    before = "def f(x):\n    a\n    b\n\ndef g(y):\n    a\n    b"
    shown = difference(before, before[:-1] + "c", around=0)
    assert shown.text == "  ... def g(...)\n-     b\n+     c"


def test_the_difference_reads_without_colour():
    shown = difference("a\nb < c\n", "a\nb > c\n")
    assert "- b < c\n+ b > c" in shown.text and "&lt;" in shown.html


def test_only_known_architectures_bring_their_record(monkeypatch):
    """On another GPU, nothing recorded on the H100 is set beside that GPU's own limits."""
    lesson = Lesson("exp2")
    monkeypatch.setattr(Lesson, "arch", "sm_120")
    assert lesson.known(lesson.previous) is None
    assert "measured" not in words(lesson.stand())


def test_a_function_written_in_a_notebook_is_measured_in_its_process(pretend_gpu, monkeypatch):
    """It cannot be sent to another: what is pickled is its name, and __main__ there is another module."""
    isolated = []
    pretended = lessons.measure
    monkeypatch.setattr(lessons, "measure", lambda *a: isolated.append(a[3].isolated) or pretended(*a))
    lesson = Lesson("exp2")

    own = lesson.step.softmax
    softmax = types.FunctionType(own.__code__, own.__globals__)  # as the reader would write it in a cell
    softmax.__module__ = "__main__"
    lesson.vary(softmax=lesson.previous.softmax), lesson.vary(softmax=softmax)
    assert isolated == [True, False]


def test_what_cannot_be_sent_to_a_process_is_measured_without_one():
    step = dataclasses.replace(get_step("exp2"), softmax=lambda *arguments: get_step("exp2").softmax(*arguments))
    small = lessons.CHECKED[0]
    run, _, _ = measure(small, [step], [], Settings(device="cpu", seed=1, isolated=False))
    assert run.steps[-1].correct
    broken = dataclasses.replace(step, softmax=lambda *arguments: 1 / 0)
    run, _, _ = measure(small, [broken], [], Settings(device="cpu", seed=1, isolated=False))
    assert run.steps[-1].status == "failed" and "ZeroDivisionError" in run.steps[-1].reason


def test_a_trial_whose_value_failed_is_shown_as_failed():
    [run, *_] = recorded_trial(get_trial("held_query"), RESULTS)
    failed = run.steps[-1].model_copy(update={"tflops": None, "max_error": None, "status": "failed", "reason": "hung"})
    rounds = [r.model_copy(update={"latency_ms": {}}) for r in run.rounds]
    shown = summary._switched([run.model_copy(update={"steps": [*run.steps[:-1], failed], "rounds": rounds})])
    assert tables.outcome(failed) in shown and tables.tflops(run.steps[-2]) in shown
