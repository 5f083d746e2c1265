"""The problems that every fused step must get right, shared by the CPU and the GPU tests."""

from steps.core import rules
from tutorial_lib.problem import Problem


def problem(**changes) -> Problem:
    """A small problem with everything even, and ``changes``."""
    fields = {"batch": 2, "heads": 4, "seq_len_q": 128, "seq_len_kv": 128, "head_dim": 64, "causal": True}
    return Problem(**fields | changes)


# What every step computes at each commit: lengths that differ and fill no tile, several tiles of either kind, grouped
# heads under a mask, and the other type without one.
HARD = [
    problem(batch=1, heads=3, kv_heads=1, head_dim=128, seq_len_q=200, seq_len_kv=150),
    problem(heads=2, seq_len_q=200, seq_len_kv=77, causal=False, dtype="bfloat16"),
]
SHAPES = [
    problem(),
    problem(heads=2, causal=False),
    problem(heads=2, dtype="bfloat16"),
    problem(heads=2, dtype="bfloat16", causal=False, head_dim=32),
    problem(heads=2, head_dim=32),
    problem(batch=1, head_dim=128, causal=False),
    problem(head_dim=256, batch=1, heads=2),
    problem(head_dim=256, batch=1, heads=2, dtype="bfloat16", causal=False, seq_len_q=70, seq_len_kv=70),
    problem(seq_len_q=1, seq_len_kv=1),
    problem(seq_len_q=1, seq_len_kv=1, causal=False, dtype="bfloat16"),
    problem(batch=1, seq_len_q=1, seq_len_kv=200, causal=False),
    problem(heads=2, seq_len_q=1, seq_len_kv=200),
    problem(heads=2, seq_len_q=200, seq_len_kv=1),
    problem(heads=2, seq_len_q=129, seq_len_kv=129),
    problem(batch=1, heads=2, seq_len_q=127, seq_len_kv=127, causal=False, head_dim=128),
    problem(heads=2, seq_len_q=77, seq_len_kv=200),
    problem(batch=1, heads=3, seq_len_q=200, seq_len_kv=77),
    *HARD,
    problem(batch=1, heads=2, seq_len_q=64, seq_len_kv=320, head_dim=128),
    problem(batch=1, heads=2, seq_len_q=320, seq_len_kv=64, head_dim=128),
    problem(batch=1, heads=2, seq_len_q=300, seq_len_kv=300, head_dim=128),
    problem(batch=1, heads=2, seq_len_q=77, seq_len_kv=200, head_dim=128, causal=False),
    problem(kv_heads=2),
    problem(heads=2, kv_heads=1, seq_len_q=100, seq_len_kv=150, causal=False, dtype="bfloat16"),
    problem(batch=1, heads=6, kv_heads=2, head_dim=128, seq_len_q=65, seq_len_kv=200),
    problem(heads=2, scale=0.5),
    problem(heads=2, scale=-0.3, causal=False, seq_len_q=90, seq_len_kv=90),
    problem(heads=2, scale=0.0),
]

# Head dimensions between those of tiles, which some steps fill up with zeros.
PADDED = [
    problem(heads=2, head_dim=96, seq_len_q=130, seq_len_kv=200),
    problem(head_dim=80, causal=False, dtype="bfloat16", kv_heads=2, seq_len_q=77),
    problem(heads=2, head_dim=40, causal=False, seq_len_q=1, seq_len_kv=70),
    problem(head_dim=192, batch=1, heads=2),
]


LEAST = "LEAST_ITERATIONS", "LEAST_UNMASKED_64"


def few_at_once(monkeypatch):
    """Spare warps of the backward pass (``fused_pre_post``) work for small problems, too: as if few blocks ran at once.

    Tiles are those of long sequences. And query heads have blocks of their own, however few turns these take
    (``cta_per_query_head``).
    """
    for name, value in {"SECTION": 4, "LARGER_SECTION": 4, "AT_ONCE": 4, **dict.fromkeys(LEAST, 0)}.items():
        monkeypatch.setattr(f"steps.backward_hopper.skeleton.{name}", value)
    for where in rules.WHERE:
        monkeypatch.setitem(rules.WHERE, where, lambda problem: False)
    always_apart(monkeypatch)


def zeros_alone(monkeypatch):
    """Likewise, and spare warps keep pace nowhere: one of them clears sums (``tma_zero_fill``)."""
    few_at_once(monkeypatch)
    for name in LEAST:
        monkeypatch.setattr(f"steps.backward_hopper.skeleton.{name}", 1000)


def always_apart(monkeypatch):
    """With grouped heads, query heads have blocks of their own in step cta_per_query_head."""
    for name in ("ITERATIONS_APART", "ITERATIONS_APART_CAUSAL"):
        monkeypatch.setattr(f"steps.backward_hopper.skeleton.{name}", 0)
