"""The command: ``python -m steps.run --seq-len 4096`` measures the path, and shows what each of its steps brought.

The path (``steps.core.path``) holds the steps that stand on no fork and are for this problem; ``--steps all`` measures
every step. With a GPU it checks and times the steps; without one it runs the same kernels on the CPU, compiles them,
and shows timings recorded on a GPU. Exit status: 0 all that was asked for was done; 1 a step failed or was wrong; 2 the
request makes no sense (one line on standard error, nothing written); 130 interrupted (what was finished is kept).
"""

from __future__ import annotations

import argparse
import io
import itertools
import os
import shlex
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from tutorial_lib import needs, worker
from tutorial_lib.command import BadRequest, OneLineParser, as_command, check_writable, make_console, whole_number
from tutorial_lib.files import RESULTS
from tutorial_lib.naming import unknown
from tutorial_lib.problem import FP8, IN_8_BITS, SHORT_DTYPES
from tutorial_lib.worker import Ended

GPU_DEFAULTS = {"batch": 4, "heads": 32}
CPU_DEFAULTS = {"batch": 1, "heads": 2}  # the interpreter and the simulator are far slower than a GPU

PARALLEL_PART = "parallel"  # the part of the ladder that ``--parallel`` alone means
PATH = "path"
ROUNDS, ROUNDS_OF_PATH = 15, 4  # of timing: for a record, and for who looks at what the path brings here
OF_WORKERS = ("torch", "cuda.tile._compile", "steps.core.ladder", "steps.measuring.bench")  # modules that take seconds
LOOK = "look"  # the folder of such a look, in that of a record of more rounds, which stays


def _above_zero(text: str, what: str = "a number") -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be {what} above 0, got {text!r}")
    return value


def _lengths(text: str) -> tuple[int, ...]:
    from steps.core.problems import RAGGED

    if text == "ragged":
        return RAGGED
    words = text.split(",")
    if not all(word.strip().isdecimal() and int(word) for word in words):
        raise argparse.ArgumentTypeError(f"must be ragged, or whole numbers such as 1000,3001,17, got {text!r}")
    return tuple(map(int, words))


def _seed(text: str) -> int:
    if not text.isdecimal() or int(text) >= 2**63:
        raise argparse.ArgumentTypeError(f"must be a whole number from 0 to 2^63 - 1, got {text!r}")
    return int(text)


