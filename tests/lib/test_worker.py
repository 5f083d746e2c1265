"""The worker process: Ctrl-C finds it in any state, also while it is being started."""

import multiprocessing.process
import os
import signal

import pytest

from tutorial_lib.worker import Worker


def test_ctrl_c_while_the_process_is_being_started(monkeypatch):
    """It is heard as Ctrl-C, and not as an error about a process that is not there yet."""
    real = multiprocessing.process.BaseProcess.start

    def interrupted(self):
        os.kill(os.getpid(), signal.SIGINT)
        real(self)

    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", interrupted)
    # A shell has its background jobs ignore Ctrl-C, and Python then sets no handler of its own.
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), Worker(dict) as worker:
            worker.call("keys", timeout=300)
    finally:
        signal.signal(signal.SIGINT, inherited)


def test_a_process_that_still_imports_modules_hears_nothing_of_ctrl_c(monkeypatch):
    """A terminal interrupts it, too, in its first moment; whoever started it goes on, and so does it."""
    real = multiprocessing.process.BaseProcess.start

    def interrupted(self):
        real(self)
        os.kill(self.pid, signal.SIGINT)

    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", interrupted)
    with Worker(list) as worker:
        assert worker.call("copy", timeout=300) == []
        assert worker.output() == ""
