"""The steps over several ranks, in processes on the CPU over gloo: against float64, and what they say of bad calls."""

import dataclasses
import os
import threading
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from functools import partial

import pytest
import torch
from torch.distributed.tensor.experimental._attention import _cp_options

from steps import PARALLEL, get_step
from steps.measuring.parallel import ParallelBench, Silent, remembering
from steps.parallel.model import sent_bytes
from steps.parallel.peers import in_context
from steps.parallel.ranks import Ranks
from tests.parallel.processes import Processes
from tutorial_lib import timing
from tutorial_lib.passes import FORWARD, pass_of
from tutorial_lib.problem import Problem
from tutorial_lib.timing import Sample
from tutorial_lib.worker import WorkerFailure

RANKS = 4


def problem(**changes) -> Problem:
    fields = {"batch": 2, "heads": 4, "seq_len_q": 64, "seq_len_kv": 64, "head_dim": 32, "causal": True}
    return Problem(**fields | changes)


# Of the whole sequence. On two and on four ranks a part is ragged for any tile: 13 or 26, 34 or 68 tokens.
PROBLEMS = [
    problem(),
    problem(causal=False),
    problem(dtype="bfloat16", seq_len_q=104, seq_len_kv=104),
    problem(dtype="bfloat16", seq_len_q=136, seq_len_kv=136, causal=False, heads=8, kv_heads=4, batch=1),
    problem(heads=8, kv_heads=4, seq_len_q=104, seq_len_kv=104, batch=1),
    problem(seq_len_q=8, seq_len_kv=8),
    problem(seq_len_q=8, seq_len_kv=136, causal=False),
    problem(scale=0.5, causal=False),
]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    with Processes(tmp_path_factory.mktemp("group") / "meeting", RANKS) as processes:
        yield processes


def parts_of(step, tensors, own: int, count: int) -> tuple:
    return tuple(step.part(x, own, count) for x in tensors)


def checked(rank, name: str, problems: list[Problem], kernel: str | None, in_pairs: bool) -> list:
    """On a rank: its part of the outputs against float64; in pairs, two groups of two ranks do so at once."""
    group, count = (rank.pair, 2) if in_pairs else (None, rank.count)
    step = get_step(name).on(group, kernel=kernel and get_step(kernel))
    kind, own = pass_of(step), rank.own % count
    told = []
    for n, whole in enumerate(problems):
        inputs = kind.inputs(whole, n + len(name), rank.device)
        exact = kind.reference(whole, inputs)
        allowed = kind.yardstick(whole, inputs, exact)
        parts = [parts_of(step, tensors, own, count) for tensors in (inputs, exact)]
        accuracy = kind.check(step, whole, *parts, allowed)
        told.append((whole.describe(), accuracy.correct, accuracy.explain()))
    return told


@pytest.mark.parametrize("in_pairs", [True, False], ids=["2 ranks", "4 ranks"])
@pytest.mark.parametrize("step", PARALLEL, ids=lambda s: s.name)
def test_right_against_float64(ranks, step, in_pairs):
    for said in ranks.run(checked, step.name, PROBLEMS, None, in_pairs):
        assert not isinstance(said, WorkerFailure), said
        assert not [line for line in said if not line[1]], said


# cuTile's kernels in the interpreter, Gluon's on the simulator.
KERNELS = [
    ("zigzag", "mma"),
    ("zigzag", "epilogue_overlap"),
    ("zigzag_gradients", "two_kernels"),
    ("gather", "stages"),
    ("parallel_dynamic_scheduler", "epilogue_overlap"),
]


@pytest.mark.parametrize(("name", "kernel"), KERNELS)
def test_right_with_a_kernel_of_this_course_inside(ranks, name, kernel):
    small = problem(batch=1, heads=2, kv_heads=1, seq_len_q=104, seq_len_kv=104, head_dim=64)
    for said in ranks.run(checked, name, [small], kernel, True):
        assert not isinstance(said, WorkerFailure), said
        assert said[0][1], said