def make_parser() -> argparse.ArgumentParser:
    from steps.core.grids import GRIDS

    parser = OneLineParser(
        prog="python -m steps.run",
        description="Measure attention step by step: check every step, time all of them in turn, write a report.",
        epilog="Without a GPU the kernels run on the CPU, with --batch 1 --heads 2 unless given; recorded GPU timings "
        "are shown beside them. Exit status: 0 done; 1 a step failed; 2 bad request; 130 interrupted.",
    )
    problem = parser.add_argument_group("the problem")
    number = {"type": whole_number, "metavar": "N"}
    problem.add_argument("--seq-len", nargs="+", default=[2048], help="query length, one or several (2048)", **number)
    problem.add_argument("--seq-len-kv", help="key and value length (as --seq-len)", **number)
    few = "query length where it is not --seq-len: for decoding, so many queries against --seq-len keys, without a mask"
    problem.add_argument("--seq-len-q", help=few, **number)
    problem.add_argument("--batch", help="batch size (4; on the CPU, and with --parallel, 1)", **number)
    problem.add_argument("--heads", help="query heads (32; on the CPU 2, or twice --kv-heads)", **number)
    problem.add_argument("--kv-heads", help="key and value heads, must divide --heads (as many)", **number)
    problem.add_argument("--head-dim", nargs="+", default=[128], help="head dimension, one or several (128)", **number)
    values = "width of the values and the output where it is less than --head-dim (as --head-dim)"
    problem.add_argument("--head-dim-v", help=values, **number)
    dtypes = f"one or several (float16); {' or '.join(IN_8_BITS)}, alone, measures the steps for inputs in fp8"
    problem.add_argument("--dtype", nargs="+", default=["float16"], choices=tuple(SHORT_DTYPES), help=dtypes)
    keys = f"{FP8}: keys and values in that, with queries in --dtype, for decoding"
    problem.add_argument("--kv-dtype", choices=(FP8,), help=keys)
    mask = "causal mask (on, but for --seq-len-q without --page-size)"
    problem.add_argument("--causal", action=argparse.BooleanOptionalAction, help=mask)
    window = "sliding window: a query sees itself and the N - 1 keys before it"
    problem.add_argument("--window", type=whole_number, metavar="N", help=window)
    problem.add_argument("--softcap", type=_above_zero, metavar="X", help="soft cap: a score s becomes X tanh(s / X)")
    sinks = "attention sinks: a learned logit of each query head that takes part in the softmax and has no value"
    problem.add_argument("--sinks", action="store_true", help=sinks)
    packed = "sequences of these lengths packed into one tensor, in place of --batch and --seq-len: 1000,3001,17, or "
    packed += "ragged, for 16 from 44 to 8192"
    problem.add_argument("--lengths", type=_lengths, metavar="N,N,...", help=packed)
    pages = "keys and values in pages of so many keys, in sequences of several lengths up to --seq-len, whose last "
    problem.add_argument("--page-size", help=f"{pages}--seq-len-q tokens are the queries", **number)
    grids = "; ".join(f"{name}: {grid.about}" for name, grid in GRIDS.items())
    problem.add_argument("--grid", choices=GRIDS, help=f"in place of all of these, on a GPU: all problems of {grids}")
    some = "of --grid only problems in whose names one of these stands, such as d64_fp16,s1024_ (all of them)"
    problem.add_argument("--problems", metavar="TEXT,...", help=some)
    measuring = parser.add_argument_group("what to measure, and how")
    measuring.add_argument(
        "--steps",
        default=PATH,
        help="path: those off the forks that are for this problem; all; best, by what is recorded; or numbers, names "
        "and parts: 0,3-5,exp2,hopper (path)",
    )
    peers = "also SDPA's backends, FlexAttention and others: all, or names such as sdpa_cudnn,flash_attn_4"
    measuring.add_argument(
        "--direction", default="forward", choices=("forward", "backward"), help="attention, or its gradients (forward)"
    )
    several = "in place of --steps, under torchrun: steps over several GPUs, such as ring,zigzag (all of them)"
    measuring.add_argument("--parallel", nargs="?", const=PARALLEL_PART, metavar="NAMES", help=several)
    measuring.add_argument("--peers", nargs="?", const="all", metavar="NAMES", help=peers)
    measuring.add_argument("--device", default="auto", choices=("auto", "cuda", "cpu"), help="(auto: a GPU if any)")
    measuring.add_argument("--profile", action="store_true", help="also read hardware counters with ncu")
    measuring.add_argument("--missing", action="store_true", help="leave out problems already recorded on this machine")
    rounds = f"rounds of timing ({ROUNDS}; of the path alone {ROUNDS_OF_PATH}, which is enough to look at)"
    measuring.add_argument("--iterations", help=rounds, **number)
    going_on = "also measure without any rest, and energy: so many rounds of 1.5 s each (3)"
    measuring.add_argument("--sustained", nargs="?", default=0, const=3, type=whole_number, metavar="N", help=going_on)
    lasting = "the steps that --sustained measures, beside SDPA and the peers (all that are measured)"
    measuring.add_argument("--sustained-steps", metavar="STEPS", help=lasting)
    measuring.add_argument("--check", action=argparse.BooleanOptionalAction, default=True, help="compare results (on)")
    measuring.add_argument("--seed", type=_seed, metavar="N", help="seed of the random inputs (a fresh one)")
    measuring.add_argument(
        "--timeout",
        type=partial(_above_zero, what="a number of seconds"),
        default=120.0,
        metavar="S",
        help="seconds a step may hang (120)",
    )
    measuring.add_argument("--output-dir", type=Path, default=RESULTS, metavar="DIR", help="where to write (results)")
    listed = "list the steps and the GPUs that they run on, or what the steps of a part change, and stop"
    measuring.add_argument("--list", nargs="?", const="", metavar="PART", help=listed)
    doctor = "show versions, GPU and driver, which kernels run here and why others do not, and stop"
    measuring.add_argument("--doctor", action="store_true", help=doctor)
    return parser


def select_steps(text: str, direction: str = "forward", argument: str = "--steps") -> list:
    """The steps that ``all``, ``2-7``, ``hopper`` or ``0,exp2`` names, in the ladder's order; raises BadRequest."""
    from steps.core.ladder import select

    try:
        found = select(text, direction)
    except ValueError as error:
        raise BadRequest(f"argument {argument}: {error}") from None
    if several := [step for step in found if step.several]:
        first = several[0]
        raise BadRequest(f"argument {argument}: step {first.label} {first.unsupported(first.default_problem, 'cpu')}")
    return found


