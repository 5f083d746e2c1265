"""Grids: families of problems with a name, which ``python -m steps.run --grid NAME`` measures in one go."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product

from steps.core.problems import RAGGED, standard
from tutorial_lib.problem import DTYPES, FP8, Problem


@dataclass(frozen=True)
class Grid:
    """about: what its problems have in common, in a few words. direction: of the pass that they are recorded for."""

    about: str
    problems: tuple[Problem, ...]
    direction: str = "forward"


def some_of(problems: Sequence[Problem], text: str | None, whose: str) -> list[Problem]:
    """The problems in whose names a part of ``text``, which commas separate, stands; None for all.

    whose: problems these are, for what is said where there is none: raises ValueError.
    """
    if text is None:
        return list(problems)
    parts = [part.strip() for part in text.split(",")]
    found = [problem for problem in problems if any(part in f"{problem.slug}_" for part in parts)]
    if not found or not all(parts):  # what is empty stands in every name
        raise ValueError(f"must stand in names of {whose}'s, such as {problems[0].slug}, got {text!r}")
    return found


MASKS = (True, False)  # causal, full
LENGTHS = (1024, 2048, 4096, 8192, 16384)
TOKENS = 32768
LATENT_TOKENS = 8192


def _problems(shapes: Iterable[dict], **common) -> tuple[Problem, ...]:
    """Each shape with and without a causal mask; keys are as many as queries unless a shape says otherwise."""
    return tuple(
        Problem(**{"seq_len_kv": shape["seq_len_q"], **common, **shape, "causal": causal})
        for shape, causal in product(shapes, MASKS)
    )


def _standard() -> tuple[Problem, ...]:
    return tuple(standard(*shape) for shape in product(LENGTHS, (64, 128, 256), MASKS, DTYPES))


def _fp8() -> tuple[Problem, ...]:
    shapes = product(LENGTHS, (64, 128, 256), MASKS)
    return tuple(replace(standard(*shape), dtype=FP8) for shape in shapes)


def _gradients() -> tuple[Problem, ...]:
    shapes = [*product(LENGTHS, (64, 128), MASKS), *product((4096,), (256,), MASKS)]
    return tuple(standard(*shape) for shape in shapes)


def _grouped() -> tuple[Problem, ...]:
    sizes = ((16, 8192), (4, 1024), (4, 4096))
    shapes = [
        {"batch": batch, "seq_len_q": seq_len, "kv_heads": kv_heads}
        for (batch, seq_len), kv_heads in product(sizes, (64, 8, 1))
    ]
    return _problems(shapes, heads=64, head_dim=128, dtype="bfloat16")


def _constant() -> tuple[Problem, ...]:
    shapes = [
        {"batch": max(1, TOKENS // seq_len), "seq_len_q": seq_len, "head_dim": head_dim}
        for seq_len, head_dim in product((*LENGTHS, 32768, 65536, 131072), (128, 256))
    ]
    return _problems(shapes, heads=8, dtype="bfloat16")


def _short() -> tuple[Problem, ...]:
    shapes = [{"batch": batch, "seq_len_q": length} for batch, length in product((8, 32), (128, 256, 384, 512))]
    return _problems(shapes, heads=32, head_dim=128)


def _odd() -> tuple[Problem, ...]:
    shapes = [{"seq_len_q": 4000}, {"seq_len_q": 3001, "seq_len_kv": 5003}]
    return _problems(shapes, batch=4, heads=32, head_dim=128)


def _wide() -> tuple[Problem, ...]:
    shapes = [{"seq_len_q": seq_len, "head_dim": d} for seq_len, d in ((8192, 512), (16384, 512), (8192, 1024))]
    return _problems(shapes, batch=1, heads=48)


def _between() -> tuple[Problem, ...]:
    shapes = [{"head_dim": d, "heads": 32 if d <= 128 else 16, "seq_len_q": 4096} for d in (80, 96, 160, 192)]
    return _problems(shapes, batch=4)


def _decoding(**common) -> tuple[Problem, ...]:
    """Few queries against many keys, 64 query heads; all keys are seen, or in pages those up to the query."""
    shapes = [
        {"batch": batch, "kv_heads": kv_heads, "seq_len_q": queries, "seq_len_kv": keys}
        for batch, kv_heads, queries, keys in (
            *((8, 8, 1, keys) for keys in (8192, 16384, 32768, 65536, 131072)),
            *((8, 8, queries, 32768) for queries in (2, 4, 8, 16)),
            *((1, 8, 1, keys) for keys in (8192, 32768, 131072)),
            *((batch, kv_heads, 1, 32768) for batch in (1, 8) for kv_heads in (1, 64)),
            (64, 8, 1, 8192),
        )
    ]
    return tuple(Problem(heads=64, head_dim=128, dtype="bfloat16", **shape, **common) for shape in shapes)


def _paged() -> tuple[Problem, ...]:
    """All of decoding's with pages of 64; smaller and larger pages where eight sequences have one query each."""
    whole = _decoding(causal=True, page_size=64)
    same = [problem for problem in whole if (problem.batch, problem.kv_heads, problem.seq_len_q) == (8, 8, 1)]
    return whole + tuple(replace(problem, page_size=size) for size in (16, 256) for problem in same)


