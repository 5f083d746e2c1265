"""What a backward step is: it computes dq, dk and dv from what the forward pass read and wrote."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import NoneType
from typing import TYPE_CHECKING, ClassVar

from steps.core.fused import queries_seen
from steps.core.step import Step, Unsupported, no_scratch, read_lengths
from steps.core.tensors import check_out, check_sinks, check_strides, contiguous_sinks, kind, plain, tell_autograd
from steps.core.tiles import Tile
from tutorial_lib import packing
from tutorial_lib.blockwise import gradient_of_sinks, row_sums
from tutorial_lib.problem import Problem, flag, number

if TYPE_CHECKING:
    import torch

GRADIENTS = ("dq", "dk", "dv", "dsinks")  # the last with sinks


@dataclass(frozen=True, kw_only=True)
class GradientStep(Step):
    """One way to compute attention's gradients. ``make_ready(problem, tensors, out)`` gets all six tensors at once.

    Attention sinks change no large kernel. With a log-sum-exp that holds the sink, the weights P = exp(S - lse) are
    those of the keys, and dS = P (dP - delta) is right as it is. What is left is the sinks' own gradient: for each head
    minus the sum of exp(sink - lse) delta over its rows. A small kernel computes it from what was made ready of the
    rows. A step that takes its weights from elsewhere, not from lse, does not take sinks. Where a problem has sinks,
    they are the seventh tensor.
    """

    direction: ClassVar[str] = "backward"
    takes: ClassVar[tuple[str, ...]] = ("sinks",)
    rounds_sinks: ClassVar[bool] = False  # to bfloat16, them and their gradient

    @property
    def deterministic(self) -> bool:
        """Whether the same inputs give the same bits every time; False where nobody says so."""
        return False

    def attention(self, *_, **__):
        raise Unsupported(f"step {self.label} computes gradients: call its gradients(q, k, v, o, lse, do)")

    def gradients(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        o: torch.Tensor,
        lse: torch.Tensor,
        do: torch.Tensor,
        causal: bool = False,
        scale: float | None = None,
        *,
        window: int | None = None,
        softcap: float | None = None,
        cu_seqlens_q: torch.Tensor | None = None,
        cu_seqlens_k: torch.Tensor | None = None,
        sinks: torch.Tensor | None = None,
        out: tuple[torch.Tensor, ...] | None = None,
    ) -> tuple[torch.Tensor, ...]:
        """The gradients (dq, dk, dv) of attention, in the inputs' dtype.

        q, k, v, causal and scale as in ``Step.attention``; o ``[B, Hq, Sq, D]`` is what the forward pass returned,
        lse ``[B, Hq, Sq]`` in float32 the natural logarithm of the sum of exp(scaled scores) of every query, minus
        infinity for one that sees no key, and do ``[B, Hq, Sq, D]`` the gradient of o. Written to ``out`` where that
        is given, which must not overlap the inputs.

        window, softcap, sinks, cu_seqlens_q and cu_seqlens_k as in ``Step.attention``, as far as the step takes them.
        With sinks o and lse are those of attention with sinks. Returns, and writes to ``out``, (dq, dk, dv, dsinks)
        then, and dsinks is ``[Hq]`` in the sinks' dtype. Of packed sequences tensors are as there, and lse
        ``[Hq, tokens]``.

        Raises ValueError naming the argument, what it must be and what came; Unsupported for what this step cannot do.
        """
        tensors = plain(q=q, k=k, v=v, o=o, lse=lse, do=do)
        self._refuse_derivatives(q=q, k=k, v=v, o=o, lse=lse, do=do, sinks=sinks)
        more = () if sinks is None else (contiguous_sinks(sinks),)
        if cu_seqlens_q is not None or cu_seqlens_k is not None:
            begins = cu_seqlens_q, cu_seqlens_q if cu_seqlens_k is None else cu_seqlens_k
            made = self._packed(tensors, causal, scale, out, window, softcap, more, begins)
        else:
            made = self.ready(*tensors, causal, scale, out, window, softcap, *more)(*tensors, out, *more)
        if out is not None:
            tell_autograd(*out)
        return made

    def _packed(self, tensors, causal, scale, out, window, softcap, sinks: tuple, begins: tuple) -> tuple:
        """``gradients`` of packed sequences: kernels see a batch of one, and where the sequences begin."""
        import torch

        q, k, v, o, lse, do = tensors
        q, k, v, o, do = packing.as_batches(q=q, k=k, v=v, o=o, do=do)
        begins = tuple(plain(**dict(zip(("cu_seqlens_q", "cu_seqlens_k"), begins))))
        for name, cu in zip(("cu_seqlens_q", "cu_seqlens_k"), begins):
            packing.check(name, cu, q.device)
        if out is None:
            out = tuple(torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (*tensors[:3], *sinks))
        out = _as_many("out", out, GRADIENTS[: 3 + len(sinks)])
        places = *packing.as_batches(**dict(zip(GRADIENTS, out[:3]))), *out[3:]
        given = (q, k, v, o, lse.unsqueeze(0), do)
        launch = self.ready(*given, causal, scale, places, window, softcap, *(sinks or (None,)), begins)
        launch(*given, places, *sinks, *begins)
        return out

    def ready(
        self,
        q,
        k,
        v,
        o,
        lse,
        do,
        causal: bool = False,
        scale: float | None = None,
        out=None,
        window: int | None = None,
        softcap: float | None = None,
        sinks=None,
        begins: tuple = (),
    ):
        """``launch(q, k, v, o, lse, do, out)`` for calls of this kind, made ready at the first; raises as above.

        With sinks, which are contiguous, it takes them behind ``out``. begins: where packed sequences begin, as it
        takes it behind these; the tensors are then batches of one.
        """
        causal, scale = flag("causal", causal), None if scale is None else number("scale", scale)
        softcap = None if softcap is None else number("softcap", softcap)
        tensors = (q, k, v, o, lse, do) if sinks is None else (q, k, v, o, lse, do, sinks)
        what = kind_of_gradients((*tensors, *begins), causal, scale, out, window, softcap)
        lengths = (None, None)
        if begins and (self.reads_lengths or q.device.type == "cpu"):  # where nobody waits for it
            lengths = read_lengths(begins, q, k)
            what = what and (what, lengths if self.reads_lengths else None)
        if launch := self.launches.find(what):
            return launch
        if begins:
            lengths = read_lengths(begins, q, k)
        masks = {"window": window, "softcap": softcap, "lengths": lengths[0], "lengths_kv": lengths[1]}
        return self._gradients_ready(what, tensors, causal, scale, out, **masks)

    def _gradients_ready(self, what: tuple | None, tensors: tuple, causal: bool, scale: float | None, out, **masks):
        import torch

        q, k, v, o, lse, do, *sinks = tensors
        plain(q=q, k=k, v=v, o=o, lse=lse, do=do)  # tells what holds no numbers
        problem = Problem.of(q, k, v, causal, scale, **masks, sinks=bool(sinks))
        for name, x in (("o", o), ("do", do)):
            _check(name, x, (*q.shape[:-1], v.shape[-1]), q.dtype, q.device)
        _check("lse", lse, q.shape[:-1], torch.float32, q.device)
        for x in sinks:
            check_sinks(x, q)
        if out is not None:
            likes = (q, k, v, *sinks)
            for name, given, like in zip(GRADIENTS, _as_many("out", out, GRADIENTS[: len(likes)]), likes):
                check_out(f"out's {name}", given, like)
        if not self.takes_long_strides:
            check_strides(q=q, k=k, v=v, o=o, lse=lse, do=do, **dict(zip(GRADIENTS, out or ())))
        return self.kept(what, problem, q.device, lambda: self.make_ready(problem, tensors, out))

    def make_ready(self, problem: Problem, tensors: tuple, out: tuple | None):
        """``launch(q, k, v, o, lse, do, out)`` for tensors of the kind of these; returns (dq, dk, dv).

        Where the problem has sinks, it takes them behind ``out``, and returns dsinks, too.
        """
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class TorchGradients(GradientStep):
    """Made of PyTorch calls: ``function(q, k, v, o, lse, do, causal, scale)`` returns (dq, dk, dv)."""

    function: Callable
    scratch: Callable[[Problem], int] = no_scratch

    backend: ClassVar[str] = "torch"

    def scratch_bytes(self, problem: Problem) -> int:
        return self.scratch(problem)

    def make_ready(self, problem, tensors, out):
        function, causal, scale = self.function, problem.causal, problem.effective_scale

        def launch(q, k, v, o, lse, do, out, *sinks):
            made = function(q, k, v, o, lse, do, causal, scale)
            made = *made, *(gradient_of_sinks(x, lse, row_sums(o, do)).to(x.dtype) for x in sinks)
            return made if out is None else tuple(place.copy_(x) for place, x in zip(out, made, strict=True))

        return launch


def kind_of_gradients(
    tensors: tuple, causal: bool, scale: float | None, out: tuple | None = None, window=None, softcap=None
) -> tuple | None:
    """All that a launch may depend on, of the inputs and ``out``; None where some is no ``plain`` tensor.

    So it is where ``window`` is no number, which is told when a launch is made ready.
    """
    if type(window) not in (int, NoneType):
        return None
    asked = causal, scale, window, softcap
    try:
        return *map(kind, tensors), *asked, None if out is None else tuple(map(kind, out))
    except (AttributeError, TypeError, RuntimeError):
        return None


def tiles_visited(problem: Problem, tile: Tile) -> int:
    """Tiles of scores that the blocks which own keys compute together."""
    tiles = ((each, j) for each in problem.sequences for j in range(-(-each.seq_len_kv // tile.key)))
    return problem.batch * problem.heads * sum(queries_seen(each, tile, j) for each, j in tiles)


def _as_many(name: str, given, wanted: tuple[str, ...]) -> tuple:
    """What is given, a tensor for each name; raises ValueError where they are not as many."""
    if not isinstance(given, tuple | list) or len(given) != len(wanted):
        came = len(given) if isinstance(given, tuple | list) else type(given).__name__
        raise ValueError(f"{name} must be {len(wanted)} tensors ({', '.join(wanted)}), got {came}")
    return tuple(given)


def _check(name: str, x, shape, dtype, device) -> None:
    wanted = f"{name} must have shape {tuple(shape)}, {dtype} on {device}"
    if not hasattr(x, "data_ptr"):
        raise ValueError(f"{wanted}, got {type(x).__name__}")
    if (x.shape, x.dtype, x.device) != (shape, dtype, device):
        raise ValueError(f"{wanted}, got {tuple(x.shape)}, {x.dtype} on {x.device}")