def steps_for(options: argparse.Namespace, problem, device: str) -> list:
    """The steps that ``--steps`` names for one problem; raises BadRequest."""
    if options.steps == "best":
        return [choose_best(problem, device, options.direction)]
    words = options.steps.split(",")
    others = [word for word in words if word.strip() != PATH]
    if len(others) == len(words):
        return select_steps(options.steps, options.direction)
    from steps.core.path import path

    named = select_steps(",".join(others), options.direction) if others else []
    return in_order([*path(problem, _target(device), options.direction), *named], options.direction)


def in_order(steps: Sequence, direction: str) -> list:
    """Steps in the ladder's order, each once; what is inside one comes last."""
    from steps.core.ladder import steps_of

    order = {step.name: n for n, step in enumerate(steps_of(direction))}
    unique = {step.name: step for step in steps}
    return sorted(unique.values(), key=lambda step: order.get(step.name, len(order)))


def _target(device: str) -> str:
    """The architecture that is asked for: this machine's GPU, or the one that is compiled for without."""
    import torch

    from steps.core.step import DEFAULT_ARCH, target_of

    return target_of(torch.device("cuda", torch.cuda.current_device())) if device == "cuda" else DEFAULT_ARCH


def others_told(options: argparse.Namespace, steps: Sequence) -> str | None:
    """One line on the steps that are left out, where the path is measured; None where something else was asked for."""
    from steps.core.ladder import steps_of

    if PATH not in map(str.strip, options.steps.split(",")):
        return None
    others = len(steps_of(options.direction)) - sum(step.number is not None for step in steps)
    alone = options.steps.strip() == PATH
    what = "The path has" if alone else "The path and what was named are"
    ends = f", from {steps[0].label} to {steps[-1].label}" if alone and steps else ""
    return (
        f"{what} {len(steps)} steps for this problem{ends}. {others} others are forks, or for other problems or GPUs: "
        "--steps all takes every step, and --list names them."
    )


def examine() -> int:
    """What works on this machine, on one screen."""
    from steps.running.doctor import examine

    examine(make_console())
    return 0


def select_lasting(options: argparse.Namespace) -> tuple[str, ...] | None:
    """The names of the steps that ``--sustained`` measures, None for all; raises BadRequest."""
    if options.sustained_steps is None:
        return None
    if not options.sustained:
        raise BadRequest("argument --sustained-steps: says which steps --sustained measures, and goes with it")
    return tuple(step.name for step in select_steps(options.sustained_steps, options.direction, "--sustained-steps"))


def select_peers(text: str | None, direction: str = "forward") -> list:
    """The peers that ``all`` or ``sdpa_cudnn,flash_attn_4`` names, None for none; raises BadRequest."""
    from steps.reference.peers import peers_of

    return _named(peers_of(direction), text)


def _named(peers: Sequence, text: str | None) -> list:
    """The peers that ``all`` or a list of names names, None for none; raises BadRequest."""
    if text in (None, "all"):
        return list(peers if text else ())
    names = [name.strip() for name in text.split(",")]
    known = {peer.name: peer for peer in peers}
    if others := [name for name in names if name not in known]:
        raise BadRequest(f"argument --peers: {unknown('peer', others[0], known, 'all takes those there are')}")
    return [peer for peer in peers if peer.name in names]


def choose_best(problem, device: str, direction: str = "forward"):
    """The fastest recorded step for the problem; says why. Raises BadRequest where none is recorded."""
    from steps.core.choice import best
    from steps.core.step import DEFAULT_ARCH, Unsupported

    try:
        choice = best(problem, device if device == "cuda" else DEFAULT_ARCH, direction=direction)
    except Unsupported as error:
        raise BadRequest(f"argument --steps best: {error}") from None
    make_console().print(choice.why, soft_wrap=True)
    return choice.step


def choose_device(asked: str) -> str:
    """ "cuda" or "cpu"; raises BadRequest for a GPU that is not there, or that no kernel is made for."""
    from tutorial_lib.hardware import NO_GPU, why_no_gpu

    if asked == "cpu":
        return "cpu"
    if (why := why_no_gpu()) is None:
        return "cuda"
    if asked == "cuda":
        raise BadRequest(f"argument --device: {why}; use --device cpu")
    if why != NO_GPU:
        print(f"{why[0].upper()}{why[1:]}.")
    return "cpu"


