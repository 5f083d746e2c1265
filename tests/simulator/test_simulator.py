"""The simulator computes what a kernel says, refuses what a GPU or the compiler would, and finds what chance hides."""

import dataclasses
import re
import subprocess
import sys

import pytest
import torch
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from steps import get_step, simulate
from steps.core.ladder import kernels_of
from steps.core.order import processors
from steps.core.problems import HEADLINE
from steps.simulate import main
from steps.writing.written import written_out
from tests.checking import faults
from tests.distinct import distinct, named, some_of
from tests.results.recorded import recorded
from tests.selection import sampled
from tests.shapes import problem
from tests.simulator import kernels
from tutorial_lib.compiler import compile_gluon
from tutorial_lib.files import RESULTS
from tutorial_lib.passes import FORWARD
from tutorial_lib.records import recorded_traces
from tutorial_lib.simulator.block import Deadlock, KernelError, Unknown
from tutorial_lib.simulator.run import launch, watched

SWIZZLED = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
GLUON = [step for step in kernels_of("forward") if step.backend in ("gluon", "hopper")]


def described(x, rows=16):
    return TensorDescriptor(x, list(x.shape), list(x.stride()), [rows, 64], SWIZZLED)


def test_a_kernel_computes():
    source, target = torch.randn(100), torch.zeros(128)
    launch(kernels.add_one, (2,), (source, target, 100), 4)
    assert torch.equal(target[:100], source + 1) and not target[100:].any()


def test_integers_are_divided_towards_zero_as_on_a_gpu():
    """Python rounds down."""
    found = [torch.zeros(32, dtype=torch.int32) for _ in range(3)]
    launch(kernels.divide, (1,), (*found, 16), 4)
    quotients, remainders, ceilings = (x.tolist() for x in found)
    assert quotients[:6] == quotients[16:22] == [-1, -1, 0, 0, 0, 1]
    assert remainders[:6] == remainders[16:22] == [-1, 0, -1, 0, 1, 0]
    assert ceilings[:6] == [-1, 0, 0, 0, 1, 1]


def test_a_kernel_can_be_looked_into(capsys, monkeypatch):
    """``print`` and ``breakpoint()`` work in a kernel, and in what it calls."""
    stopped = []
    monkeypatch.setattr("sys.breakpointhook", lambda: stopped.append(True))
    launch(kernels.calls_what_is_looked_into, (2,), (torch.ones(64),), 4)
    assert capsys.readouterr().out == "the sum is 64.0\n" * 2 and stopped == [True, True]


def test_a_copy_that_is_not_waited_for_has_not_come():
    source, target = torch.randn(16, 64).half(), torch.zeros(16, 64).half()
    assert not launch(kernels.copy, (1,), (source, target, True), 4).found
    assert torch.equal(source, target)
    run = launch(kernels.copy, (1,), (source, target, False), 4)
    [told] = run.found.values()
    assert target.isnan().all() and told.startswith(
        "race on place (block (0, 0, 0)): read by all warps\n    at kernels.py:"
    )
    assert "copy `gl.store(target + at, place.load(LAYOUT))`" in told and "after: cp.async of all warps" in told


def test_tma_brings_bytes_and_wants_a_fence():
    source, target = torch.randn(16, 64).half(), torch.zeros(16, 64).half()
    pair, size = (described(source), described(target)), 16 * 64 * 2
    assert not launch(kernels.by_tma, (1,), (*pair, True, True, size), 4).found
    assert torch.equal(target, source + 1)
    [told] = launch(kernels.by_tma, (1,), (*pair, True, False, size), 4).found.values()
    assert told.startswith("no fence on place") and "without fence_async_shared between them" in told
    assert any("race" in told for told in launch(kernels.by_tma, (1,), (*pair, False, True, size), 4).found.values())
    with pytest.raises(Deadlock, match=r"wait for ready\[0\] with parity 0 \(0 phases complete, .* 2 bytes missing\)"):
        launch(kernels.by_tma, (1,), (*pair, True, True, size + 2), 4)


def test_blocks_add_atomically():
    target = torch.zeros(64)
    launch(kernels.add_atomically, (3,), (target,), 4)
    assert (target[:60] == 3).all() and not target[60:].any()


