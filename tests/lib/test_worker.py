"""The worker process: Ctrl-C finds it in any state, also while it is being started; what counts as silence."""

import multiprocessing.connection
import multiprocessing.process
import os
import signal
import subprocess
import sys
import tempfile
import threading

import pytest

from tutorial_lib.files import RESULTS
from tutorial_lib.hardware import gpu_turn
from tutorial_lib.worker import Worker, WorkerFailure


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


class Loaded:
    def has(self, module: str) -> bool:
        return module in sys.modules


def test_workers_of_a_command_start_with_its_modules_loaded_and_others_import_them():
    code = """if __name__ == "__main__":
        import sys
        from tests.lib.test_worker import Loaded
        from tutorial_lib import worker
        found = []
        for early in (False, True):
            if early:
                worker.context = worker.start_importing("tutorial_lib.gpu_picture")
            with worker.Worker(Loaded) as busy:
                found.append(busy.call("has", "tutorial_lib.gpu_picture", timeout=300))
        print(found)"""
    path = {"PYTHONPATH": str(RESULTS.parent)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", env=os.environ | path)
    assert (done.stdout, done.stderr) == ("[False, True]\n", "")


class Busy:
    def began(self) -> bool:
        return True

    def take_turn(self) -> str:
        with gpu_turn("cuda"):
            return "had it"

    def take_turn_and_hang(self) -> None:
        with gpu_turn("cuda"):
            self.hang()

    def hang(self) -> None:
        threading.Event().wait()


@pytest.mark.parametrize(("method", "heard"), [("take_turn", "had it"), ("take_turn_and_hang", "hung: no answer")])
def test_to_wait_for_the_gpu_is_no_silence_but_to_hang_then_is(monkeypatch, tmp_path, method, heard):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    patience, waits = [], threading.Event()
    real = multiprocessing.connection.Connection.poll

    def poll(self, timeout):
        patience.append(timeout)
        if timeout is None:
            waits.set()
        return real(self, timeout)

    monkeypatch.setattr(multiprocessing.connection.Connection, "poll", poll)
    with Worker(Busy) as worker:
        assert worker.call("began", timeout=300)
        had = []

        def ask():
            try:
                had.append(worker.call(method, timeout=3))
            except WorkerFailure as failure:
                had.append(str(failure))
                waits.set()

        with gpu_turn("cuda"):
            waiting = threading.Thread(target=ask)
            waiting.start()
            assert waits.wait(300) and not had
        waiting.join()
    assert patience == [300, 3, None, 3]  # as long as it takes only while it waits for the GPU
    assert had[0].startswith(heard)


def test_a_process_that_hangs_prints_where():
    with Worker(Busy) as worker:
        assert worker.call("began", timeout=300)
        with pytest.raises(WorkerFailure, match=r"hung: no answer within 0\.5 s"):
            worker.call("hang", timeout=0.5)
        assert "in hang\n" in worker.output()
