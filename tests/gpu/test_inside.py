"""What only a GPU can show of the stamps, of the rates of its units, and of how much power a load takes."""

import statistics

import pytest

from steps import get_step, trace
from steps.trials import get_trial
from tests.checking import assert_right, skip_unless_taken
from tests.shapes import SHAPES, problem
from tutorial_lib import rates, timing
from tutorial_lib.architectures import ARCHITECTURES
from tutorial_lib.clock import Stopwatch

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    "name",
    ["gluon_larger_tile", "wgmma", "producer", "ping_pong", "epilogue_overlap", "pv_wait_after_max", "kv_multicast"],
)
def test_stamps_tell_of_every_role_and_change_no_result(name):
    shape = problem(batch=2, heads=8, seq_len_q=1000, seq_len_kv=1000, head_dim=128)
    found = trace.measure(get_step(name), shape)  # raises where the outputs differ
    assert found.blocks > 0 and found.clocks > 1000 and found.slowed.median > 0.9
    for role, its in found.shares.items():
        assert sum(its.values()) == pytest.approx(1), role


@pytest.mark.parametrize("rate", [r for r in rates.RATES if r.name in ("mma_sync", "wgmma_ss_n128", "ex2")], ids=str)
def test_a_unit_reaches_its_rate_and_not_more(rate):
    paper = {"mma_sync": "mma_sync_flops", "wgmma_ss_n128": "tensor_flops", "ex2": "mufu"}[rate.name]
    call, stopwatch = rates.call_of(rate), Stopwatch()
    plan = timing.plan_sample(call)
    samples = [timing.take_sample(call, plan, stopwatch) for _ in range(5)]
    reached = statistics.median(rate.operations_of_an_sm / (1e6 * s.milliseconds * s.clock.ghz) for s in samples)
    assert 0.95 < reached / getattr(ARCHITECTURES["sm_90"], paper) < 1.01


def test_a_load_that_goes_on_has_a_power_between_nothing_and_the_limit():
    import torch

    from tutorial_lib.hardware import describe_machine

    call = timing.ceiling_call("float16")
    sample = timing.take_sustained_sample(call, timing.plan_sample(call).milliseconds, Stopwatch())
    torch.cuda.synchronize()
    watts = 1000 * sample.joules / sample.milliseconds
    assert 100 < watts < 1.05 * describe_machine("cuda")["power_limit_w"]


@pytest.mark.parametrize("shape", [s for s in SHAPES if s.head_dim <= 128], ids=lambda p: p.slug)
@pytest.mark.parametrize("name", ["keys_first", "held_query"])
def test_a_trial_on_a_hopper_kernel_is_correct(name, shape):
    skip_unless_taken(get_step(get_trial(name).base), shape)
    assert_right(get_trial(name).steps(shape)[-1], shape, "cuda")
