"""A head_dim between powers of two in two pieces: right, without products of zeros, and nothing else changes."""

import dataclasses
import secrets

import pytest

from steps import get_step
from steps.core.problems import standard
from steps.hopper.variant import pieces_of
from steps.writing.written import written_out
from tests.checking import assert_right
from tests.shapes import PADDED, problem
from tutorial_lib.passes import FORWARD

STEP = get_step("split_head_dim")
BEFORE = get_step("kv_multicast")
SHAPES = [
    *PADDED,
    problem(head_dim=192, batch=1, heads=2, causal=False, seq_len_q=300, seq_len_kv=130, dtype="bfloat16"),
    problem(head_dim=192, batch=1, heads=4, kv_heads=2, seq_len_q=700, seq_len_kv=700),
    problem(head_dim=160, batch=1, heads=2, seq_len_q=129, seq_len_kv=300),
    problem(head_dim=160, batch=1, heads=2, causal=False, seq_len_q=1, seq_len_kv=1),
    problem(head_dim=96, seq_len_q=600, seq_len_kv=600, batch=1),
    problem(head_dim=96, causal=False, dtype="bfloat16", scale=-0.3),
    problem(head_dim=80, seq_len_q=300, seq_len_kv=70, batch=1),
    problem(head_dim=144, batch=1, heads=2, seq_len_q=1, seq_len_kv=200),
    problem(head_dim=48, seq_len_q=257, seq_len_kv=257),
]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda p: p.slug)
def test_it_is_right(shape):
    assert_right(STEP, shape)


def test_the_log_sum_exp_is_that_of_the_step_before():
    q, k, v = FORWARD.inputs(problem(head_dim=96, seq_len_q=200, seq_len_kv=130, batch=1), secrets.randbits(32))
    (_, lse), (_, before) = (step.attention(q, k, v, causal=True, return_lse=True) for step in (STEP, BEFORE))
    assert (lse - before).abs().max() < 1e-5


@pytest.mark.parametrize("head_dim", range(8, 257, 8))
def test_pieces_hold_the_head_and_less_than_a_tile(head_dim):
    whole = 2 ** (head_dim - 1).bit_length()
    pieces = pieces_of(head_dim)
    if pieces:
        first, second = pieces
        assert head_dim <= first + second < whole and second < first
        assert all(columns >= 16 and columns & columns - 1 == 0 for columns in pieces)
    else:  # no two powers of two would be less
        sizes = [2**n for n in range(4, 9)]
        assert not any(head_dim <= a + b < whole for a in sizes for b in sizes if b < a)


@pytest.mark.parametrize("head_dim", [32, 64, 128, 256])
def test_a_head_that_fills_its_tile_has_the_kernel_of_the_step_before(head_dim):
    shape = problem(head_dim=head_dim, batch=1, heads=2)
    assert STEP.variant(shape) == BEFORE.variant(shape)
    texts = [written_out(step, shape).split('"""')[2] for step in (STEP, BEFORE)]  # behind the names of the steps
    assert len(texts[0]) > 1000 and texts[0] == texts[1]


@pytest.mark.parametrize(("head_dim", "share"), [(192, 3 / 4), (160, 5 / 8), (96, 3 / 4), (80, 5 / 8)])
def test_the_tensor_cores_get_only_columns_that_are_there(head_dim, share):
    """Counted in the machine code: columns and rows of every wgmma in the loop."""
    shape = problem(head_dim=head_dim, seq_len_q=512, seq_len_kv=512, causal=False)

    def operations(step):
        made = step.compile(shape)
        assert made.spilled_bytes == 0 or step is BEFORE
        sizes = [i.text.split("HGMMA.64x")[1].split(".")[0].split("x") for i in made.hot_body if "HGMMA.64x" in i.text]
        return sum(int(n) * int(k) for n, k in sizes)

    assert operations(STEP) == share * operations(BEFORE)


@pytest.mark.parametrize("name", ["producer", "pv_wait_after_softmax"])
def test_kernels_that_know_no_pieces_say_so(name):
    with pytest.raises(ValueError, match="in pieces takes products that overlap"):
        dataclasses.replace(get_step(name), in_pieces=True).variant(problem(head_dim=96))


def test_the_shared_memory_that_is_read_is_less():
    for head_dim in (80, 96, 160, 192):
        shape = dataclasses.replace(STEP.default_problem, head_dim=head_dim)
        assert STEP.shared_clocks(shape) < BEFORE.shared_clocks(shape)


def test_short_sequences_have_no_pairs_of_blocks():
    step = get_step("balanced_tail")
    shapes = [dataclasses.replace(standard(length, 128, causal=True), head_dim=80) for length in (2047, 2048)]
    assert [step.variant(shape).neighbours for shape in shapes] == [1, 2]
    assert all(step.variant(shape).pieces == (64, 16) for shape in shapes)
