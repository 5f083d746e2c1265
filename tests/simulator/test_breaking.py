"""Every synchronisation of every kernel is taken out, loosened or flipped, and the simulator finds what it was for.

What it does not find is listed here by the statement, with the reason and the kernels for which the reason holds. A
kernel must have all of it that the list says, and nothing else. Which kernels and places a run breaks, ``places`` says.
"""

import dataclasses
import re
from collections import Counter
from collections.abc import Callable

import pytest

from steps import get_step
from steps.blackwell import taking
from steps.core.ladder import kernels_of
from steps.hopper import ahead, lib
from steps.hopper.products import TO_QUERIES
from steps.hopper.softmax import DOWNWARDS, wait_last
from steps.hopper.variant import Variant as Hopper
from steps.writing.written import write_step
from tests.selection import sampled
from tests.shapes import problem
from tests.simulator.places import check_that_all_is_missed
from tutorial_lib.problem import Problem
from tutorial_lib.simulator.breaking import NOT_AT_LAST, broken, mistaken, without

WITHOUT, OTHER_PARITY, ONE_MORE = "without", "other parity", "one more under way"


@dataclasses.dataclass(frozen=True)
class Harmless:
    """A statement that may be broken in some ways, and why.

    number: of the places where a kernel has it; None: all. kernels: whether it holds for a kernel with this variant.
    """

    reason: str
    statement: str
    ways: tuple[str, ...] = (WITHOUT,)
    number: int | None = None
    kernels: Callable = lambda variant: True


BY_ITSELF = "the compiler sets a barrier by itself: see the tests of the machine code below"
NOTHING_LEFT = "nothing is under way there any more: every copy was waited for in the loop"
ANOTHER_WAIT = "another wait for all stores stands behind the store, or in front of the next, and does the same"
NOBODY_WAITS = "the block has one tile of queries, and fills this slot no other time"
HEARD_BEFORE = (
    "the producer tells the warpgroups first, and they heard of the tile before when they had read these queries"
)
ONLY_SPEED = "it decides who goes first, which changes no number"
AGAIN = "this tile was waited for before: the wait holds the compiler's order"
HELD = "nobody arrives there, and it is over at once: it holds the compiler's order"
VALUES_FIRST = (
    "the producer asks for the values before it first, and waits there until the other warpgroup has come as far"
)
QUERIES_FIRST = (
    "the queries were waited for, and their slot is empty only when the other warpgroup has read all keys before"
)
MEETING = "where the CTAs meet, a fence of its own tells the other one, and TMA, of the barriers"
PASSED_OVER = "in front of the tiles that a warpgroup passes over its last product was waited for"
NO_SHORTER_WARPGROUP = (
    "with tiles of keys as long as those of queries, no warpgroup ends before the block does: it does not run"
)


class Kernel:
    """A kernel's constants, which it gives as its own, and its function."""

    def __init__(self, variant, function):
        self.variant, self.function = variant, function

    def __getattr__(self, name: str):
        return getattr(self.variant, name)

    @property
    def hopper(self) -> bool:
        return isinstance(self.variant, Hopper)

    @property
    def stays(self) -> bool:
        return self.schedule not in (lib.ONE_TILE, taking.ONE_TILE)


def skips(kernel) -> bool:
    """Whether a warpgroup passes over a last tile of keys that later ones see; so the text says, at least."""
    return (
        kernel.hopper and kernel.ends is lib.OWN_END and kernel.consume is not ahead.consume and kernel.most_over <= 1
    )


def by_nobody(variant) -> bool:
    """Whether what holds a wait in its place is a wait for an mbarrier where nobody arrives."""
    return variant.hopper and variant.hold is lib.WITHOUT_MEETINGS


def holds(variant) -> bool:
    """Whether something holds the wait for the PV product in its place."""
    return variant.hopper and variant.softmax is not wait_last


def in_pairs(variant) -> bool:
    return getattr(variant, "neighbours", 1) > 1


def skips_none(variant) -> bool:
    return skips(variant) and variant.tile.query <= variant.tile.key


