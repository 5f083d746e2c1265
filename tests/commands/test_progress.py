"""What is shown while a run measures, and nothing where nobody looks on."""

import io

import pytest
from rich.console import Console

from steps.running.progress import Listener, progress


class Clock:
    """Seconds that a test lets pass."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_person_is_told_what_goes_on_and_what_is_done():
    clock, told = Clock(), []
    listener = Listener(lambda *given: told.append(given), clock)
    listener.total(4, 2, 1.0)
    listener.doing("checking 2 mma")
    assert told[-1] == (0, 4, "checking 2 mma; 0 of 4 checked, 0 of 2 rounds timed")
    for _ in range(3):
        clock.now += 20
        listener.checked()
    assert told[-1] == (3, 4, "checking 2 mma; 3 of 4 checked, 0 of 2 rounds timed")
    listener.checked()
    listener.doing("timing, round 1 of 2")
    assert told[-1] == (0, 2, "timing, round 1 of 2; 4 of 4 checked, 0 of 2 rounds timed")
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
