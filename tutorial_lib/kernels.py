"""Notebook kernels that are forked off a process in which all that chapters import is loaded already.

To import PyTorch and the steps takes seconds, and there are many chapters.
"""

from __future__ import annotations

import os
import signal
from importlib.metadata import EntryPoint

from jupyter_client.manager import AsyncKernelManager
from jupyter_client.provisioning import KernelProvisionerFactory, LocalProvisioner

from tutorial_lib.worker import start_importing

LOADED = ("torch", "ipykernel.kernelapp", "steps.lesson")
FORKED = EntryPoint("forked", f"{__name__}:Forked", KernelProvisionerFactory.GROUP_NAME)  # how Jupyter finds it


class ForkingManager(AsyncKernelManager):
    """Jupyter's manager of kernels, whose kernels are forked. None may have to see a module edited since the first."""

    @property
    def kernel_spec(self):
        spec = super().kernel_spec
        spec.metadata["kernel_provisioner"] = {"provisioner_name": FORKED.name}
        KernelProvisionerFactory.instance().provisioners[FORKED.name] = FORKED
        return spec


class Forked(LocalProvisioner):
    """Starts a kernel by a fork, and otherwise does what Jupyter does with a process of its own."""

    async def launch_kernel(self, cmd: list[str], **kwargs) -> dict:
        arguments = cmd[cmd.index("ipykernel_launcher") + 1 :]
        self.process = _Process(
            start_importing(*LOADED).Process(target=_serve, args=(arguments, kwargs["cwd"], kwargs["env"]))
        )
        self.pid = self.pgid = self.process.pid
        return self.connection_info


class _Process:
    """A process of ``multiprocessing``, with the names that ``subprocess`` has for what can be done with it."""

    stdin = stdout = stderr = None

    def __init__(self, process):
        process.start()
        self._process, self.pid = process, process.pid
        self.kill, self.terminate = process.kill, process.terminate

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self) -> int:
        self._process.join()
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)


def _serve(arguments: list[str], folder: str, environment: dict[str, str]) -> None:
    """Be a kernel, in a group of its own: a terminal's Ctrl-C is not for it, and whoever ends it ends what it began."""
    from ipykernel.kernelapp import IPKernelApp

    os.setsid()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    os.environ.update(environment)
    os.chdir(folder)
    IPKernelApp.launch_instance(argv=arguments, parent_handle=os.getppid())