def make_problems(options: argparse.Namespace, device: str) -> list[tuple]:
    """(problem to run here, the problem asked for) for every head_dim, dtype and sequence length; raises BadRequest.

    They differ on the CPU alone, where batch and heads default to less.
    """
    if options.grid:
        return _problems_of_grid(options, device)
    if options.problems is not None:
        raise BadRequest("argument --problems: goes with --grid, whose problems it selects")
    from steps.core.ladder import steps_of
    from steps.core.step import PADDING
    from tutorial_lib.problem import Problem

    made = [step for step in steps_of(options.direction) if step.head_dims]
    if unknown := [d for d in options.head_dim if not any(step.takes_head_dim(d) for step in made)]:
        known = ", ".join(map(str, sorted({dim for step in made for dim in step.head_dims})))
        raise BadRequest(f"argument --head-dim: must be one of {known} ({PADDING}), got {unknown[0]}")

    masks = [name for name in ("window", "softcap", "lengths", "head_dim_v") if getattr(options, name)]
    in_fp8 = [dtype for dtype in options.dtype if dtype in IN_8_BITS]
    fp8 = "dtype" if in_fp8 else "kv-dtype" if options.kv_dtype else None
    if fp8 and options.parallel is not None:
        raise BadRequest(f"argument --{fp8}: {[*in_fp8, FP8][0]} is for one GPU; no step over several takes it")
    if fp8 and (masks or options.sinks):
        what = [*masks, "sinks"][0].replace("_", "-")
        raise BadRequest(f"argument --{what}: no step for inputs in {[*in_fp8, FP8][0]} takes it")
    if options.sinks and options.parallel is not None:
        raise BadRequest("argument --sinks: is for one GPU; no step over several takes them")
    who, taken = "", masks
    if options.direction == "backward":
        who, taken = "for gradients", taken_by_gradients()
    if options.parallel is not None:
        who, taken = "over several GPUs", ()
    if others := [name for name in masks if name not in taken]:
        raise BadRequest(f"argument --{others[0].replace('_', '-')}: no step {who} takes it")
    if options.lengths:
        given = {"--seq-len": options.seq_len != [2048], "--seq-len-kv": options.seq_len_kv, "--batch": options.batch}
        given |= {"--seq-len-q": options.seq_len_q, "--page-size": options.page_size}
        if others := [name for name, there in given.items() if there]:
            raise BadRequest(f"argument --lengths: goes without {others[0]}, which it decides itself")

    heads = options.heads or GPU_DEFAULTS["heads"]
    if options.kv_heads and heads % options.kv_heads:
        where = "" if device == "cuda" else " in what is recorded"  # which is shown, and the CPU takes fewer
        unless = "" if options.heads else f"{where}, unless given"
        raise BadRequest(f"argument --kv-heads: must divide --heads ({heads}{unless}), got {options.kv_heads}")

    causal = options.causal
    if causal is None:  # a mask that begins at the first key hides all but that from one query
        causal = options.seq_len_q is None or options.page_size is not None

    def build(head_dim: int, dtype: str, seq_len: int, batch: int, heads: int) -> Problem:
        kind = {
            "heads": options.heads or heads,
            "kv_heads": options.kv_heads,
            "head_dim": head_dim,
            "head_dim_v": options.head_dim_v,
            "dtype": dtype,
            "kv_dtype": options.kv_dtype,
            "causal": causal,
            "page_size": options.page_size,
            "window": options.window,
            "softcap": options.softcap,
            "sinks": options.sinks,
        }
        if options.lengths:
            return Problem.packed(options.lengths, **kind)
        keys = options.seq_len_kv or seq_len
        return Problem(batch=options.batch or batch, seq_len_q=options.seq_len_q or seq_len, seq_len_kv=keys, **kind)

    problems = []
    for which in dict.fromkeys(itertools.product(options.head_dim, options.dtype, options.seq_len)):
        try:
            asked = build(*which, **GPU_DEFAULTS)
            few = max(CPU_DEFAULTS["heads"], 2 * options.kv_heads if options.kv_heads else 0)
            here = asked if device == "cuda" else build(*which, CPU_DEFAULTS["batch"], few)
        except ValueError as error:
            raise BadRequest(str(error)) from None
        problems.append((here, asked))
    return problems


