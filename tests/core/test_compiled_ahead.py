"""What is compiled ahead is what a launch looks for, in every compiler's cache: else it would be compiled twice."""

import pytest

from tests.launched import Keys
from tests.shapes import problem
from tutorial_lib.problem import FP8, Problem
from tutorial_lib.worker import Worker

RAGGED = {"batch": 1, "heads": 4, "kv_heads": 2, "seq_len_q": 200, "seq_len_kv": 333}
DECODING = {"heads": 4, "kv_heads": 2, "seq_len_q": 1, "seq_len_kv": 20000, "causal": False}
CASES = [
    ("exp2", problem(**RAGGED)),
    ("load_order", problem()),
    ("static_scheduler", problem(**RAGGED)),
    ("pack_gqa", problem(**RAGGED)),
    ("cutile_sinks", problem(sinks=True)),
    ("varlen", Problem.packed((100, 3, 230), heads=4, kv_heads=2, head_dim=64, causal=True)),
    ("two_kernels", problem(**RAGGED)),
    ("relaxed_atomics", problem(seq_len_q=1)),
    ("split_kv", problem(**DECODING)),
    ("last_block_merges", problem(**DECODING)),
    ("fp8_kv", problem(**DECODING, kv_dtype=FP8)),
    ("paged", problem(**DECODING, page_size=16)),
    ("explicit", problem(**RAGGED)),
    ("wgmma", problem(**RAGGED)),
    ("next_softmax_first", problem(seq_len_q=1)),
    ("kv_multicast", problem(head_dim=128, dtype="bfloat16")),
    ("hopper_window", problem(window=100)),  # whose blocks share an SM, and its registers
    ("hopper_varlen", Problem.packed((100, 3, 230), heads=4, kv_heads=2, head_dim=64, causal=True)),
    ("attention_sinks", problem(sinks=True)),
    ("p_offset", problem(**RAGGED, dtype=FP8)),
    ("transposed_scores", problem(**RAGGED)),
    ("deferred_reduce_add", problem(head_dim=128)),
    ("two_cta_mma", problem(**RAGGED)),
    ("two_cta_backward", problem(head_dim=256)),
    ("mfma", problem(**RAGGED)),
]


@pytest.fixture(scope="module")
def keys():
    with Worker(Keys) as worker:
        yield worker


@pytest.mark.parametrize(("name", "shape"), CASES, ids=[f"{name} {shape.slug}" for name, shape in CASES])
def test_a_launch_finds_what_was_compiled_ahead(name, shape, keys):
    ahead, launched = keys.call("both", name, shape, timeout=300.0)
    assert ahead and ahead <= launched