def _windows() -> tuple[Problem, ...]:
    found = [(16384, 256), (16384, 1024), (16384, 4096), (4096, 256), (4096, 1024), (65536, 1024)]
    shapes = [(standard(length, head_dim, causal=True), window) for length, window in found for head_dim in (64, 128)]
    whole = [replace(shape, window=window, dtype="bfloat16") for shape, window in shapes]
    return tuple(replace(shape, batch=1) if shape.seq_len_q > 16384 else shape for shape in whole)


def _packed() -> tuple[Problem, ...]:
    """The same number of tokens in sequences of many lengths, all of one, and shorter than a tile."""
    batches = (RAGGED, (2048,) * 16, (100,) * 320)
    return tuple(
        Problem.packed(lengths, heads=32, head_dim=head_dim, dtype="bfloat16", causal=causal)
        for lengths, head_dim, causal in product(batches, (64, 128), MASKS)
    )


def _capped() -> tuple[Problem, ...]:
    shapes = [standard(4096, head_dim, causal) for head_dim, causal in ((64, True), (128, True), (128, False))]
    return tuple(replace(shape, softcap=50.0) for shape in shapes)


def _gemma() -> tuple[Problem, ...]:
    """Layers of Gemma 2 (arXiv 2408.00118) take turns: all keys, and a window. The 27B has the narrower heads."""
    common = {"batch": 2, "seq_len_q": 8192, "seq_len_kv": 8192, "dtype": "bfloat16", "causal": True, "softcap": 50.0}
    heads = ({"heads": 16, "kv_heads": 8, "head_dim": 256}, {"heads": 32, "kv_heads": 16, "head_dim": 128})
    return tuple(Problem(**each, window=window, **common) for each, window in product(heads, (None, 4096)))


