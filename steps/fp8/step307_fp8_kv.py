"""Step 307, a fork from step 300: decoding, with keys and values in fp8.

One new token reads all keys and values so far, and the time is that of reading them. In e4m3 they are half as many
bytes as in 16 bits. The queries are few. They keep their 16 bits, and so does the output.

The kernel is that of step 900, split_kv. Tensor cores multiply no 16 bits by 8, so every key and every value is
converted to float16, which holds all numbers of e4m3. That must cost less than the bytes save: ``steps.everyday.words``
says how. The scale of K goes into the scale of the scores, and that of V multiplies the output.

The weights are rounded to float16, too, whatever dtype the queries have. What is below 2^-25 of the largest weight
would become zero, and of many keys that may add up. So the softmax is that of step 306, with an offset.
"""

from dataclasses import replace

from steps.core.problems import DECODING
from steps.fp8 import step300_fp8_dequantized, step306_cutile_fp8
from steps.fp8.decoding import SPLIT_KV, QuantizedDecodeStep
from tutorial_lib.problem import FP8

STEP = QuantizedDecodeStep(
    number=307,
    name="fp8_kv",
    title="Keys and values in fp8",
    change="The kernel of split_kv reads keys and values in e4m3, and multiplies them in float16.",
    previous=step300_fp8_dequantized.STEP,
    fork=True,
    default_problem=replace(DECODING, kv_dtype=FP8),
    **{**SPLIT_KV.holes(), "softmax": step306_cutile_fp8.softmax_with_offset},
)
