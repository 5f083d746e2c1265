"""A model of a sequence over several GPUs: who computes when, who waits, and when a link keeps up. Of the forward pass.

It knows how fast a GPU computes and how fast a link is, and nothing else: no launches, no putting together of parts,
no GPU that computes more slowly while it sends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from steps.core.choice import best
from steps.core.ladder import get_step
from steps.core.problems import standard
from tutorial_lib.passes import FORWARD
from tutorial_lib.problem import BYTES_PER_ELEMENT, Problem
from tutorial_lib.tables import provenance


@dataclass(frozen=True)
class Link:
    """A way from one GPU to another. rate: bytes a second in one direction, by its specification; source: of that."""

    name: str
    rate: float
    source: str


NVLINK = "https://www.nvidia.com/en-us/data-center/nvlink/, which counts both directions"
LINKS = (
    Link("NVLink 5 (B200)", 900e9, NVLINK),
    Link("NVLink 4 (H100, H200)", 450e9, NVLINK),
    Link(
        "PCIe 5.0 x16", 63e9, "https://pcisig.com/faq: 32 GT/s in each of 16 lanes, of which 128 of 130 bits are data"
    ),
    Link(
        "InfiniBand NDR",
        50e9,
        "https://docs.nvidia.com/dgx-basepod/reference-architecture-infrastructure-foundation-enterprise-ai/latest/"
        "core-components.html: a port of 400 Gb/s for each GPU",
    ),
)


class Iteration(NamedTuple):
    """When a rank computes in an iteration, in seconds from the beginning; begin is end where it computes nothing."""

    rank: int
    number: int
    begin: float
    end: float


def recorded_rate() -> tuple[float, str]:
    """Operations a second of one GPU, and where they come from: the fastest step recorded on long sequences."""
    choice = best(standard(16384, causal=True), "sm_90")
    m = choice.record.measurement(choice.step.name)
    return 1e12 * m.tflops, f"step {m.label}, {provenance(choice.record)}"


def key_bytes(problem: Problem, ranks: int) -> int:
    """Bytes of the keys and values that a rank has."""
    tokens = problem.seq_len_kv // ranks
    return 2 * BYTES_PER_ELEMENT * problem.batch * problem.kv_heads * tokens * problem.head_dim


def computing(name: str, problem: Problem, ranks: int, own: int, owner: int, rate: float) -> float:
    """Seconds in which rank ``own`` computes its part of the keys of ``owner``. rate: operations a second."""
    tokens = problem.seq_len_q // ranks
    block = get_step(name).share.block(own, owner, tokens, problem.causal)
    if block is None:
        return 0.0
    rows, keys = (len(range(tokens)[some]) for some in (block.rows, block.keys))
    pairs = rows * keys / (2 if block.causal else 1)
    return FORWARD.operations(problem) / problem.visible_pairs * pairs / rate


def iterations(name: str, problem: Problem, ranks: int, rate: float, link: Link) -> list[Iteration]:
    """When every rank of a ring computes, one iteration after the other. name: "ring", "double_buffering" or "zigzag".

    A part is on its way when both its sender and its receiver have begun the iteration. A rank begins the next when it
    has computed this one, and the next part is there.
    """
    ahead = get_step(name).function.ahead
    seconds = key_bytes(problem, ranks) / link.rate
    begins, found = [0.0] * ranks, []
    for iteration in range(ranks):
        sends = iteration + 1 < ranks
        arrives = [max(begins[rank], begins[rank - 1]) + (seconds if sends else 0.0) for rank in range(ranks)]
        for rank in range(ranks):
            begin = begins[rank] if ahead or not sends else arrives[rank]
            took = computing(name, problem, ranks, rank, (rank - iteration) % ranks, rate)
            found.append(Iteration(rank, iteration, begin, begin + took))
        begins = [max(one.end, arrives[one.rank]) for one in found[-ranks:]]
    return found


def seconds(name: str, problem: Problem, ranks: int, rate: float, link: Link) -> float:
    """How long a step of the forward pass takes over so many ranks, by the model."""
    if name == "gather":
        computed = [
            sum(computing(name, problem, ranks, own, owner, rate) for owner in range(ranks)) for own in range(ranks)
        ]
        return sent_bytes(name, problem, ranks) / link.rate + max(computed)
    if name == "ulysses":
        return sent_bytes(name, problem, ranks) / link.rate + FORWARD.operations(problem) / ranks / rate
    return max(one.end for one in iterations(name, problem, ranks, rate, link))


def share_of_ideal(name: str, problem: Problem, ranks: int, rate: float, link: Link) -> float:
    """Of the speed that so many GPUs would have without each other."""
    return FORWARD.operations(problem) / ranks / rate / seconds(name, problem, ranks, rate, link)


def sent_bytes(name: str, problem: Problem, ranks: int) -> int:
    """Bytes that a rank sends in a call of the forward pass."""
    if name != "ulysses":
        return (ranks - 1) * key_bytes(problem, ranks)
    rows = problem.batch * problem.heads * problem.seq_len_q // ranks
    own = key_bytes(problem, ranks) + rows * (2 * BYTES_PER_ELEMENT * problem.head_dim + 4)  # q, o, and lse in float32
    return own * (ranks - 1) // ranks


def least_tokens(problem: Problem, rate: float, link: Link) -> float:
    """Tokens a GPU from which computing a part takes as long as sending one, evenly shared out.

    A part of n tokens has a number of scores that grows with n^2, and bytes that grow with n: any link keeps up at some
    length. The mask is causal or not as the problem has it.
    """
    scores = 0.5 if problem.causal else 1.0  # of n^2, in an iteration
    heads, keys = problem.heads, problem.kv_heads
    # 4 B heads D scores n^2 / rate >= 4 B keys D n / link, for each head
    return keys * rate / (heads * scores * link.rate)
