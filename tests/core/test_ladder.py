"""The ladder: found by its folders, in parts; every step of the main path brings something where it says so."""

import pytest

from steps import GRADIENTS, INSIDE, PAGED, PARALLEL, PARTS, QUANTIZED, STEPS, get_step
from steps.core import ladder
from steps.core.ladder import module_file, owner_of, part_of, select
from steps.core.recorded import recorded_runs
from tests.results.recorded import RECORDED
from tests.selection import ROOT
from tutorial_lib.files import RESULTS

WAITING = {"split_kv"}  # for rounds that hold it beside the step it stands on
MAIN_PATH = [s for s in (*STEPS[1:], *GRADIENTS[1:]) if not s.fork and part_of(s.number).timed]


def test_steps_are_numbered_named_and_found():
    in_order = [number for part in PARTS for number in part.numbers]
    places = [in_order.index(step.number) for step in STEPS]
    assert places == sorted(set(places)) and part_of(STEPS[-1].number).name == "everyday"
    for step in STEPS:
        assert get_step(step.number) is get_step(step.name) is get_step(str(step.number)) is step
        assert (ROOT / module_file(step)).stem == f"step{step.number:03}_{step.name}"
    with pytest.raises(
        ValueError,
        match=r"^no step warp; did you mean larger_tile_four_warps, three_warpgroups or three_warpgroups_unordered\?$",
    ):
        get_step("warp")


def test_a_step_stands_on_one_before_it():
    """In its own part, but for the first of a part; what is for everyday problems stands on others."""
    for step in STEPS[1:]:
        assert owner_of(step.previous).number < step.number
        first = min(s.number for s in STEPS if part_of(s.number) is part_of(step.number))
        if step.number != first and part_of(step.number).name != "everyday":
            assert part_of(owner_of(step.previous).number) is part_of(step.number)
        if not step.fork:
            assert not step.previous.fork  # the main path does not lead over a fork


def test_steps_over_several_ranks_are_apart():
    """So that whoever measures or chooses among all steps of a pass has those of one device."""
    assert not {*PARALLEL} & {*STEPS, *GRADIENTS, *PAGED, *QUANTIZED}
    assert select("parallel", None) == [step for step in PARALLEL if step.number] and select("ring") == [get_step(801)]
    backward = [step for step in PARALLEL if step.direction == "backward"]
    assert [step.forward for step in backward] == [step for step in PARALLEL if step.number]
    assert [step.inside for step in backward] == [step.forward.name for step in backward]
    assert all(step.share is step.forward.share for step in backward)


def test_what_is_inside_a_step_has_no_number_and_is_found_by_name():
    for piece in INSIDE:
        assert piece.number is None and get_step(piece.name) is piece
        assert module_file(piece) == module_file(get_step(piece.inside))
    assert get_step("turns") is get_step("three_warpgroups") and get_step("early_query") is get_step("split_epilogue")
    for old in (old for old in ladder.OLD_NAMES if ladder.today(old) not in ladder.DELETED):
        assert get_step(old).name == ladder.today(old) and old not in {piece.name for piece in ladder.whole_ladder()}


def test_an_old_number_leads_to_what_had_it_unless_today_s_ladder_has_it():
    assert get_step(39) is get_step("pv_wait_after_max") and get_step("122") is get_step("row_max_ilp_multicast")
    assert get_step(100) is get_step("explicit") and select("11") == [get_step("cluster")]
    assert get_step(93) is get_step("reverse_kv_order") and select("91") == [get_step("ping_pong")]
    for gone, nearest in {94: "persistent", "one_loop": "persistent", 130: "backward_ping_pong"}.items():
        with pytest.raises(ValueError, match=f"^step {gone} is no more; the nearest is {nearest}$"):
            get_step(gone)
    assert {get_step(deleted.nearest).number for deleted in ladder.DELETED.values()} == {9, 504}


def test_a_step_that_is_renamed_or_deleted_takes_its_old_number_along(monkeypatch):
    monkeypatch.setitem(ladder.OLD_NAMES, "row_max_ilp", "no_redundant_barriers")
    monkeypatch.setitem(ladder.OLD_NAMES, "static_scheduler", "nothing")
    monkeypatch.setattr(ladder, "_numbered_before", ladder._numbered_before.__wrapped__)
    found = ladder._by_key.__wrapped__()
    assert found["121"] is get_step("no_redundant_barriers") and found["122"] is get_step("row_max_ilp_multicast")
    assert "12" not in found


def test_no_step_takes_the_old_name_of_another(monkeypatch):
    """Whoever asks for it would get the other one."""
    monkeypatch.setitem(ladder.OLD_NAMES, "exp2", "mma")
    with pytest.raises(ValueError, match=r"^a step must not be called what another one was called before .*got exp2$"):
        ladder._load.__wrapped__()


def recorded_on_its_own_problem(step):
    """The verdicts of records of its own problem that compare a step with its predecessor, the newest first."""
    runs = RECORDED if step.direction == "forward" else recorded_runs(RESULTS, step.direction)
    runs = (run for run in runs if run.the_problem() == step.default_problem)
    found = (run.measurement(step.name) for run in runs)
    found = [m for m in found if m and m.speedup_vs_previous and m.previous == step.previous.name]
    return [m.speedup_vs_previous.verdict for m in found]


# naive and formulas are what the others are to be faster than.
@pytest.mark.parametrize(
    "step", [s for s in MAIN_PATH if s.name not in {"naive", "formulas", "load_order"} | WAITING], ids=lambda s: s.name
)
def test_a_step_of_the_main_path_is_faster_on_its_own_problem(step):
    """On a GPU. A newer compiler, or another GPU, may leave nothing of the gain, but makes no loss of it."""
    verdicts = recorded_on_its_own_problem(step)
    assert "faster" in verdicts and verdicts[0] != "slower"


@pytest.mark.parametrize("step", [s for s in MAIN_PATH if s.name in WAITING], ids=lambda s: s.name)
def test_who_waits_for_a_record_has_none(step):
    """Else it is to be faster, as the others are."""
    assert not recorded_on_its_own_problem(step), "take it out of WAITING"


def test_steps_are_selected_by_number_name_range_and_part():
    def names(text):
        return [step.name for step in select(text)]

    assert names("all") == [step.name for step in STEPS]
    assert names("2-4,sdpa") == ["sdpa", "mma", "exp2", "load_order"]
    assert names("100-104") == ["explicit", "swizzle", "split_q", "stages", "gluon_larger_tile"]
    assert names("hopper") == [step.name for step in STEPS if 200 <= step.number < 300]
    assert names("larger_tile_four_warps") == ["larger_tile_four_warps"]
    for text, message in (
        ("7-2", "must not run backwards"),
        ("17-19", "no step has a number of 17-19"),
        ("402", "must be steps of the forward pass, got 402 relaxed"),
        ("x", "no step x; `python -m steps.run --list` lists them"),
    ):
        with pytest.raises(ValueError, match=message):
            select(text)


def test_parts_do_not_overlap_and_every_step_is_in_one():
    numbers = [number for part in PARTS for number in part.numbers]
    assert len(set(numbers)) == len(numbers)
    with pytest.raises(ValueError, match="must be one of a part"):
        part_of(1000)
    everybody = (*STEPS, *GRADIENTS, *PAGED, *QUANTIZED, *PARALLEL)
    assert {part_of(owner_of(step).number).name for step in everybody} == {part.name for part in ladder.PARTS}