def test_tma_adds_and_wants_a_fence_and_a_wait():
    target = torch.ones(16, 64).half()
    assert not launch(kernels.reduce, (2,), (described(target), True, True), 4).found
    assert (target == 5).all()
    [told] = launch(kernels.reduce, (1,), (described(target), False, True), 4).found.values()
    assert told.startswith("no fence") and "TMA reduction asked for by" in told
    [told] = launch(kernels.reduce, (1,), (described(target), True, False), 4).found.values()
    assert told.startswith("race") and "after: TMA reduction asked for by" in told


def test_the_barrier_has_the_name_of_every_version_of_triton():
    assert not launch(kernels.older_barrier, (1,), (), 4).found


def test_a_barrier_that_one_of_two_copies_completes_orders_that_one_alone():
    """Half of the bytes announced: the second part's queries are read, and nobody has waited for them."""
    from steps.writing.written import edited, write_step

    shape = problem(batch=1, heads=1, seq_len_q=128, seq_len_kv=128, head_dim=64)
    size = "arrays.query.nbytes_per_cta"
    broken = edited(write_step(get_step("producer"), shape), (f"WARPGROUPS * {size}", size))
    with watched() as watch:
        broken.attention(*FORWARD.inputs(shape, 0), shape.causal)
    told = list(watch.runs[0].found.values())
    assert "read by wgmma of consume 1" in told[0] and not any("consume 0" in text for text in told)


@pytest.mark.parametrize(
    ("early", "late", "stores"),
    [(False, False, False), (True, False, False), (True, True, False), (False, False, True)],
)
def test_warp_groups_of_a_role_are_ordered_as_the_compiler_orders_them(early, late, stores):
    """Each warpgroup waits for its own part of a product. Then all must meet before the factor is overwritten.

    The compiler sees to it: here and in the machine code. Before Triton 3.9 it did not where they had met between the
    product's begin and its end.
    """
    left, right, target = torch.randn(128, 64).half(), torch.randn(128, 64).half(), torch.zeros(128, 64).half()
    passed = described(left, 128), described(right, 64), described(target, 128), early, late, stores
    found = launch(kernels.place_filled_again, (1,), passed, 8).found.values()
    second = torch.ones(64, 64) if stores else right[64:].float()
    assert not found
    torch.testing.assert_close(target, (left.float() @ (right[:64].float() + second)).half(), rtol=1e-2, atol=1e-2)
    ptx = compile_gluon(kernels.place_filled_again, passed, 8, "sm_90", 1).ptx
    [between] = re.findall(r"wgmma\.wait_group(?:(?!wgmma)[^$])*?(?:cp\.async\.bulk\.tensor|st\.shared)", ptx)[:1]
    assert "bar.sync" in between


@pytest.mark.parametrize("early", [False, True])
def test_all_warp_groups_meet_in_front_of_an_arrival(early):
    """As above, of a role that gives a place back."""
    left, right, target = torch.randn(128, 64).half(), torch.randn(128, 64).half(), torch.zeros(128, 64)
    passed = described(left, 128), described(right, 64), target, early
    assert not launch(kernels.given_back, (1,), passed, 8).found
    torch.testing.assert_close(target, left.float() @ right[:64].float())
    ptx = compile_gluon(kernels.given_back, passed, 8, "sm_90", 1).ptx
    [between] = re.findall(r"wgmma\.wait_group(.*?)mbarrier\.arrive\.shared", ptx, re.DOTALL)
    assert "bar" in between


def test_roles_are_ordered_by_waits():
    target = torch.zeros(1)
    assert not launch(kernels.two_roles, (1,), (target, 0), 4).found and target == 3 * 16 * 64
    assert any("race" in told for told in launch(kernels.two_roles, (1,), (target, 1), 4).found.values())


def test_nobody_able_to_go_on_is_told_with_what_is_missing():
    with pytest.raises(
        Deadlock, match=r"all warps wait for ready\[0\] with parity 0 .*1 of 2 arrivals missing"
    ) as error:
        launch(kernels.waits_for_ever, (1,), (), 4)
    assert "waits_for_ever `mbarrier.wait(ready, 0)`" in str(error.value)


