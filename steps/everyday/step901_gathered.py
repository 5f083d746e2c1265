"""Step 901: what a PyTorch user does about pages, and the baseline of the steps that read them.

``scaled_dot_product_attention`` takes no table. So the pages of all sequences are copied into one tensor, as long as
the longest, and a mask hides what is behind each one's end. Unused places of the table may hold any number: page 0 is
copied in their place. What lies behind a sequence's end may be NaN, and 0 * NaN is NaN: it is set to zero. K and V are
read and written once more before attention reads them. Pages in fp8 are brought back to q's dtype, times their scales.
"""

from steps.core.paged import TorchPaged
from steps.core.problems import PAGED_DECODING
from tutorial_lib.paging import gather, visible
from tutorial_lib.problem import BYTES_PER_ELEMENT
from tutorial_lib.quantize import dequantized


def sdpa_of_gathered(q, k_pages, v_pages, page_table, lengths, causal, scale, *scales):
    """o ``[B, Hq, Sq, D]``: K and V gathered from their pages, then PyTorch's attention under a mask."""
    from torch.nn.functional import scaled_dot_product_attention

    gathered = gather(k_pages, page_table, lengths), gather(v_pages, page_table, lengths)
    k, v = dequantized(gathered, scales, q.dtype)
    there = visible(lengths, k.shape[2], 1, False)[:, :, :, None]  # [B, 1, tokens, 1]
    mask = visible(lengths, k.shape[2], q.shape[2], causal)[:, None]
    grouped = q.shape[1] != k.shape[1]
    k, v = k.masked_fill_(~there, 0), v.masked_fill_(~there, 0)
    return scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=grouped)


def gathered_bytes(problem) -> int:
    """K and V, as long as the table has room for, twice while their axes are swapped, and the mask.

    Those in fp8 once, then in 16 bits, and one of both in float32 twice while it is multiplied by its scale.
    """
    keys = problem.batch * problem.kv_heads * problem.seq_len_kv * problem.head_dim
    copies = 2 + 2 * BYTES_PER_ELEMENT + 2 * 4 if problem.kv_dtype else 3 * BYTES_PER_ELEMENT
    return copies * keys + 2 * problem.batch * problem.seq_len_q * problem.seq_len_kv


STEP = TorchPaged(
    number=901,
    name="gathered",
    title="Pages gathered, then SDPA",
    change="K and V are copied out of their pages, and PyTorch's attention reads the copies.",
    default_problem=PAGED_DECODING,
    function=sdpa_of_gathered,
    scratch=gathered_bytes,
)
