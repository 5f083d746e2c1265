"""Step 2: one fused kernel. The scores stay on the chip, and ``ct.mma`` runs on the tensor cores.

What makes fusing possible is the online softmax (Milakov and Gimelshein 2018, https://arxiv.org/abs/1805.02867):
a row's maximum is not known until its last key, so the kernel keeps the maximum so far and, when it grows, scales
down what it has summed with the old one. Memory traffic falls from quadratic to linear in the sequence length.

This first kernel fills the skeleton's holes in the plainest way: keys are loaded as they lie and transposed
afterwards, ``exp`` is the exponential, and the end divides.
"""

import cuda.tile as ct

from steps.core.problems import HEADLINE
from steps.cutile.kernel import BASE_E
from steps.cutile.skeleton import CuTileStep
from steps.reference import step001_naive


def load_key_then_permute(K, batch, head, j, tile, head_dim, latency):
    """The j-th tile of keys, loaded as it lies in memory and then transposed: [head_dim, key]."""
    k = ct.load(K, (batch, head, j, 0), (1, 1, tile.key, head_dim), padding_mode=ct.PaddingMode.ZERO, latency=latency)
    return ct.permute(ct.reshape(k, (tile.key, head_dim)), (1, 0))


def softmax_exp(scores, row_max, scale):
    """Weights of this tile [query, key], the factor on what was summed before [query, 1], the new maximum."""
    scores = scores * scale
    new_max = ct.maximum(row_max, ct.max(scores, axis=1, keepdims=True))
    weights = ct.exp(scores - new_max)
    correction = ct.exp(row_max - new_max)
    return weights, correction, new_max


softmax_exp.base = BASE_E  # of its exponentials; all others' is 2


def divide_exactly(accumulator, row_sum):
    """Output rows [query, head_dim], divided as IEEE 754 rounds."""
    return accumulator / row_sum


STEP = CuTileStep(
    number=2,
    name="mma",
    title="Fused, tensor cores",
    change="One kernel for the whole of attention: tiles, ct.mma and the online softmax.",
    previous=step001_naive.STEP,
    default_problem=HEADLINE,
    load_key=load_key_then_permute,
    softmax=softmax_exp,
    divide=divide_exactly,
)
