"""Two CTAs of a cluster: who has which part, what either learns of the other, and what is told of wrong kernels."""

import pytest
import torch
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from steps import get_step
from steps.writing.written import write_step
from tests.shapes import problem
from tests.simulator import cluster_kernels as kernels
from tutorial_lib.simulator.block import Deadlock, KernelError, Unknown
from tutorial_lib.simulator.breaking import broken
from tutorial_lib.simulator.machine import B200
from tutorial_lib.simulator.run import launch

SEEDS = (None, *range(6))
STEPS = ("tensor_memory", "two_cta_mma", "multicast")


def run(kernel, *arguments, seed=None):
    return launch(kernel, (1,), arguments, 4, machine=B200, seed=seed, ctas=2)


def described(x, rows, columns, halves):
    layout = gl.NVMMASharedLayout(128, 16, rank=2, cga_layout=[halves])
    return TensorDescriptor(x, list(x.shape), [x.shape[1], 1], [rows, columns], layout)


@pytest.fixture
def factors():
    """[256, 64] and [64, 128] in float16, their product in float32, and a place for results."""
    left, right = torch.randn(256, 64).half(), torch.randn(64, 128).half()
    return left, right, left.float() @ right.float(), torch.full((256, 128), float("nan"))


@pytest.mark.parametrize("layout", [kernels.HALVES.value, kernels.BOTH.value])
def test_each_cta_computes_its_part_of_a_tile(layout):
    source, target = torch.randn(32, 64), torch.zeros(32, 64)
    found = run(kernels.rows_added, source, target, layout)
    torch.testing.assert_close(target, source + torch.arange(32)[:, None] + source.sum(1, keepdim=True))
    alone = launch(kernels.rows_added, (1,), (source, target, kernels.ALONE.value), 4, machine=B200)
    assert sorted(found.clocks) == [(0, 0, 0, 0), (0, 0, 0, 1)]
    work = found.busy["alu"] / alone.busy["alu"]  # of both, to that of a block that does all of it
    assert work == 2 if layout == kernels.BOTH.value else 1 <= work < 2


@pytest.mark.parametrize("layout", [kernels.HALVES.value, kernels.BOTH.value])
def test_each_cta_reshapes_its_part_of_a_tile(layout):
    source, target = torch.randn(32, 64), torch.zeros(32, 64)
    assert not run(kernels.rows_added_in_groups, source, target, layout).found
    torch.testing.assert_close(target, source + torch.arange(32)[:, None] + source.sum(1, keepdim=True))


def test_one_copy_brings_a_tile_to_both():
    source, target = torch.randn(64, 64).half(), torch.zeros(32, 64).half()
    tile = described(source, 32, 64, [0, 0])
    for seed in SEEDS:
        found = run(kernels.brought_to_both, tile, target, True, seed=seed)
        assert not found.found
        assert torch.equal(target, source[32:])
    assert run(kernels.brought_to_both, tile, target, True).busy["tma"] == 2 * 32 * 64 * 2 / B200.tma


def test_a_copy_to_both_must_know_that_both_are_ready():
    source, target = torch.randn(64, 64).half(), torch.zeros(32, 64).half()
    tile = described(source, 32, 64, [0, 0])
    told = " ".join(run(kernels.brought_to_both, tile, target, False).found.values())
    assert "race on place (block (0, 0, 0), CTA 1)" in told and "after: read by all warps of CTA 1" in told


@pytest.mark.parametrize("rows", [256, 128])
def test_two_ctas_compute_one_product(factors, rows):
    left, right, exact, target = factors
    left, exact, target = left[:rows].clone(), exact[:rows], target[:rows]
    tiles = described(left, rows, 64, [1, 0]), described(right, 64, 128, [0, 1])
    for seed in SEEDS:
        found = run(kernels.of_both, *tiles, target, True, True, seed=seed)
        assert not found.found
        torch.testing.assert_close(target, exact)
    of_one = 2 * rows // 2 * 64 * 128 / B200.tcgen05
    assert run(kernels.of_both, *tiles, target, True, True).busy["tensor cores"] == 2 * of_one