COPIES, STORES = "async_copy.wait_group(0)", "tma.store_wait(0)"
TURNS = [
    f"mbarrier.wait(barriers.turns.index(warpgroup), {n} & 1 ^ FIRST)"
    for n in ("n", "n_2", "iteration", "(iteration - query_iteration)")
]
KEY_FULL = "await_tile(barriers.key_full, iteration, STAGES)"
KEY_EMPTY = "release(barriers.key_empty, iteration, STAGES)"
VALUE_FULL = "await_tile(barriers.value_full, iteration, STAGES)"
VALUE_EMPTY = "release(barriers.value_empty, iteration, STAGES)"
EMPTY_QUERIES = "mbarrier.wait(empty, query_iteration // QUERY_STAGES & 1 ^ 1)"
OF_THE_ONLY_QUERIES = (
    EMPTY_QUERIES,
    EMPTY_QUERIES.replace(" // QUERY_STAGES", ""),  # as it is written where there is one
    "release(barriers.query_empty, query_iteration, QUERY_STAGES)",
    "release(barriers.value_empty, last_iteration, STAGES)",
)
HARMLESS = [
    Harmless(BY_ITSELF, "gl.barrier()"),
    Harmless(NOTHING_LEFT, COPIES, (WITHOUT, ONE_MORE), number=1),
    Harmless(ANOTHER_WAIT, STORES, (WITHOUT, ONE_MORE), kernels=lambda v: v.hopper and not v.stays),
    Harmless(
        ANOTHER_WAIT,
        STORES,
        (WITHOUT, ONE_MORE),
        2,
        lambda v: v.hopper and v.stays and v.output_to is TO_QUERIES,
    ),
    *(Harmless(NOBODY_WAITS, its, kernels=lambda v: not v.stays) for its in OF_THE_ONLY_QUERIES),
    Harmless(HEARD_BEFORE, EMPTY_QUERIES, kernels=lambda v: v.hopper and v.packed and v.query_stages == 2),
    *(Harmless(ONLY_SPEED, its) for its in TURNS),
    # Of three, nobody would begin.
    *(Harmless(ONLY_SPEED, its, (OTHER_PARITY,), kernels=lambda v: v.warpgroups == 2) for its in TURNS),
    Harmless(
        AGAIN, VALUE_FULL, number=1, kernels=lambda v: v.hopper and v.softmax is not wait_last and not by_nobody(v)
    ),
    Harmless(HELD, "mbarrier.wait(barriers.nobody.index(0), 1)", kernels=by_nobody),
    Harmless(HELD, "hold_by_nobody(barriers)", kernels=by_nobody),
    Harmless(VALUES_FIRST, KEY_FULL, number=1, kernels=lambda v: skips(v) and not in_pairs(v)),
    Harmless(QUERIES_FIRST, KEY_FULL, number=1, kernels=lambda v: v.hopper and v.walk is DOWNWARDS),
    Harmless(MEETING, "fence_async_shared()", number=1, kernels=in_pairs),
    Harmless(
        PASSED_OVER,
        "accumulator = warpgroup_mma_wait(1, deps=[accumulator])",
        (WITHOUT, ONE_MORE),
        kernels=lambda v: in_pairs(v) and v.most_over > 1,
    ),
    *(
        Harmless(NO_SHORTER_WARPGROUP, its, number=1, kernels=skips_none)
        for its in (KEY_EMPTY, VALUE_FULL, VALUE_EMPTY)
    ),
]