@pytest.mark.parametrize(
    ("kernel", "arguments", "kind", "told"),
    [
        (kernels.mixed_layouts, 1, KernelError, r"tiles of different layouts.*kernels.py:\d+ mixed_layouts"),
        (kernels.outside, 2, KernelError, r"elements 1000 to 1000 of a tensor that has 4, at kernels.py:\d+ outside"),
        (kernels.too_much, 1, KernelError, "262144 bytes of shared memory, of 232448"),
        (kernels.unknown, 1, Unknown, "the simulator has no .*atomic_xchg, at kernels.py"),
    ],
)
def test_what_cannot_be_is_refused_with_its_line(kernel, arguments, kind, told):
    with pytest.raises(kind, match=told):
        launch(kernel, (1,), tuple(torch.zeros(4) for _ in range(arguments)), 4)


def test_the_same_seed_gives_the_same_schedule():
    shape = problem(seq_len_q=200, seq_len_kv=200)
    inputs, clocks = FORWARD.inputs(shape, 0), []
    for seed in (3, 3, 4, None):
        with watched(seed) as watch:
            get_step("epilogue_overlap").attention(*inputs, True)
        clocks.append(watch.runs[0].clocks)
    assert clocks[0] == clocks[1] != clocks[2] != clocks[3]


def simulated(name: str, **how):
    """(output, run) of a step on a problem that is always the same."""
    shape = problem(batch=1, heads=2, seq_len_q=256, seq_len_kv=256, head_dim=128)
    with watched(trace=True, **how) as watch:
        out = get_step(name).attention(*FORWARD.inputs(shape, 0), True)
    return out, watch.runs[0]


def test_blocks_that_an_sm_holds_share_its_units():
    (one, alone), (same, shared) = (simulated("split_q", at_once=n) for n in (1, 3))
    assert torch.equal(one, same) and alone.clocks.keys() == shared.clocks.keys()
    assert alone.time == pytest.approx(sum(alone.clocks.values()))
    assert alone.busy == pytest.approx(shared.busy) and max(shared.busy.values()) <= shared.time < alone.time
    assert all(shared.clocks[block] > clocks for block, clocks in alone.clocks.items())
    for run in (alone, shared):  # a block's timeline begins with it
        assert all(0 <= begin < end <= run.clocks[block] for block, _, _, _, begin, end in run.trace)


def test_ldmatrix_takes_the_turns_of_its_layout():
    from tutorial_lib.layouts import BANKS, WORD

    shape = problem(batch=1, heads=2, seq_len_q=256, seq_len_kv=256, head_dim=128)
    wavefronts = {name: simulated(name)[1].busy["smem"] for name in ("explicit", "swizzle")}
    conflicts = get_step("explicit").ldmatrix_conflicts(shape)
    assert get_step("swizzle").ldmatrix_conflicts(shape) == 0 < conflicts
    assert wavefronts["explicit"] - wavefronts["swizzle"] == pytest.approx(conflicts * 8 * 8 * 2 / (BANKS * WORD))


SCHEDULED = distinct(
    GLUON,
    [
        problem(batch=1, heads=2, seq_len_q=300, seq_len_kv=300),
        problem(batch=1, heads=2, kv_heads=1, seq_len_q=700, seq_len_kv=90, head_dim=128, causal=False),
    ],
)


@pytest.mark.parametrize(("step", "shape"), SCHEDULED, ids=named)
def test_no_kernel_has_a_race_a_missing_fence_or_a_deadlock(step, shape, pytestconfig):
    for seed in some_of(range(3), 1, pytestconfig):
        assert not faults(step, shape, seed)


def test_attention_on_the_cpu_raises_for_a_race():
    from dataclasses import replace

    from steps.writing.written import write_step
    from tutorial_lib.simulator.breaking import without

    shape = problem(seq_len_q=384, seq_len_kv=384)
    whole = write_step(get_step("producer"), shape)
    racy = replace(whole, text=without(whole.text, "wait(barriers.value_empty"))
    with pytest.raises(KernelError, match=r"race on tiles\.value"):
        racy.attention(*FORWARD.inputs(shape, 0), True)


# --- the command ---


def test_the_command_says_what_it_found(capsys, tmp_path):
    assert (
        main(["intra_warpgroup_overlap", "--seq-len", "200", "--schedules", "3", "--timeline", str(tmp_path / "t.png")])
        == 0
    )
    out = capsys.readouterr().out
    assert "No race, no missing fence, no deadlock under 3 schedules" in out and "simulated clocks" in out
    assert (tmp_path / "t.png").read_bytes().startswith(b"\x89PNG")
    assert main(["producer", "--without", "release(barriers.value_empty", "--inputs", "7"]) == 1
    out = capsys.readouterr().out
    assert "--inputs 7 has these inputs again" in out
    assert "deadlock: block" in out and "produce 2 waits for barriers.value_empty[0] with parity 0" in out
    assert main(["producer", "--sites"]) == 0
    assert "mbarrier.wait(barriers.value_empty.index(stage), used)" in capsys.readouterr().out