def whole_and_parts(rank, name: str, gradients: str) -> list[float]:
    """On a rank: by how many rounding steps its part of (o, dq, dk, dv) differs from a single device's."""
    whole = problem(heads=8, kv_heads=4, seq_len_q=136, seq_len_kv=136)
    forward, backward = (
        get_step(n).on(kernel=get_step(kernel)) for n, kernel in ((name, "mma"), (gradients, "formulas"))
    )
    q, k, v, _, _, do = pass_of(backward).inputs(whole, seed=3)
    o, lse = get_step("mma").attention(q, k, v, True, return_lse=True)
    alone = o, *get_step("formulas").gradients(q, k, v, o, lse, do, True)
    q, k, v, do, *alone = parts_of(forward, (q, k, v, do, *alone), rank.own, rank.count)
    o, lse = forward.attention(q, k, v, True, return_lse=True)
    mine = o, *backward.gradients(q, k, v, o, lse, do, True)
    step_of = torch.finfo(q.dtype).eps
    return [((a - b).abs().max() / (step_of * b.abs().max())).item() for a, b in zip(mine, alone, strict=True)]


@pytest.mark.parametrize(
    ("name", "gradients"), [(s.forward.name, s.name) for s in PARALLEL if s.direction == "backward"]
)
def test_the_numbers_are_those_of_one_device_up_to_the_order_of_sums(ranks, name, gradients):
    for said in ranks.run(whole_and_parts, name, gradients):
        assert not isinstance(said, WorkerFailure), said
        assert max(said) < 3, said


class Counted(Ranks):
    """Remembers the last one that was made."""

    def __init__(self, group=None):
        super().__init__(group)
        Counted.last = self


def sent(rank, name: str, whole: Problem) -> int:
    """On a rank: the bytes that it sends in a call."""
    step = get_step(name).on(ranks=Counted)
    inputs = pass_of(step).inputs(whole, seed=1)
    pass_of(step).call(step, whole, parts_of(step, inputs, rank.own, rank.count))
    return Counted.last.sent


