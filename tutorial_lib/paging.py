"""Keys and values in pages: what a table says of where they lie, as servers of language models keep them.

A sequence grows by a token a time, and nobody knows how long it will become. So memory is handed out in pages of
``page_size`` tokens (Kwon et al. 2023, https://arxiv.org/abs/2309.06180). Pages are ``[pages, page_size, kv_heads,
head_dim]``, as vLLM's and flash-attn's are, and FlashInfer's where its layout is "NHD". Row ``b`` of the table, int32
``[batch, pages of the longest]``, holds the numbers of the pages of sequence ``b`` in their order; what stands behind
the last of them, and what a last page holds behind the sequence's end, may be anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tutorial_lib.quantize import dequantized, quantize, scale_of_heads

if TYPE_CHECKING:
    import torch

    from tutorial_lib.problem import Problem

UNOWNED = 4  # pages more than sequences need, which hold what nobody may read
NO_PAGE = 2**31 - 1  # in unused places of a table: no page has this number, and whoever looks it up fails


def number_of_pages(problem: Problem) -> int:
    """Pages that ``make_pages`` makes: those of all sequences, and ``UNOWNED``."""
    return sum(-(-length // problem.page_size) for length in problem.lengths_in_pages) + UNOWNED


def make_pages(
    problem: Problem, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """(k_pages, v_pages, table, lengths) for a problem with pages, random, on the generator's device.

    Pages lie in random order. K is standard normal, V standard normal plus 1/2. Pages that nobody owns are NaN, and so
    is what last pages hold behind the end. The table's unused places hold ``NO_PAGE``.
    """
    import torch

    device, size = generator.device, problem.page_size
    lengths = torch.tensor(problem.lengths_in_pages, dtype=torch.int32, device=device)
    taken = [-(-length // size) for length in problem.lengths_in_pages]
    order = torch.randperm(number_of_pages(problem), generator=generator, device=device).int()
    table = torch.full((problem.batch, -(-problem.seq_len_kv // size)), NO_PAGE, dtype=torch.int32, device=device)
    begin = 0
    for row, number in zip(table, taken):
        row[:number] = order[begin : begin + number]
        begin += number
    shape = (len(order), size, problem.kv_heads, problem.head_dim)
    pages = []
    for mean in (0.0, 0.5):
        made = torch.empty(shape, dtype=getattr(torch, problem.dtype), device=device)
        made.normal_(mean, 1.0, generator=generator)
        made[order[begin:].long()] = float("nan")
        for row, number, length in zip(table, taken, problem.lengths_in_pages):
            made[row[number - 1], length - (number - 1) * size :] = float("nan")
        pages.append(made)
    return *pages, table, lengths


def quantized(
    pages: torch.Tensor, table: torch.Tensor, lengths: torch.Tensor, dtype: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """(pages in fp8, contiguous, and their scales ``[batch, kv_heads]``), one for each sequence and head.

    What nobody may read is NaN before and after.
    """
    import torch

    kv_heads, scales = pages.shape[2], []
    of_pages = torch.ones(pages.shape[0], kv_heads, device=pages.device)
    for b, length in enumerate(lengths.tolist()):
        tokens = gather(pages, table[b : b + 1], lengths[b : b + 1])[:, :, :length]
        scales.append(scale_of_heads(tokens, kv_heads, dtype))
        of_pages[table[b, : -(-length // pages.shape[1])].long()] = scales[-1]
    return quantize(pages.transpose(1, 2), of_pages, dtype).transpose(1, 2).contiguous(), torch.cat(scales)


def gather(pages: torch.Tensor, table: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """The tokens of all pages of a table in their order, [batch, kv_heads, tokens, head_dim]: a copy.

    tokens: as many as the table has room for. Those behind a sequence's last page are those of page 0.
    """
    import torch

    used = pages.shape[1] * torch.arange(table.shape[1], device=table.device) < lengths[:, None]
    return pages[table.long() * used].flatten(1, 2).transpose(1, 2).contiguous()


def visible(lengths: torch.Tensor, tokens: int, seq_len_q: int, causal: bool) -> torch.Tensor:
    """Which of so many tokens a query sees, [batch, seq_len_q, tokens]: queries are the last of their sequence."""
    import torch

    key = torch.arange(tokens, device=lengths.device)
    end = lengths[:, None].expand(-1, seq_len_q)
    if causal:
        end = end - torch.arange(seq_len_q - 1, -1, -1, device=lengths.device)
    return key < end[:, :, None]


def sequences(
    inputs: tuple, dtype: torch.dtype | None = None
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """(q, k, v) of every sequence by itself, gathered up to its end: ``[1, heads, tokens, head_dim]`` each, in dtype.

    inputs: q ``[batch, heads, seq_len_q, head_dim]``, k_pages, v_pages, table, lengths and, of pages in fp8, the scales
    of K and V, which k and v are multiplied by. dtype: None: q's.
    """
    q, k_pages, v_pages, table, lengths, *scales = inputs
    for b, length in enumerate(lengths.tolist()):
        one = slice(b, b + 1)
        gathered = (gather(pages, table[one], lengths[one])[:, :, :length] for pages in (k_pages, v_pages))
        yield dequantized((q[one], *gathered), tuple(x[one] for x in scales), dtype or q.dtype)
