"""The problem: which attention is computed. ``tutorial_lib.passes`` says what a pass over it takes and costs."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

DTYPES = ("float16", "bfloat16")
SHORT_DTYPES = {"float16": "fp16", "bfloat16": "bf16"}
BYTES_PER_ELEMENT = 2  # both dtypes have 16 bits


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Attention, ``softmax(scale * q @ k^T, masked) @ v`` for every batch and head, of one shape.

    Shapes: q and o ``[batch, heads, seq_len_q, head_dim]``, k and v ``[batch, kv_heads, seq_len_kv, head_dim]``.
    Query heads share key/value heads in groups of ``heads // kv_heads`` (grouped-query attention). ``causal``
    hides key ``j`` from query ``i`` where ``j > i``, also when the lengths differ, as
    ``scaled_dot_product_attention`` does. ``scale`` None means ``1 / sqrt(head_dim)``.

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

    def __post_init__(self):
        if self.kv_heads is None:
            object.__setattr__(self, "kv_heads", self.heads)
        for name in ("batch", "heads", "kv_heads", "seq_len_q", "seq_len_kv", "head_dim"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads must divide heads ({self.heads}), got {self.kv_heads}")
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}")
        if self.scale is not None and not math.isfinite(self.scale):
            raise ValueError(f"scale must be a finite number, got {self.scale!r}")

    @classmethod
    def of(
        cls,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        causal: bool = False,
        scale: float | None = None,
    ) -> Problem:
        """The problem that these inputs pose; raises ValueError naming the argument that does not fit."""
        import torch

        for name, tensor in (("q", q), ("k", k), ("v", v)):
            if not isinstance(tensor, torch.Tensor):
                raise ValueError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
            if tensor.ndim != 4:
                raise ValueError(
                    f"{name} must have 4 dimensions [batch, heads, seq_len, head_dim], got shape {tuple(tensor.shape)}"
                )
            if tensor.dtype not in (torch.float16, torch.bfloat16):
                raise ValueError(f"{name} must be float16 or bfloat16, got {tensor.dtype}")
            if tensor.dtype != q.dtype:
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
        if v.shape != k.shape:
            raise ValueError(f"v must have k's shape {tuple(k.shape)}, got {tuple(v.shape)}")
        return cls(
            batch=batch,
            heads=heads,
            kv_heads=kv_heads,
            seq_len_q=seq_len_q,
            seq_len_kv=seq_len_kv,
            head_dim=head_dim,
            dtype=str(q.dtype).removeprefix("torch."),
            causal=bool(causal),
            scale=None if scale is None else float(scale),
        )

    @property
    def effective_scale(self) -> float:
        """The factor on the scores: ``scale``, or ``1 / sqrt(head_dim)`` when that is None."""
        return 1 / math.sqrt(self.head_dim) if self.scale is None else self.scale

    @property
    def group_size(self) -> int:
        """How many query heads share one key/value head."""
        return self.heads // self.kv_heads

    @property
    def visible_pairs(self) -> float:
        """Query-key pairs of one head that the mask lets through; a causal square counts as half, as is customary."""
        if not self.causal:
            return self.seq_len_q * self.seq_len_kv
        square = min(self.seq_len_q, self.seq_len_kv)
        return square**2 / 2 + (self.seq_len_q - square) * self.seq_len_kv

    @property
    def family(self) -> str:
        """A name for this problem without its sequence lengths, such as ``b4_h32_d128_fp16_causal``."""
        return "_".join(self._name_parts(lengths=False))

    @property
    def slug(self) -> str:
        """A name for this problem that fits a folder, such as ``b4_h32_s4096_d128_fp16_causal``."""
        return "_".join(self._name_parts(lengths=True))

    @property
    def order(self) -> tuple:
        """What problems are sorted by in tables: family first, then length, as numbers."""
        return (self.batch, self.heads, self.head_dim, self.dtype, self.causal, self.seq_len_q, self.seq_len_kv)

    def _name_parts(self, lengths: bool) -> list[str]:
        parts = [f"b{self.batch}", f"h{self.heads}"]
        if self.kv_heads != self.heads:
            parts.append(f"kvh{self.kv_heads}")
        if lengths:
            parts.append(f"s{self.seq_len_q}")
            if self.seq_len_kv != self.seq_len_q:
                parts.append(f"skv{self.seq_len_kv}")
        parts += [f"d{self.head_dim}", SHORT_DTYPES[self.dtype], "causal" if self.causal else "full"]
        if self.scale is not None:
            parts.append(f"scale{self.scale:g}")
        return parts

    def describe(self) -> str:
        """One line for a person, such as ``B=4 H=32 S=4096 D=128 fp16 causal``."""
        heads = f"H={self.heads}" + (f"/{self.kv_heads}" if self.kv_heads != self.heads else "")
        lengths = f"S={self.seq_len_q}" + (f"x{self.seq_len_kv}" if self.seq_len_kv != self.seq_len_q else "")
        mask = "causal" if self.causal else "full"
        scale = "" if self.scale is None else f" scale={self.scale:g}"
        return f"B={self.batch} {heads} {lengths} D={self.head_dim} {SHORT_DTYPES[self.dtype]} {mask}{scale}"

    def as_dict(self) -> dict:
        """The fields, as results.json holds them."""
        return asdict(self)


def positive(scale: float) -> tuple[int, float]:
    """(factor on q, scale above zero) that give the same scores together.

    A kernel takes a row's maximum before it scales, and masks with minus infinity: both want a scale above zero.
    """
    if scale > 0:
        return 1, scale
    return (-1, -scale) if scale < 0 else (0, 1.0)
