"""A backward step for Blackwell: the holes, and how its three kernels are launched and compiled."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from steps.backward_blackwell import keys, queries
from steps.backward_blackwell.lib import prepare
from steps.backward_blackwell.variant import CTAS, OF_KEYS, OF_QUERIES, ROW_WARPS, ROWS, WARPS, Rows, Variant
from steps.backward_hopper.launching import TmaGradients, of_sinks
from steps.blackwell.skeleton import TARGETS, OnBlackwell, fitting
from steps.core.fused import hole, tiles_visited, too_long_to_simulate
from steps.core.launch import gluon_launcher, in_a_row
from steps.core.tiles import Tile
from steps.core.work import Work, places
from steps.hopper.launching import described
from tutorial_lib import compiler
from tutorial_lib.problem import Problem


@dataclass(frozen=True, kw_only=True)
class BlackwellGradients(OnBlackwell, TmaGradients):
    """Kernels for sm_100 and sm_103 in Gluon for head_dim 256, with this hole filled.

    walk: how a cluster that owns queries goes through the tiles of keys.
    """

    walk: Callable = hole(default=queries.one_by_one)

    shown: ClassVar[str] = "The kernel for dQ (steps/backward_blackwell/keys.py has the one for dK and dV)"
    head_dims: ClassVar[tuple[int, ...]] = (256,)

    @property
    def deterministic(self) -> bool:
        """No gradient is added up by several clusters."""
        return True

    def kernel(self, problem: Problem):
        return queries.fmha_backward_dq

    def variant(self, problem: Problem, arch: str = TARGETS[0]) -> Variant:
        """The constants of the kernel for dQ."""
        return self._variant(problem, OF_QUERIES, OF_QUERIES.query, OF_QUERIES.key, 2, self.walk)

    def key_variant(self, problem: Problem) -> Variant:
        """The constants of the kernel for dK and dV. Shared memory has room for one tile of Q and of dO."""
        return self._variant(problem, OF_KEYS, OF_KEYS.key, OF_KEYS.query, 1)

    def _variant(self, problem: Problem, tile: Tile, rows: int, passing: int, stages: int, walk=None) -> Variant:
        return Variant(
            tile=tile,
            rows=rows,
            passing=passing,
            stages=stages,
            head_dim=problem.head_dim,
            group_size=problem.group_size,
            causal=problem.causal,
            ragged=problem.seq_len_kv % tile.key != 0,
            ragged_queries=problem.seq_len_q % tile.query != 0,
            walk=walk,
        )

    def scratch_bytes(self, problem: Problem) -> int:
        """Two numbers for each query."""
        return 4 * 2 * problem.batch * problem.heads * padded(problem)

    def counted_kernels(self, problem: Problem) -> int:
        return 2

    def choices(self, problem: Problem, target: str) -> tuple[str, ...]:
        """Of both large kernels, which bring their own tiles."""
        return tuple(f"Own_{tile.query}x{tile.key}" for tile in (OF_QUERIES, OF_KEYS))

    def work(self, problem: Problem, arch: str) -> Work:
        """What a launch has to do, most of which the kernel for dK and dV does."""
        return Work.of_keys(problem, OF_KEYS, problem.kv_heads, places(arch, together=CTAS), problem.head_dim)

    def too_long_on_cpu(self, problem: Problem) -> str | None:
        return too_long_to_simulate(problem, OF_QUERIES)

    def entry(self, problem: Problem, arch: str):
        return self.kernel(problem), {"variant": self.variant(problem)}

    def kernels_ready(self, kernel, constants: tuple, problem: Problem, tensors: tuple):
        of_keys = keys.fmha_backward_dkdv, (self.key_variant(problem),)
        return self.both_ready(of_keys, (kernel, constants), problem, tensors)

    def both_ready(self, of_keys: tuple, of_queries: tuple, problem: Problem, tensors: tuple):
        """As ``kernels_ready``, for both large kernels: each with its constants."""
        import torch

        q, k, v, o, lse, do, dq, dk, dv, *sinks = tensors
        device, shape = q.device, (2 * problem.batch * problem.heads, padded(problem))

        def scratch():
            """The log-sum-exp in base 2 of every query, and behind all of these D."""
            return (torch.empty(shape, dtype=torch.float32, device=device),)

        (numbers,) = scratch()
        strides = (o.stride()[:3], do.stride()[:3], lse.stride())
        sizes = (problem.seq_len_q, padded(problem), problem.heads, problem.batch)
        preparing = gluon_launcher(
            prepare,
            (padded(problem) // ROWS, problem.heads, problem.batch),
            (o, do, lse, numbers, strides, *sizes, Rows(problem.head_dim)),
            ROW_WARPS,
            device,
            range(4),
            self.made_for,
        )
        of_dkdv, of_dq = self.key_variant(problem), self.variant(problem)
        launched = []
        for (kernel, constants), clusters, arguments, moving in (
            (of_keys, key_clusters, key_arguments(q, k, v, do, numbers, dk, dv, problem, of_dkdv), 9),
            (of_queries, query_clusters, query_arguments(q, k, v, do, numbers, dq, problem, of_dq), 7),
        ):
            how, passed = {"simulated": self.made_for, "ctas": CTAS}, (*arguments, *constants)
            launched.append(gluon_launcher(kernel, clusters(problem), passed, WARPS, device, range(moving), **how))
        names = ["q", "k", "v", "o", "lse", "do", "dq", "dk", "dv", *["dsinks", "sinks"][: len(sinks)], "numbers"]
        launches = [
            (preparing, ["o", "do", "lse", "numbers"]),
            (launched[0], ["q", "q", "k", "v", "do", "do", "numbers", "dk", "dv"]),
            (launched[1], ["q", "k", "k", "v", "do", "numbers", "dq"]),
            *of_sinks(sinks, numbers, problem, padded(problem), simulated=self.made_for),
        ]
        return in_a_row([(run, [names.index(x) for x in which]) for run, which in launches], scratch, device)

    def compile(self, problem, arch=TARGETS[0]):
        """The kernel for dQ; that for dK and dV is known by its code."""
        self.refuse(problem, arch)
        return self.compile_kernel(self.kernel(problem), problem, arch, self.variant(problem))

    def compile_kernel(self, kernel, problem: Problem, arch: str, *constants):
        """As ``compile``, for a kernel that is given: see ``make_kernel_ready``."""
        self.refuse(problem, arch)
        compiled = self._compiled(kernel, query_arguments, problem, arch, self.variant(problem), *constants)
        blocks, visited = CTAS * math.prod(query_clusters(problem)), CTAS * tiles_visited(problem, OF_QUERIES)
        others = (self.compile_keys(problem, arch).code,)
        return replace(compiled, blocks=blocks, kv_tiles=visited, other_kernels=others)

    def compile_keys(self, problem: Problem, arch: str = TARGETS[0]):
        """The kernel for dK and dV."""
        self.refuse(problem, arch)
        variant = self.key_variant(problem)
        return self._compiled(keys.fmha_backward_dkdv, key_arguments, problem, arch, variant, variant)

    def _compiled(self, kernel, arguments: Callable, problem: Problem, arch: str, variant: Variant, *constants):
        of_queries = (problem.batch, problem.heads, problem.seq_len_q, problem.head_dim)
        of_keys = (problem.batch, problem.kv_heads, problem.seq_len_kv, problem.head_dim)
        q, k = compiler.Placeholder(of_queries, problem.dtype), compiler.Placeholder(of_keys, problem.dtype)
        numbers = compiler.Placeholder((2 * problem.batch * problem.heads, padded(problem)), "float32")
        written = (k, k) if arguments is key_arguments else (q,)
        passed = arguments(q, k, k, q, numbers, *written, problem, variant)
        tile = variant.tile.scores // CTAS
        return fitting(compiler.compile_gluon(kernel, (*passed, *constants), WARPS, arch, tile, ctas=CTAS))


def padded(problem: Problem) -> int:
    """Queries of a head, to the end of the last tile of either kernel."""
    return -(-problem.seq_len_q // OF_QUERIES.query) * OF_QUERIES.query


def key_clusters(problem: Problem) -> tuple[int, int, int]:
    """Clusters that own keys."""
    return -(-problem.seq_len_kv // OF_KEYS.key), problem.kv_heads, problem.batch


def query_clusters(problem: Problem) -> tuple[int, int, int]:
    """Clusters that own queries."""
    return -(-problem.seq_len_q // OF_QUERIES.query), problem.heads, problem.batch


def sizes(length: int, problem: Problem) -> tuple:
    """What both large kernels take in front of their constants; the scale is in base 2."""
    return problem.effective_scale / math.log(2), length, problem.heads, problem.batch, padded(problem)


def key_arguments(q, k, v, do, numbers, dk, dv, problem: Problem, variant: Variant) -> tuple:
    """What a launch passes to ``fmha_backward_dkdv`` in front of the variant."""
    whole = partial(described, columns=variant.head_dim)
    rows, by_rows, by_columns = variant.tile, variant.shared, variant.shared_columns
    return (
        whole(q, rows.query, layout=by_rows),
        whole(q, rows.query, layout=by_columns),
        whole(k, rows.key, layout=by_rows),
        whole(v, rows.key, layout=by_rows),
        whole(do, rows.query, layout=by_rows),
        whole(do, rows.query, layout=by_columns),
        numbers,
        whole(dk, rows.key, layout=by_rows),
        whole(dv, rows.key, layout=by_rows),
        *sizes(problem.seq_len_q, problem),
    )


def query_arguments(q, k, v, do, numbers, dq, problem: Problem, variant: Variant) -> tuple:
    """What a launch passes to ``fmha_backward_dq`` in front of the variant."""
    whole = partial(described, columns=variant.head_dim)
    rows, by_rows, by_columns = variant.tile, variant.shared, variant.shared_columns
    return (
        whole(q, rows.query, layout=by_rows),
        whole(k, rows.key, layout=by_rows),
        whole(k, rows.key, layout=by_columns),
        whole(v, rows.key, layout=by_rows),
        whole(do, rows.query, layout=by_rows),
        numbers,
        described(dq, rows.query, variant.at_once, by_rows),
        *sizes(problem.seq_len_kv, problem),
    )
