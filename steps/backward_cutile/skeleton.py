"""A backward step in cuTile: the holes of the skeleton, and how its kernels are launched and compiled."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, Literal

import cuda.tile as ct
from cuda.tile.compilation import CallingConvention, KernelSignature, ScalarConstraint

from steps.backward_cutile import kernel
from steps.backward_cutile.variant import Variant
from steps.core.fused import FusedStep, grid, hole
from steps.core.gradients import GradientStep
from steps.core.step import Unsupported, target_of
from steps.core.tiles import DEFAULT, Tile
from steps.cutile.skeleton import array
from tutorial_lib.problem import Problem

OWN_KERNEL = "a kernel of its own"
ORDERS = {"atomics": ct.MemoryOrder.ACQ_REL, "relaxed atomics": ct.MemoryOrder.RELAXED, OWN_KERNEL: None}


@dataclass(frozen=True, kw_only=True)
class CuTileGradients(GradientStep, FusedStep):
    """Kernels of ``steps.backward_cutile.kernel`` with these holes filled.

    weigh(scores, lse, scale) -> weights: what the softmax gave, from unscaled scores and the rows' log-sum-exp.
    d_query: who computes dQ. The blocks that own keys add their parts, by "atomics" as they are or by "relaxed
    atomics", which order no other access to memory; or "a kernel of its own" does.
    tile: rows of queries and of keys that are taken together.
    """

    weigh: Callable = hole()
    d_query: Literal["atomics", "relaxed atomics", "a kernel of its own"] = hole(default="atomics")
    tile: Tile = hole(default=DEFAULT)

    backend: ClassVar[str] = "cutile"
    shown: ClassVar[str] = "The kernel whose blocks own keys (steps/backward_cutile/kernel.py has the others)"
    head_dims: ClassVar[tuple[int, ...]] = (32, 64, 128, 256)

    def unsupported(self, problem: Problem, target: str) -> str | None:
        if reason := super().unsupported(problem, target):
            return reason
        if max(problem.seq_len_q, problem.seq_len_kv) * problem.heads * problem.head_dim >= 2**31:
            return "heads * seq_len * head_dim must be below 2^31 (cuTile holds strides in 32 bits)"
        return None

    def scratch_bytes(self, problem: Problem) -> int:
        """A number for each query, and dQ in float32 where it is added up."""
        queries = problem.batch * problem.heads * problem.seq_len_q
        return 4 * queries * (1 + (problem.head_dim if self.adds else 0))

    @property
    def adds(self) -> bool:
        """Whether blocks add to sums of others."""
        return self.d_query != OWN_KERNEL

    def variant(self, problem: Problem) -> Variant:
        return Variant(
            weigh=self.weigh,
            atomics=ORDERS[self.d_query],
            tile=self.tile,
            head_dim=problem.head_dim,
            group_size=problem.group_size,
            causal=problem.causal,
        )

    def entry(self, problem: Problem, arch: str) -> tuple[Callable, dict]:
        return _functions(self.variant(problem))["keys"], {}

    def make_ready(self, problem, tensors, out):
        import torch

        device, scale = tensors[0].device, problem.effective_scale
        queries = grid(problem, self.tile)
        keys = (-(-problem.seq_len_kv // self.tile.key), problem.kv_heads, problem.batch)
        run = _runner(self.variant(problem), device)

        def launch(q, k, v, o, lse, do, out):
            dq, dk, dv = out or tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
            row_sum = torch.empty(q.shape[:-1], dtype=torch.float32, device=device)
            run("row_sums", queries, o, do, row_sum)
            if self.adds:
                sums = torch.zeros(q.shape, dtype=torch.float32, device=device)
                run("keys", keys, q, k, v, do, lse, row_sum, sums, dk, dv, scale)
                run("scaled", queries, sums, dq, scale)
            else:
                run("keys", keys, q, k, v, do, lse, row_sum, dk, dv, scale)
                run("queries", queries, q, k, v, do, lse, row_sum, dq, scale)
            return dq, dk, dv

        return launch

    def compile(self, problem, arch="sm_90"):
        """The kernel for keys. Where dQ has a kernel of its own it is one of two, and no model of the step."""
        from tutorial_lib import compiler

        if reason := self.unsupported(problem, arch):
            raise Unsupported(f"step {self.label}: {reason}")
        variant = self.variant(problem)
        function, parameters = ct.kernel(_functions(variant)["keys"]), signature(problem, self.adds)
        compiled = compiler.compile_cutile(function, parameters, arch, self.tile.scores)
        return dataclasses.replace(compiled, kv_tiles=tiles_visited(problem, self.tile) if self.adds else None)


def tiles_visited(problem: Problem, tile: Tile) -> int:
    """Tiles of scores that the blocks which own keys compute together."""
    rows = -(-problem.seq_len_q // tile.query)
    columns = range(-(-problem.seq_len_kv // tile.key))
    seen = sum(rows - (min(rows, j * tile.key // tile.query) if problem.causal else 0) for j in columns)
    return problem.batch * problem.heads * seen


def signature(problem: Problem, atomics: bool) -> KernelSignature:
    """The parameters of the kernel for keys, as a launch on contiguous tensors of ``problem`` would compile it for."""
    dtype = getattr(ct, problem.dtype)
    rows = (problem.batch, problem.heads, problem.seq_len_q)
    queries = array((*rows, problem.head_dim), dtype)
    keys = array((problem.batch, problem.kv_heads, problem.seq_len_kv, problem.head_dim), dtype)
    numbers = array(rows, ct.float32)
    sums = [array((*rows, problem.head_dim), ct.float32)] if atomics else []
    parameters = [queries, keys, keys, queries, numbers, numbers, *sums, keys, keys, ScalarConstraint(ct.float32)]
    return KernelSignature(parameters, CallingConvention.cutile_python_v1(), symbol="fmha_backward")


def _runner(variant: Variant, device) -> Callable:
    """``run(name, blocks, *arguments)`` launches one of the kernels; on the CPU, the interpreter."""
    functions = _functions(variant)
    if target_of(device) == "cpu":
        from tutorial_lib import interpreter

        return lambda name, blocks, *arguments: interpreter.launch(blocks, functions[name], arguments)
    import torch

    kernels = {name: _kernel(function) for name, function in functions.items()}
    stream_of, index = torch._C._cuda_getCurrentRawStream, device.index
    return lambda name, blocks, *arguments: ct.launch(stream_of(index), blocks, kernels[name], arguments)


@cache
def _functions(variant: Variant) -> dict[str, Callable]:
    """The kernels as plain Python functions, for the interpreter and the compiler."""
    made = {"row_sums": kernel.make_row_sums(variant), "keys": kernel.make_gradients_of_keys(variant)}
    if variant.atomics:
        return made | {"scaled": kernel.make_scaled(variant)}
    return made | {"queries": kernel.make_gradients_of_queries(variant)}


@cache
def _kernel(function) -> ct.kernel:
    return ct.kernel(function)
