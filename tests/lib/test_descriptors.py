"""Where wgmma's descriptors are computed in a kernel's PTX, and which stay where they are."""

import re

import pytest

from steps import get_step
from steps.core.problems import standard
from tutorial_lib import descriptors, rewriting
from tutorial_lib.descriptors import FEW, where_used

HIGH = 4611686293305294848
DECLARED = "\t.reg .b64 \t%rd<99>;"
ADDRESS = "\tbfe.u32 \t%r1, %r99, 4, 14;"
LABEL = "$L__BB0_7:"


def descriptor(n: int, step: str = "add.s32", by: int = 2) -> list[str]:
    """Descriptor %rd<n>, at ``by`` behind the address."""
    steps = [f"\t{step} \t%r{n}, %r1, {by};", f"\tcvt.u64.u32 \t%rd5{n}, %r{n};"]
    return [*steps, f"\tor.b64 \t%rd{n}, %rd5{n}, {HIGH};"]


def product(n: int) -> str:
    return f"\twgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {{%r80,%r81}}, %rd{n}, %rd98, 0, 1, 1, 0, 0;"


def ptx(*lines: str) -> str:
    return "\n".join([DECLARED, *lines])


def additions(text: str) -> list[str]:
    """What is done in 64 bits, and by products."""
    return re.findall(r"(?:add\.s64 \t\S+ \S+ \d+|wgmma|\$L__BB)", text)


def test_a_descriptor_is_computed_in_front_of_its_product():
    made = where_used(ptx(ADDRESS, *descriptor(2), *descriptor(3, by=4), product(2), product(3)))
    assert additions(made) == [
        f"add.s64 \t%rdu0, %rda0, {HIGH + 2}",
        "wgmma",
        f"add.s64 \t%rdu1, %rda0, {HIGH + 4}",
        "wgmma",
    ]
    assert "\tcvt.u64.u32 \t%rda0, %r1;" in made and "or.b64" not in made


def test_what_a_loop_finds_computed_stays_ahead_if_it_is_little():
    few, many = ([n for n in range(2, 2 + number)] for number in (FEW, FEW + 1))
    for numbers in (few, many):
        ahead = [line for n in numbers for line in descriptor(n, by=2 * n)]
        made = additions(where_used(ptx(ADDRESS, *ahead, LABEL, *map(product, numbers))))
        assert made.index("$L__BB") == (len(few) if numbers is few else 0)


@pytest.mark.parametrize(
    "lines",
    [
        [ADDRESS.replace("4, 14", "3, 14"), *descriptor(2), product(2)],
        [ADDRESS, ADDRESS, *descriptor(2), product(2)],
        [ADDRESS, *descriptor(2), "\tmov.b64 \t%rd2, 0;", product(2)],
        [ADDRESS, *descriptor(2), "\tld.shared.v2.b32 \t{%r2, %r3}, [%r4];", product(2)],
        [ADDRESS, *descriptor(2, "or.b32", 2), product(2)],
        [ADDRESS, *descriptor(2, "add.s32", 2**31), product(2)],
        [ADDRESS, *descriptor(2, "sub.s32"), product(2)],
        ["\tadd.s64 \t%rd2, %rd3, 4;", product(2)],
    ],
)
def test_what_is_not_as_known_stays(lines):
    assert where_used(ptx(*lines)) == ptx(*lines)


def test_bits_that_an_address_has_not_may_be_added_by_or():
    made = where_used(ptx(ADDRESS, *descriptor(2, "or.b32", 2**25), product(2)))
    assert additions(made)[0] == f"add.s64 \t%rdu0, %rda0, {HIGH + 2**25}"


def test_a_compiled_kernel_is_kept_under_a_name_that_tells_how_descriptors_are_computed():
    assert descriptors.VERSION in rewriting.VERSION


@pytest.mark.parametrize("causal", [True, False])
def test_the_backward_pass_brings_no_descriptor_from_the_registers_of_lanes(causal):
    compiled = get_step("newest_first").compile(standard(causal=causal, dtype="bfloat16"))
    assert not any(i.opcode == "R2UR" for i in compiled.hot_body)
    assert compiled.spilled_bytes <= 32
