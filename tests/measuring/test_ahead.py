"""Kernels compiled side by side: all of them, kept on disk, whatever becomes of one."""

import dataclasses
import threading
from contextlib import contextmanager

import pytest

from steps import get_step
from steps.core.grids import GRIDS
from steps.measuring.ahead import KERNELS_A_PROCESS, Ahead, compile_ahead, differing
from steps.measuring.bench import Bench
from steps.measuring.measure import Progress, Settings, _as_compiled, _Contender, _share_out, measure
from tests import faulty
from tests.shapes import problem
from tutorial_lib.worker import Inline, Worker

NAMES = ["mma", "exp2", "load_order", "explicit", "swizzle", "split_q"]
SMALL = problem(head_dim=64, seq_len_q=64, seq_len_kv=64)


@pytest.fixture(autouse=True)
def nothing_on_disk(monkeypatch, tmp_path):
    monkeypatch.setenv("FMHA_TUTORIAL_CACHE", str(tmp_path / "kept"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr("tutorial_lib.compiler.lock", None)  # what it knows would not come to disk


def cold(steps) -> list[str]:
    return Bench(SMALL, "forward", "cpu", 0, check=False).not_compiled(steps, "sm_90")


class Listener(Progress):
    def __init__(self):
        self.told = []

    def doing(self, what):
        self.told.append(what)


def turns(names, **of_settings) -> tuple[list[str], list[str]]:
    """(the names in the order in which a GPU's run takes them, what was told meanwhile)."""
    contenders = [_Contender(get_step(name)) for name in names]
    settings, listener = Settings(device="cpu", seed=0, check=False, **of_settings), Listener()
    with Inline(Bench, SMALL, "forward", "cpu", 0, False) as worker:
        order = list(_as_compiled(worker, SMALL, contenders, "sm_90", settings, listener))
    return [contender.step.name for contender in order], listener.told


def test_what_is_compiled_has_its_turn_while_others_are_compiled_side_by_side(monkeypatch):
    """First who needs no compiler; who is compiled comes next; the second time all is there, in the ladder's order."""
    steps = [get_step(name) for name in NAMES]
    steps[2].compile(SMALL, "sm_90")
    others = [name for name in NAMES if name != NAMES[2]]
    extra = ["deferred_sum"]
    made = []
    monkeypatch.setattr("steps.measuring.measure.Ahead", lambda *given: made.append(Ahead(*given)) or made[-1])
    order, told = turns([*NAMES, *extra, "sdpa"])
    assert not any(process.is_alive() for process in made[0]._pool._pool)  # nothing disturbs the timing that follows
    assert order[:2] == [NAMES[2], "sdpa"] and sorted(order[2:]) == sorted([*others, *extra])
    assert told[0] == "compiling 6 kernels, 2 at a time" and told[-1] == f"{told[0]}: 6 done"
    assert cold(steps) == []
    assert turns([*NAMES, "sdpa"]) == ([*NAMES, "sdpa"], [])


def test_without_a_gpu_several_workers_share_the_steps(monkeypatch):
    monkeypatch.setattr("steps.measuring.measure.CHECKS_A_WORKER", 1)
    started = []
    monkeypatch.setattr(
        "steps.measuring.measure.Worker", lambda *given, **more: started.append(Worker(*given, **more)) or started[-1]
    )
    steps = [get_step(name) for name in ("sdpa", *NAMES[:2])]
    run, interrupted, _ = measure(SMALL, steps, [], Settings(device="cpu", seed=0, check=False))
    assert len(started) == 2 and not interrupted
    assert [(m.name, m.status) for m in run.steps] == [("sdpa", "skipped"), ("mma", "compiled"), ("exp2", "compiled")]
    assert cold(steps[1:]) == []


def test_each_worker_takes_the_next_step_and_an_error_of_ours_is_raised():
    contenders = [_Contender(get_step(name)) for name in NAMES]
    both, taken = threading.Barrier(2), []

    def qualify(worker, contender):
        if len(taken) < 2:
            taken.append(worker)
            both.wait(60)  # nobody goes on before each worker has one
        contender.status = "checked"

    _share_out(["one", "other"], contenders, qualify)
    assert sorted(taken) == ["one", "other"] and {c.status for c in contenders} == {"checked"}

    def broken(worker, contender):
        raise RuntimeError("ours")

    with pytest.raises(RuntimeError, match="ours"):
        _share_out(["one", "other"], contenders, broken)


def test_what_fails_or_dies_is_left_to_its_own_turn():
    """It comes to an end although one answer never does, and the others are compiled."""
    bad = [faulty.CompilesBadly(**vars(faulty.make(f, 90 + n))) for n, f in enumerate([faulty.raises, faulty.dies])]
    steps = [*bad, *map(get_step, NAMES[:4])]
    with Ahead([(step, SMALL) for step in steps], "sm_90") as ahead:
        answered = {ahead.finished(300.0) for _ in steps[1:]}
        assert answered == {0, 2, 3, 4, 5}
        assert ahead.finished(0.01) is None and ahead.waiting == 0
    assert cold(steps[2:]) == []


def test_a_few_kernels_are_not_worth_a_process():
    steps = [get_step(name) for name in NAMES[: 2 * KERNELS_A_PROCESS - 1]]
    compile_ahead([(step, SMALL) for step in steps], "sm_90", 45.0, pytest.fail)
    assert cold(steps) == [step.name for step in steps]


def test_of_many_problems_those_kernels_are_compiled_that_differ():
    """In fp8 one for each head_dim and mask. Steps that stand on another and run the same there have none."""
    grid = GRIDS["fp8"].problems
    pairs = [(get_step(name), shape) for shape in grid for name in ("fp8_dequantized", "p_offset")]
    assert differing(pairs, "sm_90") == [(get_step("p_offset"), shape) for shape in grid[:6]]
    assert differing(pairs, "sm_80") == []
    three = [(get_step(name), shape) for shape in grid for name in ("p_offset", "fp8_three_warpgroups")]
    own = [(step.name, shape.head_dim) for step, shape in differing(three, "sm_90")]
    assert own.count(("fp8_three_warpgroups", 64)) == 2 and len(own) == 6 + 2
    both = [
        (get_step("wgmma"), dataclasses.replace(SMALL, dtype=dtype)) for dtype in ("float16", "bfloat16", "float16")
    ]
    assert differing(both, "sm_90") == both[:2]


@pytest.mark.parametrize(
    ("direction", "name", "shape"),
    [
        ("forward", "explicit", SMALL),
        ("backward", "transposed_scores", SMALL),
        ("paged", "paged", problem(heads=2, seq_len_q=1, seq_len_kv=64, page_size=16)),
    ],
)
def test_a_step_is_made_ready_before_it_takes_its_turn(direction, name, shape, monkeypatch):
    """So that others need not wait for a compiler; in the turn it only runs."""
    held, said = [], []

    @contextmanager
    def turn(device):
        held.append(device)
        yield
        held.pop()

    monkeypatch.setattr("steps.measuring.bench.gpu_turn", turn)
    step = dataclasses.replace(get_step(name))  # without launches that were made ready before
    kept = type(step).kept
    monkeypatch.setattr(type(step), "kept", lambda *given: said.append(bool(held)) or kept(*given))
    assert Bench(shape, direction, "cpu", 0, check=True).check(step).correct
    assert said == [False] and not held


@pytest.mark.parametrize("begun", [1, 2])
def test_ctrl_c_ends_the_workers_whether_all_have_begun_or_not(begun, monkeypatch):
    """A worker that is ended fails its call: what it was at was not reached, and is no failure."""
    contenders = [_Contender(get_step(name)) for name in NAMES]
    working, ended = threading.Semaphore(0), threading.Event()

    class Ending:
        kill = staticmethod(ended.set)

    def qualify(worker, contender):
        working.release()
        ended.wait(60)
        contender.fail("the process died")

    started, heard = [], []

    class Interrupted(threading.Thread):
        def start(self):
            if len(started) == begun:
                heard.append("as the second begins")
                raise KeyboardInterrupt
            started.append(self)
            super().start()
            working.acquire(timeout=60)

        def join(self, timeout=None):
            if not heard:
                heard.append("while all work")
                raise KeyboardInterrupt
            super().join(timeout)

    monkeypatch.setattr("steps.measuring.measure.threading.Thread", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        _share_out([Ending(), Ending()], contenders, qualify)
    assert len(started) == begun and not any(thread.is_alive() for thread in started)
    assert {(c.status, c.reason) for c in contenders} == {("skipped", "not reached")}
