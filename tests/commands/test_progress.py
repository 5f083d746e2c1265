"""What is shown while a run measures: an estimate that counts what is done, and nothing where nobody looks on."""

import io

import pytest
from rich.console import Console

from steps.running.progress import Estimate, Listener, progress


class Clock:
    """Seconds that a test lets pass."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_what_is_left_follows_what_was_done():
    clock = Clock()
    estimate = Estimate(clock)
    estimate.total(checks=10, rounds=4, round_seconds=3.0)
    for _ in range(2):
        estimate.checked()
        assert estimate.left() is None  # too few tell a pace
    clock.now += 30
    estimate.checked()
    assert estimate.left() == pytest.approx(7 * 10 + 4 * 3)
    for _ in range(7):
        estimate.checked()
    assert estimate.left() == pytest.approx(4 * 3)
    clock.now += 8  # more than was planned: what counts is the round that was
    estimate.timed()
    assert estimate.left() == pytest.approx(3 * 8)
    for _ in range(3):
        clock.now += 8
        estimate.timed()
    assert estimate.left() == 0


def test_a_person_is_told_what_goes_on_what_is_done_and_how_long_the_rest_takes():
    clock, told = Clock(), []
    listener = Listener(lambda *given: told.append(given), clock)
    listener.total(4, 2, 1.0)
    listener.doing("checking 2 mma")
    assert told[-1] == (0, 6, "checking 2 mma; 0 of 4 checked, 0 of 2 rounds timed")
    for _ in range(3):
        clock.now += 20
        listener.checked()
    assert told[-1] == (3, 6, "checking 2 mma; 3 of 4 checked, 0 of 2 rounds timed, about 20 s left")
    listener.doing("timing, round 1 of 2")
    clock.now += 5
    assert listener.seconds() == "Seconds: starting 0, checking 60, timing 5."


@pytest.mark.parametrize("terminal", [True, False])
def test_only_a_terminal_that_moves_its_cursor_is_shown_a_line_that_changes(terminal, monkeypatch):
    def said(**kind) -> str:
        out = io.StringIO()
        context, listener = progress(Console(file=out, width=80, **kind))
        with context:
            listener.total(4, 0, 0.0)
            listener.doing("checking 2 mma")
            listener.checked()
        return out.getvalue()

    monkeypatch.setenv("TERM", "xterm")
    assert ("checking 2 mma" in said(force_terminal=terminal)) == terminal
    monkeypatch.setenv("TERM", "dumb")
    assert said(force_terminal=terminal) == ""