# Where a step has a kernel that the steps before it do not have: (head_dim, causal). Else at head_dim 128, causal.
ELSEWHERE = {
    "head_dim_tiling": [(256, True)],
    "lpt_scheduler": [(128, True), (256, True)],
    "three_warpgroups": [(64, True)],
    "warpgroup_causal_bound": [(64, True), (128, True), (256, True)],
    "split_epilogue": [(256, True)],
    "pv_wait_after_max": [(64, True), (128, True), (128, False), (256, True)],
    "kv_multicast": [(64, True), (128, True)],
    "row_max_ilp": [],  # other maxima than pv_wait_after_max's, which need no synchronisation
    "row_max_ilp_multicast": [],  # and kv_multicast's, and reverse_kv_order's
    "no_redundant_barriers": [],  # a group is one here, and never meets: see tests/gpu/test_meetings.py
    "quarter_q_registers": [],  # another way to read Q, which needs no synchronisation of its own
    "hopper_deferred_sum": [(64, True), (128, True)],
    "hopper_window": [],  # without a window its kernel is that of pv_wait_after_max
    "balanced_tail": [],  # its kernel is that of pieces: only the lists differ
    "hopper_static_scheduler": [],  # as pv_wait_after_max, but for which tile comes next
    "hopper_varlen": [],  # see PACKED
    "hopper_soft_cap": [],  # a soft cap synchronises nothing
    "warpgroup_per_query_head": [],  # only which queries a warpgroup has differs
    "attention_sinks": [],  # nor does a sink
    "sinks_next_softmax_first": [],
    "reverse_kv_order": [(256, True)],
    "tensor_memory": [(64, True)],
    "warp_roles": [(64, True)],
    "correction_warpgroup": [(64, True)],
    "lazy_rescaling": [],
    "exp2_emulation": [],
    "blackwell_persistent": [(64, True)],
    "two_cta_mma": [(64, True)],
    "multicast": [(64, True)],
    "dynamic_scheduler": [(64, True)],
}
KERNELS = [
    pytest.param(step, head_dim, causal, id=f"{step.name}-{head_dim}-{'causal' if causal else 'full'}")
    for step in kernels_of("forward")
    if step.backend in ("gluon", "hopper", "blackwell")
    for head_dim, causal in ELSEWHERE.get(step.name, [(128, True)])
]
# Queries, so that blocks which stay have several tiles of them; more tiles of keys than slots, and a single one.
LENGTHS = {
    "gluon": [(200, 330), (200, 90)],
    "hopper": [(900, 600), (900, 100)],
    # So many that by the launch rules three groups compute under a mask, and that the softmax runs ahead:
    "hopper, 64": [(1300, 600), (1300, 100)],
    "next_softmax_first, 128": [(2100, 600), (2100, 100)],
    "blackwell": [(300, 600), (300, 100)],
}


# Sequences that share tiles with others, numbers that mean nothing, and keys of which some sequences have one tile.
PACKED = [
    Problem.packed((500, 130, 90, 300), keys, heads=2, head_dim=128, causal=True) for keys in (None, (20, 500, 90, 10))
]


def lengths_of(step, head_dim: int) -> list[tuple[int, int]]:
    named = (f"{step.name}, {head_dim}", f"{step.backend}, {head_dim}", step.backend)
    return next(LENGTHS[name] for name in named if name in LENGTHS)


# Of every skeleton, and at every head_dim, the first kernel and the last: between them are nearly all functions.
ENDS = [
    {(type(step), head_dim): step.name for step, head_dim, _ in (kernel.values for kernel in each)}
    for each in (KERNELS, KERNELS[::-1])
]


@sampled(core=lambda step, head_dim: any(ends[type(step), head_dim] == step.name for ends in ENDS))
@pytest.mark.parametrize(("step", "head_dim", "causal"), KERNELS)
def test_every_synchronisation_is_missed(step, head_dim, causal, pytestconfig):
    shapes = [
        problem(batch=1, heads=2, seq_len_q=queries, seq_len_kv=keys, head_dim=head_dim, causal=causal)
        for queries, keys in lengths_of(step, head_dim)
    ]
    check(step, shapes, pytestconfig)


@sampled()
@pytest.mark.parametrize("name", ["hopper_varlen"])
def test_every_synchronisation_is_missed_with_packed_sequences(name, pytestconfig):
    check(get_step(name), PACKED, pytestconfig)


def check(step, shapes, config):
    variant = Kernel(step.variant(shapes[0]), step.kernel(shapes[0]) if step.backend == "hopper" else None)
    check_that_all_is_missed(write_step(step, shapes[0]), shapes, lambda there: expected(there, variant), config)


def expected(there: Counter, variant) -> Counter:
    """Of what a kernel with this variant has, what is in the list."""
    told = Counter()
    for one in HARMLESS:
        for way in one.ways:
            number = there[way, one.statement]
            if number and one.kernels(variant):
                told[way, one.statement] += one.number or number
    return told


# --- the compiler's own barriers ---