def asked(*words):
    return simulate.asked(simulate.make_parser().parse_args([str(word) for word in words]))


@pytest.mark.parametrize(
    "name", ["producer", "split_epilogue", "next_softmax_first", "hopper_window", "attention_sinks", "hopper_varlen"]
)
def test_what_is_simulated_is_the_kernel_of_the_steps_own_problem(name, tmp_path):
    """Of a file, too, that was written for it; its tiles are full or not, as they were there."""
    _, simulated = asked(name)
    own = get_step(name).default_problem
    variant, of_own = (get_step(name).variant(shape) for shape in (simulated, own))
    assert dataclasses.replace(variant, ragged=of_own.ragged) == of_own
    assert simulated.seq_len_q > (own.window or 0)
    path = tmp_path / "mine.py"
    path.write_text(written_out(get_step(name), own), encoding="utf-8")
    step, simulated = asked(path)
    assert step.unsupported(simulated, "cpu") is None and simulated.seq_len_q <= 2048


def test_another_kernel_than_that_of_the_steps_own_problem_is_told(capsys, tmp_path):
    told = "Not the kernel of the step's own size, "
    assert main(["next_softmax_first", "--seq-len", "128", "--sites"]) == 0
    assert f"{told}B=4 H=32 S=4096 D=128 fp16 causal: --seq-len 2048 has that." in capsys.readouterr().out
    _, shape = asked("fused_pre_post")  # whose kernel for few heads is another
    assert "--heads 16 --seq-len 4096 has that" in simulate.another_kernel("fused_pre_post", shape)
    for option, own in (("--no-causal", "D=128 fp16 full"), ("--head-dim=64", "D=64 fp16 causal")):
        _, shape = asked("next_softmax_first", option, "--seq-len", 300)
        found = simulate.another_kernel("next_softmax_first", shape)
        assert found.startswith(f"{told}B=4 H=32 S=4096 {own}: --seq-len "), found
        _, shape = asked("next_softmax_first", option)
        assert simulate.another_kernel("next_softmax_first", shape) is None
    path = tmp_path / "mine.py"
    step = get_step("next_softmax_first")
    path.write_text(written_out(step, step.default_problem), encoding="utf-8")
    assert main([str(path), "--seq-len", "512"]) == 2
    assert "its constants differ in: consume, queries; try --seq-len 2048\n" in capsys.readouterr().err
    assert main([str(path), "--seq-len", "2048", "--head-dim", "64"]) == 2
    error = capsys.readouterr().err
    assert "its constants differ in: tile, head_dim, " in error and "try" not in error


@pytest.mark.parametrize(
    ("name", "softcap", "sinks"),
    [("attention_sinks", None, True), ("hopper_soft_cap", 50.0, False), ("producer", None, False)],
)
def test_a_step_is_run_with_the_soft_cap_and_the_sinks_that_it_is_for(name, softcap, sinks, tmp_path):
    _, problem = asked(name)
    assert (problem.softcap, problem.sinks) == (softcap, sinks)
    step, problem = asked(name, "--sites")  # written out
    path = tmp_path / "mine.py"
    path.write_text(step.text, encoding="utf-8")
    _, problem = asked(path)
    assert (problem.softcap, problem.sinks) == (softcap, sinks)


def test_a_measured_timeline_stands_below_the_simulated_one(capsys, tmp_path):
    paths = [tmp_path / f"{name}.png" for name in ("intra_warpgroup_overlap", "wgmma")]
    for path in paths:
        assert main([path.stem, "--seq-len", "200", "--timeline", str(path)]) == 0
        out = capsys.readouterr().out
        recorded = path.stem == "intra_warpgroup_overlap"
        measured_on = recorded_traces(RESULTS, "intra_warpgroup_overlap")[0].machine["name"]
        assert (f"Below it the measured one: {measured_on}" in out) == recorded == ("wait for key_full" in out)
    heights = [int.from_bytes(path.read_bytes()[20:24], "big") for path in paths]
    assert heights[0] > 1.3 * heights[1]  # two panels, and one


