"""Cycles and nanoseconds from counters become a clock, or are told to be none."""

import pytest

from tutorial_lib.clock import Clock, ClockError, clock_between, reading


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
