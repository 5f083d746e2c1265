"""The problems that steps are for: each is recorded, and each step names the one that its chapter measures."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from tutorial_lib.problem import Problem


def standard(
    seq_len: int = 4096, head_dim: int = 128, causal: bool = False, dtype: Literal["float16", "bfloat16"] = "float16"
) -> Problem:
    """Batch 4 and 32 heads, or 16 at head_dim 256: most of results/ is recorded on these."""
    return Problem(
        batch=4,
        heads=16 if head_dim == 256 else 32,
        seq_len_q=seq_len,
        seq_len_kv=seq_len,
        head_dim=head_dim,
        causal=causal,
        dtype=dtype,
    )


def unnamed(step) -> dict:
    """The soft cap and the sinks of what a step is for, which commands that run it on the CPU have no option for."""
    return {name: getattr(step.default_problem, name) for name in ("softcap", "sinks")}


SIZES = ("batch", "heads", "kv_heads", "seq_len_q", "seq_len_kv", "lengths", "lengths_kv")
LENGTHS = (300, 512, 2048)  # tiles that are not all full, full ones, and enough of them for what is for long sequences


def alike(one: Problem, other: Problem) -> bool:
    """Whether two problems differ in ``SIZES`` at most."""
    return replace(one, **{name: getattr(other, name) for name in SIZES}) == other


def smaller(problem: Problem) -> list[Problem]:
    """Problems like this one, of one sequence or two packed ones: with few heads before many, short before long.

    Each has as many query heads for a key/value head. Lengths are those of ``LENGTHS`` that a window is shorter than,
    and those of the problem.
    """
    lengths = [(n, n) for n in LENGTHS if n > (problem.window or 0)] + [(problem.seq_len_q, problem.seq_len_kv)]
    return [
        replace(problem, batch=1, heads=heads * problem.group_size, kv_heads=heads, **lengths_of(problem, *pair))
        for heads in (2, 4, 8, 16, 32, 64, 128)
        for pair in lengths
    ]


def lengths_of(problem: Problem, queries: int, keys: int) -> dict[str, object]:
    """The fields that give ``problem`` other lengths; where sequences are packed, there are two."""
    packed = [(n - n // 3, n // 3) if problem.lengths else None for n in (queries, keys)]
    return dict(zip(("seq_len_q", "seq_len_kv", "lengths", "lengths_kv"), (queries, keys, *packed)))


def as_options(problem: Problem, asked: Problem) -> str:
    """The options of commands that ask for ``problem``: its heads, where ``asked`` has others, and its lengths."""
    heads = [f"--heads {problem.heads}"] if problem.heads != asked.heads else []
    heads += [f"--kv-heads {problem.kv_heads}"] if problem.group_size > 1 and problem.kv_heads != asked.kv_heads else []
    keys = [f"--seq-len-kv {problem.seq_len_kv}"] if problem.seq_len_kv != problem.seq_len_q else []
    return " ".join([*heads, f"--seq-len {problem.seq_len_q}", *keys])


HEADLINE = standard(causal=True)
FULL = standard()


def few_heads(head_dim: int = 128) -> Problem:
    """Batch 1, 8 heads, length 8192, no mask: on this the Gluon part is recorded with all counters."""
    return Problem(batch=1, heads=8, seq_len_q=8192, seq_len_kv=8192, head_dim=head_dim)


LONG = Problem(batch=1, heads=32, seq_len_q=65536, seq_len_kv=65536, head_dim=128, dtype="bfloat16", causal=True)


# One new token for each of 8 sequences of a model with 64 query heads and 8 kv heads: bytes decide how long it takes.
DECODING = Problem(batch=8, heads=64, kv_heads=8, seq_len_q=1, seq_len_kv=32768, head_dim=128, dtype="bfloat16")
PAGED_DECODING = replace(DECODING, causal=True, page_size=64)  # sequences of other lengths, up to that

RAGGED = (8192, 5988, 4683, 3541, 2709, 2048, 1601, 1234, 977, 640, 511, 222, 128, 99, 44, 151)  # 32768 together
