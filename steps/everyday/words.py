"""Keys and values in e4m3, which a decoding kernel reads as words of 32 bits, four numbers each.

The products are in float16, which holds every number of e4m3. One instruction converts two numbers. To bring them to
the lanes that multiply them costs more: where a tile is loaded in e4m3, tileiras 13.5 reads it from shared memory in
pieces of one or two bytes.

A word is four neighbours along head_dim, and both products leave the order of head_dim to us. The QK product sums over
head_dim, in any order that Q and K share. The PV product has head_dim as columns, and these can be put in order when
the loop is over. So tiles come as words, and the numbers of a word stay with the lane that read it.
"""

import cuda.tile as ct

AT_ONCE = 32  # columns that four warps compute at once, eight each: a lane has one of them, and of the next 32 another
LEAST_NORMAL = 2.0**-126  # of float32
EXPONENT = 0x7F800000  # its bits in a float32


def numbers(words):
    """The numbers in words [key, word], in float16: all of them in their order, in one dimension."""
    return ct.astype(ct.bitcast(ct.pack_to_bytes(words), ct.float8_e4m3fn), ct.float16)


def in_lanes(x, rows, variant):
    """x [row, head_dim] with head_dim in the order in which lanes read words.

    Of 16 numbers in the order of an ``mma`` instruction, a lane holds the pairs n and n + 4. It reads them in one word.
    """
    x = ct.reshape(x, (rows, variant.head_dim // 16, 4, 2, 2))
    return ct.reshape(ct.permute(x, (0, 1, 3, 2, 4)), (rows, variant.head_dim))


def prepare_queries(q, scale, batch, kv_head, variant):
    """Q [row, head_dim] in float16, in the order of ``keys_of``; what multiplies its scores [row, 1], and its outputs.

    scale: that of the softmax, and the scales [batch, kv_heads] of K and V. A row of Q is divided by a power of two,
    next to its largest number, so that none is too large for float16.
    """
    softmax_scale, key_scale, value_scale = scale
    q = ct.astype(q, ct.float32)
    largest = ct.maximum(ct.max(ct.abs(q), axis=1, keepdims=True), LEAST_NORMAL)
    power = ct.bitcast(ct.bitcast(largest, ct.int32) & EXPONENT, ct.float32)
    q = in_lanes(ct.astype(q / power, ct.float16), variant.tile.query, variant)
    scale = power * (softmax_scale * ct.load(key_scale, (batch, kv_head), ()))
    return q, scale, ct.load(value_scale, (batch, kv_head), ())


def keys_of(words, variant):
    """Keys [head_dim, key] of words [key, word]."""
    return ct.permute(in_lanes(numbers(words), variant.tile.key, variant), (1, 0))


def values_of(words, variant):
    """Values [key, column] of words [key, word]. A lane's columns, which are ``AT_ONCE`` apart, are neighbours here."""
    v = ct.reshape(numbers(words), (variant.tile.key, AT_ONCE, variant.head_dim // AT_ONCE))
    return ct.reshape(ct.permute(v, (0, 2, 1)), (variant.tile.key, variant.head_dim))


def restore_output(accumulator, value_scale, variant):
    """The output [row, head_dim] of sums that have the columns of ``values_of``."""
    o = ct.reshape(accumulator, (variant.tile.query, variant.head_dim // AT_ONCE, AT_ONCE))
    return ct.reshape(ct.permute(o, (0, 2, 1)), (variant.tile.query, variant.head_dim)) * value_scale
