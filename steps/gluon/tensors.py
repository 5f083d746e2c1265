"""Tensors as a kernel takes them: their shapes, and copies of those whose strides it cannot use."""

from __future__ import annotations

from tutorial_lib.problem import Problem


def shapes(problem: Problem) -> list[tuple[int, ...]]:
    queries = (problem.batch, problem.heads, problem.seq_len_q, problem.head_dim)
    keys = (problem.batch, problem.kv_heads, problem.seq_len_kv, problem.head_dim)
    return [queries, keys, (*keys[:3], problem.value_dim), (*queries[:3], problem.value_dim)]


def copyable(x):
    """x, or a copy of it where its rows cannot be copied 16 bytes at a time."""
    even = all(stride % 16 == 0 for stride, length in zip(x.stride()[:3], x.shape) if length > 1)
    near = x.stride(2) < 2**23  # offsets inside a tile are 32-bit
    return x if even and near and x.stride(3) == 1 and x.data_ptr() % 16 == 0 else contiguous_copy(x)


def contiguous_copy(x):
    import torch

    return x.clone(memory_format=torch.contiguous_format)
