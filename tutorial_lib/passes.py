"""The passes over attention, one place for each: what goes in, what comes out, what is right, and what it costs.

Whatever measures or checks a step asks the step's pass, ``pass_of(step)``, and knows no direction itself.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tutorial_lib import accuracy, paging, quantize, reference, tensor_cores
from tutorial_lib.packing import Packing, as_batch, as_packed, remembered, split
from tutorial_lib.problem import BYTES_PER_ELEMENT, Problem, masks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

Tensors = tuple["torch.Tensor", ...]


FEW_OPERATIONS = 200  # a byte: an H100's tensor cores reach about so many in the time that its memory moves one
MANY_KEYS = 16  # a query
OF_INPUTS, OF_WEIGHTS = "quantized inputs", "rounded weights"  # what errors in fp8 come from


class Pass(ABC):
    """One direction through attention. Its inputs and outputs are tuples of tensors, always in the same order."""

    name: str
    title: str  # of what is computed, for reports
    baseline: str  # the step that every speedup is one over: PyTorch's own
    measure = "SDPA's"  # whose error ``yardstick`` gives
    measure_in_tables = "SDPA's"
    baseline_in_tables = "SDPA"
    explained = ""  # what ``measure_in_tables`` stands for, where that is another's error
    products: int  # matrix products that the formulas take, each of 2 operations a query-key pair and head dimension

    def worded(self, text: str) -> str:
        """A text that speaks of SDPA, and of its error, with what takes their places in this pass."""
        return text.replace("SDPA's", self.measure_in_tables).replace("SDPA", self.baseline_in_tables)

    @abstractmethod
    def inputs(self, problem: Problem, seed: int, device: str = "cpu") -> Tensors:
        """Random inputs on ``device``, the same for the same seed and device."""

    @abstractmethod
    def poisoned(self, inputs: Tensors) -> Tensors:
        """Outputs filled with NaN, for a step to write into: what nobody writes stays NaN, and NaN is never right."""

    @abstractmethod
    def call(self, step, problem: Problem, inputs: Tensors, outputs: Tensors | None = None) -> Tensors:
        """Let ``step`` compute the pass, into ``outputs`` where they are given."""

    @abstractmethod
    def make_ready(self, step, problem: Problem, inputs: Tensors, outputs: Tensors) -> None:
        """Let ``step`` make ready what ``call`` with these then launches; Gluon's steps are compiled then."""

    @abstractmethod
    def reference(self, problem: Problem, inputs: Tensors) -> Tensors:
        """The outputs in float64."""

    @abstractmethod
    def yardstick(self, problem: Problem, inputs: Tensors, exact: Tensors) -> tuple[float, ...]:
        """For each output what ``check`` allows twice: the largest error of PyTorch's own attention in this dtype."""

    def causes(self, problem: Problem) -> tuple[str, ...]:
        """Of errors, which are told apart."""
        return ()

    def errors_by_cause(
        self, problem: Problem, seed: int, exact: Tensors, allowed: tuple, step=None
    ) -> tuple[float, ...]:
        """The largest error by each of ``causes``, for the inputs of a seed.

        exact, allowed: as ``check`` takes them. step: whose errors; None: every step's.
        """
        return ()

    def told_by_cause(self, problem: Problem, errors: Sequence[float]) -> str:
        """``errors_by_cause`` in a sentence, for those who tell no more than one error of a step."""
        causes = zip(self.causes(problem), errors, strict=True)
        found = ", ".join(f"{cause} {error:.0e}" for cause, error in causes if error)
        return f"Largest errors by cause: {found}. Those of {OF_INPUTS} are in the reference, too."

    def operations(self, problem: Problem) -> float:
        """Floating-point operations of the matrix products, by which TFLOPS are counted."""
        widths = problem.head_dim * -(-self.products // 2) + problem.value_dim * (self.products // 2)  # those of v last
        return 2 * problem.batch * problem.heads * widths * problem.visible_pairs

    @abstractmethod
    def least_bytes(self, problem: Problem) -> int:
        """Bytes that must cross device memory: every input read once, every output written once."""

    def by_bytes(self, problem: Problem) -> bool:
        """Whether bytes decide how long it takes, not operations: few queries against many keys, as in decoding."""
        many_keys = problem.seq_len_kv >= MANY_KEYS * problem.seq_len_q
        return many_keys and self.operations(problem) < FEW_OPERATIONS * self.least_bytes(problem)

    @abstractmethod
    def tensor_bytes(self, problem: Problem) -> int:
        """Bytes that inputs and outputs occupy together."""

    @abstractmethod
    def needed_bytes(self, problem: Problem, check: bool) -> int:
        """Memory that a measurement needs before any step runs; with ``check`` that of the reference, too."""

    def check(
        self, step, problem: Problem, inputs: Tensors, exact: Tensors, allowed: tuple, outputs: Tensors | None = None
    ) -> accuracy.Accuracy:
        """Let ``step`` write into poisoned outputs and compare; of several outputs, the one that is nearest its limit.

        exact, allowed: what ``reference`` and ``yardstick`` gave for these inputs; outputs: poisoned, where they are.
        """
        outputs = outputs or self.poisoned(inputs)
        self.call(step, problem, inputs, outputs)
        return accuracy.worst(accuracy.compare(*each) for each in zip(outputs, exact, allowed, strict=True))

    def repeat_difference(self, step, problem: Problem, inputs: Tensors, times: int) -> float:
        """The largest difference between what ``times`` calls with the same inputs give; 0 where all bits are equal.

        Infinity where a call gives NaN, and the least positive number where nothing but the sign of a zero differs.
        """
        import torch

        first = [x.clone() for x in self.call(step, problem, inputs)]
        largest = 0.0
        for _ in range(times - 1):
            again = self.call(step, problem, inputs)
            for now, before in zip(again, first, strict=True):
                if not torch.equal(now.view(torch.int16), before.view(torch.int16)):
                    difference = (now.double() - before).abs().max().item()
                    largest = max(largest, difference or math.ulp(0.0)) if difference == difference else math.inf
                if largest == math.inf:
                    return largest
        return largest


class Forward(Pass):
    """q ``[batch, heads, seq_len_q, head_dim]``, k and v ``[batch, kv_heads, seq_len_kv, head_dim]`` -> o, as q.

    Packed sequences: q ``[seq_len_q, heads, head_dim]``, k and v ``[seq_len_kv, kv_heads, head_dim]``, and
    ``cu_seqlens`` of the queries and of the keys. Sinks come last, float32 ``[heads]``.
    """

    name = "forward"
    title = "Attention"
    baseline = "sdpa"
    products = 2  # scores and output

    def inputs(self, problem, seed, device="cpu"):
        """q and k are standard normal. v is standard normal plus 1/2.

        The mean of the output is then not zero, so that a lost tile or a wrong normalisation shows even where a long
        average hides the noise. Sinks are normal about the logarithm of how many keys a query sees in the mean, so
        that they take about half of the weights.
        """
        import torch

        generator = torch.Generator(device=device).manual_seed(seed)
        dtype = getattr(torch, problem.dtype)

        def normal(heads: int, seq_len: int, mean: float, width: int = problem.head_dim) -> torch.Tensor:
            # Drawn in the 16-bit type itself: a float32 copy of a long problem would not fit beside naive attention.
            tensor = torch.empty(problem.batch, heads, seq_len, width, dtype=dtype, device=device)
            return tensor.normal_(mean, 1.0, generator=generator)

        tensors = (
            normal(problem.heads, problem.seq_len_q, 0.0),
            normal(problem.kv_heads, problem.seq_len_kv, 0.0),
            normal(problem.kv_heads, problem.seq_len_kv, 0.5, problem.value_dim),
        )
        sinks = ()
        if problem.sinks:
            mean = math.log(problem.visible_pairs / problem.seq_len_q)
            drawn = torch.empty(problem.heads, device=device).normal_(mean, 1.0, generator=generator)
            sinks = (drawn.bfloat16().float(),)  # as models have them, and some peers take them
        if problem.lengths is None:
            return *tensors, *sinks
        begins = (remembered(lengths, device) for lengths in zip(*problem.pairs_of_lengths))
        return *(as_packed(x).contiguous() for x in tensors), *begins, *sinks

    @staticmethod
    def asked(problem: Problem, inputs: Tensors) -> dict:
        """What of a problem's features is an argument of the same name, tensors of the inputs included."""
        return masks(problem) | ({"sinks": inputs[-1]} if problem.sinks else {})

    def poisoned(self, inputs):
        import torch

        q, _, v, *_ = inputs
        return (torch.full((*q.shape[:-1], v.shape[-1]), float("nan"), dtype=q.dtype, device=q.device),)

    def call(self, step, problem, inputs, outputs=None):
        out, more = outputs[0] if outputs else None, self.asked(problem, inputs)
        if problem.lengths is not None:
            more["cu_seqlens_q"], more["cu_seqlens_k"] = inputs[3:5]
        return (step.attention(*inputs[:3], causal=problem.causal, scale=problem.scale, out=out, **more),)

    def make_ready(self, step, problem, inputs, outputs):
        if problem.lengths is None:  # packed sequences are made ready when they are called
            more = self.asked(problem, inputs)
            step.ready(*inputs[:3], causal=problem.causal, scale=problem.scale, out=outputs[0], **more)

    def reference(self, problem, inputs):
        import torch

        asked, more = (problem.causal, problem.scale), self.asked(problem, inputs)
        if problem.lengths is None:
            return (reference.attention_float64(*inputs[:3], *asked, **more),)
        each = split(*map(as_batch, inputs[:3]), problem.pairs_of_lengths)
        return (as_packed(torch.cat([reference.attention_float64(*one, *asked, **more) for one in each], dim=2)),)

    def yardstick(self, problem, inputs, exact):
        more = self.asked(problem, inputs)
        if problem.lengths is not None:
            more["packing"] = Packing(*inputs[3:5], problem.pairs_of_lengths)
            inputs, exact = tuple(map(as_batch, inputs[:3])), tuple(map(as_batch, exact))
        return (reference.sdpa_error(inputs[:3], exact[0], problem.causal, problem.scale, **more),)

    def least_bytes(self, problem):
        keys = sum(min(a, b) if problem.causal else b for a, b in problem.pairs_of_lengths)
        return self._bytes(problem, keys)

    def tensor_bytes(self, problem):
        return self._bytes(problem, problem.seq_len_kv)

    @staticmethod
    def _bytes(problem: Problem, keys: int) -> int:
        rows = problem.heads * problem.seq_len_q + problem.kv_heads * keys
        return problem.batch * rows * (problem.head_dim + problem.value_dim) * BYTES_PER_ELEMENT

    def needed_bytes(self, problem, check):
        """Inputs, two outputs, and for the reference its float64 output and two blocks of scores."""
        elements = problem.batch * problem.heads * problem.seq_len_q * problem.value_dim
        checking = 8 * elements + 2 * reference.SCORE_BYTES if check else 0
        # PyTorch is given a window as a mask of one byte, and makes one in the inputs' dtype of it.
        pairs = max(a * b for a, b in problem.pairs_of_lengths) if problem.window else 0
        mask = (1 + BYTES_PER_ELEMENT) * pairs
        return self.tensor_bytes(problem) + BYTES_PER_ELEMENT * elements + checking + mask


class Backward(Pass):
    """q, k, v, the output o, the log-sum-exp lse ``[batch, heads, seq_len_q]`` and do, as o -> dq, dk, dv.

    o and lse are those of attention in float64, rounded: what a forward step hands on must not decide whether a
    backward step is right. With sinks, which come last, lse holds them, and their gradient comes last. Of packed
    sequences all but lse ``[heads, seq_len_q]`` are as in the forward pass, with ``cu_seqlens`` behind do.
    """

    name = "backward"
    title = "Attention's gradients"
    baseline = "sdpa_gradients"
    products = 5  # scores, dV, dP, dQ and dK

    def inputs(self, problem, seed, device="cpu"):
        """q, k and v as the forward pass has them; do is standard normal."""
        import torch

        q, k, v, *others = FORWARD.inputs(problem, seed, device)
        asked, more = (problem.causal, problem.scale), FORWARD.asked(problem, others)
        found = [reference.attention_and_lse_float64(*one, *asked, **more) for one in _each(problem, q, k, v)]
        o, lse = (torch.cat(x, dim=2) for x in zip(*found))
        if problem.lengths is not None:
            o, lse = as_packed(o), lse.squeeze(0)
        generator = torch.Generator(device=device).manual_seed(seed + 1)
        do = torch.empty(o.shape, dtype=q.dtype, device=device).normal_(0.0, 1.0, generator=generator)
        return q, k, v, o.to(q.dtype).contiguous(), lse.float(), do, *others

    def poisoned(self, inputs):
        import torch

        shaped = (*inputs[:3], *(x for x in inputs[6:] if x.is_floating_point()))
        return tuple(torch.full_like(x, float("nan"), memory_format=torch.contiguous_format) for x in shaped)

    def call(self, step, problem, inputs, outputs=None):
        more = FORWARD.asked(problem, inputs)
        if problem.lengths is not None:
            more["cu_seqlens_q"], more["cu_seqlens_k"] = inputs[6:8]
        return step.gradients(*inputs[:6], causal=problem.causal, scale=problem.scale, out=outputs, **more)

    def make_ready(self, step, problem, inputs, outputs):
        if problem.lengths is None:  # packed sequences are made ready when they are called
            asked = {"causal": problem.causal, "scale": problem.scale, **FORWARD.asked(problem, inputs)}
            step.ready(*inputs[:6], out=outputs, **asked)

    def reference(self, problem, inputs):
        q, k, v, _, _, do, *_ = inputs
        more = FORWARD.asked(problem, inputs)

        def gradients(q, k, v, do):
            return reference.gradients_float64(q, k, v, do, problem.causal, problem.scale, **more)

        return _put_together(problem, gradients, q, k, v, do)

    def yardstick(self, problem, inputs, exact):
        """PyTorch's errors; where a gradient is zero everywhere, at least what float32 loses in its sums.

        A query that sees one key has weight 1 for it whatever the score: dP - D is the difference of two equal sums
        over head_dim, and what is left of it is chance, in PyTorch as elsewhere. dK adds up what is left of all
        queries, whose signs are chance, too: it grows with the root of their number.

        With sinks, a window or a soft cap PyTorch's are the gradients of the formula, which never sees a rounded o. So
        the errors are at least those of float64 with D of the rounded o, as kernels have it.
        """
        q, k, v, o, _, do, *_ = inputs
        more = FORWARD.asked(problem, inputs)

        def gradients(q, k, v, do):
            return reference.sdpa_gradients(q, k, v, do, problem.causal, problem.scale, **more)

        def of_rounded(q, k, v, do, o):
            return reference.gradients_float64(q, k, v, do, problem.causal, problem.scale, **more, o=o)

        own = _put_together(problem, gradients, q, k, v, do)
        lost = 2.0**-24 * problem.head_dim * abs(problem.effective_scale)
        for x in (do, v):
            lost *= x.abs().max().item()
        queries = (problem.group_size * problem.seq_len_q) ** 0.5
        lost = (lost * k.abs().max().item(), lost * q.abs().max().item() * queries, 0.0)
        errors = [accuracy.max_error(*pair) for pair in zip(own, exact, strict=True)]
        found = tuple(e if x.any() else max(e, least) for e, x, least in zip(errors, exact, lost))
        if not more:
            return found
        rounded = _put_together(problem, of_rounded, q, k, v, do, o)
        least = [accuracy.max_error(*pair) for pair in zip(rounded, exact, strict=True)]
        return tuple(map(max, (*found, *errors[3:]), least))

    def check(self, step, problem, inputs, exact, allowed, outputs=None):
        if problem.sinks and step.rounds_sinks:
            import torch

            *others, own = allowed
            allowed = *others, own + accuracy.rounding_step(exact[-1], torch.bfloat16)
        return super().check(step, problem, inputs, exact, allowed, outputs)

    def least_bytes(self, problem):
        """q, o and do are read and dq is written, k and v are read and dk and dv written, and lse is read."""
        return 2 * FORWARD.least_bytes(problem) + 4 * problem.batch * problem.heads * problem.seq_len_q

    def tensor_bytes(self, problem):
        return 2 * FORWARD.tensor_bytes(problem) + 4 * problem.batch * problem.heads * problem.seq_len_q

    def needed_bytes(self, problem, check):
        """Inputs, outputs, the float64 output that o comes from, and for the reference gradients and five scores."""
        queries, keys = problem.heads * problem.seq_len_q, problem.kv_heads * problem.seq_len_kv
        both = problem.head_dim + problem.value_dim
        gradients = 8 * problem.batch * (queries * problem.head_dim + keys * both)
        checking = gradients + 5 * reference.SCORE_BYTES if check else 0
        if check and problem.features:  # PyTorch's gradients are those of the formula, a head at a time, in float32
            checking += 5 * 4 * problem.batch * problem.seq_len_q * problem.seq_len_kv
        return self.tensor_bytes(problem) + 8 * problem.batch * queries * problem.value_dim + checking


def _each(problem: Problem, q, k, v, *of_queries) -> list[tuple]:
    """(q, k, v, *of_queries) of every sequence: of packed ones the parts, each as a batch of one."""
    if problem.lengths is None:
        return [(q, k, v, *of_queries)]
    parts = split(*map(as_batch, (q, k, v)), problem.pairs_of_lengths)
    beside = [as_batch(x).split(problem.lengths, dim=2) for x in of_queries]
    return [(*part, *others) for part, *others in zip(parts, *beside)]


def _put_together(problem: Problem, gradients: Callable, q, k, v, *of_queries) -> tuple:
    """(dq, dk, dv, *dsinks) that ``gradients`` makes of ``_each``."""
    import torch

    found = [gradients(*one) for one in _each(problem, q, k, v, *of_queries)]
    if problem.lengths is None:
        return found[0]
    dq, dk, dv, *dsinks = zip(*found)
    return *(as_packed(torch.cat(x, dim=2)) for x in (dq, dk, dv)), *(sum(x) for x in dsinks)


class Paged(Pass):
    """q, and K and V in pages -> o, as q: ``tutorial_lib.paging`` says what pages and their table are.

    Inputs: q ``[batch, heads, seq_len_q, head_dim]``, k_pages and v_pages ``[pages, page_size, kv_heads, head_dim]``,
    the table int32 ``[batch, pages of the longest]``, and the lengths int32 ``[batch]``. With ``kv_dtype`` pages are in
    fp8, and the scales of K and V, float32 ``[batch, kv_heads]``, come last. The reference is of what these pages hold,
    and SDPA's error that of K and V brought back to q's dtype.
    """

    name = "paged"
    title = "Attention to keys in pages"
    baseline = "gathered"
    products = 2

    def inputs(self, problem, seed, device="cpu"):
        """q is standard normal; pages are those of ``paging.make_pages``."""
        whole = self.whole_inputs(problem, seed, device)
        return whole if problem.kv_dtype is None else self.quantized(problem, whole)

    @staticmethod
    def whole_inputs(problem: Problem, seed: int, device: str = "cpu") -> Tensors:
        """Those before pages are quantised."""
        import torch

        generator = torch.Generator(device=device).manual_seed(seed)
        shape = (problem.batch, problem.heads, problem.seq_len_q, problem.head_dim)
        q = torch.empty(shape, dtype=getattr(torch, problem.dtype), device=device).normal_(generator=generator)
        return q, *paging.make_pages(problem, generator)

    @staticmethod
    def quantized(problem: Problem, whole: Tensors) -> Tensors:
        """Inputs of ``whole_inputs``."""
        q, k_pages, v_pages, *places = whole
        made = (paging.quantized(pages, *places, problem.kv_dtype) for pages in (k_pages, v_pages))
        (k_pages, k_scale), (v_pages, v_scale) = made
        return q, k_pages, v_pages, *places, k_scale, v_scale

    def poisoned(self, inputs):
        return FORWARD.poisoned(inputs)

    def call(self, step, problem, inputs, outputs=None):
        out, scales = outputs[0] if outputs else None, dict(zip(("k_scale", "v_scale"), inputs[5:]))
        return (step.paged_attention(*inputs[:5], causal=problem.causal, scale=problem.scale, out=out, **scales),)

    def make_ready(self, step, problem, inputs, outputs):
        step.ready(*inputs, causal=problem.causal, scale=problem.scale, out=outputs[0])

    def reference(self, problem, inputs):
        import torch

        asked, each = (problem.causal, problem.scale), paging.sequences(inputs, torch.float64)
        return (torch.cat([reference.attention_of_last(*one, *asked) for one in each]),)

    def yardstick(self, problem, inputs, exact):
        pairs = zip(paging.sequences(inputs), exact[0].split(1), strict=True)
        asked = (problem.causal, problem.scale)
        return (max(accuracy.max_error(reference.sdpa_of_last(*one, *asked), its) for one, its in pairs),)

    def causes(self, problem):
        return (OF_INPUTS, OF_WEIGHTS) if problem.kv_dtype else ()

    def errors_by_cause(self, problem, seed, exact, allowed, step=None):
        """As ``Quantized``'s, whose kernels compute the same: weights are rounded to 16 bits, and sums in float32."""
        if not problem.kv_dtype:
            return ()
        [right] = exact
        whole = self.whole_inputs(problem, seed, right.device)
        of_inputs = accuracy.max_error(*self.reference(problem, whole), right)
        *inputs, k_scale, v_scale = self.quantized(problem, whole)
        of_weights = 0.0
        for b, (q, k, v) in enumerate(paging.sequences(tuple(inputs))):  # in 16 bits, as all numbers of fp8 are there
            scales = k_scale[b : b + 1], v_scale[b : b + 1]
            first = k.shape[2] - q.shape[2]
            found = reference.fp8_attention(q, k, v, scales, problem.causal, problem.scale, first=first)
            of_weights = max(of_weights, accuracy.max_error(found, right[b : b + 1]))
        return of_inputs, of_weights

    def least_bytes(self, problem):
        """q, the keys and values of every sequence up to its end, their places in the table, and the output."""
        return self._bytes(problem, sum(problem.lengths_in_pages))

    def tensor_bytes(self, problem):
        return self._bytes(problem, paging.number_of_pages(problem) * problem.page_size)

    def _bytes(self, problem: Problem, keys: int) -> int:
        rows = 2 * problem.batch * problem.heads * problem.seq_len_q * BYTES_PER_ELEMENT
        rows += 2 * problem.kv_heads * keys * problem.kv_bytes
        scales = 2 * problem.batch * problem.kv_heads if problem.kv_dtype else 0
        owned = paging.number_of_pages(problem) - paging.UNOWNED
        return rows * problem.head_dim + 4 * (owned + scales)

    def needed_bytes(self, problem, check):
        """Inputs, two outputs, for the reference a sequence's K and V, gathered, and scores of one kv head.

        Those in fp8 are made of pages in 16 bits, by way of float32, and once more for errors by cause, with the output
        of those in 16 bits.
        """
        elements = problem.batch * problem.heads * problem.seq_len_q * problem.head_dim
        gathered = 2 * problem.kv_heads * problem.seq_len_kv * problem.head_dim * (BYTES_PER_ELEMENT + 8)
        scores = 8 * 3 * problem.group_size * problem.seq_len_q * problem.seq_len_kv
        checking = 8 * elements + gathered + scores if check else 0
        made = 0
        if problem.kv_dtype:
            made = (2 + 2 * 4) * self.tensor_bytes(problem)
            if check:
                checking += 8 * elements + 3 * self.tensor_bytes(problem)
                made += 8 * elements + self.tensor_bytes(problem)
        return self.tensor_bytes(problem) + BYTES_PER_ELEMENT * elements + max(checking, made)


@dataclass(frozen=True)
class Fp8Errors:
    """Largest errors of ``reference.fp8_attention`` with PV products added up in float32, and in the tensor cores.

    The second is of the queries ``rows``. added: what the tensor cores change there, ``[B, Hq, rows, D]``. others:
    these errors with other offsets of the weights, as far as somebody asked for them.
    """

    in_float32: float
    in_tensor_cores: float
    rows: torch.Tensor
    added: torch.Tensor
    others: dict[int, Fp8Errors] = field(default_factory=dict)


ROWS = 128  # queries of a head, at most, for which the tensor cores' sums are computed one product at a time
OTHER_ORDER = 1 / 4  # of what the tensor cores' sums change, as much may depend on the order of keys, and on rescaling


class Quantized(Forward):
    """q, k and v in fp8, and their scales, float32 ``[batch, kv_heads]`` -> o, as q in bfloat16.

    With ``kv_dtype`` q has 16 bits and no scale, o has its dtype, and sums are in float32.

    The reference is of the quantised inputs: what quantising loses is not a kernel's. A kernel may have twice the error
    of ``reference.fp8_attention``, which rounds the weights with the step's own ``offset_of_weights``, and adds as the
    kernel adds. The tensor cores add up the QK product, and where the step ``sums_in_tensor_cores`` the PV product,
    too. A sum in float32 is no measure there: the hardware loses more than twice its error in a long row, and each such
    step would be wrong for a choice that it says it made. What the choice costs is told as an error of its own.

    In long rows the tensor cores lose much, and twice of that would hide a tile that is forgotten. But what they lose
    is known, and is mostly of one sign. So the output less that loss is also compared, for some queries of each head.
    It may have the error that is allowed with sums in float32, and ``OTHER_ORDER`` of the loss. An output that has no
    more than that error without such losses is right as well.

    What takes one scale for a tensor (``one_scale``) is compared with the reference for that. What ``writes`` fp8 may
    add half of a rounding step of its output.
    """

    name = "fp8"
    title = "Attention in fp8"
    baseline = "fp8_dequantized"
    measure = "that of rounding and adding in fp8"
    measure_in_tables = "fp8's"
    baseline_in_tables = "step 300"  # which converts to 16 bits before it calls SDPA
    explained = (
        "fp8's error is that of attention in float32 with weights rounded to e4m3, and with sums as the step has them: "
        "in float32, or in the tensor cores, whose sums of fp8 products keep 13 fraction bits."
    )

    def inputs(self, problem, seed, device="cpu"):
        """Those of the forward pass in 16 bits, quantised with a scale for each sequence and kv head."""
        tensors = self.whole_inputs(problem, seed, device)
        plain, tensors = ((), tensors) if problem.fp8 else (tensors[:1], tensors[1:])
        kept = problem.kv_dtype or problem.dtype
        scales = tuple(quantize.scale_of_heads(x, problem.kv_heads, kept) for x in tensors)
        return *plain, *(quantize.quantize(x, s, kept) for x, s in zip(tensors, scales)), *scales

    @staticmethod
    def whole_inputs(problem: Problem, seed: int, device: str = "cpu") -> Tensors:
        """q, k and v before they are quantised, in 16 bits."""
        dtype = "bfloat16" if problem.fp8 else problem.dtype
        return FORWARD.inputs(replace(problem, dtype=dtype, kv_dtype=None), seed, device)

    @staticmethod
    def scales(inputs: Tensors) -> dict:
        """The scales, by the names of their arguments."""
        return dict(zip(("q_scale", "k_scale", "v_scale")[6 - len(inputs) :], inputs[3:], strict=True))

    def poisoned(self, inputs):
        import torch

        q = inputs[0]
        dtype = q.dtype if q.element_size() == BYTES_PER_ELEMENT else torch.bfloat16
        return (torch.full(q.shape, float("nan"), dtype=dtype, device=q.device),)

    def call(self, step, problem, inputs, outputs=None):
        out, how = outputs[0] if outputs else None, {"causal": problem.causal, "scale": problem.scale}
        return (step.attention(*inputs[:3], **how, out=out, **self.scales(inputs)),)

    def make_ready(self, step, problem, inputs, outputs):
        step.ready(*inputs[:3], inputs[3:], causal=problem.causal, scale=problem.scale, out=outputs[0])

    def reference(self, problem, inputs):
        import torch

        exact = quantize.dequantized(inputs[:3], inputs[3:], torch.float64)
        return (reference.attention_float64(*exact, problem.causal, problem.scale),)

    def yardstick(self, problem, inputs, exact, offset=0):
        """``Fp8Errors`` of the output, of weights of which the largest is 2^offset."""
        import torch

        asked = *inputs[:3], inputs[3:], problem.causal, problem.scale, offset
        rows = torch.linspace(0, problem.seq_len_q - 1, min(ROWS, problem.seq_len_q), device=inputs[0].device).long()
        lossy = problem.fp8 and tensor_cores.lossy_on(inputs[0].device)  # products of 16 bits are not
        in_tensor_cores = tensor_cores.product if lossy else reference.in_float32
        found = [
            reference.fp8_attention(*asked, multiply=(in_tensor_cores, of_values), rows=rows)
            for of_values in (reference.in_float32, in_tensor_cores)
        ]
        everywhere = accuracy.max_error(reference.fp8_attention(*asked), exact[0])
        errors = [max(everywhere, accuracy.max_error(its, exact[0][:, :, rows])) for its in found]
        return (Fp8Errors(*errors, rows, found[1] - found[0]),)

    def allowed_to(self, step, problem: Problem, inputs: Tensors, exact: Tensors, allowed: tuple) -> Fp8Errors:
        """``yardstick`` with the step's offset, of which ``allowed``, the yardstick without, remembers each."""
        [own], offset = allowed, step.offset_of_weights
        if not offset:
            return own
        if offset not in own.others:
            [own.others[offset]] = self.yardstick(problem, inputs, exact, offset)
        return own.others[offset]

    def check(self, step, problem, inputs, exact, allowed, outputs=None):
        import torch

        outputs = outputs or self.poisoned(inputs)
        if step.one_scale:
            inputs = (*inputs[:3], *(x[:1, :1].expand_as(x).contiguous() for x in inputs[3:]))
            exact = self.reference(problem, inputs)
            allowed = self.yardstick(problem, inputs, exact)
        self.call(step, problem, inputs, outputs)
        [out], [right] = outputs, exact
        own = self.allowed_to(step, problem, inputs, exact, allowed)
        if step.writes:
            more = accuracy.rounding_step(right, getattr(torch, step.writes)) / 4  # of which twice is allowed
            own = replace(own, in_float32=own.in_float32 + more, in_tensor_cores=own.in_tensor_cores + more)
        strict = accuracy.compare(out, right, own.in_float32)
        if not step.sums_in_tensor_cores(problem):
            return strict
        found = accuracy.compare(out, right, own.in_tensor_cores)
        known = right[:, :, own.rows] + own.added
        less = own.in_float32 + OTHER_ORDER / 2 * own.added.abs().max().item()  # of which twice is allowed
        near = accuracy.compare(out[:, :, own.rows], known, less)
        return found if near.correct or strict.correct else near

    def causes(self, problem):
        return OF_INPUTS, OF_WEIGHTS, "sums in tensor cores"

    def errors_by_cause(self, problem, seed, exact, allowed, step=None):
        [right], [own] = exact, allowed
        if step is not None:
            own = self.allowed_to(step, problem, self.inputs(problem, seed, right.device), exact, allowed)
        whole = self.whole_inputs(problem, seed, right.device)
        of_inputs = accuracy.max_error(reference.attention_float64(*whole, problem.causal, problem.scale), right)
        of_sums = own.added.abs().max().item() if step is None or step.sums_in_tensor_cores(problem) else 0.0
        return of_inputs, own.in_float32, of_sums

    @staticmethod
    def _bytes(problem: Problem, keys: int) -> int:
        queries = problem.heads * problem.seq_len_q * problem.head_dim
        queries *= (1 if problem.fp8 else BYTES_PER_ELEMENT) + BYTES_PER_ELEMENT  # read, and written
        scales = 4 * (3 if problem.fp8 else 2) * problem.kv_heads
        return problem.batch * (queries + 2 * problem.kv_heads * keys * problem.head_dim + scales)

    def needed_bytes(self, problem, check):
        """As the forward pass; inputs are there in bfloat16 and float32, and for the reference in float64.

        The output of whole inputs is beside it, in float64.
        """
        queries = problem.heads * problem.seq_len_q * problem.head_dim
        elements = queries + 2 * problem.kv_heads * problem.seq_len_kv * problem.head_dim
        more = elements * (2 + (8 if check else 4)) + (8 * queries if check else 0)
        return super().needed_bytes(problem, check) + problem.batch * more


FORWARD, BACKWARD, PAGED, QUANTIZED = Forward(), Backward(), Paged(), Quantized()
PASSES: dict[str, Pass] = {kind.name: kind for kind in (FORWARD, BACKWARD, PAGED, QUANTIZED)}


def pass_of(step) -> Pass:
    """The pass that a step computes."""
    return PASSES[step.direction]
