"""A call's way to its kernel: what a launch needs is made ready once for every kind of call, and then only passed on.

Checked arguments, tile sizes, lists of tiles and the compiled kernel depend on shapes, strides, dtypes and the device,
and on nothing that the tensors hold. ``kind_of`` names all of it, so that a call of another kind is made ready anew and
never gets what was made for this one.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from steps.core.driver import ALIGNED
from tutorial_lib import compiler

if TYPE_CHECKING:
    import torch

    from tutorial_lib.problem import Problem

Launch = Callable[..., "torch.Tensor"]  # (q, k, v, out) -> o, for calls of one kind
LAST = ("LSE", "begins_q", "begins_k", "sequences", "Sinks")  # parameters of a kernel, behind its constants
KEPT = 256  # kinds of calls that a step remembers; a program with more lengths than that begins anew

MAKING_READY = threading.RLock()  # one at a time: compilers and their caches are not made for several threads


def kind_of(q, k, v, causal: bool, scale: float | None, out) -> tuple:
    """All that a launch may depend on but the tensors' contents and addresses; of those, how they are aligned.

    A kind that was kept is one of ``plain`` tensors (``steps.core.tensors``), and those that are not are of others.
    Raises AttributeError, TypeError or RuntimeError for what is not a tensor with memory of its own.
    """
    return (
        type(q),
        q.shape,
        q.stride(),
        q.dtype,
        q.device,
        (q.data_ptr() or 1) % ALIGNED,
        q.is_neg(),
        type(k),
        k.shape,
        k.stride(),
        k.dtype,
        k.device,
        (k.data_ptr() or 1) % ALIGNED,
        k.is_neg(),
        type(v),
        v.shape,
        v.stride(),
        v.dtype,
        v.device,
        (v.data_ptr() or 1) % ALIGNED,
        v.is_neg(),
        causal,
        scale,
        None
        if out is None
        else (type(out), out.shape, out.stride(), out.dtype, out.device, out.data_ptr() % ALIGNED, out.is_neg()),
    )


class Launches:
    """Launches by kind of call, as many as ``KEPT``. Several threads may ask at once.

    find: ``find(kind)`` is the launch for calls of this kind, or None. last: a caller may note here what it found last.
    """

    def __init__(self):
        self.last = None
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._by_kind: dict[tuple, Launch] = {}
        self.find: Callable[[tuple | None], Launch | None] = self._by_kind.get  # a method would be a call more

    def __len__(self) -> int:
        return len(self._by_kind)

    def keep(self, kind: tuple, launch: Launch) -> None:
        if len(self._by_kind) >= KEPT:
            self._begin_anew()
        self._by_kind[kind] = launch


PROFILE = "FMHA_PROFILE"  # "1" in the environment when a kind of call is made ready: its launches tell what they are


@contextmanager
def untold(step) -> Iterator[None]:
    """Inside, launches of a step (or None) are made ready anew, and then and later print nothing."""
    told = os.environ.pop(PROFILE, None)
    if told is not None and step is not None:
        vars(step).pop("launches", None)
    try:
        yield
    finally:
        if told is not None:
            os.environ[PROFILE] = told


def told(launch: Launch, problem: Problem, target: str, choices: Sequence[str]) -> Launch:
    """The launch; where ``FMHA_PROFILE`` is 1 it prints a line for each of its kernels to standard error before.

    choices: the launch rules that its kernels follow, or what stands in their place.
    """
    if os.environ.get(PROFILE) != "1":
        return launch
    arch = f"SM{target[3:-1]}.{target[-1]}" if target.startswith("sm_") else target.upper()
    what = f"HeadDim={problem.head_dim}, Arch={arch}, SeqQ={problem.seq_len_q}"
    lines = "".join(f"{PROFILE}: {what}, Choice={choice}\n" for choice in choices)

    def telling(*tensors):
        sys.stderr.write(lines)
        return launch(*tensors)

    return telling


CAPTURED: set[Launch] = set()  # in CUDA graphs, which may be replayed at any time: what they read stays, for good


def on_its_device(launch: Launch, device: torch.device) -> Launch:
    """The launch with the tensors' device as the current one, as kernels go to the current device's stream.

    Autocast does not reach inside: a kernel's arithmetic, in the simulator as well, is its own.
    """
    import torch

    autocast = torch._C._is_any_autocast_enabled
    if device.type == "cpu":

        def here(*tensors):
            if torch.get_default_device() != device:  # where the interpreter would have its tensors
                with torch.device(device):
                    return here(*tensors)
            if autocast():
                with torch.autocast("cpu", enabled=False):
                    return here(*tensors)
            return launch(*tensors)

        return here
    alone, current, capturing = (
        torch.cuda.device_count() == 1,
        torch.cuda.current_device,
        torch.cuda.is_current_stream_capturing,
    )

    def there(*tensors):
        if capturing():
            CAPTURED.add(launch)
        if autocast() and torch.is_autocast_enabled("cuda"):
            with torch.autocast("cuda", enabled=False):
                return there(*tensors)
        if alone or current() == device.index:
            return launch(*tensors)
        with torch.cuda.device(device):
            return launch(*tensors)

    return there


def empty_lse(q):
    """A place for the log-sum-exp of every query, float32 [batch, heads, query]."""
    import torch

    return torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device)


def each_stream(make: Callable[[], torch.Tensor], device: torch.device) -> Callable[[], torch.Tensor]:
    """``get()`` gives what ``make()`` made for this stream: counts that a kernel leaves as it found them when it ends.

    In a stream (on the CPU, in a thread) one kernel ends before the next begins, so that both may have the same. A CUDA
    graph may be replayed beside anything: it has its own, and makes them anew at every replay. A stream is known by its
    handle: whoever makes streams outside of PyTorch must not destroy one whose kernels still run.
    """
    import torch

    kept: dict[int, torch.Tensor] = {}
    on_gpu, stream_of, capturing = device.type == "cuda", threading.get_ident, torch.cuda.is_current_stream_capturing
    if on_gpu:
        stream_of = partial(torch._C._cuda_getCurrentRawStream, device.index)

    def get() -> torch.Tensor:
        if on_gpu and capturing():
            return make()
        stream = stream_of()
        if stream not in kept:
            kept[stream] = make()
        return kept[stream]

    return get


def gluon_launcher(
    kernel,
    blocks: tuple[int, int, int],
    arguments: tuple,
    warps: int,
    device: torch.device,
    moving: Sequence[int] = (0, 1, 2, 3),
    simulated: str = "sm_90",
    ctas: int = 1,
    neighbours: int = 1,
    rewrite: bool = False,
    early: bool = False,
    overtaken: bool = False,
    registers: int | None = None,
) -> Callable[..., None]:
    """``run(q, k, v, o)`` launches a Gluon kernel as compiled for these arguments; on the CPU, the simulator.

    arguments: all that the kernel takes; those at the positions ``moving`` hold tensors of the kind that ``run`` will
    get, or describe them for TMA. simulated: the architecture that the simulator has the clocks of. ctas: blocks of a
    cluster; ``blocks`` counts clusters. neighbours: blocks of a cluster of which Triton does not know
    (``tutorial_lib.multicast``); ``blocks`` counts blocks, and Triton cannot launch it. rewrite: the kernel's PTX asks
    to be rewritten (``tutorial_lib.rewriting``). early: it may begin when the kernel launched before it lets it, and
    waits for that where it has to. overtaken: the next one is such a kernel. registers: of a thread, at most, as
    several blocks shall share an SM. The simulator raises KernelError also for
    a race, which a GPU might not show.
    """
    if device.type == "cpu":
        from tutorial_lib.simulator.machine import MACHINES
        from tutorial_lib.simulator.run import simulate

        how = {"machine": MACHINES[simulated], "ctas": ctas, "neighbours": neighbours}
        how |= {"early": early, "overtaken": overtaken}
        run = partial(simulate, kernel, blocks, warps, **how)
    else:
        import torch

        from steps.core import driver

        with torch.cuda.device(device):
            compiled = _compiled(kernel, arguments, warps, device, ctas, rewrite, registers)
            run = compiled[blocks]  # loads the code, too
        try:
            launched = driver.Kernel(compiled, blocks, arguments, moving, neighbours, early)
            one = driver.launcher([(launched, range(len(moving)))], device)
            one.kernel = launched
            return one
        except (driver.OtherParameters, AttributeError, LookupError, ValueError):  # another Triton: then it launches
            if neighbours > 1:
                raise
    described = [descriptions(arguments[n]) for n in moving]
    kept = [None if n in moving else x for n, x in enumerate(arguments)]

    def described_anew(*tensors):
        passed = list(kept)
        for n, describe, x in zip(moving, described, tensors, strict=True):
            passed[n] = describe(x)
        run(*passed)

    return described_anew


_loaded: dict[tuple, object] = {}  # what Triton compiled, for launches of other kinds: its code is loaded once


def _compiled(kernel, arguments: tuple, warps: int, device: torch.device, ctas: int, rewrite: bool, registers):
    """A Triton kernel as ``compiler.compile_gluon`` compiles it, for the device: found where that was asked before."""
    from tutorial_lib.hardware import architecture_of

    arch = architecture_of(device)
    source, how = compiler.triton_source(kernel, arguments, warps, arch, ctas, registers)
    key = device, source.hash(), str(how), rewrite
    if key not in _loaded:
        _loaded[key] = compiler.by_triton(source, how, arch, rewrite)
    return _loaded[key]


def in_a_row(
    launches: Sequence[tuple[Callable[..., None], Sequence[int]]], scratch: Callable[[], tuple], device: torch.device
) -> Callable[..., None]:
    """``run(*tensors)`` launches kernels one after the other, which needs less of the host than one by one.

    launches: what ``gluon_launcher`` made, each with the positions of its tensors: among those of ``run``, and behind
    them among those that ``scratch()`` makes, which a call has for itself.
    """
    kernels = [getattr(run, "kernel", None) for run, _ in launches]
    if all(kernels):
        from steps.core import driver

        which = [positions for _, positions in launches]
        return driver.launcher(list(zip(kernels, which)), device, driver.Memory(scratch(), device))

    def one_by_one(*tensors):
        tensors = *tensors, *scratch()
        for run, which in launches:
            run(*[tensors[n] for n in which])

    return one_by_one


def descriptions(like) -> Callable:
    """A function that describes a tensor for TMA as another of its kind was described, without checking it again.

    Where ``like`` is a tensor itself, nothing is to be described.
    """
    if not hasattr(like, "base"):
        return lambda x: x
    kind, known = type(like), {**vars(like), "base": None}

    def describe(x):
        description = kind.__new__(kind)
        description.__dict__ = {**known, "base": x}
        return description

    return describe
