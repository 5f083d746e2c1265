"""The ring: every rank's keys and values go round once, and each rank computes its queries' part of each.

Liu et al. 2023, "Ring Attention with Blockwise Transformers for Near-Infinite Context",
https://arxiv.org/abs/2310.01889.
"""

from __future__ import annotations

from dataclasses import dataclass

from steps.parallel.merging import accumulator, merge
from steps.parallel.shares import Share


@dataclass(frozen=True)
class Ring:
    """share: which tokens a rank holds, and what it computes of a part.

    ahead: the next part is on its way while this one is computed; else nobody computes meanwhile.
    """

    share: Share
    ahead: bool

    def __call__(self, q, k, v, causal, ranks, parts):
        """(o, lse) of this rank's queries; shapes as in ``ParallelStep``."""
        here = k.contiguous(), v.contiguous()
        buffers = ranks.buffers(here, 2)  # one is read while the other is filled
        for iteration in range(ranks.count):
            coming = None
            if iteration + 1 < ranks.count:
                coming = ranks.start_passing(here, buffers[iteration % 2])
                if not self.ahead:
                    coming.wait()
            owner = (ranks.own - iteration) % ranks.count
            if block := self.share.block(ranks.own, owner, k.shape[2], causal):
                rows, keys = block.rows, block.keys
                part = parts.attention(q[:, :, rows], *(x[:, :, keys] for x in here), block.causal)
                if iteration == 0:  # its own keys: every query sees one
                    o, lse = accumulator(part[0], ranks.count - 1), part[1]
                else:
                    merge(o[:, :, rows], lse[:, :, rows], *part)
            if coming:
                here = coming.wait()
        return o, lse


@dataclass(frozen=True)
class RingGradients:
    """The backward pass of ``Ring``: keys and values go round, and behind them the sums of their gradients.

    A rank adds its part to the sums and passes them on. It computes its own part last: meanwhile the sums that the
    others have added up come home. They travel in float32, so that an addition loses nothing that a single GPU would
    keep.
    """

    share: Share
    ahead: bool

    def __call__(self, q, k, v, o, lse, do, causal, ranks, parts):
        """(dq, dk, dv) of this rank's tokens, in float32. dk and dv lie in buffers that the next call may use."""
        import torch

        own = k.contiguous(), v.contiguous()
        buffers = ranks.buffers(own, 2)
        sums_buffers = ranks.buffers(own, 2, torch.float32)
        dq, *sums = (torch.zeros_like(x, dtype=torch.float32) for x in (q, *own))
        sums_coming = None
        coming = ranks.start_passing(own, buffers[0]) if ranks.count > 1 else None
        for iteration in range(1, ranks.count + 1):
            here = coming.wait() if iteration < ranks.count else own
            if iteration + 1 < ranks.count:
                coming = ranks.start_passing(here, buffers[iteration % 2])
                if not self.ahead:
                    coming.wait()
            block = self.share.block(ranks.own, (ranks.own - iteration) % ranks.count, k.shape[2], causal)
            if block:
                rows, keys = block.rows, block.keys
                mine = [x[:, :, rows] for x in (q, o, lse, do)]
                part = parts.gradients(mine[0], *(x[:, :, keys] for x in here), *mine[1:], block.causal)
                dq[:, :, rows] += part[0]
            if sums_coming:
                sums = sums_coming.wait()  # of these same keys, with what the ranks before have added
            if block:
                for total, added in zip(sums, part[1:]):
                    total[:, :, keys] += added
            if iteration < ranks.count:
                sums_coming = ranks.start_passing(sums, sums_buffers[iteration % 2])
                if not self.ahead:
                    sums_coming.wait()
        return dq, *sums
