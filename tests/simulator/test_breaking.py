"""Every synchronisation of the kernels is taken out, loosened or flipped, and the simulator finds what it was for.

What it does not find is named here, with the reason: the list must be neither too short nor too long.
"""

import dataclasses

import pytest

from steps import get_step
from steps.writing.written import write_step
from tests.shapes import problem
from tutorial_lib.accuracy import compare
from tutorial_lib.passes import FORWARD
from tutorial_lib.simulator.block import Deadlock, KernelError
from tutorial_lib.simulator.breaking import broken, without
from tutorial_lib.simulator.run import watched

SEEDS = (None, 1)

# Why it makes no difference, or is not seen.
BY_ITSELF = "the compiler sets this barrier by itself: test_the_compiler_sets_these_barriers_by_itself"
NOTHING_LEFT = "nothing is under way there any more"
ANOTHER_WAIT = "the next wait for all stores waits for this one, too, and nothing is written in between"
ONE_TILE = "without blocks that stay there is one tile of queries: nobody waits for its place"
ONLY_SPEED = "it decides who goes first, which changes no number"
AGAIN = "this tile was waited for before: the wait holds the compiler's order"
KEYS_FIRST = "with more tiles of keys than places, the producer waits for those: see test_few_keys_need_this_wait"
VALUES_FIRST = "the producer asks for the values before it first, and waits there until the other part has come as far"

STORES = {("without", "tma.store_wait(0)"): ANOTHER_WAIT, ("one more under way", "tma.store_wait(0)"): ANOTHER_WAIT}
QUERY_FREE = ("without", "mbarrier.wait(free, query_turn // QUERY_STAGES & 1 ^ 1)")
QUERY_PLACE = {
    QUERY_FREE: ONE_TILE,
    ("without", "release(barriers.query_free, query_turn, QUERY_STAGES)"): ONE_TILE,
}
TURNS = {
    ("without", "mbarrier.wait(barriers.turns.index(part), n & 1 ^ FIRST)"): ONLY_SPEED,
    ("other parity", "mbarrier.wait(barriers.turns.index(part), n & 1 ^ FIRST)"): ONLY_SPEED,
}
SKIPPED = {("without", "await_tile(barriers.key_ready, turn, STAGES)"): VALUES_FIRST}


def case(name: str, harmless: dict, **changes):
    return pytest.param(name, changes, harmless, id="-".join([name, *map(str, changes.values())]))


CASES = [
    case(
        "stages",
        {
            ("without", "gl.barrier()"): BY_ITSELF,
            ("without", "async_copy.wait_group(0)"): NOTHING_LEFT,
            ("one more under way", "async_copy.wait_group(0)"): NOTHING_LEFT,
        },
        seq_len_q=384,
    ),
    case("wgmma", STORES, seq_len_q=384, head_dim=128),
    case("producer", STORES | QUERY_PLACE, seq_len_q=640),
    case("ping_pong", STORES | QUERY_PLACE | TURNS, seq_len_q=640, head_dim=128, causal=False),
    case("linked", {QUERY_FREE: KEYS_FIRST}, seq_len_q=900, seq_len_kv=200, causal=False),
    case("room", SKIPPED, seq_len_q=600, head_dim=256),
    case(
        "at_maxima",
        {("without", "await_tile(barriers.value_ready, turn, STAGES)"): AGAIN, QUERY_FREE: KEYS_FIRST},
        seq_len_q=900,
        seq_len_kv=300,
        head_dim=128,
        causal=False,
    ),
]


def found(step, shape, inputs, exact, allowed, seed) -> str | None:
    """What the simulator says of a kernel."""
    [out] = FORWARD.poisoned(inputs)
    try:
        with watched(seed) as watch:
            step.attention(*inputs, shape.causal, out=out)
    except Deadlock:
        return "deadlock"
    except KernelError:
        return "refused"
    kinds = {kind for run in watch.runs for kind, *_ in run.found}
    return " and ".join(sorted(kinds)) or (None if compare(out, exact, allowed).correct else "wrong numbers alone")


@pytest.mark.parametrize(("name", "changes", "harmless"), CASES)
def test_every_synchronisation_is_missed(name, changes, harmless):
    shape = problem(**{"batch": 1, "heads": 2, "seq_len_kv": changes["seq_len_q"]} | changes)
    inputs = FORWARD.inputs(shape, 0)
    [exact] = FORWARD.reference(shape, inputs)
    [allowed] = FORWARD.yardstick(shape, inputs, (exact,))
    whole = write_step(get_step(name), shape)
    assert all(found(whole, shape, inputs, exact, allowed, seed) is None for seed in SEEDS)
    not_seen = set()
    for way in broken(whole.text):
        step = dataclasses.replace(whole, text=way.text)
        seen = next((s for seed in SEEDS if (s := found(step, shape, inputs, exact, allowed, seed))), None)
        assert seen != "wrong numbers alone", way  # what makes numbers wrong is told, with its place
        if seen is None:
            not_seen.add((way.how, way.what))
    assert not_seen == set(harmless)


def test_few_keys_need_this_wait():
    """A place for queries must be free before it is filled, and with one tile of keys nothing else sees to that."""
    shape = problem(batch=1, heads=2, seq_len_q=900, seq_len_kv=100, causal=False)
    inputs = FORWARD.inputs(shape, 0)
    [exact] = FORWARD.reference(shape, inputs)
    [allowed] = FORWARD.yardstick(shape, inputs, (exact,))
    whole = write_step(get_step("linked"), shape)
    [way] = [way for way in broken(whole.text) if (way.how, way.what) == QUERY_FREE]
    assert found(dataclasses.replace(whole, text=way.text), shape, inputs, exact, allowed, None) == "race"


@pytest.mark.parametrize("name", ["stages", "q_registers"])
def test_the_compiler_sets_these_barriers_by_itself(name):
    """Without ``gl.barrier()`` the machine code synchronises as often."""
    step = get_step(name)
    whole = write_step(step, step.default_problem)
    ways = [way for way in broken(whole.text) if "barrier()" in way.what]
    assert ways
    for way in ways:
        other = dataclasses.replace(whole, text=way.text).compile(step.default_problem)
        assert other.kinds["synchronisation"] == whole.compile(step.default_problem).kinds["synchronisation"], way


def test_one_synchronisation_is_named_by_a_piece_of_it():
    whole = write_step(get_step("producer"), problem())
    text = without(whole.text, "wait( barriers.value_free")
    assert text.count("mbarrier.wait") == whole.text.count("mbarrier.wait") - 1 and "pass" in text
    with pytest.raises(ValueError, match=r"no such synchronisation; there are: .*fence_async_shared"):
        without(whole.text, "wait(nothing")
    with pytest.raises(ValueError, match=r"several: .*key_free.*value_free"):
        without(whole.text, "mbarrier.wait")