def test_keys_and_values_travel_with_their_own_heads(ranks):
    whole = problem(batch=1, heads=8, kv_heads=4)
    queries, keys = 8 * 64 * 32 * 2 // RANKS, 4 * 64 * 32 * 2 // RANKS  # bytes of a rank's q, and of its k
    for name in ("gather", "ring", "double_buffering", "zigzag"):
        assert ranks.run(sent, name, whole) == [2 * (RANKS - 1) * keys] * RANKS
        assert sent_bytes(name, whole, RANKS) == 2 * (RANKS - 1) * keys
    assert (
        ranks.run(sent, "ulysses", whole)
        == [(RANKS - 1) * (2 * queries + 2 * keys + 4 * 8 * 64 // RANKS) // RANKS] * RANKS
    )
    assert ranks.run(sent, "ulysses", whole) == [sent_bytes("ulysses", whole, RANKS)] * RANKS
    around = 2 * (RANKS - 1) * keys * (1 + 2)  # and the sums behind them, of twice the bytes
    for name in ("ring_gradients", "double_buffering_gradients", "zigzag_gradients"):
        assert ranks.run(sent, name, whole) == [around] * RANKS


def alone_and_again(rank, name: str, whole: Problem) -> tuple:
    """On a rank: (bytes of a call that sends nothing, of a call, and of what is sent again without computing)."""
    step = get_step(name)
    kind = pass_of(step)
    tensors = parts_of(step, kind.inputs(whole, seed=1), rank.own, rank.count)
    made = {}

    def ranks(make, group):
        return made.setdefault(make, make(group))

    sending = remembering(step.ranks)
    for make in (Silent, sending):
        outputs = kind.call(step.on(ranks=partial(ranks, make)), whole, tensors)
        assert [x.shape for x in outputs] == [x.shape for x in kind.poisoned(tensors)]
    first = made[sending].sent
    for call in made[sending].calls:
        call()
    return made[Silent].sent, first, made[sending].sent - first


@pytest.mark.parametrize("step", PARALLEL, ids=lambda s: s.name)
def test_computing_and_sending_can_be_done_alone(ranks, step):
    for said in ranks.run(alone_and_again, step.name, problem()):
        assert not isinstance(said, WorkerFailure), said
        nothing, whole, again = said
        assert nothing == 0 < whole == again


def in_context_of_pytorch(rank) -> bool:
    """On a rank: whether PyTorch's context is there inside, and gone outside."""
    found = []
    before = torch.nn.functional.scaled_dot_product_attention
    for causal in (True, False):
        with in_context(causal, "allgather", "cpu"):
            found.append(torch.nn.functional.scaled_dot_product_attention is not before)
            found.append(_cp_options.enable_load_balance is causal)
        found.append(torch.nn.functional.scaled_dot_product_attention is before)
    return all(found)


def test_the_peers_context_is_entered_and_left(ranks):
    assert ranks.run(in_context_of_pytorch) == [True] * RANKS


# --- bad calls ---


def called(rank, name: str, tokens: dict[int, int], group=None, **fields):
    """On a rank: call a step; tokens: how many a rank has, where it is not 16."""
    kv_heads = fields.pop("kv_heads", 4)
    q = torch.randn(1, 4, tokens.get(rank.own, 16), 32).half()
    k = torch.randn(1, kv_heads, q.shape[2] + fields.pop("more_keys", 0), 32).half()
    step = get_step(name) if group is None else get_step(name).on(group)
    return step.attention(q, k, k, **{"causal": True} | fields).shape


def called_with(rank, name, tokens, fields):
    return called(rank, name, tokens, **fields)


@pytest.mark.parametrize(
    ("name", "tokens", "fields", "told"),
    [
        (
            "ring",
            {2: 24},
            {},
            "rank 0 has step 801 ring, q (1, 4, 16, 32), k (1, 4, 16, 32), torch.float16, causal=True",
        ),
        ("zigzag", {1: 15}, {}, "2 pieces of equal length, got 15 tokens a rank"),
        ("gather", {}, {"more_keys": 8}, "as many keys as queries, got 16 and 24"),
        ("ulysses", {}, {"kv_heads": 2}, "4 ranks must share the key and value heads evenly, got 2 heads"),
        ("ring", {}, {"kv_heads": 3}, "kv_heads must divide heads (4), got 3"),
        ("ring", {}, {"window": 4}, "takes no sliding window"),
    ],
)
def test_a_call_that_the_ranks_cannot_share_is_refused_on_every_one(ranks, name, tokens, fields, told):
    for said in ranks.run(called_with, name, tokens, fields):
        assert isinstance(said, WorkerFailure) and told in str(said) and "\n" not in str(said), said
    assert ranks.run(called, name, {}) == [(1, 4, 16, 32)] * RANKS  # and they can go on


def test_without_a_group_a_step_says_how_it_is_started():
    q = torch.randn(1, 2, 16, 32).half()
    for step in PARALLEL:
        assert "torchrun --nproc-per-node 2 -m steps.run --parallel" in step.unsupported(step.default_problem, "sm_90")
    with pytest.raises(ValueError, match="step 801 ring: computes on several GPUs at once: torchrun"):
        get_step("ring").attention(q, q, q)


def no_room_left(q, k, v, causal, ranks, parts):
    if ranks.own == 1:
        raise MemoryError("no room left")
    return parts.attention(q, k, v, causal)


def benched(rank) -> list:
    """On a rank: what a bench says of a step that fails on rank 1 alone, and of one that is right."""
    bench = ParallelBench(problem(), "forward", "cpu", 1, True)
    bad = get_step("ring").evolve(name="bad", function=no_room_left)
    try:
        bench.check(bad)
    except RuntimeError as error:
        told = str(error)
    ring = get_step("ring")
    lacking = bench.missing(get_step("ulysses").evolve(by_heads=True, share=dataclasses.replace(ring.share, pieces=3)))
    return [told, bench.missing(ring), bench.check(ring).correct, bench.sent(ring), lacking]


def test_what_fails_on_one_rank_fails_on_all_and_they_go_on(ranks):
    sends = sent_bytes("ring", problem(), RANKS)
    lacking = "the sequence must be a multiple of 12 tokens for 4 ranks, got 64"
    told = ["MemoryError: no room left (on rank 1 of 4)", None, True, sends, lacking]
    assert ranks.run(benched) == [told] * RANKS


def sampled(rank) -> dict:
    """On a rank: what a bench samples of a step where timing is made up: rank 2 is slowest, and rank 1 queues late."""
    bench = ParallelBench(problem(), "forward", "cpu", 1, False)
    taken = []

    def take_sample(call, plan, stopwatch, together):
        call(0)
        taken.append(plan.launches)
        together.begin()
        while not together.agree(rank.own != 1 or len(taken) > 2):  # all take it again, as often as one must
            taken.append(plan.launches)
        return Sample(milliseconds=len(taken) + (rank.own == 2), gpu=None)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "plan_sample", lambda call: timing.Plan(10 + rank.own, 1.0))
        patch.setattr(timing, "take_sample", take_sample)
        patch.setattr("steps.measuring.parallel.Stopwatch", lambda: None)
        bench.prepare(get_step("zigzag"))
        bench.prepare(get_step("sdpa"))
        found = bench.sample("zigzag")
        assert set(bench.sample("sdpa")) == set(asdict(Sample(1.0, None)))
    assert set(taken) == {10}  # all have the plan of rank 0
    return {name: found[name] for name in ("milliseconds", "computing_ms", "sending_ms")}


def test_of_a_sample_the_slowest_rank_counts_and_all_take_it_together(ranks):
    assert ranks.run(sampled) == [{"milliseconds": 4, "computing_ms": 5, "sending_ms": 6}] * RANKS


def failing_in(rank, part: str) -> list:
    """On a rank: what a bench says where a part of timing fails on rank 1 alone, and of a step that is right then."""
    bench = ParallelBench(problem(), "forward", "cpu", 1, True)
    failing, asked = True, []

    def fails(where: str) -> None:
        asked.append(where)
        if failing and where == part and rank.own == 1:
            raise MemoryError(f"no room left in {where}")

    def plan_sample(call):
        call(0)
        fails("plan_sample")
        return timing.Plan(10 + rank.own, 1.0)

    def take_sample(call, plan, stopwatch, together):
        together.begin()
        call(0)
        fails("take_sample")
        together.agree(True)
        return Sample(milliseconds=1.0 + rank.own, gpu=None)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "plan_sample", plan_sample)
        patch.setattr(timing, "take_sample", take_sample)
        patch.setattr("steps.measuring.parallel.Stopwatch", lambda: None)
        told = []
        for _ in range(2):
            try:
                bench.prepare(get_step("ring"))
                told.append(bench.sample("ring")["milliseconds"])
            except RuntimeError as error:
                told.append(str(error))
            failing = False
        bench.prepare(get_step("double_buffering"))
    assert {"plan_sample", part} <= set(asked)
    return [*told, bench.check(get_step("ring")).correct, bench.sent(get_step("ring"))]


