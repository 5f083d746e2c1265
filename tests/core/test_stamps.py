"""Stamps inside a kernel: it computes the same with them, and they tell what its roles did, in order."""

from dataclasses import replace

import pytest
import torch

from steps import STEPS as LADDER
from steps import get_step
from steps.core.problems import unnamed
from steps.trace import main as trace_main
from steps.trace import simulate
from steps.writing.stamps import ID_BITS, STAMP, Segment, with_stamps
from steps.writing.written import kernel_in, write_step
from tests.distinct import distinct, first_and_last, named
from tests.selection import sampled
from tests.shapes import problem
from tutorial_lib.files import RESULTS
from tutorial_lib.passes import FORWARD
from tutorial_lib.records import recorded_traces
from tutorial_lib.tracing import WINDOW, events_of, summarise

STEPS = [
    "stages",
    "gluon_larger_tile",
    "wgmma",
    "producer",
    "ping_pong",
    "intra_warpgroup_overlap",
    "epilogue_overlap",
    "pv_wait_after_max",
    "kv_multicast",
    "attention_sinks",
]
GLUON = [step for step in LADDER if step.backend in ("gluon", "hopper")]
SHAPE = problem(batch=1, heads=2, seq_len_q=300, seq_len_kv=300, head_dim=128)


def run_with_stamps(name: str, blocks: int = 3, stamps: int = 200):
    """(the stamped kernel, what it wrote [block][role][n], its output, the step's own) on the simulator."""
    step = get_step(name)
    shape = replace(SHAPE, **unnamed(step))
    written = write_step(step, shape)
    stamped = with_stamps(written.text, blocks, stamps)
    q, k, v, *sinks = inputs = FORWARD.inputs(shape, 0)
    trace = torch.full((blocks + 1, len(stamped.roles), stamps), -1, dtype=torch.int64)  # a block that is not traced
    launch = written.base.make_kernel_ready(kernel_in(stamped.text), shape, q, k, v, None, trace)
    o = launch(q, k, v, None, *sinks)
    return stamped, trace.tolist(), o, FORWARD.call(step, shape, inputs)[0]


def test_a_wait_inside_a_function_for_one_of_several_barriers_is_told_by_its_name():
    """The producer of a pair waits for a slot of keys or of values of both blocks: which, the stamps do not tell."""
    segments = with_stamps(write_step(get_step("kv_multicast"), SHAPE).text, 3, 200).segments
    assert "wait for fetch_as_pair" in {segment.label for segment in segments}
    alone = with_stamps(write_step(get_step("pv_wait_after_max"), SHAPE).text, 3, 200).segments
    assert {"wait for key_empty", "wait for value_empty"} <= {segment.label for segment in alone}


@pytest.mark.parametrize("name", STEPS)
def test_a_kernel_with_stamps_computes_the_same_and_every_role_tells(name):
    stamped, trace, o, expected = run_with_stamps(name)
    assert torch.equal(o, expected)
    assert all(stamp == -1 for row in trace[-1] for stamp in row)
    for row in trace[0]:
        written = [stamp for stamp in row if stamp >= 0]
        assert len(written) > 5 and row[: len(written)] == written  # no gap
        clocks = [stamp >> ID_BITS for stamp in written]
        assert clocks == sorted(clocks) and clocks[-1] > clocks[0]
    kinds = {segment.kind for segment in stamped.segments}
    assert {"wait", "softmax"} <= kinds
    assert ("product" in kinds) == (get_step(name).backend == "hopper")


def test_roles_tell_of_the_waits_that_their_source_has():
    """The producer waits for empty slots; a consumer for keys, then its product, and after the softmax for values."""
    stamped, trace, _, _ = run_with_stamps("producer")
    assert stamped.roles == ("consume 0", "consume 1", "produce 2")
    events = events_of(trace[-2], stamped.segments, stamped.roles, ID_BITS)  # two tiles of keys
    mine = [label for role, _, label, _, _ in events if role == "consume 0"]
    iteration = ["wait for key_full", "products are issued", "wait for a product", "softmax", "wait for value_full"]
    assert any(mine[n : n + 5] == iteration for n in range(len(mine)))
    producers = {label for role, kind, label, _, _ in events if role == "produce 2" and kind == "wait"}
    assert producers == {"wait for query_empty", "wait for key_empty", "wait for value_empty"}


def test_a_step_is_traced_with_its_sinks(capsys):
    """Without a GPU: the problem that is asked for, and the simulator."""
    assert simulate(get_step("attention_sinks"), replace(SHAPE, sinks=True)).blocks > 0
    assert trace_main(["attention_sinks"]) == 2
    assert "sinks is recorded" in capsys.readouterr().err