OF_ONE_PROBLEM = (
    *("seq_len", "seq_len_kv", "seq_len_q", "batch", "heads", "kv_heads", "head_dim", "head_dim_v"),
    *("dtype", "kv_dtype", "causal", "window", "softcap", "lengths", "page_size", "sinks"),
)


def direction_of(options: argparse.Namespace) -> str:
    """The pass that is asked for: problems with pages have one of their own; raises BadRequest."""
    from steps.core.grids import GRIDS

    pages = GRIDS[options.grid].problems[0].page_size if options.grid else options.page_size
    if options.grid and GRIDS[options.grid].direction == "fp8":
        if options.direction == "backward":
            raise BadRequest("argument --grid: goes without --direction backward")
        return "fp8"
    if in_fp8 := [dtype for dtype in options.dtype if dtype in IN_8_BITS]:
        if len({*options.dtype}) > 1 or options.direction == "backward" or pages:
            raise BadRequest(
                f"argument --dtype: {in_fp8[0]} goes alone, for attention on one GPU, without pages or gradients"
            )
        return "fp8"
    if options.kv_dtype and options.direction == "backward":
        raise BadRequest("argument --kv-dtype: is for attention on one GPU, without gradients")
    if options.kv_dtype and not pages:
        return "fp8"
    if pages and options.direction == "backward":
        raise BadRequest(f"argument --{'grid' if options.grid else 'page-size'}: goes without --direction backward")
    return "paged" if pages else options.direction


def taken_by_gradients() -> set[str]:
    """What backward steps take beside plain attention, of ``Problem.features``."""
    from steps.core.ladder import steps_of

    return {name for step in steps_of("backward") for name in step.takes}


def _problems_of_grid(options: argparse.Namespace, device: str) -> list[tuple]:
    from steps.core.grids import GRIDS, some_of

    parser = make_parser()
    if given := [name for name in OF_ONE_PROBLEM if getattr(options, name) != parser.get_default(name)]:
        raise BadRequest(f"argument --grid: goes without --{given[0].replace('_', '-')}, which it decides itself")
    if device != "cuda":
        raise BadRequest("argument --grid: needs a GPU; without one, ask for one problem: --seq-len and the like")
    try:
        found = some_of(GRIDS[options.grid].problems, options.problems, options.grid)
    except ValueError as error:
        raise BadRequest(f"argument --problems: {error}") from None
    if options.direction == "backward" and any({*problem.features} - taken_by_gradients() for problem in found):
        raise BadRequest(f"argument --grid: {options.grid} is for attention, and not for its gradients")
    return [(problem, problem) for problem in found]


def is_recorded(problem, contenders: Sequence, device: str, output_dir: Path) -> bool:
    """Whether ``output_dir`` holds a record on this machine in which none of these is missing or failed."""
    from steps.core.recorded import read_run
    from tutorial_lib.hardware import describe_machine
    from tutorial_lib.results import ResultsError, folder_name

    try:
        name = folder_name(problem.slug, contenders[0].direction)
        run = read_run(output_dir / describe_machine(device)["slug"] / name / "results.json")
    except ResultsError:
        return False
    found = [run.measurement(contender.name) for contender in contenders]
    return all(m and m.status != "failed" for m in found)


def list_steps(part: str) -> int:
    """The ladder on one screen, or the steps of a part with what each changes; raises BadRequest."""
    from steps.core.ladder import get_part
    from steps.running.listing import list_part, list_parts

    try:
        found = get_part(part) if part else None
    except ValueError as error:
        raise BadRequest(f"argument --list: {error}") from None
    console = make_console()
    list_part(console, found) if found else list_parts(console)
    return 0


def check_memory(problems: Sequence, direction: str, check: bool, device: str) -> None:
    """Raises BadRequest for a problem whose tensors alone do not fit into the device's memory."""
    from tutorial_lib.hardware import available_bytes
    from tutorial_lib.passes import PASSES

    free = available_bytes(device)
    for problem in problems:
        if (needs := PASSES[direction].needed_bytes(problem, check)) > free:
            raise BadRequest(
                f"{problem.describe()} needs {needs / 1e9:,.1f} GB of memory and {free / 1e9:,.1f} GB are free here: "
                "ask for a smaller --seq-len, --batch or --heads"
            )


