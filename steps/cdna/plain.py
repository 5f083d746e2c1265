"""The same attention in plain Triton: layouts, LDS, copies and their order are left to the compiler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import triton
import triton.language as tl

from steps.cdna.skeleton import AmdStep
from steps.core.fused import hole
from steps.core.tiles import Tile
from steps.gluon.softmax import LEAST
from tutorial_lib.problem import Problem


@dataclass(frozen=True)
class Variant:
    """What the kernel is compiled for. Everything here is a constant in the compiled code."""

    tile: Tile
    head_dim: int
    group_size: int
    causal: bool
    ragged: bool  # the last tile of keys is not full
    waves: int
    lse: bool = False  # the log-sum-exp of every query is stored, too


@triton.jit
def fmha(
    Q,
    K,
    V,
    Out,
    q_strides,
    k_strides,
    v_strides,
    o_strides,
    scale,
    seq_len_q,
    seq_len_kv,
    variant: tl.constexpr,
    LSE=None,
):
    TILE_QUERY: tl.constexpr = variant.tile.query
    TILE_KEY: tl.constexpr = variant.tile.key

    # --- which queries are ours, and which keys they see ---
    first_query = tl.program_id(0) * TILE_QUERY
    head = tl.program_id(1).to(tl.int64)
    batch = tl.program_id(2).to(tl.int64)
    Q += batch * q_strides[0] + head * q_strides[1]
    K += batch * k_strides[0] + head // variant.group_size * k_strides[1]
    V += batch * v_strides[0] + head // variant.group_size * v_strides[1]
    Out += batch * o_strides[0] + head * o_strides[1]
    end = tl.cdiv(seq_len_kv, TILE_KEY)
    whole = seq_len_kv // TILE_KEY
    if variant.causal:
        whole = tl.minimum(whole, first_query // TILE_KEY)
        end = tl.minimum(end, tl.cdiv(first_query + TILE_QUERY, TILE_KEY))

    row = tl.arange(0, TILE_QUERY)
    column = tl.arange(0, variant.head_dim)
    query = first_query + row
    inside = query < seq_len_q
    Q += first_query.to(tl.int64) * q_strides[2]
    Out += first_query.to(tl.int64) * o_strides[2]
    q = tl.load(Q + (row[:, None] * q_strides[2] + column[None, :]), mask=inside[:, None], other=0.0)
    row_max = tl.full([TILE_QUERY], LEAST, tl.float32)
    row_sum = tl.full([TILE_QUERY], 0.0, tl.float32)
    accumulator = tl.full([TILE_QUERY, variant.head_dim], 0.0, tl.float32)  # not yet normalised

    # Two loops from one text: over whole tiles, and over those that need the mask.
    for masked in tl.static_range(2 if variant.causal or variant.ragged else 1):
        for j in range(whole if masked else 0, end if masked else whole):
            offset = tl.arange(0, TILE_KEY)
            first_key = tl.to_tensor(j * TILE_KEY)
            key = first_key + offset
            k_pointers = K + first_key.to(tl.int64) * k_strides[2] + (offset[None, :] * k_strides[2] + column[:, None])
            v_pointers = V + first_key.to(tl.int64) * v_strides[2] + (offset[:, None] * v_strides[2] + column[None, :])
            if masked and variant.ragged:
                k = tl.load(k_pointers, mask=(key < seq_len_kv)[None, :], other=0.0)
                v = tl.load(v_pointers, mask=(key < seq_len_kv)[:, None], other=0.0)
            else:
                k = tl.load(k_pointers)
                v = tl.load(v_pointers)

            scores = tl.dot(q, k)
            if masked and variant.causal:
                scores = tl.where(key[None, :] <= query[:, None], scores, float("-inf"))
            if masked and variant.ragged:
                scores = tl.where((key < seq_len_kv)[None, :], scores, float("-inf"))

            new_max = tl.maximum(row_max, tl.max(scores, 1) * scale)
            weights = tl.exp2(scores * scale - new_max[:, None])
            correction = tl.exp2(row_max - new_max)
            row_max = new_max
            row_sum = row_sum * correction + tl.sum(weights, 1)
            accumulator = tl.dot(weights.to(q.dtype), v, accumulator * correction[:, None])

    # --- normalise and store; rows past the end are dropped ---
    if variant.lse:
        line = tl.program_id(2).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
        lse = (row_max + tl.log2(row_sum)) * 0.6931471805599453
        tl.store(LSE + (line * seq_len_q + query), lse, mask=inside)
    o = accumulator * (1.0 / row_sum)[:, None]
    target = Out + (row[:, None] * o_strides[2] + column[None, :] * o_strides[3])
    tl.store(target, o.to(q.dtype), mask=inside[:, None])


@dataclass(frozen=True, kw_only=True)
class TritonStep(AmdStep):
    """The kernel above. tile: queries of a block, and keys of an iteration; waves: of a block."""

    tile: Tile = hole()
    waves: int = hole()

    backend: ClassVar[str] = "triton"

    def variant(self, problem: Problem, arch: str = AmdStep.made_for) -> Variant:
        """The constants that ``problem`` is compiled with, the same on every architecture."""
        return Variant(
            tile=self.tile,
            head_dim=problem.head_dim,
            group_size=problem.group_size,
            causal=problem.causal,
            ragged=problem.seq_len_kv % self.tile.key != 0,
            waves=self.waves,
        )

    def kernel(self, problem: Problem) -> Callable:
        return fmha

    def number_of_warps(self, variant: Variant) -> int:
        return variant.waves
