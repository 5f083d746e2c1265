"""Ampere's operations: copies into shared memory that go on by themselves (cp.async), and ``mma.sync``."""

from __future__ import annotations

from triton.experimental.gluon import language as gl

from tutorial_lib.simulator import state
from tutorial_lib.simulator.block import KernelError, at
from tutorial_lib.simulator.cluster import alone
from tutorial_lib.simulator.memory import Memory
from tutorial_lib.simulator.translate import operation
from tutorial_lib.simulator.values import Pointer, Tensor, plain


@operation(("async_copy", "async_load"), ("async_copy", "async_copy_global_to_shared"))  # before Triton 3.9
def async_copy(smem: Memory, pointer: Pointer, mask=None, **_):
    """Asked for now; it belongs to the group that is committed next, and comes when that has ended."""
    alone("cp.async")
    me = state.role()
    me.point()
    if smem.shape != pointer.shape and mask is None:
        raise KernelError(at(f"{pointer.shape} elements for a place {smem.shape}"))
    pipe = me.copies
    me.uses(writes=(smem.buffer,))
    what = f"copy into LDS by {me}" if me.apart else f"cp.async of {me}"
    me.block.touch(smem, True, pipe.agent, pipe.begun + 1, "generic", what)
    found = pointer.gather(plain(mask), 0)
    smem.poison()
    me.group.append((smem, found))
    me.time += me.block.machine.issue


@operation(("async_copy", "commit_group"))
def commit_group():
    me = state.role()
    group, me.group = me.group, []
    pipe, block = me.copies, me.block
    pipe.begun += 1
    number = sum(found.numel() * found.itemsize for _, found in group)
    begin, end = block.units["tma"].take(me.time, number / block.machine.tma)
    end = pipe.last_end = max(pipe.last_end, end + (block.machine.memory_latency if group else 0))
    block.draw("copies", "load", f"{me} {pipe.begun}", begin, end)

    def finish(time: float) -> None:
        for smem, found in group:
            smem.data.copy_(found.to(smem.data.dtype))
        pipe.ended += 1
        me.wake(time)

    block.later(end, finish)


@operation(("async_copy", "wait_group"))
def wait_group(num_outstanding=0):
    me = state.role()
    me.owes = False  # of CDNA's stages: all meet once for the stage's end and for the wait
    target = me.copies.begun - num_outstanding
    me.wait(lambda: me.copies.ended >= target, "copies", lambda: f"its copies up to group {target}")
    me.learn(me.copies, target)
    me.meet()  # the compiler's barrier: every thread waits for its own copies


@operation("mma_v2")
def mma(a, b, acc, input_precision=None):
    """``mma.sync``: the warps wait for the product."""
    alone("mma.sync")
    me = state.role()
    for number, factor in enumerate((a, b)):
        its = factor.layout
        fits = isinstance(its, gl.DotOperandLayout) and its.parent == acc.layout and its.operand_index == number
        if acc.layout is not None and not fits:
            raise KernelError(at(f"factor {number} of a product has layout {its}"))
    result = product(plain(a), plain(b), plain(acc))
    me.use("tensor cores", operations(a, b) / rate("mma"), "mma")
    return Tensor(result, acc.layout)


def product(a, b, acc):
    """a @ b + acc, in float32: the tensor cores' own rounding is not simulated, but for fp8 by wgmma."""
    import torch

    a, b = a.float(), b.float()
    return a @ b if acc is None else torch.addmm(acc, a, b)


def rate(kind: str) -> float:
    """Operations a clock of this machine's tensor cores, asked by "mma", "wgmma" or "tcgen05"; raises KernelError."""
    machine = state.role().block.machine
    if not (found := getattr(machine, kind)):
        raise KernelError(at(f"{machine.name} has no {kind}, or its rate is not known"))
    return found


def operations(a, b) -> int:
    return 2 * a.shape[0] * a.shape[1] * b.shape[1]