def write_results(run, interrupted: bool, output_dir: Path, recorded, log: str, look: bool = False) -> Path:
    """results.json first, then everything drawn from it; an interrupted run does not replace a finished one.

    Steps and peers that this run leaves out stay in the record as they were measured before. look: whether nobody asked
    for so many rounds; then a record of more rounds is not replaced, either.
    """
    from steps.core.recorded import completed_run, read_run
    from tutorial_lib.files import write_whole
    from tutorial_lib.report import write_report
    from tutorial_lib.results import ResultsError, folder_name, write_run

    name = folder_name(run.the_problem().slug, run.direction) + ("-interrupted" if interrupted else "")
    folder = output_dir / run.machine["slug"] / name
    if run.timed:
        with suppress(ResultsError):  # there is none
            before = read_run(folder)
            if look and len(before.rounds) > len(run.rounds):
                folder = folder / LOOK
            else:
                run = completed_run(run, before)
    write_run(run, folder)
    write_whole(folder / "log.txt", log)
    write_report(run, folder, recorded)
    return folder


ONE_PROCESS = (
    "steps",
    "profile",
    "sustained",
    "sustained_steps",
    "missing",
    "grid",
    "page_size",
)  # what goes without --parallel


def _one_gpu(problem, device: str, direction: str):
    from steps.measuring.parallel import one_gpu
    from tutorial_lib.hardware import describe_machine

    return one_gpu(problem, describe_machine(device)["arch"], direction)


