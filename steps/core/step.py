"""What a step is: a numbered way to compute attention, and the checks that every one of them shares."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from types import NoneType
from typing import TYPE_CHECKING, ClassVar

from steps.core.launch import MAKING_READY, Launch, Launches, kind_of, on_its_device, told
from steps.core.tensors import (
    check_out,
    check_sinks,
    check_strides,
    plain,
    refuse_tangents,
    sinks_in_float32,
    tell_autograd,
    undisturbed,
)
from steps.core.tensors import (
    kind as described,
)
from tutorial_lib import packing
from tutorial_lib.hardware import architecture_of
from tutorial_lib.needs import lacking
from tutorial_lib.packing import Packing
from tutorial_lib.problem import FEATURES, Problem, flag, masks, number, positive

if TYPE_CHECKING:
    import torch

    from tutorial_lib.compiled import Compiled


PIECE = 8  # elements that are copied at once, 16 bytes: rows must consist of whole ones where head_dim is padded
PADDING = f"steps in cuTile, and those for Hopper, take any multiple of {PIECE} up to 256"
DEFAULT_ARCH = "sm_90"  # compiled for where there is no GPU: the architecture that most of results/ was recorded on


class Unsupported(ValueError):
    """This step cannot compute this problem here; the message says why."""


def target_of(device: torch.device) -> str:
    """What code for this device is compiled for: "sm_90", "gfx950" and the like for a GPU, "cpu" for the CPU."""
    return "cpu" if device.type == "cpu" else architecture_of(device)


@dataclass(frozen=True, kw_only=True)
class Step:
    """One way to compute attention.

    name: one word for commands and files; title: a few words for tables; change: one sentence on what is new.
    number: its place in the ladder; None for a peer, and for what is inside another step, whose name is ``inside``.
    fork: whether it stands beside the main path. default_problem: what it is for, and what its chapter measures.
    """

    name: str
    title: str
    change: str
    number: int | None = None
    previous: Step | None = field(default=None, repr=False)
    inside: str | None = None
    fork: bool = False
    default_problem: Problem | None = field(default=None, repr=False)

    backend: ClassVar[str]
    direction: ClassVar[str] = "forward"  # which pass it computes: see ``tutorial_lib.passes``
    takes: ClassVar[tuple[str, ...]] = ()  # of ``Problem.features``: what else than plain attention it computes
    reads_lengths: ClassVar[bool] = False  # True: what it makes ready for packed sequences depends on their lengths
    head_dims: ClassVar[tuple[int, ...] | None] = None  # None: any
    pads_head_dim: ClassVar[bool] = False  # True: others, too, in tiles of the next of head_dims (``in_tiles``)
    takes_long_strides: ClassVar[bool] = True  # False: all must be below 2^31
    runs_on_cpu: ClassVar[bool] = True  # False: without a GPU it compiles, and does not run
    differentiable: ClassVar[str] = "steps.attention"  # what autograd differentiates, and takes the same inputs
    counted: ClassVar[str] = "fmha"  # a regular expression: kernels of such names have their hardware counters read
    several: ClassVar[bool] = False  # True: it computes on several ranks at once, each with its part of the sequence
    package: ClassVar[str | None] = None  # that its kernel is written in, as ``tutorial_lib.needs`` names it
    made_for: ClassVar[str] = DEFAULT_ARCH  # compiled for where no architecture is named

    @property
    def label(self) -> str:
        """The step's number and name, or a peer's name."""
        return self.name if self.number is None else f"{self.number} {self.name}"

    def evolve(self, **changes) -> Step:
        """The next step: this one with ``changes``, and this one as its predecessor, where these name no other."""
        return dataclasses.replace(self, **{"previous": self, "number": None, "inside": None, **changes})

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
        window: int | None = None,
        softcap: float | None = None,
        cu_seqlens_q: torch.Tensor | None = None,
        cu_seqlens_k: torch.Tensor | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Attention: ``softmax(scale * q @ k^T, masked) @ v``.

        q ``[B, Hq, Sq, D]``, k and v ``[B, Hkv, Skv, D]``, float16 or bfloat16, any strides, on a CUDA device (runs
        the kernel) or on the CPU (PyTorch, or the interpreter for a kernel). ``causal`` hides key j from query i
        where j > i, as ``scaled_dot_product_attention`` does; ``scale`` None means 1 / sqrt(D). Returns o
        ``[B, Hq, Sq, D]`` in q's dtype, under autocast as well, written to ``out`` when that is given, which must not
        overlap the inputs; with ``return_lse`` (o, lse), and lse ``[B, Hq, Sq]`` is the natural logarithm, in float32,
        of the sum of exp(scaled scores) over the keys that a query sees. A step with a kernel computes no gradients.

        ``window``, ``softcap`` and ``sinks`` are as in ``Problem``; a step computes what it ``takes``. sinks ``[Hq]``,
        float32, float16 or bfloat16 on q's device, are computed with in float32. A sink is finite, or minus infinity,
        which is none. lse is then of a row's scores and its head's sink. A query without a finite score gets 0 where
        its head has a finite sink; elsewhere its o is not defined.
        With ``cu_seqlens_q``, int32 ``[sequences + 1]`` on q's device, sequences are packed: q and o ``[tokens, Hq,
        D]``, k and v ``[tokens, Hkv, D]``, lse ``[Hq, tokens]``. ``cu_seqlens_k`` says where those of the keys begin,
        None: as those of the queries. What both hold is checked at the first call of a kind (on the CPU at each), and
        read by the kernel: later calls that hold something else must also rise from 0 to the number of tokens, and a
        window must leave every query a key, or o is not defined.

        Raises ValueError naming the argument, what it must be and what came; Unsupported for what this step cannot do.
        """
        q, k, v = plain(q=q, k=k, v=v)
        self._refuse_derivatives(q=q, k=k, v=v, out=out, sinks=sinks)
        if sinks is not None:
            sinks = sinks_in_float32(sinks)
        if cu_seqlens_q is not None or cu_seqlens_k is not None:
            begins = cu_seqlens_q, cu_seqlens_q if cu_seqlens_k is None else cu_seqlens_k
            made = self._packed(q, k, v, causal, scale, out, return_lse, window, softcap, begins, sinks)
        elif sinks is None:
            made = self.ready(q, k, v, causal, scale, out, return_lse, window, softcap)(q, k, v, out)
        else:
            launch = self.ready(q, k, v, causal, scale, out, return_lse, window, softcap, (), sinks)
            made = launch(q, k, v, out, sinks)
        if out is not None:
            tell_autograd(out)
        return made

    def _packed(self, q, k, v, causal, scale, out, return_lse: bool, window, softcap, begins: tuple, sinks):
        """``attention`` of packed sequences: kernels see a batch of one, and where the sequences begin."""
        import torch

        tensors = packing.as_batches(q=q, k=k, v=v)
        begins = tuple(plain(**dict(zip(("cu_seqlens_q", "cu_seqlens_k"), begins))))
        for name, cu in zip(("cu_seqlens_q", "cu_seqlens_k"), begins):
            packing.check(name, cu, q.device)
        if out is None:
            out = torch.empty(*q.shape[:-1], v.shape[-1], dtype=q.dtype, device=q.device)
        else:
            check_out("out", out, q, v.shape[-1])
        place, more = packing.as_batch(out), begins if sinks is None else (*begins, sinks)
        launch = self.ready(*tensors, causal, scale, place, return_lse, window, softcap, begins, sinks)
        made = launch(*tensors, place, *more)
        return (out, made[1].squeeze(0)) if return_lse else out

    def ready(
        self,
        q,
        k,
        v,
        causal: bool = False,
        scale: float | None = None,
        out=None,
        return_lse: bool = False,
        window: int | None = None,
        softcap: float | None = None,
        begins: tuple = (),
        sinks: torch.Tensor | None = None,
    ) -> Launch:
        """``launch(q, k, v, out)`` for calls of this kind, made ready at the first; raises as ``attention`` does.

        begins: where packed sequences begin, as ``launch`` takes it behind ``out``; q, k, v and out are then batches of
        one. sinks: as it takes them behind that, float32.
        """
        # What is compared below must be plain values: a tensor would be compared by what it holds only now.
        if type(causal) is not bool:
            causal = flag("causal", causal)
        if scale is not None and type(scale) is not float:
            scale = number("scale", scale)
        if softcap is not None and type(softcap) is not float:
            softcap = number("softcap", softcap)
        if type(return_lse) is not bool:
            return_lse = flag("return_lse", return_lse)
        features: dict = {"window": window, "softcap": softcap}
        read = begins and (self.reads_lengths or q.device.type == "cpu")  # where nobody waits for it
        lengths = read_lengths(begins, q, k) if read else None
        try:
            kind = kind_of(q, k, v, causal, scale, out)
            if return_lse or begins or window is not None or softcap is not None:
                if type(window) not in (int, NoneType):
                    raise TypeError
                kind = kind, return_lse, window, softcap, *map(described, begins)
                if self.reads_lengths:
                    kind = kind, lengths
            if sinks is not None:
                kind = kind, described(sinks)
        except (AttributeError, TypeError, RuntimeError):  # no tensors, or none with memory: told below, or by PyTorch
            kind = None
        if launch := self.launches.find(kind):
            return launch
        if begins:
            features["lengths"], features["lengths_kv"] = lengths or read_lengths(begins, q, k)
        if sinks is not None:
            features["sinks"] = True
        return self._made_ready(kind, q, k, v, causal, scale, out, return_lse, features, sinks)

    @cached_property
    def launches(self) -> Launches:
        """What is ready to be launched, by kind of call."""
        return Launches()

    def __getstate__(self) -> dict:
        """What goes to another process: the step, without launches, which belong to this one."""
        return {name: value for name, value in vars(self).items() if name != "launches"}

    def _made_ready(
        self, kind: tuple | None, q, k, v, causal: bool, scale: float | None, out, return_lse: bool, features, sinks
    ) -> Launch:
        """Check a call's arguments and make its launch ready, for this call and for all of its kind."""
        if any(x is not given for x, given in zip(plain(q=q, k=k, v=v), (q, k, v))):
            kind = None  # for tensors of this kind alone: a launch reads what lies in memory
        problem = Problem.of(q, k, v, causal, scale, **features)
        if sinks is not None:
            check_sinks(sinks, q)
        if out is not None:
            check_out("out", out, q, v.shape[-1])
        if not self.takes_long_strides:
            check_strides(q=q, k=k, v=v, out=out)
        more = {"return_lse": True} if return_lse else {}
        return self.kept(kind, problem, q.device, lambda: self.make_ready(problem, q, k, v, out, **more))

    def kept(self, kind: tuple | None, problem: Problem, device: torch.device, make: Callable[[], Launch]) -> Launch:
        """What ``make`` makes ready for ``problem``, kept for all calls of ``kind``; raises Unsupported."""
        target = target_of(device)
        self.refuse(problem, target)
        with MAKING_READY, undisturbed(device):
            launch = on_its_device(told(make(), problem, target, self.choices(problem, target)), device)
        if kind is not None:
            self.launches.keep(kind, launch)
        return launch

    def _refuse_derivatives(self, **tensors) -> None:
        """Raises ValueError for a tensor whose derivatives autograd would ask this step's kernel for."""
        import torch

        if self.backend in ("torch", "peer"):
            return
        refuse_tangents(**tensors)
        if not torch.is_grad_enabled():
            return
        for name, x in tensors.items():
            if getattr(x, "requires_grad", False):
                raise ValueError(
                    f"{name} must require no gradients, as a step computes one pass alone, got a tensor that does: "
                    f"take {self.differentiable}, which is differentiable, or call it under torch.no_grad()"
                )

    def refuse(self, problem: Problem, target: str) -> None:
        """Raises Unsupported for a problem that this step cannot compute on ``target``, ValueError for no target."""
        if not isinstance(problem, Problem):
            raise ValueError(f"problem must be a Problem, got {type(problem).__name__}")
        if not isinstance(target, str):
            raise ValueError(f'arch must be the name of an architecture, such as "sm_90", got {target!r}')
        if reason := self.unsupported(problem, target):
            raise Unsupported(f"step {self.label}: {reason}")

    def kernels_for(self, problem: Problem, arch: str) -> tuple:
        """What stands for all that is launched for a problem: steps for which it is equal are as fast there."""
        return (self.name,)

    def unsupported(self, problem: Problem, target: str) -> str | None:
        """Why this step cannot compute ``problem`` on ``target`` ("sm_90", "cpu"), or None when it can."""
        if reason := lacking(self.package):
            return reason
        if others := [FEATURES[name] for name in problem.features if name not in self.takes]:
            return f"takes no {' and no '.join(others)}"
        if not self.takes_head_dim(problem.head_dim):
            known = ("one of " if len(self.head_dims) > 1 else "") + ", ".join(map(str, self.head_dims))
            if self.pads_head_dim:
                return f"head_dim must be a multiple of {PIECE} up to {self.head_dims[-1]}, got {problem.head_dim}"
            return f"head_dim must be {known}, got {problem.head_dim} ({PADDING})"
        if target.startswith("gfx") and self.backend not in ("torch", "peer") and not self.made_for.startswith("gfx"):
            return f"made for NVIDIA's GPUs, not for {target}"
        return None

    def takes_head_dim(self, head_dim: int) -> bool:
        """Whether there are tiles for a head dimension."""
        if self.head_dims is None or head_dim in self.head_dims:
            return True
        return self.pads_head_dim and head_dim % PIECE == 0 and head_dim <= self.head_dims[-1]

    def in_tiles(self, problem: Problem) -> Problem:
        """``problem`` with the head_dim of its tiles, and its scale: tiles have a power of two, which zeros fill up.

        Loads fill what is behind a tensor's end with zeros, which add nothing to a score; stores leave it out.
        """
        wide = self.columns(problem.head_dim)
        if wide == problem.head_dim:
            return problem
        return dataclasses.replace(problem, head_dim=wide, scale=problem.effective_scale)

    def columns(self, width: int) -> int:
        """Columns of the tiles that hold rows of this width."""
        return min((d for d in self.head_dims if d >= width), default=width)

    def taking_tiles(self) -> Step:
        """This step, with blocks that take the next tile of queries when they are ready for one, and have no lists.

        The step itself where it has no such form.
        """
        return self

    def choices(self, problem: Problem, target: str) -> tuple[str, ...]:
        """By which launch rules its kernels are launched for ``problem`` on ``target``, a name each (``Rule.told``)."""
        return ()

    def too_long_on_cpu(self, problem: Problem) -> str | None:
        """Why nobody would wait for this problem on the CPU, or None."""
        return None

    def scratch_bytes(self, problem: Problem) -> int:
        """Device memory that the step needs at once besides q, k, v and o, in bytes."""
        return 0

    def intermediate_bytes(self, problem: Problem) -> int:
        """Of these bytes those that a call writes to device memory and reads again."""
        return self.scratch_bytes(problem)

    def counted_kernels(self, problem: Problem) -> int:
        """How many kernels of a call have names like ``counted``."""
        return 1

    def make_ready(
        self,
        problem: Problem,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor | None,
        return_lse: bool = False,
    ) -> Launch:
        """A function that computes ``problem``, which is checked, for tensors of the kind of these.

        ``launch(q, k, v, out)`` returns ``out`` or, when that is None, a new tensor; with ``return_lse`` the
        log-sum-exp behind it. It takes, behind ``out``, where packed sequences begin and the sinks, as far as
        ``problem`` has these. It must not keep the tensors that are given here, nor anything that they hold.
        """
        raise NotImplementedError

    def compile(self, problem: Problem, arch: str = "sm_90") -> Compiled:
        """What the compiler makes of this step for ``problem`` on ``arch``; raises Unsupported without a kernel."""
        raise Unsupported(f"step {self.label} has no kernel of its own to compile: it calls PyTorch")

    def key_changes(self) -> list[str]:
        """What differs from the previous step, a line each, computed from the two steps."""
        return [self.change]