@pytest.mark.parametrize(
    ("name", "head_dim"), [("stages", 128), ("shared_kv_buffer", 128), ("q_registers", 128), ("head_dim_tiling", 256)]
)
def test_the_compiler_sets_these_barriers_by_itself(name, head_dim):
    """Without ``gl.barrier()`` the machine code synchronises as often. Other Gluon steps have the same text there."""
    shape = problem(head_dim=head_dim, seq_len_q=1024, seq_len_kv=1024)
    whole = write_step(get_step(name), shape)
    ways = [way for way in broken(whole.text) if way.what == "gl.barrier()"]
    assert ways
    for way in ways:
        other = dataclasses.replace(whole, text=way.text).compile(shape)
        assert other.kinds["synchronisation"] == whole.compile(shape).kinds["synchronisation"], way


def test_the_compiler_sets_another_barrier_in_front_of_a_copy():
    """Step wgmma without ``gl.barrier()``: all warps still meet between their products and TMA's next copy.

    One thread announces the bytes of a copy and asks for it. The compiler lets all warps meet between the two.
    """
    shape = problem(head_dim=128, seq_len_q=1024, seq_len_kv=1024)
    whole = write_step(get_step("wgmma"), shape)
    compiled = dataclasses.replace(whole, text=without(whole.text, "gl.barrier()")).compile(shape)
    events = re.findall(r"wgmma\.wait_group|bar\.sync|cp\.async\.bulk\.tensor\S*\.global\.mbarrier", compiled.ptx)
    order = "".join(event[0] for event in events)  # w: a wait for products; b: all warps meet; c: a copy
    assert re.search("wb+c", order) and "wc" not in order


# --- how a synchronisation is named ---


def test_one_synchronisation_is_named_by_a_piece_of_it_or_by_its_line():
    whole = write_step(get_step("producer"), problem())
    text = without(whole.text, "wait( barriers.value_empty")
    assert text.count("mbarrier.wait") == whole.text.count("mbarrier.wait") - 1 and "pass" in text
    line = next(
        way.line for way in broken(whole.text) if way.what.startswith("mbarrier.wait") and "value_empty" in way.what
    )
    assert without(whole.text, str(line)) == text
    with pytest.raises(ValueError, match=r"no such synchronisation; there are: .*fence_async_shared"):
        without(whole.text, "wait(nothing")
    with pytest.raises(ValueError, match=r"several: .*key_empty.*value_empty"):
        without(whole.text, "mbarrier.wait")


@pytest.mark.parametrize(
    ("function", "about", "mistake", "line"),
    [
        ("wait", "key_empty", "other parity", "mbarrier.wait(barriers.key_empty.index(stage), used ^ 1)"),
        ("barrier_ring", "value_empty", "one more arrival", "barrier_ring(STAGES, WARPGROUPS + 1)"),
        ("expect", "query", "twice the bytes", "expect(full, (WARPGROUPS * arrays.query.nbytes_per_cta) * 2)"),
        ("release", "key_empty", "left out", "pass"),
        ("fetch", "value_full", NOT_AT_LAST, "if j + 1 < end:"),
    ],
)
def test_a_mistake_is_made_in_the_call_that_is_named(function, about, mistake, line):
    whole = write_step(get_step("producer"), problem(), keep=frozenset({"fetch"})).text
    found = mistaken(whole, function, about, mistake)
    before, after = whole.splitlines(), found.text.splitlines()
    same = [n for n, (one, other) in enumerate(zip(before, after), 1) if one != other]
    assert same[0] == found.line and line in after[found.line - 1]
    assert before[found.line :] == after[found.line + len(after) - len(before) :]


def test_a_mistake_needs_one_such_call():
    whole = write_step(get_step("producer"), problem()).text
    for function, about in (("wait", "nothing"), ("nothing", "key_empty"), ("release", "barriers")):
        with pytest.raises(ValueError, match=rf"calls {function} about {about} \d times, not once"):
            mistaken(whole, function, about, "left out")
    with pytest.raises(ValueError, match="no mistake is called 'other'; there are: other parity, "):
        mistaken(whole, "wait", "key_empty", "other")
    with pytest.raises(ValueError, match="no loop over a range is around the call of barrier_ring about key_empty"):
        mistaken(whole, "barrier_ring", "key_empty", NOT_AT_LAST)