def processes() -> int:
    """How many processes torchrun has started to do this together; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def run(options: argparse.Namespace) -> int:
    if options.parallel is not None:
        return run_together(options)
    if processes() > 1:
        raise BadRequest(f"torchrun started {processes()} processes for one measurement: say --parallel")
    options.direction = direction_of(options)
    peers = select_peers(options.peers, options.direction)
    device = choose_device(options.device)
    problems = make_problems(options, device)
    chosen = [steps_for(options, asked, device) for _, asked in problems]
    check_writable("--output-dir", options.output_dir)
    check_memory([here for here, _ in problems], options.direction, options.check, device)
    return measure_all(options, device, problems, chosen, peers)


def run_together(options: argparse.Namespace) -> int:
    """As ``run``, in each of the processes that torchrun has started; the first shows and writes what was found."""
    if processes() == 1:
        from steps.parallel.skeleton import COMMAND

        names = "" if options.parallel == PARALLEL_PART else f" {options.parallel}"
        raise BadRequest(f"argument --parallel: takes a process for each GPU: {COMMAND}{names}")
    parser = make_parser()
    if given := [name for name in ONE_PROCESS if getattr(options, name) != parser.get_default(name)]:
        raise BadRequest(f"argument --parallel: goes without --{given[0].replace('_', '-')}")
    from steps.measuring import together

    device = choose_device(options.device)
    steps = together.steps_over_ranks(options.parallel, options.direction)
    peers = _named(together.peers_over_ranks(options.direction), options.peers)
    options.batch = options.batch or 1
    problems = make_problems(options, device)
    here = [problem for problem, _ in problems]
    together.check_shared_out(here, steps, processes(), options)
    try:
        with together.joined(device, options.timeout) as ranks:

            def check() -> None:
                check_writable("--output-dir", options.output_dir)
                check_memory(here, options.direction, options.check, device)

            together.on_all(ranks, check)
            peers = peers or together.peers_for(device, options.direction)
            status = measure_all(options, device, problems, [steps] * len(problems), peers, ranks)
            return max(ranks.everybody(status))  # torchrun ends the others when one fails: the first must have written
    except Ended as error:
        print(f"steps.run: {error}", file=sys.stderr, flush=True)
        os._exit(1)  # threads of a library may still wait for a rank that is not there


def measure_all(
    options: argparse.Namespace, device: str, problems: Sequence, chosen: Sequence, peers: Sequence, ranks=None
) -> int:
    """Measure each of ``chosen`` on its problem; show and write it. ranks: of this process, where several do so."""
    import secrets

    from steps.core.launch import PROFILE
    from steps.core.recorded import find_recorded
    from steps.core.step import DEFAULT_ARCH
    from steps.measuring.ahead import compile_ahead, differing
    from steps.measuring.measure import Settings, measure
    from steps.running.progress import progress
    from steps.running.showing import show_run
    from tutorial_lib.report import make_ready, write_length_plots

    silent = ranks is not None and ranks.own > 0
    seed = secrets.randbits(32) if options.seed is None else options.seed
    settings = Settings(
        device=device,
        seed=seed if ranks is None else ranks.everybody(seed)[0],
        rounds=options.iterations or (ROUNDS_OF_PATH if options.steps == PATH and ranks is None else ROUNDS),
        sustained=options.sustained,
        lasting=select_lasting(options),
        check=options.check,
        timeout=options.timeout,
        profile=options.profile,
        isolated=ranks is None,
        ranks=ranks.count if ranks else 1,
    )
    console = make_console(**({"file": io.StringIO()} if silent else {}))
    if device == "cpu" and ranks is None:
        console.print(
            "No GPU is used: the kernels run on the CPU, interpreted or simulated, untimed; they are compiled "
            f"for {DEFAULT_ARCH}, or for what they are made for."
        )
        if problems[0][0] != problems[0][1]:
            console.print(
                f"Batch and heads not given default to {problems[0][0].batch} and {problems[0][0].heads} here "
                f"({problems[0][1].batch} and {problems[0][1].heads} on a GPU)."
            )
    for line in needs.left_out():
        console.print(line, soft_wrap=True)
    threading.Thread(target=make_ready, daemon=True).start()  # while workers measure
    written, failed, interrupted, left = [], False, False, []
    for (here, asked), steps in zip(problems, chosen):
        if options.missing and is_recorded(here, [*steps, *peers], device, options.output_dir):
            console.print(f"Already recorded: {here.describe()}.", soft_wrap=True)
        else:
            left.append((here, asked, steps))
    if device == "cuda" and ranks is None and len(left) > 1:
        with console.status("compiling") as status:
            kernels = differing([(step, here) for here, _, steps in left for step in steps], _target(device))
            compile_ahead(kernels, _target(device), options.timeout, status.update)
    for here, asked, steps in left:
        if ranks is None and (told := others_told(options, steps)):
            console.print(told, soft_wrap=True)
        bar, listener = progress(console)
        with bar:
            baseline = _one_gpu(here, device, options.direction) if ranks and device == "cuda" else None
            result, interrupted, output = measure(here, steps, peers, settings, listener, baseline)
        failed |= any(m.status == "failed" for m in result.everybody)
        if silent:
            continue
        for line in output.splitlines():
            if line.startswith(f"{PROFILE}:"):  # the rules of each step's launch, from when it was checked
                print(line, file=sys.stderr)
        if interrupted and not any(m.status in ("measured", "checked", "compiled") for m in result.everybody):
            print("Interrupted before anything was finished: nothing was written.", file=sys.stderr)
            break
        recorded = None
        if ranks is None and not result.timed:
            recorded = find_recorded(asked, [options.output_dir, RESULTS], options.direction)
        record = make_console(file=io.StringIO(), force_terminal=False)  # whatever the environment asks for
        show_run(record, result, recorded)
        show_run(console, result, recorded)
        log = f"{shlex.join(sys.argv)}\n\n{record.file.getvalue()}\n{listener.seconds()} {rested(result)}\n{output}"
        try:
            folder = write_results(result, interrupted, options.output_dir, recorded, log, options.iterations is None)
        except OSError as error:  # a full disk, say: what was there before is still whole
            print(f"steps.run: cannot write results: {error}", file=sys.stderr)
            return 1
        console.print(f"Written: {folder / 'report.md'}", soft_wrap=True, markup=False)
        written.append((folder, result))
        if interrupted:
            print(f"Interrupted: what was finished is kept in {folder}.", file=sys.stderr)
            break
    for path in write_length_plots(written):
        console.print(f"Written: {path}", soft_wrap=True)
    return 130 if interrupted else int(failed)


def rested(run) -> str:
    """What the rests in front of samples cost, in words; empty where nothing was timed."""
    from tutorial_lib.timing import REST_MS

    rests = sum(len(sampled.latency_ms) for sampled in run.rounds)
    return f"Of them {rests * REST_MS / 1000:.0f} were rests of the GPU before samples." if rests else ""


def main(arguments: Sequence[str] | None = None) -> int:
    def work() -> int:
        options = make_parser().parse_args(arguments)
        if options.doctor:
            return examine()
        if arguments is None and options.list is None and options.parallel is None:  # as a command, with workers
            worker.context = worker.start_importing(*OF_WORKERS)
        return list_steps(options.list) if options.list is not None else run(options)

    name = f"steps.run, rank {os.environ['RANK']} of {processes()}" if processes() > 1 else "steps.run"
    return as_command(name, work, interrupted="Interrupted.")


if __name__ == "__main__":
    sys.exit(main())
