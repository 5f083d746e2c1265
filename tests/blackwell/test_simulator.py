"""The simulator's Blackwell: what tensor memory and tcgen05 compute, and what is told of a kernel out of order."""

import re

import pytest
import torch
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from tests.blackwell import kernels
from tutorial_lib.compiler import compile_gluon
from tutorial_lib.simulator.block import Deadlock, KernelError
from tutorial_lib.simulator.machine import B200, H100
from tutorial_lib.simulator.run import launch

LAYOUT = gl.NVMMASharedLayout(128, 16, rank=2)
SEEDS = (None, *range(5))


def described(x):
    return TensorDescriptor(x, list(x.shape), [x.shape[1], 1], [128, 128], LAYOUT)


@pytest.fixture
def tiles():
    """Two factors [128, 128] in float16, as TMA knows them, their product in float32, and a place for results."""
    left, right = torch.randn(2, 128, 128).half()
    return described(left), described(right), left.float() @ right.float(), torch.zeros(128, 128)


@pytest.mark.parametrize("told", [True, False])
def test_a_product_is_there_when_it_was_waited_for(tiles, told):
    left, right, exact, target = tiles
    for seed in SEEDS:
        run = launch(kernels.product, (1,), (left, right, target, told, True), 4, machine=B200, seed=seed)
        assert not run.found
        torch.testing.assert_close(target, exact)
    assert launch(kernels.product, (1,), (left, right, target, told, True), 4, machine=B200).busy["tmem"] == 128


def test_a_load_that_asks_for_no_layout_has_the_one_that_triton_computes():
    target = torch.full((128, 128), float("nan"))
    assert not launch(kernels.unasked, (1,), (target,), 4, machine=B200).found
    assert (target == 3).all()


def test_a_load_that_does_not_wait_is_a_race_and_shows(tiles):
    left, right, _, target = tiles
    run = launch(kernels.product, (1,), (left, right, target, True, False), 4, machine=B200)
    [told] = run.found.values()
    assert told.startswith("race on sums") and "read by all warps" in told and "after: written by tcgen05.mma" in told
    assert target.isnan().all()


def test_a_product_without_mbarriers_is_waited_for_and_adds_to_what_is_there(tiles):
    left, right, exact, target = tiles
    assert not launch(kernels.synchronous, (1,), (left, right, target), 4, machine=B200).found
    torch.testing.assert_close(target, exact + 1)


@pytest.mark.parametrize(
    ("same", "waits", "in_order"), [(True, False, True), (False, True, True), (False, False, False)]
)
def test_products_are_in_order_where_they_have_the_same_accumulator(tiles, same, waits, in_order):
    """One that overwrites what another reads goes elsewhere: nobody promises that they run one after the other."""
    left, right, exact, target = tiles
    run = launch(kernels.same_place, (1,), (left, right, target, same, waits), 4, machine=B200)
    if in_order:
        assert not run.found
        twice = exact.half().float() @ right.base.float() + (exact if same else 0)
        torch.testing.assert_close(target, twice, rtol=1e-2, atol=1.0)
    else:
        kinds = {told.split(":")[0] for told in run.found.values()}
        assert kinds == {"race on first (block (0, 0, 0))"} and "read by tcgen05.mma" in str(run.found.values())


def test_a_block_must_not_end_under_a_product(tiles):
    left, right, *_ = tiles
    with pytest.raises(KernelError, match="the block ends while a product of tcgen05 goes on"):
        launch(kernels.unfinished, (1,), (left, right), 4, machine=B200)


@pytest.mark.parametrize(
    ("kernel", "arguments", "warps", "machine", "told"),
    [
        (kernels.too_many_columns, 0, 4, B200, r"576 columns of tensor memory, of 512, at kernels.py:\d+ too_many"),
        (kernels.too_many_columns, 0, 4, H100, "columns of tensor memory, of 0"),
        (kernels.outside, 1, 4, B200, "columns 64 to 191 of a place that has 128"),
        (kernels.two_warps, 1, 2, B200, "2 warps for all lanes of tensor memory, of which a warp reaches 32"),
    ],
)
def test_what_tensor_memory_cannot_is_refused_with_its_line(kernel, arguments, warps, machine, told):
    with pytest.raises(KernelError, match=told):
        launch(kernel, (1,), (torch.zeros(1),) * arguments, warps, machine=machine)


