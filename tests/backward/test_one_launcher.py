"""A backward call's kernels, as the driver is asked for them: in one go, with one piece of memory of the call's own."""

import math
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch._C._dynamo import guards
from torch.utils._python_dispatch import TorchDispatchMode

from steps import get_step
from steps.backward_hopper import skeleton
from steps.core import driver
from tests.shapes import problem

PLAIN = problem(batch=2, heads=4, kv_heads=2, seq_len_q=200, seq_len_kv=330, head_dim=64, causal=False)
SHAPES = {  # step -> what its kernels count, and add up, beside dQ
    "transposed_scores": PLAIN,
    "tma_reduce_add": PLAIN,
    "fast_deterministic": replace(PLAIN, causal=True),
    "deferred_reduce_add": problem(batch=1, heads=4, kv_heads=2, seq_len_q=512, seq_len_kv=512, head_dim=64),
    "fused_pre_post": problem(batch=8, heads=32, seq_len_q=1024, seq_len_kv=1024, head_dim=64, causal=False),
}


def inputs(shape):
    """q, k, v, o, lse and do, which hold anything."""
    queries = torch.empty(shape.batch, shape.heads, shape.seq_len_q, shape.head_dim, dtype=torch.float16)
    keys = torch.empty(shape.batch, shape.kv_heads, shape.seq_len_kv, shape.head_dim, dtype=torch.float16)
    lse = torch.empty(queries.shape[:-1])
    return [queries, keys, keys.clone(), queries.clone(), lse, queries.clone()]


class Allocations(TorchDispatchMode):
    """Counts PyTorch's operators by name."""

    def __init__(self):
        super().__init__()
        self.asked = Counter()

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        self.asked[function.overloadpacket.__name__] += 1
        return function(*arguments, **(named or {}))


@pytest.fixture
def launched(monkeypatch):
    """(kernel, addresses) of every launch, without a GPU; kernels are not compiled."""
    found = []

    def made(kernel, *_, **__):
        def run(*_):
            pytest.fail("launched one by one")

        run.kernel = SimpleNamespace(call=lambda stream, places: (kernel.fn.__name__, list(places)))
        return run

    def launch(*call):
        found.append(call)
        return 0

    monkeypatch.setattr(skeleton, "gluon_launcher", made)
    monkeypatch.setattr(driver, "cuda", lambda: SimpleNamespace(cuLaunchKernelEx=launch))
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 7, raising=False)
    return found


@pytest.mark.parametrize("name", SHAPES)
def test_a_call_makes_its_outputs_and_one_piece_of_memory(name, launched, monkeypatch):
    """Past PyTorch's operators."""
    shape, step, made = SHAPES[name], replace(get_step(name)), []
    empty = guards._empty_strided_cpu
    monkeypatch.setattr(guards, "_empty_strided_cpu", lambda *given: made.append(given[0]) or empty(*given))
    tensors = inputs(shape)
    step.gradients(*tensors, shape.causal)
    launched.clear()
    made.clear()
    with Allocations() as allocations:
        step.gradients(*tensors, shape.causal)
    assert not allocations.asked and [len(shape) for shape in sorted(made, key=len)] == [1, 4, 4, 4]
    assert [kernel for kernel, _ in launched] == ["prepare", "fmha_backward", "scaled"]


@pytest.mark.parametrize("name", SHAPES)
def test_kernels_get_the_tensors_that_they_are_for(name, launched):
    shape, step = SHAPES[name], replace(get_step(name))
    tensors = inputs(shape)
    made = step.gradients(*tensors, shape.causal)
    q, k, v, o, lse, do, dq, dk, dv = (x.data_ptr() for x in (*tensors, *made))
    variant, (prepare, multiply, *scaled) = step.variant(shape), [places for _, places in launched]
    numbers, sums, *counts = prepare[3:]
    assert prepare[:3] == [o, do, lse] and multiply[:6] == [q, k, v, do, numbers, sums]
    ends = [numbers + 8 * shape.batch * shape.heads * step.padded(shape)]
    begins = [numbers, sums]
    of_queries = 4 * shape.batch * shape.heads * step.padded(shape) * shape.head_dim
    if variant.sharing > 1:
        of_keys = multiply[6:8]
        bytes_each = 4 * math.prod(step.key_sums(shape)[1:])
        assert of_keys == [sums + of_queries, sums + of_queries + bytes_each]  # behind dQ's, as they are cleared there
        assert scaled == [[sums, dq, *of_keys, dk, dv]]
        ends.append(of_keys[1] + bytes_each)
    else:
        assert multiply[6:8] == [dk, dv] and scaled == [[sums, dq]]
        ends.append(sums + of_queries)
    if counts:
        begins += counts
        ends.append(counts[0] + 4 * step.number_of_counts(shape))
    assert len(counts) == bool(variant.counts)
    assert multiply[8:] == [*counts, *([sums, dq, numbers, o, do, lse] if variant.spare else [])]
    assert all(end <= begin for end, begin in zip(ends, begins[1:])) and all(x % 16 == 0 for x in begins)