@pytest.mark.parametrize("part", ["plan_sample", "take_sample"])
def test_where_timing_fails_on_one_rank_all_hear_it_and_go_on(ranks, part):
    told = [f"MemoryError: no room left in {part} (on rank 1 of 4)", RANKS, True, sent_bytes("ring", problem(), RANKS)]
    assert ranks.run(failing_in, part) == [told] * RANKS


def failing_first(rank) -> list[str]:
    """On a rank: what a bench says where rank 1 alone cannot make inputs, cut its part, or make a launch ready."""
    told = []

    def tell(work, *arguments):
        try:
            work(*arguments)
        except RuntimeError as error:
            told.append(str(error))

    def fails(*_, **__):
        raise MemoryError("no room left")

    with pytest.MonkeyPatch.context() as patch:
        if rank.own == 1:
            patch.setattr(type(FORWARD), "inputs", fails)
        tell(ParallelBench, problem(), "forward", "cpu", 1, True)
    bench = ParallelBench(problem(), "forward", "cpu", 1, True)
    for attribute in ("part", "computing"):
        step = get_step("ring").on()
        if rank.own == 1:
            vars(step)[attribute] = fails
        tell(bench.check, step)
    told.append(str(bench.check(get_step("ring").on()).correct))
    return told


def test_what_fails_before_a_call_fails_on_all_too(ranks):
    mine = "MemoryError: no room left (on rank 1 of 4)"
    others = "Disagreement: rank 1 of 4 cannot take part in step 801 ring: MemoryError: no room left (on rank 0 of 4)"
    assert ranks.run(failing_first) == [[mine, mine, others, "True"]] * RANKS