def test_factors_that_do_not_fit_are_refused(tiles):
    left, right, *_ = tiles
    with pytest.raises(KernelError, match=r"a product \[128, 128\] times \[64, 128\] into \[128, 128\]"):
        launch(kernels.wrong_factors, (1,), (left, right), 4, machine=B200)


def test_slices_are_columns():
    target = torch.zeros(128, 64)
    assert not launch(kernels.slices, (1,), (target,), 4, machine=B200).found
    assert (target[:, :32] == 1).all() and (target[:, 32:] == 2).all()


def test_a_polynomial_is_as_near_to_the_exponential_as_it_says():
    """Within 1e-4, relative, as the step says; where 2^x is too small to be normal, it is as small as nothing."""
    x = torch.cat([torch.linspace(-125, 9, 1020), torch.tensor([0.0, -0.5, -200.0, float("-inf")])])
    found = torch.zeros(1024)
    launch(kernels.by_polynomial, (1,), (x, found), 4, machine=B200)
    exact = torch.exp2(x.double())
    error = ((found.double() - exact) / exact)[:-2].abs().max()
    assert 5e-5 < error < 1e-4
    assert found[-2:].max() < 2**-124


def test_a_phase_that_no_product_completes_is_a_deadlock(tiles):
    """A wait for a phase that nobody completes is a deadlock, and is told as one."""
    left, right, _, target = tiles
    with pytest.raises(Deadlock, match="done"):
        launch(kernels.waits_for_another, (1,), (left, right, target), 4, machine=B200)


# --- cluster launch control ---


@pytest.mark.parametrize("at_once", [1, 3])
def test_every_block_is_computed_once_by_itself_or_by_who_took_it(at_once):
    target = torch.zeros(2, 3, 5, dtype=torch.int32)
    for seed in SEEDS:
        target.zero_()
        how = {"machine": B200, "seed": seed, "at_once": at_once}
        run = launch(kernels.take_blocks, (5, 3, 2), (target, True, False), 4, **how)
        assert not run.found and (target == 1).all()
        assert len(run.clocks) < target.numel()  # blocks that were taken have not begun


def test_an_answer_that_was_not_waited_for_is_a_race():
    target = torch.zeros(4, dtype=torch.int32)
    run = launch(kernels.take_blocks, (4,), (target, False, False), 4, machine=B200)
    told = next(iter(run.found.values()))
    assert told.startswith("race on answer") and "read by all warps" in told and "after: answer to a request" in told


def test_who_was_told_that_there_is_no_block_must_not_ask_again():
    with pytest.raises(KernelError, match="asked for a block again, after it was told that there is none"):
        launch(kernels.take_blocks, (4,), (torch.zeros(4, dtype=torch.int32), True, True), 4, machine=B200)


@pytest.mark.parametrize("keeps", [True, False])
def test_an_answer_is_kept_until_all_roles_have_read_it(keeps):
    target, found = torch.zeros(9, dtype=torch.int32), {}
    for seed in SEEDS:
        target.zero_()
        try:
            found |= launch(kernels.take_blocks_for_another, (9,), (target, keeps), 4, machine=B200, seed=seed).found
        except (Deadlock, KernelError):
            assert not keeps
        assert not keeps or (target == 1).all()
    assert bool(found) != keeps
    assert keeps or any(told.startswith("race on answer") for told in found.values())


@pytest.mark.parametrize("arch", ["sm_100", "sm_103"])
def test_requests_are_compiled_with_their_fence_and_one_thread_asks(arch):
    ptx = compile_gluon(kernels.take_blocks, (torch.zeros(4, dtype=torch.int32), True, False), 4, arch, 1).ptx
    order = re.findall(r"expect_tx\.shared::cta\S* _, \[\S+\], 16|fence\.proxy\.async|try_cancel|try_wait", ptx)
    asked = order.index("try_cancel")
    assert order[asked - 2 : asked + 2] == [order[asked - 2], "fence.proxy.async", "try_cancel", "try_wait"]
    assert "expect_tx" in order[asked - 2]
    assert re.search(r"@%p\d+ clusterlaunchcontrol\.try_cancel\.async", ptx)
