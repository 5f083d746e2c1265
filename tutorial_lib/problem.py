"""The problem: which attention is computed. ``tutorial_lib.passes`` says what a pass over it takes and costs."""

from __future__ import annotations

import math
import zlib
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

DTYPES = ("float16", "bfloat16")
FP8 = "float8_e4m3fn"  # 4 bits of exponent, 3 of mantissa, no infinity
E5M2 = "float8_e5m2"  # 5 bits of exponent, 2 of mantissa
IN_8_BITS = (FP8, E5M2)
SHORT_DTYPES = {"float16": "fp16", "bfloat16": "bf16", FP8: "fp8", E5M2: "fp8e5m2"}
LARGEST = 2.3e38  # of a scale or a soft cap: times log2(e) it is still a float32
BYTES_PER_ELEMENT = 2  # both of DTYPES have 16 bits

# What a problem may ask for beside plain attention: its field, and what that is called. A step names what it takes.
FEATURES = {
    "window": "sliding window",
    "softcap": "soft cap",
    "lengths": "packed sequences",
    "page_size": "pages of keys and values",
    "sinks": "attention sinks",
    "head_dim_v": "values of another width than keys",
    "fp8": "inputs in fp8",
    "kv_dtype": "keys and values alone in fp8",
}


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Attention, ``softmax(scale * q @ k^T, masked) @ v`` for every batch and head, of one shape.

    Shapes: q and o ``[batch, heads, seq_len_q, head_dim]``, k and v ``[batch, kv_heads, seq_len_kv, head_dim]``.
    Query heads share key/value heads in groups of ``heads // kv_heads`` (grouped-query attention). ``causal``
    hides key ``j`` from query ``i`` where ``j > i``, also when the lengths differ, as
    ``scaled_dot_product_attention`` does. ``scale`` None means ``1 / sqrt(head_dim)``.

    ``window``: query ``i`` sees the keys ``i - window < j <= i`` alone, itself and ``window - 1`` before it. That is
    Mistral's sliding window (Jiang et al. 2023, https://arxiv.org/abs/2310.06825), and flash-attn's
    ``window_size=(window - 1, 0)`` where the lengths are equal. It goes with ``causal``.
    ``softcap``: a scaled score ``s`` becomes ``softcap * tanh(s / softcap)`` before the mask, as in Gemma 2
    (https://arxiv.org/abs/2408.00118).
    ``lengths``: queries of each sequence, which stand behind each other in one tensor as for flash-attn's
    ``flash_attn_varlen_func``; ``lengths_kv``: keys of each (as many). ``batch`` is then 1, and ``seq_len_q`` and
    ``seq_len_kv`` are the sums. A query sees keys of its own sequence, and ``i`` and ``j`` count inside it. Shapes: q
    and o ``[seq_len_q, heads, head_dim]``, k and v ``[seq_len_kv, kv_heads, head_dim]``.

    ``sinks``: every query head has one learned logit, which takes part in the sum of each softmax and has no value, as
    in gpt-oss (https://arxiv.org/abs/2508.10925). It stands beside the scaled scores, and is not scaled itself. The
    logits are one more input, float32 ``[heads]``. The log-sum-exp then holds the sink, too.

    ``head_dim_v``: the width of v and o where that is not ``head_dim``, as in DeepSeek's latent attention (192 for
    queries and keys, 128 for values; https://arxiv.org/abs/2405.04434).

    ``dtype`` "float8_e4m3fn" or "float8_e5m2": what the pass "fp8" of ``tutorial_lib.passes`` computes. So it does of
    ``kv_dtype`` "float8_e4m3fn", where k and v have that dtype, and q and o have ``dtype``, which has 16 bits. Both
    take scales of the inputs in fp8. Pages may have ``kv_dtype``, too.

    ``page_size``: K and V lie in pages of so many keys, which a table finds: what the pass "paged" of
    ``tutorial_lib.passes`` computes. Sequences then differ in length, ``seq_len_kv`` is that of the longest, and the
    queries are the last of their sequence: under ``causal`` query ``i`` of ``seq_len_q`` sees of ``n`` keys those with
    ``j <= i + n - seq_len_q``.

    Raises ValueError with one sentence (what it must be, what came) for a problem that makes no sense.
    """

    batch: int
    heads: int
    seq_len_q: int
    seq_len_kv: int
    head_dim: int
    kv_heads: int | None = None  # None: as many as heads
    dtype: str = "float16"
    causal: bool = False
    scale: float | None = None
    window: int | None = None
    softcap: float | None = None
    lengths: tuple[int, ...] | None = None
    lengths_kv: tuple[int, ...] | None = None
    page_size: int | None = None
    sinks: bool = False
    head_dim_v: int | None = None  # None: as head_dim
    kv_dtype: str | None = None  # None: as dtype

    def __post_init__(self):
        if self.kv_heads is None:
            object.__setattr__(self, "kv_heads", self.heads)
        if self.head_dim_v == self.head_dim:
            object.__setattr__(self, "head_dim_v", None)
        for name in ("batch", "heads", "kv_heads", "seq_len_q", "seq_len_kv", "head_dim", "head_dim_v"):
            if (value := getattr(self, name)) is not None or name != "head_dim_v":
                check_count(name, value)
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads must divide heads ({self.heads}), got {self.kv_heads}")
        if self.dtype not in SHORT_DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(SHORT_DTYPES)}, got {self.dtype!r}")
        if self.kv_dtype == self.dtype:
            object.__setattr__(self, "kv_dtype", None)
        if self.kv_dtype not in (None, FP8):
            raise ValueError(f"kv_dtype must be {FP8} where it is not dtype, got {self.kv_dtype!r}")
        object.__setattr__(self, "causal", flag("causal", self.causal))
        for name in ("scale", "softcap"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, number(name, value))
        if self.softcap is not None and self.softcap <= 0:
            raise ValueError(f"softcap must be a finite number above 0, got {self.softcap!r}")
        if not isinstance(self.sinks, bool):
            raise ValueError(f"sinks must be True or False, got {self.sinks!r}")
        if self.lengths is not None or self.lengths_kv is not None:
            self._check_lengths()
        if self.window is not None:
            self._check_window()
        if self.page_size is not None:
            self._check_pages()

    def _check_window(self) -> None:
        check_window(self.window, self.causal)
        for queries, keys in self.pairs_of_lengths:
            if queries - self.window >= keys:
                raise ValueError(
                    f"window must leave every query a key: with {queries} queries and {keys} keys at least "
                    f"{queries - keys + 1}, got {self.window}"
                )

    def _check_pages(self) -> None:
        check_count("page_size", self.page_size)
        if others := [name for name in self.features if name not in ("page_size", "kv_dtype")]:
            raise ValueError(f"page_size goes with no other feature, got {', '.join(others)}, too")
        if self.seq_len_q > self.seq_len_kv:
            raise ValueError(
                f"seq_len_q must be at most seq_len_kv ({self.seq_len_kv}) with pages, as queries are the last "
                f"of their sequence, got {self.seq_len_q}"
            )

    def _check_lengths(self) -> None:
        lengths, lengths_kv = self.lengths, self.lengths if self.lengths_kv is None else self.lengths_kv
        for name, found, total in (
            ("lengths", lengths, self.seq_len_q),
            ("lengths_kv", lengths_kv, self.seq_len_kv),
        ):
            if not isinstance(found, tuple | list) or not found or not all(map(_is_count, found)):
                raise ValueError(f"{name} must be whole numbers of at least 1, got {found!r}")
            if sum(found) != total:
                raise ValueError(f"{name} must add up to the tensor's {total} tokens, got {sum(found)}")
        if len(lengths) != len(lengths_kv):
            raise ValueError(f"lengths_kv must be as many as lengths ({len(lengths)}), got {len(lengths_kv)}")
        if self.batch != 1:
            raise ValueError(f"batch must be 1 where sequences are packed into one tensor, got {self.batch}")
        object.__setattr__(self, "lengths", tuple(lengths))
        object.__setattr__(self, "lengths_kv", None if tuple(lengths_kv) == tuple(lengths) else tuple(lengths_kv))

    @classmethod
    def packed(cls, lengths: Sequence[int], lengths_kv: Sequence[int] | None = None, **fields) -> Problem:
        """The problem of sequences of these lengths, packed into one tensor; fields: all but lengths and batch."""
        keys = lengths if lengths_kv is None else lengths_kv
        tokens = [sum(x) if isinstance(x, tuple | list) and all(map(_is_count, x)) else 1 for x in (lengths, keys)]
        sums = {"batch": 1, "seq_len_q": tokens[0] or 1, "seq_len_kv": tokens[1] or 1}  # what is wrong is told below
        return cls(**sums, lengths=lengths, lengths_kv=keys, **fields)

    @classmethod
    def of(
        cls,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        causal: bool = False,
        scale: float | None = None,
        dtypes: tuple[str, ...] = DTYPES,
        kv_dtype: str | None = None,
        **features,
    ) -> Problem:
        """The problem that these inputs pose; raises ValueError naming the argument that does not fit.

        dtypes: that q may have; kv_dtype: that k and v must have, None: q's.
        features: the fields of that name. Tensors of packed sequences come as ``[1, heads, tokens, head_dim]``.
        """
        import torch

        for name, tensor in (("q", q), ("k", k), ("v", v)):
            if not isinstance(tensor, torch.Tensor):
                raise ValueError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
            if tensor.ndim != 4:
                raise ValueError(
                    f"{name} must have 4 dimensions [batch, heads, seq_len, head_dim], got shape {tuple(tensor.shape)}"
                )
            known = (kv_dtype,) if kv_dtype and name != "q" else dtypes
            if tensor.dtype not in [getattr(torch, dtype) for dtype in known]:
                raise ValueError(f"{name} must be {' or '.join(known)}, got {tensor.dtype}")
            if kv_dtype is None and tensor.dtype != q.dtype:
                raise ValueError(f"{name} must have q's dtype ({q.dtype}), got {tensor.dtype}")
            if tensor.device != q.device:
                raise ValueError(f"{name} must be on q's device ({q.device}), got {tensor.device}")
        batch, heads, seq_len_q, head_dim = q.shape
        kv_heads, seq_len_kv = k.shape[1], k.shape[2]
        if k.shape[0] != batch or k.shape[3] != head_dim:
            raise ValueError(
                f"k must be [{batch}, kv_heads, seq_len_kv, {head_dim}] to match q {tuple(q.shape)}, "
                f"got {tuple(k.shape)}"
            )
        if v.shape[:3] != k.shape[:3]:
            raise ValueError(f"v must have k's shape {tuple(k.shape)}, but for its width, got {tuple(v.shape)}")
        return cls(
            batch=batch,
            heads=heads,
            kv_heads=kv_heads,
            seq_len_q=seq_len_q,
            seq_len_kv=seq_len_kv,
            head_dim=head_dim,
            head_dim_v=v.shape[3],
            dtype=str(q.dtype).removeprefix("torch."),
            kv_dtype=kv_dtype,
            causal=causal,
            scale=scale,
            **features,
        )

    @property
    def features(self) -> tuple[str, ...]:
        """What is asked for beside plain attention: keys of ``FEATURES``."""
        return tuple(name for name in FEATURES if getattr(self, name) not in (None, False))

    @property
    def fp8(self) -> bool:
        """Whether inputs are in fp8, all of them."""
        return self.dtype in IN_8_BITS

    @property
    def kv_bytes(self) -> int:
        """Bytes of a number in k and v."""
        return 1 if self.fp8 or self.kv_dtype else BYTES_PER_ELEMENT

    @property
    def short_dtype(self) -> str:
        """The dtypes in few letters, such as ``bf16``, or ``bf16 kv=fp8``."""
        keys = f" kv={SHORT_DTYPES[self.kv_dtype]}" if self.kv_dtype else ""
        return SHORT_DTYPES[self.dtype] + keys

    @property
    def pairs_of_lengths(self) -> tuple[tuple[int, int], ...]:
        """(queries, keys) of every sequence that stands behind others in one tensor; one pair where none does."""
        if self.lengths is None:
            return ((self.seq_len_q, self.seq_len_kv),)
        return tuple(zip(self.lengths, self.lengths_kv or self.lengths))

    @property
    def sequences(self) -> tuple[Problem, ...]:
        """The problem of every packed sequence by itself; the problem alone where none is packed."""
        if self.lengths is None:
            return (self,)
        return tuple(
            replace(self, seq_len_q=queries, seq_len_kv=keys, lengths=None, lengths_kv=None)
            for queries, keys in self.pairs_of_lengths
        )

    @property
    def lengths_in_pages(self) -> tuple[int, ...]:
        """Keys of each sequence where they lie in pages: from ``seq_len_kv`` down to little more than half of it."""
        found = (self.seq_len_kv - b * self.seq_len_kv // (2 * self.batch) for b in range(self.batch))
        return tuple(max(length, self.seq_len_q) for length in found)

    @property
    def effective_scale(self) -> float:
        """The factor on the scores: ``scale``, or ``1 / sqrt(head_dim)`` when that is None."""
        return 1 / math.sqrt(self.head_dim) if self.scale is None else self.scale

    @property
    def value_dim(self) -> int:
        """The width of v and o."""
        return self.head_dim_v or self.head_dim

    @property
    def group_size(self) -> int:
        """How many query heads share one key/value head."""
        return self.heads // self.kv_heads

    @property
    def visible_pairs(self) -> float:
        """Query-key pairs of one head that the mask lets through; a causal square counts as half, as is customary.

        What a window hides is such a half square, too. With pages it is the mean over the sequences.
        """
        if self.lengths is not None:
            return sum(sequence.visible_pairs for sequence in self.sequences)
        if self.page_size is not None:
            hidden = self.seq_len_q * (self.seq_len_q - 1) / 2 if self.causal else 0
            return self.seq_len_q * sum(self.lengths_in_pages) / self.batch - hidden
        if not self.causal:
            return self.seq_len_q * self.seq_len_kv
        square = min(self.seq_len_q, self.seq_len_kv)
        hidden = max(0, self.seq_len_q - self.window) if self.window else 0
        return square**2 / 2 + (self.seq_len_q - square) * self.seq_len_kv - hidden**2 / 2

    @property
    def family(self) -> str:
        """A name for this problem without its sequence lengths, such as ``b4_h32_d128_fp16_causal``.

        Batches of packed sequences are each a family of their own.
        """
        return "_".join(self._name_parts(lengths=False))

    @property
    def slug(self) -> str:
        """A name for this problem that fits a folder, such as ``b4_h32_s4096_d128_fp16_causal``."""
        return "_".join(self._name_parts(lengths=True))

    @property
    def order(self) -> tuple:
        """What problems are sorted by in tables: family first, then length, as numbers."""
        kind = (self.batch, self.heads, -self.kv_heads, self.head_dim, self.dtype, self.causal)
        asked = (
            self.window or 0,
            self.softcap or 0,
            self.lengths or (),
            self.page_size or 0,
            self.sinks,
            self.value_dim,
            self.kv_dtype or "",
        )
        return (*kind, *asked, self.seq_len_q, self.seq_len_kv)

    @property
    def mask(self) -> str:
        """Which keys a query sees, and what is done to the scores, such as ``causal window=1024``."""
        words = ["causal" if self.causal else "full"]
        if self.window is not None:
            words.append(f"window={self.window}")
        if self.softcap is not None:
            words.append(f"softcap={self.softcap:g}")
        if self.scale is not None:
            words.append(f"scale={self.scale:g}")
        if self.sinks:
            words.append("sinks")
        return " ".join(words)

    def _name_parts(self, lengths: bool) -> list[str]:
        parts = [f"b{self.batch}", f"h{self.heads}"]
        if self.kv_heads != self.heads:
            parts.append(f"kvh{self.kv_heads}")
        if lengths:
            parts.append(f"s{self.seq_len_q}")
            if self.seq_len_kv != self.seq_len_q:
                parts.append(f"skv{self.seq_len_kv}")
        if self.lengths is not None:
            which = zlib.crc32(repr(self.pairs_of_lengths).encode())  # in as few letters as a name has room for
            parts.append(f"packed{len(self.lengths)}-{which:08x}")
        if self.page_size is not None:
            parts.append(f"pages{self.page_size}")
        width = f"d{self.head_dim}" + (f"v{self.head_dim_v}" if self.head_dim_v else "")
        parts += [width, self.short_dtype.replace(" kv=", "_kv"), "causal" if self.causal else "full"]
        if self.window is not None:
            parts.append(f"w{self.window}")
        if self.softcap is not None:
            parts.append(f"cap{self.softcap:g}")
        if self.scale is not None:
            parts.append(f"scale{self.scale:g}")
        if self.sinks:
            parts.append("sinks")
        return parts

    def describe(self) -> str:
        """One line for a person, such as ``B=4 H=32 S=4096 D=128 fp16 causal``."""
        heads = f"H={self.heads}" + (f"/{self.kv_heads}" if self.kv_heads != self.heads else "")
        lengths = f"S={self.seq_len_q}" + (f"x{self.seq_len_kv}" if self.seq_len_kv != self.seq_len_q else "")
        batch = f"B={self.batch}" if self.lengths is None else f"{_counted(self.lengths)} packed,"
        pages = "" if self.page_size is None else f" pages of {self.page_size}"
        width = f"D={self.head_dim}" + (f"/{self.head_dim_v}" if self.head_dim_v else "")
        return f"{batch} {heads} {lengths} {width} {self.short_dtype} {self.mask}{pages}"

    def as_dict(self) -> dict:
        """The fields, as results.json holds them: without those that plain attention does not have."""
        plain = ("scale", "causal")  # may be None or False, and always stood there
        return {name: value for name, value in asdict(self).items() if value not in (None, False) or name in plain}


def number(name: str, value) -> float:
    """The value as a float; raises ValueError for what is none, or too large for kernels: they multiply by log2(e).

    And for a tensor that requires a gradient, which would get none.
    """
    if getattr(value, "requires_grad", False):
        raise ValueError(f"{name} must be a number, got a tensor that requires a gradient: pass {name}.item()")
    try:
        if isinstance(value, str | bytes):
            raise TypeError  # float would read it
        found = float(value)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"{name} must be a number, got {value!r}") from None
    except OverflowError:
        found = math.inf
    if not -LARGEST < found < LARGEST:
        wanted = f"between -{LARGEST:g} and {LARGEST:g}" if math.isfinite(found) else "a finite number"
        raise ValueError(f"{name} must be {wanted}, got {found}")
    return found


def flag(name: str, value) -> bool:
    """The value as True or False; raises ValueError for what is neither, such as a mask."""
    if isinstance(value, (bool, int)) or type(value).__name__ in ("bool", "bool_") or getattr(value, "ndim", 1) == 0:
        return bool(value)
    came = "a tensor" if hasattr(value, "data_ptr") else repr(value) if isinstance(value, str) else type(value).__name__
    raise ValueError(f"{name} must be True or False, got {came}")


def _is_count(value) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def check_count(name: str, value) -> None:
    """Raises ValueError for what is no whole number of at least 1."""
    if not _is_count(value):
        came = "a tensor" if hasattr(value, "data_ptr") else repr(value)  # torch.compile can not show one
        raise ValueError(f"{name} must be a whole number of at least 1, got {came}")


def check_window(window: int, causal: bool) -> None:
    """Raises ValueError for what is no sliding window, or goes without a causal mask."""
    check_count("window", window)
    if window >= 2**31:
        raise ValueError(f"window must be less than 2^31, got {window}: without one every key is seen")
    if not causal:
        raise ValueError("window takes a causal mask, of which it is the last part: say causal, too")


def masks(problem: Problem) -> dict[str, object]:
    """What of a problem's features is an argument of the same name: its window and soft cap, where it has them."""
    return {name: getattr(problem, name) for name in ("window", "softcap") if name in problem.features}


def _counted(lengths: tuple[int, ...]) -> str:
    return "1 sequence" if len(lengths) == 1 else f"{len(lengths)} sequences"


def positive(scale: float) -> tuple[int, float]:
    """(factor on q, scale above zero) that give the same scores together.

    A kernel takes a row's maximum before it scales, and masks with minus infinity: both want a scale above zero.
    """
    if scale > 0:
        return 1, scale
    return (-1, -scale) if scale < 0 else (0, 1.0)
