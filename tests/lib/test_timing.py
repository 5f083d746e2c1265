"""The statistics behind every timing, on numbers worked out by hand."""

import subprocess
import sys
import tempfile

import pytest
import torch

from tutorial_lib import hardware, timing
from tutorial_lib.clock import Clock, ClockError, clock_between, reading
from tutorial_lib.hardware import gpu_turn
from tutorial_lib.passes import FORWARD
from tutorial_lib.problem import Problem
from tutorial_lib.results import Latency
from tutorial_lib.samples import cycles_of, ghz_of, median_of, sustained_of
from tutorial_lib.timing import Plan, Spread, speedup, spread, verdict


def test_spread_is_median_and_outer_deciles():
    assert spread(range(11)) == Spread(5, 1, 9)
    assert spread([3.0]) == Spread(3, 3, 3)
    assert spread([4, 1]) == Spread(2.5, pytest.approx(1.3), pytest.approx(3.7))


def test_speedup_is_taken_inside_rounds():
    """A clock that changes between rounds leaves the ratio alone, however much it moves the latencies."""
    before, now = [2.0, 20.0, 200.0], [1.0, 10.0, 100.0]
    assert speedup(before, now) == Spread(2, 2, 2)
    with pytest.raises(ValueError):
        speedup([1.0], [1.0, 2.0])


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [
        (Spread(1.1, 1.05, 1.2), "faster"),
        (Spread(0.9, 0.8, 0.95), "slower"),
        (Spread(1.1, 0.99, 1.2), "same"),
        (Spread(0.9, 0.8, 1.0), "same"),
        (Spread(1.009, 1.001, 1.02), "same"),  # less than the noise between identical kernels
        (Spread(0.991, 0.98, 0.999), "same"),
    ],
)
def test_verdict(ratio, expected):
    assert verdict(ratio) == expected


def test_operations_and_bytes_of_a_problem():
    full = Problem(batch=4, heads=32, seq_len_q=1024, seq_len_kv=1024, head_dim=128)
    assert FORWARD.operations(full) == 4 * 4 * 32 * 1024 * 1024 * 128
    assert FORWARD.least_bytes(full) == 4 * (4 * 32 * 1024 * 128) * 2
    causal = Problem(batch=4, heads=32, seq_len_q=1024, seq_len_kv=1024, head_dim=128, causal=True)
    assert FORWARD.operations(causal) == FORWARD.operations(full) / 2
    wide = Problem(batch=1, heads=1, seq_len_q=2, seq_len_kv=100, head_dim=32, causal=True)
    assert wide.visible_pairs == 2  # of a 2 x 2 square, half; the other 98 keys are never seen
    assert FORWARD.least_bytes(wide) == (2 + 2 + 2 + 2) * 32 * 2
    tall = Problem(batch=1, heads=1, seq_len_q=100, seq_len_kv=2, head_dim=32, causal=True)
    assert tall.visible_pairs == 2 + 98 * 2
    grouped = Problem(batch=1, heads=8, kv_heads=2, seq_len_q=64, seq_len_kv=64, head_dim=64)
    assert FORWARD.least_bytes(grouped) == (2 * 8 + 2 * 2) * 64 * 64 * 2


