"""A decoding step in cuTile that reads pages: what is different from one that reads K and V as they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import cuda.tile as ct

from steps.core.paged import PagedStep
from steps.core.step import target_of
from steps.cutile.skeleton import array, power_of_two
from steps.cutile.variant import Latency
from steps.everyday.decoding import MOST_ROWS, DecodeStep, keys
from steps.everyday.variant import DecodeVariant
from steps.fp8 import cutile
from tutorial_lib.paging import number_of_pages
from tutorial_lib.problem import Problem

PAGES_A_TILE = 4  # that a tile is put together from, at most
# Of tiles of MOST_ROWS rows at head_dim 128: with 8, tileiras 13.5 makes buffers that are larger than an SM's shared
# memory. At other head_dims they fit, and with 6 registers spill.
LATENCY_THAT_FITS = Latency(key=6, value=6)


def in_fp8(problem: Problem) -> bool:
    """Whether pages are in fp8, which no record is of."""
    return problem.kv_dtype is not None


@dataclass(frozen=True, kw_only=True)
class PagedDecodeStep(PagedStep, DecodeStep):
    """A ``DecodeStep`` whose load_key and load_value get (pages, table, the sequence's last page) for K and V."""

    pads_head_dim: ClassVar[bool] = False  # loads of pages bring no zeros for columns that are not there

    def unsupported(self, problem: Problem, target: str) -> str | None:
        size = problem.page_size
        if size is not None and (size < 8 or size != power_of_two(size)):
            return f"page_size must be a power of two, at least 8, got {size}"
        if in_fp8(problem) and target not in (*cutile.ARCHITECTURES, "cpu"):
            return cutile.ELSEWHERE.format(target)
        return super().unsupported(problem, target)

    def on_so_many(self, problem: Problem, multiprocessors: int) -> PagedDecodeStep:
        return self  # the kernel that reads pages always writes partial results

    def key(self, problem: Problem) -> int:
        return min(super().key(problem), PAGES_A_TILE * problem.page_size)

    def variant(self, problem: Problem, arch: str) -> DecodeVariant:
        found = super().variant(problem, arch)
        if found.tile.query == MOST_ROWS and found.head_dim == 128:
            return replace(found, latency=LATENCY_THAT_FITS)
        return found

    def make_ready(self, problem, tensors, out):
        return self.make_kernel_ready(self.entry(problem, target_of(tensors[0].device))[0], problem, tensors, out)

    def make_kernel_ready(self, function: Callable, problem: Problem, tensors, out):
        """As ``make_ready``, for a function of the kernel that goes through the keys that is given."""
        decoded = self.runner(function, problem, tensors[0].device)

        def launch(q, k_pages, v_pages, page_table, lengths, *more):
            *scales, out = more
            return decoded(q, (k_pages, v_pages, page_table, lengths), out, *scales)

        return launch

    def sources(self, problem: Problem) -> list:
        width = -(-problem.seq_len_kv // problem.page_size)
        pages = keys((number_of_pages(problem), problem.page_size, problem.kv_heads), problem)
        return [pages, pages, array((problem.batch, width), ct.int32), array((problem.batch,), ct.int32)]
