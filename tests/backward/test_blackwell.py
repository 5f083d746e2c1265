"""The backward steps for Blackwell: no race under any schedule, every synchronisation is missed, and there is room."""

import dataclasses

import pytest
import torch

from steps import Unsupported, get_step
from steps.backward_blackwell import keys
from steps.backward_blackwell.skeleton import OF_KEYS, OF_QUERIES, BlackwellGradients
from steps.blackwell.skeleton import MOST_COLUMNS, MOST_SHARED
from steps.core.ladder import kernels_of
from steps.core.problems import standard
from steps.writing.written import write_step
from tests.checking import faults
from tests.distinct import some_of
from tests.selection import sampled
from tests.shapes import problem
from tests.simulator.places import check_that_all_is_missed
from tutorial_lib.compiler import CompilerError
from tutorial_lib.passes import BACKWARD
from tutorial_lib.simulator.run import watched

STEPS = [step for step in kernels_of("backward") if step.backend == "blackwell"]
FIRST, LAST = STEPS[0], STEPS[-1]
WIDE = {"head_dim": 256, "batch": 1, "heads": 2}
SHAPES = [  # ragged in both lengths, one token, keys that no query sees, grouped heads, several tiles of either kind
    problem(**WIDE, kv_heads=1, seq_len_q=300, seq_len_kv=200),
    problem(**WIDE, seq_len_q=130, seq_len_kv=600, dtype="bfloat16"),
    problem(**WIDE, kv_heads=1, seq_len_q=600, seq_len_kv=300, causal=False, dtype="bfloat16"),
    problem(**WIDE, seq_len_q=1, seq_len_kv=1),
    problem(**WIDE, seq_len_q=1, seq_len_kv=333, causal=False),
    problem(**WIDE, seq_len_q=256, seq_len_kv=256, causal=False, scale=-0.3),
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfKeys(BlackwellGradients):
    """A step of which the kernel for dK and dV is written out, and given, and not the one for dQ."""

    def kernel(self, shape):
        return keys.fmha_backward_dkdv

    def entry(self, shape, arch):
        return self.kernel(shape), {"variant": self.key_variant(shape)}

    def kernels_ready(self, kernel, constants, shape, tensors):
        of_queries = super().kernel(shape), (self.variant(shape),)
        return self.both_ready((kernel, constants), of_queries, shape, tensors)


def of_keys(step) -> OfKeys:
    return OfKeys(**{field.name: getattr(step, field.name) for field in dataclasses.fields(step)})


# --- in order, and right ---


@pytest.mark.parametrize("shape", SHAPES, ids=lambda p: p.slug)
@pytest.mark.parametrize("step", STEPS, ids=lambda s: s.name)
def test_no_schedule_brings_a_mistake_to_light(step, shape, pytestconfig):
    """Of every step 204 schedules, where everything runs."""
    for seed in some_of((None, *range(1, 34)), 1, pytestconfig):
        assert not faults(step, shape, seed)


@pytest.mark.parametrize("step", STEPS, ids=lambda s: s.name)
def test_the_same_inputs_give_the_same_bits(step):
    shape, found = SHAPES[0], []
    assert step.deterministic
    for seed in range(3):
        with watched(seed, at_once=2):
            found.append(BACKWARD.call(step, shape, BACKWARD.inputs(shape, 0)))
    assert all(torch.equal(one, other) for made in found[1:] for one, other in zip(found[0], made, strict=True))


@sampled(core=lambda step: step is LAST)
@pytest.mark.parametrize("step", [*STEPS, of_keys(FIRST)], ids=lambda s: f"{s.name}-{type(s).__name__}")
def test_every_synchronisation_is_missed(step, pytestconfig):
    """Several tiles of either kind, and keys that no query sees."""
    shapes = [problem(**WIDE, kv_heads=1, seq_len_q=q, seq_len_kv=k) for q, k in ((300, 200), (130, 300))]
    check_that_all_is_missed(write_step(step, shapes[0]), shapes, lambda _: {}, pytestconfig)


# --- what the compiler makes of them ---


@pytest.mark.parametrize("arch", ["sm_100", "sm_103"])
@pytest.mark.parametrize("step", STEPS, ids=lambda s: s.name)
def test_both_kernels_have_room_and_multiply_in_two_ctas(step, arch):
    shape = step.default_problem
    for compiled, tile, products in (
        (step.compile(shape, arch), OF_QUERIES, 2 * shape.head_dim + OF_QUERIES.key),
        (step.compile_keys(shape, arch), OF_KEYS, 2 * shape.head_dim + 2 * OF_KEYS.query),
    ):
        assert compiled.ctas == 2 and compiled.scores_per_tile == tile.scores / 2
        assert set(compiled.opcodes("tensor core")) == {"UTCHMMA.2CTA"}
        assert compiled.hot_loop["tensor core"] == products / 16  # tcgen05.mma takes 16 of what is added up at a time
        assert compiled.shared_bytes <= MOST_SHARED and compiled.tensor_columns <= MOST_COLUMNS
        assert compiled.ptx.count("barrier.cluster.arrive.aligned") == 3  # in the loop, and the compiler's at both ends
    assert step.compile(shape, arch).spilled_bytes == 0


def test_what_no_block_has_room_for_is_refused(monkeypatch):
    monkeypatch.setattr("steps.blackwell.skeleton.MOST_SHARED", 100)
    with pytest.raises(CompilerError, match="bytes of shared memory, and a block has 100"):
        FIRST.compile_keys(standard(head_dim=256))


def test_columns_of_tensor_memory_are_those_that_the_chapter_tells():
    """By the simulator's trace: of both kernels the first column, and how many, of each product's sum."""
    shape = SHAPES[2]
    with watched(trace=True) as watch:
        BACKWARD.call(LAST, shape, BACKWARD.inputs(shape, 0))
    sums = [{(first, count) for _, what, _, first, count, *_ in run.columns if what in ("product", "sum", "first sum")}
            for run in watch.runs if run.columns]  # fmt: skip
    assert sums == [{(0, 64), (64, 64), (128, 128), (256, 128)}, {(0, 64), (64, 64), (160, 256)}]


# --- what they do not take ---


@pytest.mark.parametrize(
    ("changes", "arch", "told"),
    [
        ({"head_dim": 128}, "sm_100", "head_dim must be 256, got 128"),
        ({}, "sm_90", "made of tcgen05 and tensor memory, for sm_100 and sm_103, not for sm_90"),
        ({"window": 64}, "sm_100", "takes no sliding window"),
    ],
)
def test_what_it_does_not_take_is_refused_by_name(changes, arch, told):
    with pytest.raises(Unsupported, match=told):
        get_step("two_cta_backward").compile(dataclasses.replace(standard(head_dim=256, causal=True), **changes), arch)