def read_lengths(begins: tuple, q, k) -> tuple:
    """Lengths of packed queries and keys; raises ValueError for what cu_seqlens must not hold."""
    each = zip(("cu_seqlens_q", "cu_seqlens_k"), begins, (q, k))
    return tuple(packing.read_lengths(name, cu, x.shape[2]) for name, cu, x in each)


def no_scratch(problem: Problem) -> int:
    return 0


@dataclass(frozen=True, kw_only=True)
class TorchStep(Step):
    """A step made of PyTorch calls: ``function(q, k, v, causal, scale)``, whose scale is above zero, returns o.

    takes: of ``Problem.features``; what a problem has of them, ``masked`` gets by name: window, softcap, packing and
    sinks. None: ``function`` does. keeps_mask: whether that takes ``mask_of``, of which a launch has one that keeps the
    last mask. work(problem, arch): what a launch has to do, as steps with a kernel have it; None: nobody knows.
    """

    function: Callable
    work: Callable | None = None
    masked: Callable | None = None
    keeps_mask: bool = False
    scratch: Callable[[Problem], int] = no_scratch
    takes: tuple[str, ...] = ()

    backend: ClassVar[str] = "torch"
    reads_lengths: ClassVar[bool] = True

    def scratch_bytes(self, problem: Problem) -> int:
        return self.scratch(problem)

    def make_ready(self, problem, q, k, v, out, return_lse=False):
        from tutorial_lib.reference import log_sum_exp, visible

        causal, features = problem.causal, masks(problem)
        sign, scale = positive(problem.effective_scale)
        function = self.masked if self.masked and problem.features else self.function
        kept = {"mask_of": lru_cache(maxsize=1)(visible)} if self.keeps_mask and problem.window else {}

        def launch(q, k, v, out, *tensors):
            more = features
            if problem.lengths is not None:
                more = {**more, "packing": Packing(*tensors[:2], problem.pairs_of_lengths)}
            if problem.sinks:
                more = {**more, "sinks": tensors[-1]}
            q = q if sign == 1 else q * sign
            o = function(q, k, v, causal, scale, **more, **kept)
            if out is not None:
                o = out.copy_(o)  # PyTorch's functions take no output: a timed call makes no copy
            return (o, log_sum_exp(q, k, causal, scale, **more)) if return_lse else o

        return launch
