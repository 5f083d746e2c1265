"""What a step is that reads keys and values from pages: ``tutorial_lib.paging`` says what these are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from steps.core.launch import Launch
from steps.core.quantized import SCALES, check_scale, ones_where_none
from steps.core.step import Step, Unsupported, no_scratch
from steps.core.tensors import check_out, check_strides, kind, plain, tell_autograd
from tutorial_lib.problem import Problem, flag, number, positive

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class PagedStep(Step):
    """One way to compute attention of a sequence's last queries to keys in pages.

    ``make_ready(problem, tensors, out)`` gets q, k_pages, v_pages, page_table, lengths and, of pages in fp8, the scales
    of K and V at once.
    """

    direction: ClassVar[str] = "paged"
    takes: ClassVar[tuple[str, ...]] = ("page_size", "kv_dtype")

    def unsupported(self, problem: Problem, target: str) -> str | None:
        if problem.page_size is None:
            return "reads keys and values from pages: ask for a page_size"
        return super().unsupported(problem, target)

    def attention(self, *_, **__):
        raise Unsupported(
            f"step {self.label} reads pages: call its paged_attention(q, k_pages, v_pages, page_table, lengths)"
        )

    def paged_attention(
        self,
        q: torch.Tensor,
        k_pages: torch.Tensor,
        v_pages: torch.Tensor,
        page_table: torch.Tensor,
        lengths: torch.Tensor,
        causal: bool = False,
        scale: float | None = None,
        *,
        out: torch.Tensor | None = None,
        k_scale: torch.Tensor | None = None,
        v_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attention of queries that are the last of their sequence.

        q ``[B, Hq, Sq, D]``, k_pages and v_pages ``[pages, page_size, Hkv, D]``, float16 or bfloat16; page_table int32
        ``[B, pages of the longest]``, whose row holds a sequence's pages in their order; lengths int32 ``[B]``, keys of
        each sequence, 0 or more. On a GPU nobody checks what table and lengths hold, which would wait for it.
        ``causal`` hides key j of n from query i where j > i + n - Sq; a query that sees no key gets zeros. ``scale``
        None means 1 / sqrt(D).
        Returns o ``[B, Hq, Sq, D]``, written to ``out`` when that is given.

        Both pages may be float8_e4m3fn instead. Then a sequence's keys are those of its pages times ``k_scale``,
        float32 ``[B, Hkv]``, a number above 0 for each kv head, and its values those times ``v_scale``; None: 1.

        Raises ValueError naming the argument, what it must be and what came; Unsupported for what this step cannot do.
        """
        import torch

        if torch.compiler.is_compiling():  # it would trace how kernels are launched
            apart = torch.compiler.disable(self.paged_attention)
            more = {"out": out, "k_scale": k_scale, "v_scale": v_scale}
            return apart(q, k_pages, v_pages, page_table, lengths, causal, scale, **more)
        tensors = plain(q=q, k_pages=k_pages, v_pages=v_pages, page_table=page_table, lengths=lengths)
        scales = {"k_scale": k_scale, "v_scale": v_scale}
        self._refuse_derivatives(q=q, k_pages=k_pages, v_pages=v_pages, out=out, **scales)
        tensors = (*tensors, *self._scales(q, k_pages, scales))
        launch = self.ready(*tensors, causal=causal, scale=scale, out=out)
        if tensors[0].device.type == "cpu":
            check_table(*tensors[3:5], *k_pages.shape[:2])
        made = launch(*tensors, out)
        if out is not None:
            tell_autograd(out)
        return made

    @staticmethod
    def _scales(q, k_pages, scales: dict) -> tuple:
        """The scales of pages in fp8, ones where none is given; none of other pages."""
        import torch

        dtype = getattr(k_pages, "dtype", None)
        if dtype is torch.float8_e4m3fn:
            shape = (*getattr(q, "shape", ())[:1], *k_pages.shape[2:3])  # other shapes are refused below
            return plain(**ones_where_none(scales, shape, k_pages.device))
        for name, x in scales.items():
            if x is not None:
                raise ValueError(f"{name} must be None for pages in {dtype}, which have no scale, got one")
        return ()

    def ready(self, *tensors, causal=False, scale: float | None = None, out=None) -> Launch:
        """``launch(*tensors, out)`` for calls of this kind, made ready at the first.

        tensors: q, k_pages, v_pages, page_table, lengths and, of pages in fp8, the scales of K and V.
        """
        causal, scale = flag("causal", causal), None if scale is None else number("scale", scale)
        try:
            what = (*map(kind, tensors), causal, scale, None if out is None else kind(out))
        except (AttributeError, TypeError, RuntimeError):  # no tensors: told below
            what = None
        return self.launches.find(what) or self._paged_ready(what, tensors, causal, scale, out)

    def _paged_ready(self, what: tuple | None, tensors: tuple, causal: bool, scale: float | None, out) -> Launch:
        named = dict(zip(("q", "k_pages", "v_pages", "page_table", "lengths", "k_scale", "v_scale"), tensors))
        plain(**named)  # tells what holds no numbers
        problem = problem_of(*tensors[:5], causal, scale)
        q = tensors[0]
        for name in SCALES[1:] if problem.kv_dtype else ():
            check_scale(name, named[name], (problem.batch, problem.kv_heads), q.device)
        if out is not None:
            check_out("out", out, q)
        if not self.takes_long_strides:
            check_strides(**named, out=out)
        return self.kept(what, problem, q.device, lambda: self.make_ready(problem, tensors, out))

    def make_ready(self, problem: Problem, tensors: tuple, out):
        """``launch(*tensors, out)`` for tensors of the kind of these; returns o."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class TorchPaged(PagedStep):
    """Made of PyTorch calls: ``function(q, k_pages, v_pages, page_table, lengths, causal, scale, *scales)`` returns o.

    scales: of K and V, where pages are in fp8.
    """

    function: Callable
    scratch: Callable[[Problem], int] = no_scratch

    backend: ClassVar[str] = "torch"

    def scratch_bytes(self, problem: Problem) -> int:
        return self.scratch(problem)

    def make_ready(self, problem, tensors, out):
        function, causal = self.function, problem.causal
        sign, scale = positive(problem.effective_scale)

        def launch(q, k_pages, v_pages, page_table, lengths, *more):
            *scales, out = more
            o = function(q if sign == 1 else q * sign, k_pages, v_pages, page_table, lengths, causal, scale, *scales)
            return o if out is None else out.copy_(o)

        return launch


def problem_of(q, k_pages, v_pages, page_table, lengths, causal: bool, scale: float | None) -> Problem:
    """The problem that these inputs pose, with as many keys as the table has room for; raises ValueError."""
    import torch

    for name, tensor, wanted in (
        ("q", q, "[batch, heads, seq_len, head_dim]"),
        ("k_pages", k_pages, "[pages, page_size, kv_heads, head_dim]"),
        ("v_pages", v_pages, "[pages, page_size, kv_heads, head_dim]"),
    ):
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
        if tensor.ndim != 4:
            raise ValueError(f"{name} must have 4 dimensions {wanted}, got shape {tuple(tensor.shape)}")
    if q.dtype not in (torch.float16, torch.bfloat16):
        raise ValueError(f"q must be float16 or bfloat16, got {q.dtype}")
    batch, heads, seq_len_q, head_dim = q.shape
    pages, page_size, kv_heads, _ = k_pages.shape
    if not pages:
        raise ValueError(f"k_pages must hold at least one page, got shape {tuple(k_pages.shape)}")
    kept = k_pages.dtype if k_pages.dtype is torch.float8_e4m3fn else q.dtype
    for name, tensor in (("k_pages", k_pages), ("v_pages", v_pages)):
        _check(name, tensor, (pages, page_size, kv_heads, head_dim), kept, q.device)
    width = page_table.shape[1] if getattr(page_table, "ndim", 0) == 2 else "pages"
    _check("page_table", page_table, (batch, width), torch.int32, q.device)
    _check("lengths", lengths, (batch,), torch.int32, q.device)
    return Problem(
        batch=batch,
        heads=heads,
        kv_heads=kv_heads,
        seq_len_q=seq_len_q,
        seq_len_kv=width * page_size,
        head_dim=head_dim,
        dtype=str(q.dtype).removeprefix("torch."),
        kv_dtype=str(kept).removeprefix("torch."),
        causal=causal,
        scale=scale,
        page_size=page_size,
    )


def check_table(page_table, lengths, pages: int, page_size: int) -> None:
    """Raises ValueError for a length that the table has no room for, and for a number, in use, that no page has."""
    import torch

    room = page_table.shape[1] * page_size
    for b, length in enumerate(lengths.tolist()):
        if not 0 <= length <= room:
            raise ValueError(f"lengths must be from 0 to {room}, as page_table has room for, got {length} at {b}")
    begins = page_size * torch.arange(page_table.shape[1])
    for page in page_table[begins < lengths[:, None]].tolist():
        if not 0 <= page < pages:
            raise ValueError(f"page_table must hold numbers from 0 to {pages - 1} where lengths reach, got {page}")


def _check(name: str, x, shape: tuple, dtype, device) -> None:
    wanted = f"{name} must have shape ({', '.join(map(str, shape))}), {dtype} on {device}"
    if not hasattr(x, "data_ptr"):
        raise ValueError(f"{wanted}, got {type(x).__name__}")
    if (tuple(x.shape), x.dtype, x.device) != (shape, dtype, device):
        raise ValueError(f"{wanted}, got {tuple(x.shape)}, {x.dtype} on {x.device}")
