"""The simulator of CDNA: what waves know of each other, what the compiler orders, and what it does not."""

import re

import pytest
import torch

from tests.cdna import kernels
from tutorial_lib.compiler import compile_amd
from tutorial_lib.simulator.block import KernelError
from tutorial_lib.simulator.machine import MI300X, MI355X
from tutorial_lib.simulator.run import launch

SHAPE = (64, 64)


def run(kernel, *arguments, warps=8, machine=MI355X, seed=None):
    return launch(kernel, (1,), arguments, warps, machine=machine, seed=seed)


def tiles() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(SHAPE).half(), torch.zeros(SHAPE).half()


@pytest.mark.parametrize("relaxed", [False, True])
def test_a_copy_has_come_when_it_was_waited_for(relaxed):
    source, target = tiles()
    assert not run(kernels.copy, source, target, True, relaxed, False, False).found
    assert torch.equal(source, target)
    told = run(kernels.copy, source, target, False, relaxed, False, False).found.values()
    assert target.isnan().all() and "after: copy into LDS by all waves" in next(iter(told))


@pytest.mark.parametrize(("relaxed", "meets"), [(False, False), (True, False), (True, True)])
def test_nobody_overwrites_what_another_wave_reads(relaxed, meets):
    """The compiler sets a barrier behind a read, and behind a relaxed one, too: here and in the machine code."""
    source, target = tiles()
    assert not run(kernels.copy, source, target, True, relaxed, True, meets).found
    code = compile_amd(kernels.copy, (source, target, True, relaxed, True, meets), 8, "gfx950", 1).assembly
    order = re.findall("s_barrier|ds_read|buffer_load", code)
    last_copy = len(order) - 1 - order[::-1].index("buffer_load")
    assert "s_barrier" in order[order.index("ds_read") : last_copy]


def test_a_block_must_not_end_under_a_copy():
    with pytest.raises(KernelError, match="ends while a copy into its LDS goes on"):
        run(kernels.not_waited_for, tiles()[0])


def test_a_half_that_is_ahead_knows_of_the_other_two_barriers_later():
    source, target = tiles()
    assert not run(kernels.in_stages, source, target, True).found
    assert not run(kernels.in_stages, source, target, False).found
    [told] = run(kernels.read_without_a_stage_between, source, target).found.values()
    assert "after: copy into LDS by other waves" in told
    # A wait between two stages is no barrier more: what it waited for is known to the other half at the next one.
    assert not run(kernels.wait_between_stages, source, target, False).found
    [told] = run(kernels.wait_between_stages, source, target, True).found.values()
    assert "after: copy into LDS by other waves" in told
    # Four waves are one half: a barrier behind the wait is enough, and the compiler sets it.
    assert not run(kernels.read_without_a_stage_between, source, target, warps=4).found


@pytest.mark.parametrize(
    ("kernel", "arguments", "told"),
    [
        (kernels.multiply, (kernels.COPY.value,), r"factor 0 of a product has layout BlockedLayout.*multiply"),
        (kernels.copy_from_anywhere, (), "a copy into LDS takes offsets in a blocked layout, not in AMDMFMALayout"),
        (kernels.too_much, (), "262144 bytes of shared memory, of 163840"),
    ],
)
def test_what_cannot_be_is_refused_with_its_line(kernel, arguments, told):
    with pytest.raises(KernelError, match=told):
        run(kernel, torch.zeros(128, 64).half(), *arguments, warps=4)


def test_lds_is_as_large_as_the_machine_has_it():
    assert (MI355X.shared_bytes, MI300X.shared_bytes) == (160 * 1024, 64 * 1024)
