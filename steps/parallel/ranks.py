"""The ranks of a process group, and what they send each other. Every rank makes the same calls in the same order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tutorial_lib.worker import Ended, one_line

if TYPE_CHECKING:
    import torch

Tensors = tuple["torch.Tensor", ...]

GIVE_WAY = 20_000  # cycles, some ten microseconds, that a GPU's current stream waits for an exchange to begin


class RankFailure(Ended):
    """The ranks cannot go on together: one of them ended, or did not answer in time. The message is one line."""


class Failed(RuntimeError):
    """A rank has told all others that it failed. All raise this in the same exchange of words, and can go on."""


class Ranks:
    """This rank among those of a group. own: its number; count: how many there are; sent: bytes that it has sent.

    group: a ``torch.distributed`` process group, None for the default one. What goes wrong with the others raises
    RankFailure: at once where a process has ended, and else after the group's timeout.
    """

    def __init__(self, group=None):
        import torch.distributed as dist

        self.group = group
        self.own, self.count = dist.get_rank(group), dist.get_world_size(group)
        self.sent = 0

    @property
    def name(self) -> str:
        return f"rank {self.own} of {self.count}"

    # --- round the ring ---

    def buffers(self, tensors: Tensors, count: int, dtype: torch.dtype | None = None) -> list[Tensors]:
        """So many buffers to receive such tensors in, or those of another dtype: ``into`` of ``start_passing``."""
        return [buffers_like(tensors, dtype) for _ in range(count)]

    def start_passing(self, tensors: Tensors, into: Tensors) -> Passing:
        """Begin to send tensors to the next rank, and to receive those of the rank before ``into`` their buffers.

        All are contiguous. Between GPUs this goes on in a stream of NCCL's own, behind what the current stream has been
        given so far. Nobody may write to either before ``wait()``.
        """
        passing = self.pass_on(tensors, into)
        self.give_way(tensors[0])
        return passing

    def pass_on(self, tensors: Tensors, into: Tensors) -> Passing:
        """As ``start_passing``, where no kernel is launched meanwhile that the exchange would have to wait for."""
        from torch.distributed import P2POp, batch_isend_irecv, irecv, isend

        if self.count == 1:
            return Passing(self, (), tuple(place.copy_(x) for place, x in zip(into, tensors)))
        after, before = (self.own + 1) % self.count, (self.own - 1) % self.count
        sends = [P2POp(isend, x, group=self.group, group_peer=after) for x in tensors]
        receives = [P2POp(irecv, x, group=self.group, group_peer=before) for x in into]
        self.sent += sum(map(size_of, tensors))
        with self.heard():
            return Passing(self, batch_isend_irecv(sends + receives), into)

    def give_way(self, x: torch.Tensor) -> None:
        """Let the current stream of x's GPU wait a moment, so that an exchange can begin."""
        import torch

        if x.is_cuda and self.count > 1:
            # A kernel that is launched now may fill every SM before NCCL's blocks, in a stream of their own, have
            # begun. That this is needed is a hypothesis: no record compares it with a call that does not wait.
            torch.cuda._sleep(GIVE_WAY)

    # --- all with all ---

    def gather(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        """Of each ``[B, H, tokens, ...]`` those of all ranks, in their order: ``[B, H, ranks * tokens, ...]``."""
        import torch

        return [torch.cat(self.all_gather(x.contiguous()), dim=2) for x in tensors]

    def add_up(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        """The way back from ``gather``: of each ``[B, H, ranks * tokens, D]`` this rank's tokens, summed over ranks."""
        return [self.exchange(self._by_rank(x, 2)).sum(0) for x in tensors]

    def heads_for_tokens(self, x: torch.Tensor) -> torch.Tensor:
        """All heads of some tokens ``[B, H, tokens, ...]`` -> some heads of all tokens ``[B, H / ranks, all, ...]``."""
        pieces = self.exchange(self._by_rank(x, 1))  # [rank, B, H / ranks, tokens, ...]
        return pieces.movedim(0, 2).flatten(2, 3)

    def tokens_for_heads(self, x: torch.Tensor) -> torch.Tensor:
        """The way back from ``heads_for_tokens``."""
        pieces = self.exchange(self._by_rank(x, 2))  # [rank, B, H / ranks, tokens, ...]
        return pieces.movedim(0, 1).flatten(1, 2)

    def _by_rank(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        """A dimension in as many pieces as there are ranks, which are the first dimension then."""
        return x.unflatten(dim, (self.count, -1)).movedim(dim, 0).contiguous()

    def all_gather(self, x: torch.Tensor) -> list[torch.Tensor]:
        """A contiguous tensor of every rank, in the order of the ranks."""
        import torch
        from torch.distributed import all_gather

        everybodys = [torch.empty_like(x) for _ in range(self.count)]
        self.sent += (self.count - 1) * size_of(x)
        with self.heard():
            all_gather(everybodys, x, group=self.group)
        return everybodys

    def exchange(self, pieces: torch.Tensor) -> torch.Tensor:
        """Contiguous ``[ranks, ...]``: piece r goes to rank r; returns those that came, in the order of the ranks."""
        import torch
        from torch.distributed import all_to_all_single

        came = torch.empty_like(pieces)
        self.sent += size_of(pieces) * (self.count - 1) // self.count
        with self.heard():
            all_to_all_single(came, pieces, group=self.group)
        return came

    # --- words ---

    def everybody(self, mine, failure: str | None = None) -> list:
        """What every rank says, in the order of the ranks; anything that can be pickled.

        A rank that has failed says so with ``failure``, one line, whatever the others are talking about: Failed is
        raised on all of them, with the first such line.
        """
        from torch.distributed import all_gather_object

        said = [None] * self.count
        with self.heard():
            all_gather_object(said, (mine, failure), group=self.group)
        if failures := [told for _, told in said if told]:
            raise Failed(failures[0])
        return [theirs for theirs, _ in said]

    @contextmanager
    def heard(self) -> Iterator[None]:
        """What PyTorch says when others do not answer becomes a RankFailure."""
        try:
            yield
        except RuntimeError as error:
            if isinstance(error, RankFailure):
                raise
            why = "did not answer in time" if "imed out" in str(error) or "imeout" in str(error) else "has ended"
            raise RankFailure(f"{self.name} stops, because another rank {why} ({one_line(error)})") from error


class Passing:
    """Tensors on their way round the ring."""

    def __init__(self, ranks: Ranks, works: Sequence, into: Tensors):
        self._ranks, self._works, self._into = ranks, works, into

    def wait(self) -> Tensors:
        """The tensors that came, now or earlier. On a GPU the current stream waits for them, and the host does not."""
        with self._ranks.heard():
            for work in self._works:
                work.wait()
        self._works = ()
        return self._into


def buffers_like(tensors: Sequence[torch.Tensor], dtype: torch.dtype | None = None) -> Tensors:
    """New tensors of the same shapes, and of another dtype where one is given."""
    import torch

    return tuple(torch.empty_like(x, dtype=dtype) for x in tensors)


def size_of(x: torch.Tensor) -> int:
    """Bytes of a tensor."""
    return x.numel() * x.element_size()
