"""Step 904: sequences of different lengths, packed into one tensor.

Padding a batch to its longest sequence computes what nobody wants. Here the tokens of all sequences stand behind each
other, and ``cu_seqlens`` says where each begins (flash-attn's ``flash_attn_varlen_func``). A block computes one tile of
queries. It finds the sequence of its tile by itself, on the GPU, by a binary search among the beginnings. So the host
need not know the lengths, and a launch depends on nothing but the numbers of tokens and of sequences. With the arrays
cut down to the sequence (``Array.slice``) the rest is the kernel as it was.
"""

from steps.core.problems import RAGGED
from steps.everyday import step903_window
from tutorial_lib.problem import Problem

STEP = step903_window.SOFT_CAP.evolve(
    number=904,
    name="varlen",
    previous=step903_window.STEP,
    title="Packed sequences",
    change="Sequences are packed one behind the other in one tensor, and every block finds the sequence of its tile.",
    default_problem=Problem.packed(RAGGED, heads=32, head_dim=128, causal=True),
    takes=("window", "softcap", "lengths"),
)