def test_who_measures_at_the_same_time_waits(tmp_path, monkeypatch):
    """A second process asks for the GPU while this one has it, waits, and gets it when this one lets go."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    waits = "from tutorial_lib.hardware import WAITS, gpu_turn\n"
    waits += "WAITS.append(lambda waits: print('waits' if waits else 'waited', flush=True))\n"
    waits += "with gpu_turn('cuda'): print('mine', flush=True)"
    with gpu_turn("cuda"):
        other = subprocess.Popen([sys.executable, "-c", waits], stdout=subprocess.PIPE, encoding="utf-8")
        assert other.stdout.readline() == "waits\n"
    assert other.communicate()[0] == "waited\nmine\n"


class Event:
    """A CUDA event that comes after so many looks at it."""

    def __init__(self, looks: int):
        self.looks = looks

    def query(self) -> bool:
        self.looks -= 1
        return self.looks < 0


def test_power_is_taken_between_moves_of_the_energy_counter(monkeypatch):
    """The counter moves every 100 ms by 70 J, and is looked at every 10 ms; where the load begins does not matter."""
    now = [0.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(timing.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + 0.01))
    meter = timing.EnergyMeter(read=lambda: 70.0 * int(now[0] / 0.1 + 1e-9))
    assert meter.watts is None
    now[0] = 0.055
    meter.watch_until(Event(100))
    assert [energy for _, energy in meter.readings] == [70.0 * n for n in range(1, 11)]
    assert meter.watts == pytest.approx(700)
    short = timing.EnergyMeter(read=lambda: 1.0)
    short.watch_until(Event(5))
    assert short.watts is None
    none = timing.EnergyMeter(read=lambda: None)
    none.watch_until(Event(5))
    assert none.watts is None


class FakeGpu:
    """Runs what is queued in order, on a clock that the host's work moves; stands for torch.cuda. Times in ms."""

    def __init__(self):
        self.host = self.free = 0.0

    def queue(self, takes):
        self.free = max(self.free, self.host) + takes

    def synchronize(self):
        self.host = max(self.host, self.free)

    def _sleep(self, cycles):
        self.queue(cycles / 2e6)

    def Event(self, enable_timing):
        gpu = self

        class Event:
            def record(self):
                self.at = max(gpu.free, gpu.host)

            def query(self):
                return gpu.host >= self.at

            def synchronize(self):
                gpu.host = max(gpu.host, self.at)

            def elapsed_time(self, end):
                return end.at - self.at

        return Event()


@pytest.mark.parametrize(
    ("held_up_ms", "launch_ms", "spin_ms", "expected"),
    [
        (0, 0.05, 31, 0.1),
        (300, 0.05, 31, 0.1),  # held up once, for longer than spin and queue last: the next sample is good
        (0, 0.2, 30, 0.1),  # the spin is too short for this host, and four times as long it is not
        (0, 0.2, 1, 0.19),  # nor is this one ever long enough: what was measured stands
    ],
)
def test_a_sample_in_which_the_gpu_waited_for_the_host_is_taken_again(
    held_up_ms, launch_ms, spin_ms, expected, monkeypatch
):
    """400 launches of 0.1 ms, each queued by the host in launch_ms."""
    import torch

    gpu, stalls = FakeGpu(), [held_up_ms]

    def call(i):
        gpu.host += launch_ms + (stalls.pop() if i == 200 and stalls else 0)
        gpu.queue(0.1)

    def sleep(seconds):
        gpu.host += 1000 * seconds

    monkeypatch.setattr(timing, "gpu_state", lambda: None)
    monkeypatch.setattr(timing.time, "sleep", sleep)
    for name in ("synchronize", "_sleep", "Event"):
        monkeypatch.setattr(torch.cuda, name, getattr(gpu, name))
    sample = timing.take_sample(call, Plan(launches=400, spin_ms=spin_ms))
    assert sample.milliseconds == pytest.approx(expected, rel=0.02)


def test_a_shorter_sample_comes_after_a_shorter_rest(monkeypatch):
    """The GPU works for the same share of the time; a call that takes longer than a sample has a longer rest."""

    def plan(gpu_ms, host_ms, *asked):
        monkeypatch.setattr(timing, "_mean_ms", lambda call, calls: (gpu_ms, host_ms))
        return timing.plan_sample(lambda i: None, *asked)

    monkeypatch.setattr("torch.cuda.synchronize", lambda: None)
    assert plan(1.0, 0.1) == Plan(40, 0.3 + 1.5 * 40 * 0.1, 1.0, timing.REST_MS)
    assert plan(1.0, 0.1, 1000, 10.0) == Plan(10, 0.3 + 1.5, 1.0, timing.REST_MS / 4)
    assert plan(0.01, 0.1, 1000, 10.0, 20.0) == Plan(200, 0.3 + 1.5 * 200 * 0.1, 0.01, timing.REST_MS / 4)
    assert plan(0.01, 0.1, 150, 10.0, 20.0).launches == 150
    assert plan(20.0, 30.0, 1000, 10.0, 20.0) == Plan(1, 0.3 + 1.5 * 30.0, 20.0, timing.REST_MS / 2)
    assert plan(100.0, 0.1, 1000, 10.0).rest_ms == plan(100.0, 0.1).rest_ms == timing.REST_MS


