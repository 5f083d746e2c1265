"""What the compiler makes of the Gluon steps, as chapters tell it: shared memory, exchange between warps."""

import dataclasses

import pytest

from steps import Unsupported, get_step
from steps.core.problems import HEADLINE as EVEN
from tests.core.test_steps import GLUON
from tests.expected import same_compilers
from tests.selection import sampled
from tutorial_lib import sass

pytestmark = same_compilers


@sampled(core=lambda step, arch: arch == "sm_90")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_120"])
@pytest.mark.parametrize("step", GLUON, ids=lambda s: s.name)
def test_every_gluon_step_compiles_and_its_hot_loop_is_found(step, arch):
    compiled = step.compile(EVEN, arch)
    assert 0 < compiled.registers <= 255 and compiled.occupancy[0] >= 1 and compiled.threads == 128
    # Split-KV computes every row's correction in all four warps; split-Q once a row.
    exponentials = compiled.scores_per_tile / 128
    assert exponentials < compiled.hot_loop["MUFU"] <= exponentials + 16
    # Two products, in mma.sync.m16n8k16, by four warps.
    assert compiled.hot_loop["tensor core"] == 2 * compiled.scores_per_tile * EVEN.head_dim / (16 * 8 * 16) / 4
    assert compiled.shared_bytes >= step.shared_bytes(EVEN)


def test_products_are_those_of_ampere_from_shared_memory():
    compiled = get_step("explicit").compile(EVEN)
    assert "ttg.local_alloc" in compiled.tile_ir and "mma.sync" in compiled.ptx


def test_what_a_branch_leaves_to_some_lanes_is_counted():
    """In split-KV some lanes store what they hold for the other warps, every turn; the others jump over it."""
    compiled = get_step("explicit").compile(EVEN)
    loops = sass.loops(sass.parse(compiled.sass))
    whole = next(kinds for body in loops if (kinds := sass.count_kinds(body))["MUFU"] >= 8)
    assert compiled.hot_loop["shared memory"] == whole["shared memory"]


@pytest.mark.parametrize("head_dim", [64, 256, 512, 1024])
def test_shared_memory_is_as_the_steps_say(head_dim):
    """Two stages double it, sharing halves it, Q in registers takes Q away, pieces stop it from growing."""
    problem = dataclasses.replace(EVEN, head_dim=head_dim, causal=False)
    needs = {s.name: s.compile(problem, "sm_90").shared_bytes for s in GLUON if head_dim in s.head_dims}
    assert needs["head_dim_tiling"] <= 72 * 1024
    if head_dim <= 256:
        tile = 64 * head_dim * 2
        assert needs["stages"] == needs["split_q"] + 2 * tile == 5 * tile
        assert needs["shared_kv_buffer"] == 3 * tile and needs["q_registers"] == 2 * tile
    else:
        with pytest.raises(Unsupported, match="head_dim must be one of 32, 64, 128, 256"):
            get_step("q_registers").compile(problem)


def test_swizzling_multiplies_as_much():
    """Step swizzle has the matrix products and exponentials of step explicit: only addresses differ."""
    plain, swizzled = (get_step(name).compile(EVEN) for name in ("explicit", "swizzle"))
    for kind in ("tensor core", "MUFU"):
        assert plain.hot_loop[kind] == swizzled.hot_loop[kind]
    assert not plain.same_code(swizzled)


def test_split_q_exchanges_less_between_warps():
    split_kv, split_q = (get_step(name).compile(EVEN) for name in ("swizzle", "split_q"))
    assert split_q.hot_loop["synchronisation"] < 0.5 * split_kv.hot_loop["synchronisation"]


def test_a_block_that_does_not_fit_is_refused():
    wide = dataclasses.replace(EVEN, head_dim=256)
    with pytest.raises(Unsupported, match="needs 160 KiB of shared memory a block; sm_120 has 99 KiB"):
        get_step("stages").compile(wide, "sm_120")