@pytest.mark.parametrize(("joint", "waits"), [(False, True), (True, False)])
def test_a_product_of_both_waits_for_both_and_both_wait_for_it(factors, joint, waits):
    left, right, _, target = factors
    tiles = described(left, 256, 64, [1, 0]), described(right, 64, 128, [0, 1])
    told = run(kernels.of_both, *tiles, target, joint, waits).found.values()
    ctas = {cta for cta in (0, 1) for one in told if one.startswith("race") and f"CTA {cta})" in one}
    assert ctas == ({0, 1} if joint else {1})  # without a joint barrier, the first CTA knows of its own factors alone


def test_products_of_each_tell_both(factors):
    left, right, exact, target = factors
    tiles = described(left, 256, 64, [1, 0]), described(right, 64, 128, [0, 0])
    for seed in SEEDS:
        assert not run(kernels.of_each, *tiles, target, 2, seed=seed).found
        torch.testing.assert_close(target, exact)
    with pytest.raises(Deadlock, match=r"all warps of CTA 0 wait for done\[0\] .*1 of 3 arrivals missing"):
        run(kernels.of_each, *tiles, target, 3)
    with pytest.raises(KernelError, match=r"got more arrivals|has ended|2 phases complete"):
        for seed in range(50):  # whoever is told of one product may go on, and end, before the other one has ended
            run(kernels.of_each, *tiles, target, 1, seed=seed)


def test_64_rows_in_each_cta_take_half_as_many_columns_as_they_have():
    assert not run(kernels.places_of_64_rows, 512 // 64).found
    with pytest.raises(KernelError, match="576 columns of tensor memory, of 512"):
        run(kernels.places_of_64_rows, 576 // 64)


def test_no_cta_reports_to_the_other_before_both_have_made_their_barriers():
    for seed in range(20):
        assert not run(kernels.reports_at_once, 0, seed=seed).found


def test_both_arrive_at_a_joint_barrier():
    for seed in SEEDS:
        assert not run(kernels.arrives_jointly, seed=seed).found


@pytest.mark.parametrize(
    ("kernel", "kind", "told"),
    [
        (kernels.sum_of_columns, Unknown, "no reduction over the CTAs"),
        (kernels.halved_otherwise, Unknown, "no reshape of the axis that the CTAs of a cluster halve"),
        (kernels.to_all, Unknown, "no exchange of tiles between CTAs"),
        (kernels.of_one_cta, KernelError, "a layout for 1 CTAs in a cluster of 2"),
        (kernels.slice_of_64_rows, Unknown, "slices no tensor memory of 64 rows"),
        (kernels.factor_of_64_rows, Unknown, "no first factor of 64 rows in tensor memory"),
        (kernels.with_roles, Unknown, "no warp_specialize in a cluster"),
    ],
)
def test_what_a_cluster_cannot_is_refused(kernel, kind, told):
    with pytest.raises(kind, match=told):
        run(kernel)


def test_what_synchronises_ctas_is_broken_in_ways_of_its_own():
    """``tests/simulator/test_breaking.py`` takes every way that there is; these must be among them."""
    shape = problem(batch=1, heads=1, seq_len_q=300, seq_len_kv=300, causal=False)
    ways = {name: {(w.how, w.what) for w in broken(write_step(get_step(name), shape).text)} for name in STEPS}
    assert {
        ("relaxed", "hopper.cluster.barrier()"),
        ("without", "hopper.cluster.barrier()"),
    } <= ways["two_cta_mma"]
    assert sum(how == "for itself" for how, _ in ways["multicast"]) == 2
    assert not any(how in ("relaxed", "for itself") for how, _ in ways["tensor_memory"])


def test_other_clusters_are_refused():
    with pytest.raises(ValueError, match=r"ctas must be 1 or 2, .* got 4"):
        launch(kernels.nothing, (1,), (), 4, ctas=4)


def test_a_block_alone_has_no_cluster():
    with pytest.raises(KernelError, match=r"cluster\.barrier in a block that is alone"):
        launch(kernels.meets, (1,), (), 4)
