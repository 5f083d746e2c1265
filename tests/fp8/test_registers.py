"""What wgmma finds in registers in the fp8 steps, which no simulator of tensors sees: from the PTX, lane by lane.

The PTX ISA says which elements of the sum and of the first factor a lane holds ("Register Fragments for
wgmma.mma_async.m64nNk32"). Here a warp goes through the instructions between the softmax and the PV product.
"""

import itertools
import re
from itertools import chain
from types import SimpleNamespace

import pytest

from steps import get_step
from tests.expected import same_compilers
from tests.fp8.test_steps import problem


class Warp:
    """Values of registers: numbers, or lists of bytes, each byte a weight's (register, lane)."""

    def __init__(self, ptx: str):
        self.made, self.known, self.products = {}, {}, []
        for at, text in enumerate(chain.from_iterable(line.split("//")[0].split(";") for line in ptx.splitlines())):
            lists = [re.findall(r"%?\w+", found) for found in re.findall(r"\{([^}]*)\}", text)]
            if "wgmma.mma_async" in text:
                self.products.append(SimpleNamespace(at=at, sums=lists[0], factor=lists[1] if lists[1:] else None))
            elif found := re.fullmatch(r"[\s{]*([a-z][\w.:]+)\s+(%?\w+), (.+)", text):
                name, into, given = found.groups()
                self.made.setdefault(into, []).append((at, name, lists[0] if lists else given.split(", ")))

    def value(self, register: str, before: int, lane: int):
        """What a lane has in a register in front of an instruction: as it was last written, or else will be."""
        if register == "%tid.x" or not re.match(r"%|low|high", register):
            return lane if register == "%tid.x" else int(register)
        written = self.made[register]
        at, name, given = ([each for each in written if each[0] < before] or written)[-1]
        if (register, at, lane) not in self.known:
            self.known[register, at, lane] = self.result(name, given, at, lane)
        return self.known[register, at, lane]

    def result(self, name: str, given: list[str], at: int, lane: int):
        if name.startswith("cvt.rn.satfinite.e4m3x2"):  # the second is the lower byte
            return [(given[1], lane), (given[0], lane)]
        if name.startswith("shfl.sync.idx"):
            return self.value(given[0], at, self.value(given[1], at, lane))
        a, *others = (self.value(each, at, lane) for each in given)
        match name.split(".")[0]:
            case "mov":
                return a + others[0] if others else a
            case "selp":
                return a if others[1] else others[0]
            case "setp":
                return a == others[0]
            case "prmt":
                return [(a + others[0])[others[1] >> 4 * n & 7] for n in range(4)]
            case "bfe":
                return a >> others[0] & (1 << others[1]) - 1
            case "shl":
                return a << others[0]
        return {"and": int.__and__, "or": int.__or__, "xor": int.__xor__}[name.split(".")[0]](a, others[0])

    def place_in_sum(self, register: str, sums: dict[str, int]) -> set[int]:
        """Which number of a lane's the weight in a register is made of."""
        if register in sums:
            return {sums[register]}
        steps = [given for _, name, given in self.made.get(register, ()) if re.match("ex2|fma|selp|mov", name)]
        return set().union(*(self.place_in_sum(each, sums) for each in chain.from_iterable(steps)))


@same_compilers
@pytest.mark.parametrize("name", ["pv_fp8", "permuted_keys"])
def test_wgmma_finds_the_weights_of_its_rows_and_keys(name):
    step = get_step(name)
    shape = problem(causal=False, seq_len_q=512, seq_len_kv=512)
    warp = Warp(step.compile(shape).texts.ptx)
    sums = {register: n for product in warp.products if not product.factor for n, register in enumerate(product.sums)}
    products = [product for product in warp.products if product.factor]
    assert len(products) == 4 * 4  # keys in steps of 32; in the loop and behind it, for two warpgroups
    for (nth, product), lane in itertools.product(enumerate(products), range(32)):
        held = [warp.value(register, product.at, lane) for register in product.factor]
        for n, (register, its_lane) in enumerate(chain.from_iterable(held)):
            four, byte = divmod(n, 4)
            row, key = lane // 4 + four % 2 * 8, nth % 4 * 32 + four // 2 * 16 + lane % 4 * 4 + byte
            [number] = warp.place_in_sum(register, sums)
            found = its_lane // 4 + number // 2 % 2 * 8, number // 4 * 8 + its_lane % 4 * 2 + number % 2
            assert found == (row, ordered(key) if name == "permuted_keys" else key)


def ordered(place: int) -> int:
    """Which key V has at a place: of 16, fours of halves of pairs are halves of fours of pairs."""
    four, half, pair = place % 16 // 4, place // 2 % 2, place % 2
    return place // 16 * 16 + half * 8 + four * 2 + pair