def test_a_file_is_simulated_as_it_was_edited(capsys, tmp_path):
    from steps.show import main as show

    path = tmp_path / "mine.py"
    assert show(["intra_warpgroup_overlap", "--output", str(path)]) == 0
    assert main([str(path)]) == 0
    text = path.read_text(encoding="utf-8")
    path.write_text(
        text.replace("warpgroup_mma_wait(1, deps=[scores", "warpgroup_mma_wait(2, deps=[scores"), encoding="utf-8"
    )
    assert main([str(path)]) == 1
    assert "refused: wait(2) does not wait for this product" in capsys.readouterr().out


def test_a_mistake_in_a_files_python_is_told_with_its_line(capsys, tmp_path):
    from steps.show import main as show

    path = tmp_path / "mine.py"
    assert show(["intra_warpgroup_overlap", "--output", str(path)]) == 0
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("head, batch, i = head %", "head, batch, i = haed %"), encoding="utf-8")
    assert main([str(path)]) == 1
    line = path.read_text(encoding="utf-8").split("haed")[0].count("\n") + 1
    told = capsys.readouterr().out
    assert re.search(rf"refused: NameError: name 'haed' is not defined, at mine\.py:{line} \w+ `", told)
    path.write_text(text.replace("STAGES = gl.", "STAGES = lg."), encoding="utf-8")
    assert main([str(path)]) == 2
    assert capsys.readouterr().err == "steps.simulate: mine.py: NameError: name 'lg' is not defined\n"
    path.write_text(text, encoding="utf-8")
    assert main([str(path), "--seq-len", "99968"]) == 2
    assert "ask for a smaller --seq-len" in capsys.readouterr().err


@sampled(core=lambda name: name == "epilogue_overlap")
@pytest.mark.parametrize(
    "name", ["gluon_larger_tile", "wgmma", "producer", "intra_warpgroup_overlap", "epilogue_overlap"]
)
def test_simulated_cycles_are_near_those_that_were_measured(name):
    """Within a fifth of the record on an H200, though nothing in the simulator was fitted to it.

    Of wide_block within a quarter: Triton 3.9 has it move accumulators from register to register, and no moves are
    simulated.
    """
    run = recorded(machine="nvidia-h200")
    measured = run.measurement(name).cycles
    simulated = simulated_cycles(get_step(name), HEADLINE, run.machine["multiprocessors"])
    assert (0.75 if name == "gluon_larger_tile" else 0.8) < simulated / measured < 1.2


def simulated_cycles(step, shape, multiprocessors):
    """Cycles that a GPU with so many SMs would take for a problem, by a simulated part of it.

    Its SMs hold as many blocks as the compiled kernel lets them. The part: as many heads as the CPU stands for SMs,
    with the same lengths.
    """
    few = processors(torch.device("cpu"))
    part = dataclasses.replace(shape, batch=1, heads=few, kv_heads=few)
    with watched(at_once=step.compile(shape).occupancy[0]) as watch:
        step.attention(*FORWARD.inputs(part, 0), part.causal)
    return watch.runs[0].time * shape.batch * shape.heads / few / multiprocessors


def test_blocks_that_wait_for_later_ones_need_room_for_both():
    """Block 0 waits for block 1: that goes well where the SM holds both, and is a deadlock where it holds one."""
    counts = torch.zeros(1, dtype=torch.int32)
    launch(kernels.await_block, (2,), (counts, 1), 4, at_once=2)
    assert counts.item() == 2
    with pytest.raises(Deadlock, match="a number in global memory to be 1"):
        launch(kernels.await_block, (2,), (torch.zeros(1, dtype=torch.int32), 1), 4)


def test_python_ends_without_a_word_of_leaks():
    """Layouts that Triton inferred keep its modules alive; nanobind, if it finds them so, prints 300 lines."""
    said = "import steps.gluon.names\nfrom tutorial_lib.simulator.values import _infer, gl\n"
    said += "layout = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])\n"
    said += "print(_infer('reshape', layout, (64, 64), 4, 1, (64, 2, 32)))"
    done = subprocess.run([sys.executable, "-c", said], capture_output=True, encoding="utf-8", check=True)
    assert done.stdout.startswith("DistributedLinearLayout") and not done.stderr
