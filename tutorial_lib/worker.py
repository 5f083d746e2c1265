"""A process of its own for work that may crash, hang or poison the GPU, without harm to whoever asked for it."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker

from tutorial_lib.hardware import WAITS

WHERE = signal.SIGUSR1  # the process prints what its threads are doing


@contextmanager
def deaf_to_ctrl_c() -> Iterator[None]:
    """Processes that are started inside are never told of Ctrl-C, not even while they still import modules.

    It reaches the whole terminal; whoever started them decides what it means, and hears of it when they are started:
    half a start would end in an error over there.
    """
    resource_tracker.ensure_running()  # starting this, the first process would lift the block
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # a child inherits it
    heard = []
    main = threading.current_thread() is threading.main_thread()  # only it may say what a signal does
    handler = signal.signal(signal.SIGINT, lambda *_: heard.append(True)) if main else None  # another thread may hear
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if main:
            signal.signal(signal.SIGINT, handler)
    if heard:
        signal.raise_signal(signal.SIGINT)


context = multiprocessing.get_context("spawn")  # what starts workers, and whoever works for them; a command sets it


def start_importing(*modules: str):
    """Import these at once in a process of its own; returns a context whose processes are forked off it: they start
    with all of it there.

    For a command, which sees to it first thing and imports the same meanwhile. A notebook's workers must see a module
    as it was edited last, and import it themselves. None of the modules may touch the GPU: CUDA survives no fork.
    """
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(list(modules))
    with deaf_to_ctrl_c():
        forkserver.ensure_running()
    return made


class WorkerFailure(RuntimeError):
    """A call failed; the message is one line. The worker may be gone: the next call starts a fresh one."""


class Ended(RuntimeError):
    """No further call makes sense: a measurement that meets this ends. The message is one line."""


class Worker:
    """Calls methods of ``factory(*args)``, an object that lives in another process.

    factory and everything passed must be picklable. What the process prints goes to a file; ``output()`` returns it.
    An exception in a call, the death of the process, and silence past the timeout raise WorkerFailure. To wait for the
    GPU while others have it (``hardware.gpu_turn``) is no silence. A process that hangs prints where, if it can, and is
    killed. One whose GPU no longer answers ends itself. ``on_start`` is called with the worker when a fresh process has
    started, to bring it where the last one was.
    """

    def __init__(self, factory: Callable, *args, on_start: Callable[[Worker], None] | None = None):
        self._factory, self._args, self._on_start = factory, args, on_start
        self._process = self._connection = None
        self._output = tempfile.NamedTemporaryFile(  # noqa: SIM115  closed in __exit__
            "w+", encoding="utf-8", errors="replace", suffix=".log", prefix="worker-"
        )

    def call(self, method: str, *args, timeout: float):
        """``method(*args)`` of the object over there, within ``timeout`` seconds."""
        if self._process is None:
            self._start()
            if self._on_start is not None:
                self._on_start(self)
        process, connection = self._process, self._connection  # another thread may end it meanwhile
        if process is None:
            raise WorkerFailure("ended before its turn")
        try:
            connection.send((method, args))
            kind, waits = "waits", False
            while kind == "waits":
                if not connection.poll(None if waits else timeout):
                    self._ask_where(process)
                    self.stop()
                    raise WorkerFailure(f"hung: no answer within {timeout:g} s (see --timeout)")
                kind, answer = connection.recv()
                waits = answer if kind == "waits" else False
        except (EOFError, OSError):
            raise WorkerFailure(self._describe_death(process)) from None
        if kind == "result":
            return answer
        if kind == "fatal":  # the process ends itself after this answer
            self.stop()
        raise WorkerFailure(answer)

    def _ask_where(self, process) -> None:
        """Let a process that does not answer print what its threads are doing, if it does so within a second."""
        os.kill(process.pid, WHERE)
        deadline, seen, printed = time.monotonic() + 1, len(self.output()), False
        while time.monotonic() < deadline:
            time.sleep(0.05)
            if len(self.output()) > seen:
                seen, printed = len(self.output()), True
            elif printed:  # all of it
                return

    def stop(self) -> None:
        """End the process, whatever it is doing."""
        process, connection, self._process, self._connection = self._process, self._connection, None, None
        if process is not None:
            if process.pid is not None:  # Ctrl-C may come before it has been started
                process.kill()
                process.join()
            connection.close()

    def kill(self) -> None:
        """End the process from another thread than the one that calls it, which then hears of its death."""
        process = self._process
        if process is not None and process.pid is not None:
            process.kill()

    def output(self) -> str:
        """What the process has printed so far."""
        self._output.seek(0)
        return self._output.read()

    def close(self) -> None:
        """Let the process end by itself, so that what it started ends too; kill it when it does not."""
        if self._process is not None:
            self._connection.close()
            self._process.join(timeout=10)
            self.stop()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind, *exception) -> None:
        self.stop() if kind else self.close()
        self._output.close()

    def _start(self) -> None:
        self._connection, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(theirs, self._output.name, self._factory, self._args), daemon=True
        )
        with deaf_to_ctrl_c():
            self._process.start()
        theirs.close()

    def _describe_death(self, process) -> str:
        process.join(timeout=10)
        code = process.exitcode
        self.stop()
        how = f"exit status {code}" if code is None or code >= 0 else signal.Signals(-code).name
        last_words = [line for line in self.output().splitlines() if line.strip()][-1:]
        return f"the process died ({how})" + "".join(f": {line.strip()}" for line in last_words)


class Inline:
    """A Worker without a process of its own: for what cannot be sent to one. What hangs or crashes does so here.

    ``Ended`` comes through as it is.
    """

    def __init__(self, factory: Callable, *args, on_start: Callable[[Inline], None] | None = None):
        self._make, self._served = lambda: factory(*args), None

    def call(self, method: str, *args, timeout: float):
        """``method(*args)`` of the object; nobody watches the timeout."""
        try:
            if self._served is None:
                self._served = self._make()
            return getattr(self._served, method)(*args)
        except Ended:
            raise
        except Exception as error:
            raise WorkerFailure(one_line(error)) from error

    def close(self) -> None:
        self._served = None

    stop = close

    def output(self) -> str:
        return ""

    def __enter__(self) -> Inline:
        return self

    def __exit__(self, *exception) -> None:
        self.close()


def one_line(error: BaseException) -> str:
    """An exception's type and the first line of its message."""
    message = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _serve(connection, output: str, factory: Callable, args: tuple) -> None:
    log = os.open(output, os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    # As the log is read, whatever the locale; and there may be neither, where the first process has none.
    sys.stdout = sys.stderr = open(log, "a", buffering=1, encoding="utf-8", errors="backslashreplace")  # noqa: SIM115
    faulthandler.register(WHERE)
    WAITS.append(lambda waits: connection.send(("waits", waits)))
    served = None
    while True:
        try:
            method, arguments = connection.recv()
        except EOFError:
            return
        try:
            if served is None:
                served = factory(*args)
            answer = "result", getattr(served, method)(*arguments)
        except Exception as error:
            print(time.strftime("%H:%M:%S"), f"in {method}:", traceback.format_exc(), flush=True)
            answer = ("error" if _gpu_answers() else "fatal"), one_line(error)
        connection.send(answer)
        if answer[0] == "fatal":
            return


def _gpu_answers() -> bool:
    """Whether the GPU can still be used from this process: after an illegal address, for one, it cannot."""
    import torch

    if not torch.cuda.is_initialized():
        return True
    try:
        torch.cuda.synchronize()
        return True
    except RuntimeError:
        return False