def _gpt_oss() -> tuple[Problem, ...]:
    """Layers of gpt-oss: 64 query heads on 8, and sinks."""
    common = {"heads": 64, "kv_heads": 8, "head_dim": 64, "dtype": "bfloat16", "causal": True, "sinks": True}
    return tuple(Problem(batch=TOKENS // n, seq_len_q=n, seq_len_kv=n, **common) for n in LENGTHS)


def _latent() -> tuple[Problem, ...]:
    """DeepSeek's latent attention as it is trained and prefilled: 128 heads, 192 columns of q and k by 128 of v."""
    common = {"heads": 128, "head_dim": 192, "head_dim_v": 128, "dtype": "bfloat16", "causal": True}
    return tuple(Problem(batch=LATENT_TOKENS // n, seq_len_q=n, seq_len_kv=n, **common) for n in LENGTHS[:-1])


def _sinks() -> tuple[Problem, ...]:
    """Layers of gpt-oss have a window of 128 tokens in turn with none; and the same of packed sequences."""
    whole, ragged = _gpt_oss(), {"batch": 1, "seq_len_q": sum(RAGGED), "seq_len_kv": sum(RAGGED), "lengths": RAGGED}
    found = (*whole, replace(whole[0], **ragged))
    return *found, *(replace(problem, window=128) for problem in found)


def _window_gradients() -> tuple[Problem, ...]:
    """Layers of gpt-oss with a window of 128 tokens, and of Gemma 3 with one of 1024 (arXiv 2503.19786).

    One of gpt-oss is there without sinks, too.
    """
    of_oss = [replace(problem, window=128) for problem in _gpt_oss()]
    common = {"dtype": "bfloat16", "causal": True, "window": 1024}
    heads = ({"heads": 16, "kv_heads": 8, "head_dim": 256}, {"heads": 32, "kv_heads": 16, "head_dim": 128})
    of_gemma = [
        Problem(batch=TOKENS // n, seq_len_q=n, seq_len_kv=n, **each, **common)
        for each, n in product(heads, (4096, 8192, 16384))
    ]
    return *of_oss, replace(of_oss[2], sinks=False), *of_gemma


def _few_queries() -> tuple[Problem, ...]:
    common = {"batch": 16, "heads": 64, "seq_len_kv": 8192, "head_dim": 128, "dtype": "bfloat16"}
    each = product((1, 4, 16, 64, 128, 256), (8, 1))
    return tuple(Problem(seq_len_q=queries, kv_heads=kv_heads, **common) for queries, kv_heads in each)


def _grouped_gradients() -> tuple[Problem, ...]:
    grouped = [
        replace(standard(length, causal=causal), heads=64, kv_heads=8) for length in (1024, 4096) for causal in MASKS
    ]
    longer = replace(standard(16384, causal=True), batch=2, heads=64, kv_heads=8)
    narrower = replace(standard(4096, 64, causal=True), heads=64, kv_heads=8)
    return *grouped, longer, narrower, replace(standard(4096, causal=True), heads=64, kv_heads=1)


def _model_gradients() -> tuple[Problem, ...]:
    """The same in the backward pass: few blocks, few kv heads, short sequences, and lengths that no tile divides.

    And soft caps of layers of Gemma 2, and packed sequences.
    """
    shapes = [
        {"batch": 1, "heads": 8, "kv_heads": 1, "seq_len_q": 5126, "head_dim": 256, "causal": True},
        {"batch": 1, "heads": 8, "seq_len_q": 1024, "head_dim": 80},
        {"batch": 1, "heads": 12, "seq_len_q": 1024, "head_dim": 64, "dtype": "float16"},
        {"batch": 64, "heads": 16, "seq_len_q": 512, "head_dim": 64, "dtype": "float16"},
        {"batch": 8, "heads": 12, "seq_len_q": 576, "head_dim": 64, "dtype": "float16"},
        {"batch": 32, "heads": 16, "seq_len_q": 577, "head_dim": 64},
        {"batch": 8, "heads": 20, "seq_len_q": 448, "seq_len_kv": 1500, "head_dim": 64, "dtype": "float16"},
        {"batch": 32, "heads": 20, "seq_len_q": 1500, "head_dim": 64},
        {"batch": 2, "heads": 12, "seq_len_q": 1024, "head_dim": 64, "causal": True},
        {"batch": 8, "heads": 32, "kv_heads": 4, "seq_len_q": 2048, "head_dim": 128, "causal": True},
    ]
    shorter = tuple(length // 2 for length in RAGGED)
    packed = Problem.packed(shorter, heads=32, kv_heads=8, head_dim=128, dtype="bfloat16", causal=True)
    found = (Problem(**{"seq_len_kv": shape["seq_len_q"], "dtype": "bfloat16", **shape}) for shape in shapes)
    return *found, *_gemma(), packed


def _models() -> tuple[Problem, ...]:
    """Short sequences, a head_dim of 72 and 80, and few queries: what models ask for beside long prompts."""
    shapes = [
        {"batch": 32, "heads": 16, "seq_len_q": 200, "head_dim": 64},
        {"batch": 64, "heads": 16, "seq_len_q": 196, "head_dim": 64},
        {"batch": 32, "heads": 12, "seq_len_q": 128, "head_dim": 64},
        {"batch": 16, "heads": 16, "seq_len_q": 577, "head_dim": 64},
        {"batch": 1, "heads": 20, "seq_len_q": 1500, "head_dim": 64},
        {"batch": 16, "heads": 12, "seq_len_q": 77, "head_dim": 64, "causal": True},
        {"batch": 8, "heads": 32, "seq_len_q": 1024, "head_dim": 80, "causal": True},
        {"batch": 2, "heads": 16, "seq_len_q": 1024, "seq_len_kv": 120, "head_dim": 72},
        {"batch": 1, "heads": 32, "seq_len_q": 4, "seq_len_kv": 2048, "head_dim": 80},
        {"batch": 1, "heads": 32, "kv_heads": 8, "seq_len_q": 2, "seq_len_kv": 1000, "head_dim": 128},
        {"batch": 16, "heads": 40, "kv_heads": 8, "seq_len_q": 1, "seq_len_kv": 1000, "head_dim": 128},
        {"batch": 64, "heads": 24, "kv_heads": 8, "seq_len_q": 2, "seq_len_kv": 4096, "head_dim": 128},
        {"batch": 4, "heads": 28, "kv_heads": 4, "seq_len_q": 4, "seq_len_kv": 10000, "head_dim": 128},
        {"batch": 32, "heads": 32, "kv_heads": 8, "seq_len_q": 1, "seq_len_kv": 23151, "head_dim": 128},
    ]
    return tuple(Problem(**{"seq_len_kv": shape["seq_len_q"], "dtype": "bfloat16", **shape}) for shape in shapes)


GRIDS = {
    "standard": Grid("batch 4, S=1024 to 16384, D=64, 128 and 256, both dtypes", _standard()),
    "fp8": Grid("those of fp8: S=1024 to 16384, D=64, 128 and 256", _fp8(), "fp8"),
    "gradients": Grid(
        "those of the backward pass: fp16, D=64 and 128 at all these lengths, 256 at 4096", _gradients(), "backward"
    ),
    "gqa": Grid("64 query heads on 64, 8 and 1 key/value heads", _grouped()),
    "gradients_gqa": Grid(
        "those of the backward pass with 64 query heads on 8 and 1 key/value heads", _grouped_gradients(), "backward"
    ),
    "constant": Grid(f"{TOKENS} tokens in sequences of 1024 to {TOKENS}, and longer ones", _constant()),
    "short": Grid("many sequences of 128 to 512 tokens", _short()),
    "odd": Grid("lengths that no tile divides", _odd()),
    "wide": Grid("head_dim 512 and 1024", _wide()),
    "decode": Grid("1 to 16 queries against 8192 to 131072 keys, 64 query heads", _decoding()),
    "paged": Grid("the same with keys and values in pages of 64, and some in pages of 16 and 256", _paged(), "paged"),
    "windows": Grid("sliding windows of 256 to 4096", _windows()),
    "packed": Grid("sequences of different lengths packed into one tensor", _packed()),
    "capped": Grid("a soft cap of 50 on the scores", _capped()),
    "gemma": Grid("soft caps in layers of Gemma 2, with a window of 4096 tokens and without", _gemma()),
    "sinks": Grid("attention sinks: layers of gpt-oss, with a window of 128 tokens and without", _sinks()),
    "latent": Grid("latent attention: 128 heads, values of 128 columns beside 192 of the keys", _latent()),
    "gradients_sinks": Grid(
        "attention sinks in the backward pass: layers of gpt-oss, no window", _gpt_oss(), "backward"
    ),
    "gradients_windows": Grid(
        "sliding windows in the backward pass: layers of gpt-oss and Gemma 3", _window_gradients(), "backward"
    ),
    "gradients_models": Grid(
        "those of models in the backward pass, other than long sequences", _model_gradients(), "backward"
    ),
    "few": Grid("1 to 256 queries for each head of a group against 8192 keys", _few_queries()),
    "models": Grid("short, small and odd problems of models that people run", _models()),
    "between": Grid("head_dim 80, 96, 160 and 192, between those of tiles", _between()),
}