def counted_ways(rank) -> tuple:
    """On a rank: how often a call gives way to its exchanges, and how often what it sent does when sent again."""

    class Counting(remembering(Ranks)):
        given = 0

        def give_way(self, x):
            self.given += 1

    bench = ParallelBench(problem(), "forward", "cpu", 1, False)
    made = []
    step = get_step("double_buffering")
    bench.kind.call(
        step.on(ranks=lambda group: made.append(Counting(group)) or made[-1]),
        bench.problem,
        bench._mine(step, bench.inputs),
    )
    first = made[0].given
    for call in made[0].calls:
        call()
    return first, made[0].given - first


def test_what_is_sent_alone_does_not_give_way(ranks):
    assert ranks.run(counted_ways) == [(RANKS - 1, 0)] * RANKS


def another_kind_on_rank_1(rank):
    """On a rank: after a call that is right, one that rank 1 alone asks for wrongly."""
    called(rank, "ring", {}, rank.pair)
    step = get_step("ring").on(rank.pair)
    q = torch.randn(1, 4, 16, 32).half()
    step.attention(q, q, q)
    if rank.own % 2:
        step.attention(q, q, q, out=torch.empty(3))


def test_a_later_call_that_is_wrong_raises_at_once_where_it_is_wrong(ranks):
    first, second, _, _ = ranks.run(another_kind_on_rank_1)  # nobody comes to talk to rank 1
    assert first is None and str(second).startswith("ValueError: out must be a tensor with shape"), second


def from_group_to_group(rank, meeting: str) -> list:
    """On a rank: what a step gives in the group of all, without a group, and in one of this process alone."""
    q, found = torch.randn(1, 4, 16, 32).half(), []
    for group in ("all", "none", "alone"):
        if group == "alone":
            own = f"file://{meeting}-{rank.own}"
            torch.distributed.init_process_group("gloo", init_method=own, rank=0, world_size=1)
        try:
            found.append(get_step("ring").attention(q, q, q).shape)
        except (ValueError, RuntimeError) as error:
            found.append(str(error))
        if group != "none":
            torch.distributed.destroy_process_group()
    return found


def test_a_step_meets_the_ranks_of_every_group_anew(tmp_path):
    with Processes(tmp_path / "meeting", 2) as two:
        for inside, without, alone in two.run(from_group_to_group, str(tmp_path / "alone")):
            assert inside == alone == (1, 4, 16, 32)
            assert "computes on several GPUs at once" in without


def deterministic(rank) -> bool:
    """On a rank: whether all have gone on asking while rank 0 did not have its turn yet."""
    asked, enough = [], threading.Event()
    everybody = Ranks.everybody

    def counted(self, *said):
        asked.append(said)
        if len(asked) == 3:
            enough.set()
        return everybody(self, *said)

    @contextmanager
    def busy(device):
        yield enough.wait(60)

    bench = ParallelBench(problem(), "forward", "cpu", 1, False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ranks, "everybody", counted)
        patch.setattr("steps.measuring.parallel.gpu_turn", busy)
        patch.setattr("steps.measuring.parallel.ASK_AGAIN_S", 0.01)
        with bench.turn():
            return enough.is_set()


def test_nobody_waits_in_one_long_call_for_the_gpus(ranks):
    assert ranks.run(deterministic) == [True] * RANKS


def lost(rank):
    """Ranks 0 and 1: rank 1 ends. Ranks 2 and 3: rank 3 is not there, and rank 2 gives up as soon as it may."""
    if rank.own == 1:
        os._exit(3)
    if rank.own == 3:
        return None
    if rank.own == 2:
        torch.distributed.distributed_c10d._set_pg_timeout(timedelta(seconds=1), rank.pair)
    return called(rank, "ring", {}, group=rank.pair)


def test_a_rank_that_dies_or_does_not_answer_is_told_on_the_others(tmp_path):
    with Processes(tmp_path / "meeting", RANKS) as four:
        left, died, waited, silent = four.run(lost)
    assert str(died).startswith("the process died (exit status 3)") and silent is None
    assert str(left).startswith("RankFailure: rank 0 of 2 stops, because another rank has ended"), left
    assert str(waited).startswith("RankFailure: rank 0 of 2 stops, because another rank did not answer in time"), waited
