"""What a step over several ranks is: how the sequence is shared out, who computes parts, and what ranks agree on."""

from __future__ import annotations

import dataclasses
import inspect
import textwrap
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from steps.core.gradients import GradientStep
from steps.core.ladder import get_step
from steps.core.launch import Launches
from steps.core.step import Step, target_of
from steps.parallel.ranks import Ranks
from steps.parallel.shares import IN_ORDER, Share
from tutorial_lib.problem import Problem
from tutorial_lib.worker import one_line

if TYPE_CHECKING:
    import torch

COMMAND = "torchrun --nproc-per-node 2 -m steps.run --parallel"
ON_CPU = {"forward": "sdpa", "backward": "formulas"}  # formulas takes the log-sum-exp that it is given, as it must


class Disagreement(ValueError):
    """The ranks do not ask for the same; the message is the same on every rank."""


@dataclass(frozen=True)
class Parts:
    """Computes parts of attention on this rank, with a step of another part of the course."""

    step: Step
    scale: float | None

    def attention(self, q, k, v, causal: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """(o, lse) of these queries over these keys."""
        return self.step.attention(q, k, v, causal, self.scale, return_lse=True)

    def gradients(self, q, k, v, o, lse, do, causal: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """What these queries and keys add to (dq, dk, dv).

        o and lse are those over all keys. A weight is exp(score - lse), and a row's sum of P dP is the sum of dO O:
        with both of the whole, what a part of the keys adds is computed from that part alone.
        """
        return self.step.gradients(q, k, v, o, lse.contiguous(), do, causal, self.scale)


@dataclass(frozen=True)
class Met:
    """The ranks of a process group as a step knows them. known: what all of them have agreed on."""

    group: weakref.ref
    ranks: Ranks
    known: set = field(default_factory=set)


@dataclass(frozen=True, kw_only=True)
class _Together:
    """What both directions share. The tensors that a step takes and returns are this rank's part of the sequence.

    function: computes this rank's outputs, from its inputs, whether the mask is causal, ``Ranks`` and ``Parts``.
    share: which tokens a rank holds. by_heads: ranks exchange heads, so that they must divide them.
    group: a process group, None for the default one. kernel: the step that computes the parts, None for the fastest
    recorded one, and for PyTorch's on the CPU. taking: its blocks take their tiles one by one (``Step.taking_tiles``).
    ranks: what makes ``Ranks`` of a group. ``on`` gives a step with others.
    """

    function: Callable
    share: Share = IN_ORDER
    by_heads: bool = False
    group: object = field(default=None, repr=False, compare=False)
    kernel: Step | None = field(default=None, repr=False)
    taking: bool = field(default=False, repr=False)
    ranks: Callable[..., Ranks] = field(default=Ranks, repr=False)

    backend: ClassVar[str] = "torch"  # no kernel of its own
    several: ClassVar[bool] = True

    def on(self, group=None, **others):
        """This step for a process group; others: fields of it, such as ``kernel``."""
        return dataclasses.replace(self, group=group, **others)

    def __getstate__(self) -> dict:
        """What goes to another process, without what is known of this one's group."""
        return {name: value for name, value in super().__getstate__().items() if name != "_met"}

    @property
    def launches(self) -> Launches:
        """As ``Step.launches``; empty again where the process group is not the one that they were made ready for."""
        if not self._still_there():
            vars(self).pop("launches", None)
        return vars(self).setdefault("launches", Launches())

    def _still_there(self) -> bool:
        """Whether the ranks that the step has met are those of the process group of today."""
        met, now = vars(self).get("_met"), self._process_group
        return met is not None and now is not None and met.group() is now

    @property
    def _process_group(self):
        """The object itself, of the default group too: another may take its place."""
        import torch.distributed as dist

        return self.group or (dist.group.WORLD if dist.is_available() else None)

    @property
    def met(self) -> Met:
        """The ranks of the process group of today, and what they have agreed on."""
        if not self._still_there():
            vars(self)["_met"] = Met(weakref.ref(self._process_group), self.ranks(self.group))
        return vars(self)["_met"]

    def part(self, whole, rank: int, ranks: int):
        """The tokens that a rank holds, of a tensor of the whole sequence ``[B, H, tokens, ...]``."""
        return self.share.part(whole, rank, ranks)

    def unsupported(self, problem: Problem, target: str) -> str | None:
        """``problem`` is a rank's own: its lengths are those of its part."""
        import torch.distributed as dist

        if reason := super().unsupported(problem, target):
            return reason
        if not (dist.is_available() and dist.is_initialized()):
            return f"computes on several GPUs at once: {COMMAND} {self.asked_as} starts a process for each"
        return self.not_shared_out(problem, dist.get_world_size(self.group))

    def not_shared_out(self, problem: Problem, ranks: int) -> str | None:
        """Why so many ranks cannot share this out; ``problem`` is a rank's own. None where they can."""
        if problem.causal and problem.seq_len_q != problem.seq_len_kv:
            lengths = f"{problem.seq_len_q} and {problem.seq_len_kv}"
            return f"under a causal mask a rank must hold as many keys as queries, got {lengths}"
        if problem.causal and problem.seq_len_q % self.share.pieces:
            return f"a rank holds {self.share.pieces} pieces of equal length, got {problem.seq_len_q} tokens a rank"
        if self.by_heads and problem.kv_heads % ranks:
            return f"{ranks} ranks must share the key and value heads evenly, got {problem.kv_heads} heads"
        return None

    @property
    def asked_as(self) -> str:
        """By what name ``--parallel`` knows it."""
        return self.name

    def source(self) -> str:
        """What a rank does, as it is written: the step's function, or the ring with what fills its holes, and sends."""
        if inspect.isfunction(self.function):
            return inspect.getsource(self.function)
        ring, block = type(self.function), self.share.block
        used = f"{self.name} = {ring.__name__}(share={block.__name__}, ahead={self.function.ahead})\n"
        sends = textwrap.dedent(inspect.getsource(self.ranks.pass_on))
        computes = [textwrap.dedent(inspect.getsource(_Together.computing))] if self.taking else []
        return "\n\n".join([inspect.getsource(block), inspect.getsource(ring), sends, *computes, used])

    def computing(self, problem: Problem, target: str) -> Step:
        """The step that computes the parts of ``problem``, which is a rank's own."""
        step = self.kernel or self._fastest(problem, target)
        return step.taking_tiles() if self.taking else step

    def _fastest(self, problem: Problem, target: str) -> Step:
        if target == "cpu":
            return get_step(ON_CPU[self.direction])
        from steps.core.attention import training  # imports torch

        return getattr(training(problem, target), self.direction)

    def made_ready(self, make: Callable, q, k, v, causal: bool, scale: float | None):
        """``make()``, once all ranks ask for the same as this one: at the first call of a kind they tell each other.

        A rank knows only its own calls, and talks only where a kind of call is new to it. So all ranks raise ValueError
        for a call that is new on all of them, where one asks for something else, or where one cannot take part in
        the first call of the step. Later a rank whose own call is wrong raises ValueError alone, at once. Where a call
        is new on some ranks only, as when one alone passes ``out``, these talk while the others compute, and all raise
        RankFailure.
        """
        import torch.distributed as dist

        if not (dist.is_available() and dist.is_initialized()):
            return make()
        met = self.met
        made = error = None
        try:
            made = make()
            mine = f"q {tuple(q.shape)}, k {tuple(k.shape)}, {q.dtype}, causal={causal}, scale={scale}", None
        except Exception as wrong:
            if met.known:  # the others may be computing already, and nobody would hear
                raise
            error, mine = wrong, (None, str(wrong) if isinstance(wrong, ValueError) else one_line(wrong))
        if mine in met.known:
            return made
        agreed = False
        try:
            told = self._wrong(met.ranks.everybody((self.label, *mine)))
            agreed = not (error or told)
        finally:
            if not agreed:
                vars(self).pop("launches", None)  # what was made ready must not be found again
        if not agreed:
            raise error or Disagreement(told)
        met.known.add(mine)
        return made

    @staticmethod
    def _wrong(said: list[tuple]) -> str | None:
        """What stands against going on, by what every rank says: its step, what it asks for, or why it cannot."""
        for rank, (label, _, complaint) in enumerate(said):
            if complaint:
                return f"rank {rank} of {len(said)} cannot take part in step {label}: {complaint}"
        for rank, theirs in enumerate(said):
            if theirs != said[0]:
                both = f"rank 0 has step {said[0][0]}, {said[0][1]}; rank {rank} has step {theirs[0]}, {theirs[1]}"
                return f"every rank must call the same step with tensors of the same shape, but {both}"
        return None


@dataclass(frozen=True, kw_only=True)
class ParallelStep(_Together, Step):
    """Attention over a sequence of which every rank holds a part: ``attention`` takes and returns that part alone.

    q ``[B, Hq, tokens, D]`` and k, v ``[B, Hkv, tokens, D]`` have as many tokens on every rank; which of the sequence
    they are, ``part`` says. All ranks call it, and get their own part of o. ``causal`` is the whole sequence's mask.

    Raises as ``Step.attention`` does, and ValueError on all ranks where they disagree at a call of a kind that is new
    on all of them: shapes, strides, dtype, ``causal``, ``scale``, whether there is ``out``. Raises RankFailure where
    another rank ended or did not answer in time, or where a call's kind is new on some ranks only.
    """

    def _made_ready(self, kind, q, k, v, causal, scale, *more, **others):
        make = partial(super()._made_ready, kind, q, k, v, causal, scale, *more, **others)
        return self.made_ready(make, q, k, v, causal, scale)

    def make_ready(self, problem, q, k, v, out, return_lse=False):
        ranks, causal = self.met.ranks, problem.causal
        parts = Parts(self.computing(problem, target_of(q.device)), problem.scale)

        def launch(q, k, v, out):
            o, lse = self.function(q, k, v, causal, ranks, parts)
            o = o.to(q.dtype) if out is None else out.copy_(o)
            return (o, lse) if return_lse else o

        return launch


@dataclass(frozen=True, kw_only=True)
class ParallelGradients(_Together, GradientStep):
    """The gradients of attention over a sequence of which every rank holds a part. forward: the step they belong to.

    ``gradients`` takes and returns a rank's own part, as ``ParallelStep`` has it: o and lse are what that returned.
    """

    forward: ParallelStep

    takes: ClassVar[tuple[str, ...]] = ()

    @property
    def asked_as(self) -> str:
        return self.forward.name

    def _gradients_ready(self, kind, tensors, causal, scale, out, **masks):
        make = partial(super()._gradients_ready, kind, tensors, causal, scale, out, **masks)
        return self.made_ready(make, *tensors[:3], causal, scale)

    def make_ready(self, problem, tensors, out):
        ranks, causal = self.met.ranks, problem.causal
        parts = Parts(self.computing(problem, target_of(tensors[0].device)), problem.scale)

        def launch(q, k, v, o, lse, do, out):
            made = self.function(q, k, v, o, lse, do, causal, ranks, parts)
            if out is None:
                return tuple(x.to(q.dtype) for x in made)
            return tuple(place.copy_(x) for place, x in zip(out, made, strict=True))

        return launch