def counters(ghz: dict[int, float], nanoseconds: int = 40_000_000, start: int = 10**12) -> tuple[dict, dict]:
    """What is read before and after, of SMs that run at so many GHz."""
    before = {sm: (start + 1000 * sm, 5 * start) for sm in ghz}
    return before, {sm: (c + round(ghz[sm] * nanoseconds), t + nanoseconds) for sm, (c, t) in before.items()}


def test_the_clock_is_cycles_over_nanoseconds():
    assert clock_between(*counters({0: 1.6, 1: 1.5, 2: 1.7}), 3) == Clock(1.6, 1.5, 1.7)


def test_of_several_blocks_on_an_sm_the_last_counts():
    assert reading([(0, 100, 50), (1, 7, 3), (0, 160, 90), (0, 130, 70)]) == {0: (160, 90), 1: (7, 3)}


def test_a_counter_that_wrapped_is_no_clock():
    before, after = counters({0: 1.6, 1: 1.6})
    after[1] = (12345, after[1][1])
    with pytest.raises(ClockError, match=r"SM 1 counted -\d+ cycles in 40000000 ns: its counters wrapped"):
        clock_between(before, after, 2)
    before, after = counters({0: 1.6, 1: 1.6})
    after[0] = (after[0][0], before[0][1])
    with pytest.raises(ClockError, match="SM 0 counted 64000000 cycles in 0 ns"):
        clock_between(before, after, 2)


def test_an_sm_that_is_missing_is_no_clock():
    before, after = counters({0: 1.6, 1: 1.6, 2: 1.6})
    del after[1]
    with pytest.raises(ClockError, match="2 of 3 SMs were read after the sample"):
        clock_between(before, after, 3)
    with pytest.raises(ClockError, match="3 of 132 SMs were read before the sample"):
        clock_between(before, after, 132)
    before[7] = before.pop(1)
    after[1] = before[0]
    with pytest.raises(ClockError, match="SM 1 was read only once"):
        clock_between(before, after, 3)


def sample(milliseconds: float, ghz: float | None = None, joules: float | None = None) -> dict:
    return {"milliseconds": milliseconds, "clock": ghz and {"ghz": ghz}, "joules": joules}


def test_cycles_are_taken_inside_each_sample():
    """A clock that falls while the time grows: the cycles are the same in every round."""
    samples = [sample(1.0, 2.0), sample(2.0, 1.0), sample(1.25, 1.6)]
    assert cycles_of(samples) == 2e6 and ghz_of(samples) == 1.6


def test_what_was_not_read_is_not_counted():
    assert cycles_of([sample(1.0)]) is None and ghz_of([sample(1.0)]) is None and median_of([]) is None
    assert cycles_of([sample(1.0), sample(2.0, 1.5)]) == 3e6
    found = sustained_of([sample(2.0)], 1e12)
    assert (found.clock_ghz, found.cycles, found.joules, found.watts) == (None, None, None, None)


def test_a_load_that_goes_on():
    found = sustained_of([sample(2.0, 1.5, 1.4), sample(2.0, 1.4, 1.2), sample(2.2, 1.3, 1.6)], 1e12)
    assert (found.latency_ms.median, found.latency_ms.rounds) == (2.0, 3)
    assert found.tflops == 500 and found.clock_ghz == 1.4 and found.joules == 1.4
    assert found.watts == pytest.approx(700)
    assert Latency.of([1.0, 3.0]).low == pytest.approx(1.2)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no"), torch.AcceleratorError("CUDA error: out of memory\n")])
def test_on_a_gpu_that_others_have_filled_no_memory_is_free(monkeypatch, error):
    def fails():
        raise error

    monkeypatch.setattr("torch.cuda.mem_get_info", fails)
    assert hardware.available_bytes("cuda") == 0


def test_another_error_of_the_gpu_is_not_taken_for_a_lack_of_memory(monkeypatch):
    def fails():
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr("torch.cuda.mem_get_info", fails)
    with pytest.raises(torch.AcceleratorError, match="illegal"):
        hardware.available_bytes("cuda")