def test_more_stamps_than_there_is_room_for_are_left_out():
    _, trace, o, expected = run_with_stamps("epilogue_overlap", stamps=10)
    assert torch.equal(o, expected)
    for row in trace[0]:  # none runs on into the next
        assert len(row) == 10 and row == sorted(row) and row[0] % 2**ID_BITS == 0
        assert all(stamp >= 0 and (stamp % 2**ID_BITS == 0) == (n == 0) for n, stamp in enumerate(row))
    assert all(stamp == -1 for row in trace[-1] for stamp in row)


def test_a_step_itself_has_no_stamps():
    for name in STEPS:
        text = write_step(get_step(name), SHAPE).text
        assert "stamp" not in text and "clock64" not in text
    assert "clock64" in STAMP


def test_a_kernel_with_too_many_segments_is_refused():
    text = write_step(get_step("producer"), SHAPE).text
    wait = "        await_tile(barriers.query_full, query_iteration, QUERY_STAGES)\n"
    assert text.count(wait) == 1
    with pytest.raises(ValueError, match=r"segments, of which a stamp names 64"):
        with_stamps(text.replace(wait, 60 * wait), 1, 10)


# --- what is made of stamps, by hand ---

SEGMENTS = [Segment("begin", "begin", 0), Segment("wait", "wait for k", 1), Segment("softmax", "softmax", 2)]


def stamp(clock: int, segment: int) -> int:
    return clock << ID_BITS | segment


def test_a_segment_begins_where_the_one_before_it_ended():
    rows = [[stamp(1000, 0), stamp(1100, 1), stamp(1400, 2), -1, -1], [stamp(1050, 0), stamp(1060, 2), -1]]
    assert events_of(rows, SEGMENTS, ["a", "b"], ID_BITS) == [
        ("a", "wait", "wait for k", 0, 100),
        ("a", "softmax", "softmax", 100, 400),
        ("b", "softmax", "softmax", 50, 60),
    ]


def test_blocks_are_summed_up_and_the_longest_is_kept():
    short = [[stamp(0, 0), stamp(10, 1), stamp(40, 2), -1, -1]]
    long = [[stamp(5, 0), stamp(105, 1), stamp(4 * WINDOW, 2), stamp(4 * WINDOW + 15, 1), -1]]
    found = summarise([short, long, [[-1, -1]]], SEGMENTS, ["a"], ID_BITS)
    total = 40 + 4 * WINDOW + 10
    assert found.blocks == 2 and found.clocks == total / 2
    assert found.shares == {
        "a": {
            "softmax": pytest.approx((30 + 4 * WINDOW - 105) / total),
            "wait for k": pytest.approx((10 + 100 + 15) / total),
        }
    }
    assert [event[3:] for event in found.events] == [(0, 100), (100, 4 * WINDOW - 5), (4 * WINDOW - 5, 4 * WINDOW + 10)]
    for nothing in ([[[-1]]], [[[stamp(7, 0), -1]]]):
        with pytest.raises(ValueError, match="no block of the kernel wrote a stamp"):
            summarise(nothing, SEGMENTS, ["a"], ID_BITS)
    with pytest.raises(ValueError, match="a role writes more than 2 stamps: trace a shorter problem"):
        summarise([[[stamp(0, 0), stamp(1, 1)]]], SEGMENTS, ["a"], ID_BITS)


def test_the_simulator_tells_what_the_record_tells():
    """The same stamps, roles and labels on a GPU and on the simulator, so that both can stand in one table."""
    for found in recorded_traces(RESULTS):
        queries = (
            2100 if found.step == "next_softmax_first" else 500
        )  # with fewer its kernel is that of quarter_q_registers
        shape = problem(batch=1, heads=3, seq_len_q=queries, seq_len_kv=500, head_dim=128)
        mine = simulate(get_step(found.step), shape)
        assert list(mine.shares) == list(found.shares) and mine.blocks > 0
        for role, its in found.shares.items():
            assert set(mine.shares[role]) == set(its)


KERNELS = distinct(
    GLUON, [problem(batch=1, heads=1, seq_len_q=300, seq_len_kv=300, head_dim=head_dim) for head_dim in (64, 128, 256)]
)


@sampled(core=first_and_last(KERNELS))
@pytest.mark.parametrize(("step", "shape"), KERNELS, ids=named)
def test_every_kernel_can_be_stamped(step, shape):
    """Also where a function of the kernel's own has the name of a method that it calls."""
    stamped = with_stamps(write_step(step, shape).text, 1, 10)
    compile(stamped.text, step.name, "exec")
    assert {"begin", "wait", "softmax"} <= {segment.kind for segment in stamped.segments}
