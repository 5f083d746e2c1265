"""Steps that fail, each in its own way; in a module so that the worker process can import them."""

import os
import signal
import time

from steps.core.step import TorchStep
from steps.reference.step000_sdpa import sdpa


def raises(q, k, v, causal, scale):
    raise RuntimeError("this step raises\nand says more on a second line")


def wrong(q, k, v, causal, scale):
    return sdpa(q, k, v, causal, scale) + 0.1


def hangs(q, k, v, causal, scale):
    time.sleep(3600)


def dies(q, k, v, causal, scale):
    os.kill(os.getpid(), signal.SIGSEGV)


def hangs_on_gpu(q, k, v, causal, scale):
    import torch

    torch.cuda._sleep(10**13)  # an hour or more of spinning
    return sdpa(q, k, v, causal, scale)


def illegal_address(q, k, v, causal, scale):
    import torch

    q.view(-1)[torch.full((1,), 2**50, device=q.device)] = 1
    return sdpa(q, k, v, causal, scale)


calls = 0


def faults_later(q, k, v, causal, scale):
    """Right when it is checked, and a fault on the GPU once it is timed."""
    global calls
    calls += 1
    return illegal_address(q, k, v, causal, scale) if calls > 20 else sdpa(q, k, v, causal, scale)


def make(function, number=90):
    return TorchStep(name=function.__name__, title=function.__name__, change="", number=number, function=function)


class CompilesBadly(TorchStep):
    """Its function is called in place of a compiler."""

    def compile(self, problem, arch="sm_90"):
        return self.function(None, None, None, None, None)
