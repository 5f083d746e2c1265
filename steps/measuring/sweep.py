"""Times ``steps.attention`` beside other people's attention on drawn problems: the worker's side, and who asks it.

Every contender is a function of q, k and v as a program calls it. All are sampled in turn, round after round, in an
order that is shuffled for each round, after a rest (``tutorial_lib.timing``). Inputs take turns as in ``bench``. A
sample is shorter than there, and so is the rest: what counts here are many problems, each by ratios inside a round. Who
is far behind in the first round takes part in no other.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from steps.core.step import TorchStep, target_of
from steps.measuring.ahead import compile_quietly
from steps.measuring.bench import input_sets
from steps.measuring.drawing import TIMED, Drawn
from tutorial_lib import accuracy, timing
from tutorial_lib.hardware import describe_versions, gpu_turn
from tutorial_lib.passes import BACKWARD, FORWARD
from tutorial_lib.problem import Problem
from tutorial_lib.records import BASELINE, FRONT_DOOR, Swept
from tutorial_lib.results import now
from tutorial_lib.worker import Worker, WorkerFailure

WANTED = (FRONT_DOOR, BASELINE)  # of every problem: the one is compared with the other
PEERS = ("sdpa_cudnn", "sdpa_flash", "flash_attn_4", "flash_attn_3")
CHECKED_PAIRS = 2e9  # of queries and keys, of all heads together: 16 GB of scores in float64, a piece at a time
CHECKED_HEADS = 256  # query heads of all sequences together: each is computed by itself
LAUNCHES = 200  # in a sample with gradients: a call launches several kernels, of which the queue holds 1000
SAMPLE_MS = 10.0  # of a sample
QUEUED_MS = 20.0  # that the host takes for a sample's calls, at most: the GPU waits for as long before it
FAR_BEHIND = 1.5  # times the fastest of the others in the first round: samples of a round differ by far less


def chosen_steps(problem: Problem, target: str, timed: str) -> list:
    """The steps by which ``steps.attention`` computes a problem; SDPA alone where it leaves that to PyTorch."""
    from steps.core import attention as front
    from steps.core.ladder import get_step

    if timed == "forward":
        return [front.chosen(problem, target)]
    return list(front.with_gradients(problem, target) or [get_step(BASELINE)])


KEPT_ON_DISK = "FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED"  # what flash-attn-4 compiles, for other processes


@dataclass(frozen=True)
class Called:
    """Compiles all that a timed call launches: compilers keep it on disk, for the process that times.

    For ``compile_ahead``, which takes it for a step. A call follows the compilers of steps: it brings what a launch
    alone compiles, such as flash-attn-4, which needs ``KEPT_ON_DISK`` in the environment. That takes up to a minute, so
    the call waits for no turn on the GPU. The sweep times nothing meanwhile; another program's samples may be held up.
    steps: as ``chosen_steps`` has them; or a peer alone, whose gradients autograd knows.
    """

    steps: tuple
    timed: str
    device: str = "cuda"

    def compile(self, problem: Problem, arch: str) -> None:
        import torch

        for step in self.steps:
            compile_quietly(step, problem, arch)
        self._call(problem)
        if self.device == "cuda":
            torch.cuda.empty_cache()  # others compile at the same time, with inputs of their own

    def _call(self, problem: Problem) -> None:
        import torch

        (forward, *backward), gradients = self.steps, self.timed != "forward"
        if isinstance(forward, TorchStep):
            problem = replace(problem, batch=1)  # many are called at the same time, and all have room
        q, k, v, *_ = FORWARD.inputs(problem, 0, self.device)
        if isinstance(forward, TorchStep):
            tensors = [x.requires_grad_(gradients) for x in (q, k, v)]
            o = forward.make_ready(problem, *tensors, None)(*tensors, None)
            if gradients:
                torch.autograd.grad(o, tensors, torch.empty_like(o))
            return
        asked = {"causal": problem.causal, "window": problem.window}
        made = forward.attention(q, k, v, **asked, return_lse=gradients)
        for step in backward:
            step.gradients(q, k, v, *made, made[0], **asked)


def to_compile(chosen: dict[tuple[str, Problem], list], target: str) -> list[tuple]:
    """(what compiles, problem), as ``compile_ahead`` has it: flash-attn-4, and the steps that are chosen.

    chosen: by pass and problem. What takes longest comes first. Of those whose kernels are the same, one.
    """
    peer, found = _step_of("flash_attn_4"), {}
    for (timed, problem), steps in chosen.items():
        gradients, dtype = timed != "forward", problem.dtype
        if not isinstance(steps[0], TorchStep):
            runs = str([step.what_runs(problem, target) for step in steps])
            even = problem.seq_len_q % 16 == 0, problem.seq_len_kv % 16 == 0  # Triton compiles these for themselves
            found.setdefault((gradients, runs, dtype, even), (Called(tuple(steps), timed), problem))
        if peer.unsupported(problem, target) is None:
            shape = problem.group_size, problem.head_dim, dtype, problem.causal, problem.window is None
            found.setdefault((gradients, peer.name, *shape), (Called((peer,), timed), problem))
    return sorted(found.values(), key=lambda each: (each[0].timed == "forward", each[0].steps != (peer,)))


class Sweeper:
    """Holds one problem after the other, its inputs and its contenders (``tutorial_lib.worker``)."""

    def __init__(self, device: str):
        import torch

        self.device = torch.device(device)
        self.calls: dict[str, Callable[[int], object]] = {}
        self.plans: dict[str, timing.Plan] = {}

    def open(self, problem: Problem, timed: str, seed: int) -> None:
        """Make the inputs of a problem, and forget the last one. timed: a key of ``drawing.TIMED``."""
        import torch

        self.calls, self.plans, self.inputs, self.right = {}, {}, [], None
        self.problem, self.timed, self.kind = problem, timed, TIMED[timed][-1]
        with gpu_turn(self.device.type):
            sets = 1
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
                cache = torch.cuda.get_device_properties(self.device).L2_cache_size
                sets = input_sets(self.kind, problem, cache)
            self.inputs = [self._inputs(seed + n) for n in range(sets)]

    def _inputs(self, seed: int) -> tuple:
        """(q, k, v), and with gradients do as the fourth."""
        import torch

        tensors = FORWARD.inputs(self.problem, seed, self.device)
        if self.timed == "forward":
            return tensors
        chance = torch.Generator(device=self.device).manual_seed(seed + 1)
        do = torch.empty_like(tensors[0]).normal_(generator=chance)
        return *(x.requires_grad_() for x in tensors), do

    def missing(self, name: str) -> str | None:
        """Why a peer does not take the problem, or None where it does."""
        return None if name in WANTED else _step_of(name).unsupported(self.problem, target_of(self.device))

    def check(self, names: Sequence[str] = (FRONT_DOOR,)) -> accuracy.Accuracy | None:
        """Contenders' outputs, and gradients where they are asked for, beside float64 by the project's rule: the worst.

        Of a problem with many pairs of queries and keys only some key/value heads are compared, with the query heads
        that share them, spread over the batch.
        """
        import torch

        problem = self.problem
        with gpu_turn(self.device.type):
            q, k, v, *do = self.inputs[0]
            together, count = _heads_to_check(problem)
            picked = partial(_picked, kv_heads=problem.kv_heads, count=count)
            parts = tuple(picked(x.detach()) for x in (q, k, v))
            asked = [(FORWARD, parts)]
            if do:
                asked.append((BACKWARD, (*parts, None, None, picked(do[0]))))
            self.right = right = self.right or [
                (exact := kind.reference(together, x), kind.yardstick(together, x, exact)) for kind, x in asked
            ]
            compared = []
            for name in names:
                o = self._function(name)(q, k, v)
                grads = [torch.autograd.grad(o, (q, k, v), *do)] if do else []
                for outputs, (exact, allowed) in zip([(o.detach(),), *grads], right, strict=True):
                    each = zip(map(picked, outputs), exact, allowed, strict=True)
                    compared += [accuracy.compare(*one) for one in each]
        return accuracy.worst(compared)

    def prepare(self, name: str) -> None:
        """Warm a contender up and plan its samples."""
        with gpu_turn(self.device.type), self._gradients():
            call = self._call(self._function(name))
            for i in range(len(self.inputs)):
                call(i)
            self.calls[name] = call
            most = timing.MAX_LAUNCHES if self.timed == "forward" else LAUNCHES
            self.plans[name] = timing.plan_sample(call, most, SAMPLE_MS, QUEUED_MS)

    def sample(self, name: str) -> tuple[float, float | None]:
        """(milliseconds a call, microseconds that it takes the host), as ``Sweep`` has them; None: they are in it."""
        call, plan = self.calls[name], self.plans[name]
        with gpu_turn(self.device.type), self._gradients():
            if self.timed == "training":
                return timing.take_waited_sample(call, plan), None
            sample = timing.take_sample(call, plan)
            return sample.milliseconds, sample.host_us

    def _gradients(self):
        import torch

        return torch.set_grad_enabled(self.timed != "forward")

    def _function(self, name: str) -> Callable:
        """A contender as a function of q, k and v."""
        import steps

        problem = self.problem
        if name == FRONT_DOOR:
            return lambda q, k, v: steps.attention(q, k, v, problem.causal, window=problem.window)
        launch = _step_of(name).make_ready(problem, *self.inputs[0][:3], None)
        return lambda q, k, v: launch(q, k, v, None)

    def _call(self, function: Callable) -> Callable[[int], object]:
        """``call(i)``: what is timed."""
        import torch

        sets = self.inputs
        if self.timed == "forward":
            return lambda i: function(*sets[i % len(sets)])
        if self.timed == "training":

            def both(i: int):
                q, k, v, do = sets[i % len(sets)]
                return torch.autograd.grad(function(q, k, v), (q, k, v), do)

            return both
        made = [(function(q, k, v), (q, k, v), do) for q, k, v, do in sets]
        return lambda i: torch.autograd.grad(*made[i % len(made)], retain_graph=True)


def _step_of(name: str):
    from steps.core.ladder import get_step
    from steps.reference.peers import peers_of

    return next((peer for peer in peers_of("forward") if peer.name == name), None) or get_step(name)


def _heads_to_check(problem: Problem) -> tuple[Problem, int]:
    """(the problem of so many key/value heads, each in a batch of its own, how many): as many as are affordable."""
    pairs = problem.group_size * problem.seq_len_q * problem.seq_len_kv
    affordable = min(int(CHECKED_PAIRS // pairs), CHECKED_HEADS // problem.group_size)
    count = max(1, min(problem.batch * problem.kv_heads, affordable))
    return replace(problem, batch=count, heads=problem.group_size, kv_heads=1), count


def _picked(x, kv_heads: int, count: int):
    """Of a tensor ``[batch, heads, length, head_dim]`` those heads that share so many key/value heads, a batch each."""
    import torch

    each = x.unflatten(1, (kv_heads, -1)).flatten(0, 1)
    return each[torch.linspace(0, len(each) - 1, count, device=x.device).round().long()]


def _in_reach(names: list[str], found: dict[str, list[tuple[float, float | None]]]) -> list[str]:
    """Those who take part in another round: who is wanted, and who was not far behind in the first."""
    first = {name: samples[0][0] for name, samples in found.items()}
    least = min(ms for name, ms in first.items() if name != FRONT_DOOR)
    return [name for name in names if name in WANTED or first[name] <= FAR_BEHIND * least]


@dataclass
class Restoring:
    """What a worker was told of a problem, for a fresh process that takes its place when a peer ended the last."""

    timeout: float
    asked: tuple = ()
    prepared: list[str] = field(default_factory=list)

    def again(self, worker: Worker) -> None:
        """Tell a fresh process; nothing where it is about to be told of another problem."""
        if self.asked:
            worker.call("open", *self.asked, timeout=self.timeout)
        for name in self.prepared:
            worker.call("prepare", name, timeout=self.timeout)


def time_problem(
    worker,
    restoring: Restoring,
    drawn: Drawn,
    timed: str,
    steps: list,
    seed: int,
    rounds: int,
    chance: random.Random,
    candidates: bool = False,
) -> Swept:
    """A row of the sweep. steps: those of the front door; seed: of the drawing; the inputs' is drawn from ``chance``.

    candidates: whether the steps themselves are timed, in place of the front door and its peers. A peer or candidate
    that fails is skipped, and so is a peer that is wrong. Where the front door or SDPA fails, or the front door or a
    candidate is wrong, nothing is timed.
    """
    names = [step.name for step in steps]
    wanted, others, checks = ((BASELINE,), names, names) if candidates else (WANTED, PEERS, [FRONT_DOOR])

    def call(method: str, *args):
        return worker.call(method, *args, timeout=restoring.timeout)

    skipped: dict[str, str] = {}
    found: dict[str, list[tuple[float, float | None]]] = {}
    checked, failure = None, None
    try:
        opened = drawn.problem, timed, chance.getrandbits(31)
        restoring.asked, restoring.prepared = (), []  # a process that starts for the next call is told by that
        call("open", *opened)
        restoring.asked = opened
        checked = call("check", checks)
        if checked is not None and not checked.correct:
            raise WorkerFailure(checked.explain())
        for name in (*wanted, *others):
            if reason := call("missing", name):
                skipped[name] = reason
                continue
            try:
                if name in PEERS and not (right := call("check", [name])).correct:
                    skipped[name] = right.explain()
                    continue
                call("prepare", name)
                restoring.prepared.append(name)
            except WorkerFailure as failed:
                if name in wanted:
                    raise
                skipped[name] = str(failed)
        for _ in range(rounds):
            for name in chance.sample(restoring.prepared, len(restoring.prepared)):
                try:
                    found.setdefault(name, []).append(call("sample", name))
                except WorkerFailure as failed:
                    if name in wanted:
                        raise
                    restoring.prepared.remove(name)
                    del found[name]
                    skipped[name] = str(failed)
            restoring.prepared = _in_reach(restoring.prepared, found)
    except WorkerFailure as failed:
        failure, found = str(failed), {}
    host = {name: [us for _, us in samples if us is not None] for name, samples in found.items()}
    return Swept(
        pass_=timed,
        problem=drawn.problem.as_dict(),
        family=drawn.family,
        model=drawn.model,
        seed=seed,
        date=now(),
        versions=describe_versions(),
        steps=[] if candidates else names,
        milliseconds={name: [ms for ms, _ in samples] for name, samples in found.items()},
        host_us={name: timing.spread(us).median for name, us in host.items() if us},
        skipped=skipped,
        max_error=checked and checked.max_error,
        limit=checked and checked.limit,
        failure=failure,
    )
