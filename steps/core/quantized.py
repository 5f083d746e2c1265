"""What a step is whose inputs are in fp8 (``tutorial_lib.quantize``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from steps.core.launch import Launch
from steps.core.step import Step
from steps.core.tensors import check_out, check_strides, kind, plain, tell_autograd
from tutorial_lib.problem import DTYPES, FP8, IN_8_BITS, Problem, flag, number

if TYPE_CHECKING:
    import torch

SCALES = ("q_scale", "k_scale", "v_scale")


@dataclass(frozen=True, kw_only=True)
class QuantizedStep(Step):
    """One way to compute attention of inputs in fp8, or of keys and values alone in fp8, as it ``takes``.

    ``make_ready`` gets q, k, v and their scales at once. formats: dtypes of inputs in fp8. Of others' attention alone,
    one_scale: of each tensor it takes the first scale for all; writes: the dtype that the output is rounded to.
    """

    direction: ClassVar[str] = "fp8"
    takes: ClassVar[tuple[str, ...]] = ("fp8",)
    formats: ClassVar[tuple[str, ...]] = IN_8_BITS
    one_scale: ClassVar[bool] = False
    writes: ClassVar[str | None] = None
    differentiable: ClassVar[str] = "steps.attention with the inputs in 16 bits"

    def unsupported(self, problem: Problem, target: str) -> str | None:
        if not problem.kv_dtype and problem.dtype not in self.formats:
            return f"takes inputs in {' or '.join(self.formats)}, not in {problem.dtype}"
        if problem.effective_scale <= 0:
            return f"scale must be above 0, got {problem.scale}"
        return super().unsupported(problem, target)

    def sums_in_tensor_cores(self, problem: Problem) -> bool:
        """Whether the tensor cores add up the PV product of all keys (``tutorial_lib.tensor_cores``)."""
        return False

    @property
    def offset_of_weights(self) -> int:
        """In base 2: the largest weight of a row is 2^offset when it is rounded."""
        return 0

    def attention(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        causal: bool = False,
        scale: float | None = None,
        *,
        out: torch.Tensor | None = None,
        return_lse: bool = False,
        q_scale: torch.Tensor | None = None,
        k_scale: torch.Tensor | None = None,
        v_scale: torch.Tensor | None = None,
        out_dtype: torch.dtype | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Attention of ``q * q_scale``, ``k * k_scale`` and ``v * v_scale``.

        q ``[B, Hq, Sq, D]``, k and v ``[B, Hkv, Skv, D]``, all float8_e4m3fn or, of the steps in Gluon, all
        float8_e5m2, any strides, on a CUDA device or on the CPU (the simulator, or cuTile's interpreter). Scales:
        float32 ``[B, Hkv]``, above 0, each for a sequence and a kv head; that of q is for all query heads of a group;
        None: 1. Nobody checks what they hold, as they are on the GPU. ``causal``, ``scale``, which must be above 0, and
        ``return_lse`` are as in ``Step.attention``. Returns o ``[B, Hq, Sq, D]`` in ``out_dtype``, float16 or bfloat16
        (None: out's dtype, or bfloat16), written to ``out`` when that is given. Where a step takes keys and values
        alone in float8_e4m3fn, q is float16 or bfloat16; it has no scale, and o has its dtype.

        Raises ValueError naming the argument, what it must be and what came; Unsupported for what this step cannot do.
        """
        import torch

        q, k, v = plain(q=q, k=k, v=v)
        scales = dict(zip(SCALES, (q_scale, k_scale, v_scale)))
        if getattr(q, "dtype", None) in (torch.float16, torch.bfloat16) and scales.pop("q_scale") is not None:
            raise ValueError(f"q_scale must be None for q in {q.dtype}, which has no scale, got one")
        if isinstance(k, torch.Tensor):
            scales = ones_where_none(scales, k.shape[:2], k.device)
        self._refuse_derivatives(q=q, k=k, v=v, out=out, **scales)
        scales = tuple(plain(**scales))
        made = self.ready(q, k, v, scales, causal, scale, out, return_lse, out_dtype)(q, k, v, *scales, out)
        if out is not None:
            tell_autograd(out)
        return made

    def ready(
        self, q, k, v, scales: tuple, causal=False, scale=None, out=None, return_lse=False, out_dtype=None
    ) -> Launch:
        """``launch(q, k, v, *scales, out)`` for calls of this kind, made ready at the first. scales: of q, k and v, or
        of k and v where q has 16 bits.
        """
        import torch

        causal, return_lse = flag("causal", causal), flag("return_lse", return_lse)
        scale = None if scale is None else number("scale", scale)
        halves = (torch.float16, torch.bfloat16)
        known = (q.dtype,) if getattr(q, "dtype", None) in halves else halves
        dtype = getattr(out, "dtype", known[-1]) if out_dtype is None else out_dtype
        if dtype not in known:
            name = "out's dtype" if out_dtype is None else "out_dtype"
            raise ValueError(f"{name} must be {' or '.join(map(str, known))}, got {dtype}")
        tensors = (q, k, v, *scales)
        try:
            what = (*map(kind, tensors), causal, scale, return_lse, dtype, None if out is None else kind(out))
        except (AttributeError, TypeError, RuntimeError):  # no tensors: told below
            what = None
        return self.launches.find(what) or self._quantized_ready(what, tensors, causal, scale, out, return_lse, dtype)

    def _quantized_ready(self, what, tensors: tuple, causal, scale, out, return_lse: bool, dtype) -> Launch:
        q, scales = tensors[0], tensors[3:]
        kv_dtype = FP8 if str(getattr(q, "dtype", None)).removeprefix("torch.") in DTYPES else None
        problem = Problem.of(*tensors[:3], causal, scale, dtypes=(*IN_8_BITS, *DTYPES), kv_dtype=kv_dtype)
        for name, x in zip(SCALES[-len(scales) :], scales):
            check_scale(name, x, (problem.batch, problem.kv_heads), q.device)
        if out is not None:
            check_out("out", out, q.new_empty(1, dtype=dtype).expand(q.shape), problem.value_dim)
        if not self.takes_long_strides:
            check_strides(**dict(zip("qkv", tensors)), out=out)
        make = partial(self.make_ready, problem, tensors, out, dtype, return_lse)
        return self.kept(what, problem, q.device, make)

    def make_ready(self, problem: Problem, tensors: tuple, out, dtype: torch.dtype, return_lse: bool = False) -> Launch:
        """``launch(q, k, v, *scales, out)`` for tensors of the kind of these; returns o.

        That is out or, where it is None, a new tensor in dtype; with return_lse (o, lse).
        """
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class TorchQuantized(QuantizedStep):
    """Made of PyTorch calls: ``function(q, k, v, causal, scale, scales, out_dtype)`` returns o; it has no lse."""

    function: Callable

    backend: ClassVar[str] = "torch"
    takes: ClassVar[tuple[str, ...]] = ("fp8", "kv_dtype")

    def make_ready(self, problem, tensors, out, dtype, return_lse=False):
        if return_lse:
            raise ValueError(f"return_lse must be False for step {self.label}, which has no log-sum-exp, got True")
        function, causal, scale = self.function, problem.causal, problem.effective_scale

        def launch(q, k, v, *more):
            *scales, out = more
            o = function(q, k, v, causal, scale, scales, dtype)
            return o if out is None else out.copy_(o)

        return launch


def ones_where_none(scales: dict, shape: tuple, device) -> dict:
    """Scales by name: where one is None, ones of this shape."""
    import torch

    if all(x is not None for x in scales.values()):
        return scales
    one = torch.ones(shape, dtype=torch.float32, device=device)
    return {name: one if x is None else x for name, x in scales.items()}


def check_scale(name: str, x, shape: tuple, device) -> None:
    """Raises ValueError for what is no contiguous scale of this shape beside q."""
    import torch

    wanted = f"{name} must be a contiguous tensor {list(shape)} [batch, kv_heads], float32 on {device}"
    if not isinstance(x, torch.Tensor):
        raise ValueError(f"{wanted}, got {type(x).__name__}")
    if (tuple(x.shape), x.dtype, x.device) != (shape, torch.float32, device) or not x.is_contiguous():
        raise ValueError(f"{wanted}, got {tuple(x.shape)}, {x.dtype} on {x.device}, strides {x.stride()}")
