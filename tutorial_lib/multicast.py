"""Blocks in pairs, written into the PTX that Triton makes.

Two blocks of a cluster, its CTAs, run on neighbouring SMs and reach each other's shared memory. Gluon knows clusters
only as one program for both CTAs. Up to 3.7 Triton compiled that wrongly with warps that have roles: of them, the
first role's alone arrived at the cluster's barrier. In the code of Triton 3.9 all of them do; nobody has made this
kernel so. Here a kernel is compiled as for blocks that are alone, and launched in clusters of ``PAIR``
(``steps.core.driver``). Between the comments ``BEGIN`` and ``END``, which the kernel puts into its PTX, two
instructions are rewritten:

- a copy by TMA brings its tile to the same place in both CTAs, and reports to the same mbarrier of both (PTX ISA,
  "cp.async.bulk.tensor", ``.multicast::cluster``);
- an arrival at an mbarrier is one at that of the other CTA (PTX ISA, "mapa" and "mbarrier.arrive").

And behind ``MEET`` the CTAs meet at the cluster's barrier, which waits for all threads of both. Warps that Triton lets
wait for a role are not there: they arrive when the kernel begins (PTX ISA, "barrier.cluster").
"""

from __future__ import annotations

import re

PAIR = 2  # CTAs of a cluster
BEGIN, END, MEET = "// to both CTAs, or to the other:", "// to this CTA:", "// the CTAs meet:"

COPY = re.compile(
    r"cp\.async\.bulk\.tensor\.(?P<rank>\dd)\.shared::\w+\.global\.mbarrier::complete_tx::bytes (?P<operands>[^;]*);"
)
ARRIVAL = re.compile(
    r"(?P<if>@!?%p\d+ )?mbarrier\.arrive\.(?:release\.cta\.)?shared::cta\.b64 _, \[(?P<at>[^\]]+)\](?:, 1)?;"
)
FIRST_LINE = re.compile(r"^// %bb\.0:.*\n", re.MULTILINE)
NOT_KNOWN = "tutorial_lib.multicast was written for the PTX of Triton 3.6 to 3.9, and does not know what is here: {}"
VERSION = "multicast 2"  # of what is rewritten how: part of the name under which a compiled kernel is kept


def rewritten(ptx: str, warps: int) -> str:
    """The PTX of a kernel, with what stands between the comments rewritten. warps: with which a block begins.

    Raises ValueError where it is not as known.
    """
    head, *pieces = ptx.split(BEGIN)
    for n, piece in enumerate(pieces):
        inside, end, behind = piece.partition(END)
        inside, copies = COPY.subn(_to_both, inside)
        inside, arrivals = ARRIVAL.subn(_to_the_other, inside)
        if not end or not copies + arrivals or "shared::cta" in inside:
            what = f"a copy or an arrival: {' '.join(inside.split())[:200]}"
            raise ValueError(NOT_KNOWN.format(what))
        pieces[n] = inside + end + behind
    ptx = BEGIN.join([head, *pieces])
    if MEET not in ptx:
        return ptx
    if len(FIRST_LINE.findall(ptx)) != 1:
        raise ValueError(NOT_KNOWN.format("how it begins"))
    return FIRST_LINE.sub(lambda line: line[0] + _others_arrive(32 * warps), ptx)


def _to_both(copy: re.Match) -> str:
    both = (1 << PAIR) - 1
    return (
        f"cp.async.bulk.tensor.{copy['rank']}.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        f"{copy['operands']}, {both};"
    )


def _to_the_other(arrival: re.Match) -> str:
    return (
        "{ .reg .b32 other, there; mov.u32 other, %cluster_ctarank; xor.b32 other, other, 1; "
        f"mapa.shared::cluster.u32 there, {arrival['at']}, other; "
        f"{arrival['if'] or ''}mbarrier.arrive.shared::cluster.b64 _, [there]; }}"
    )


def _others_arrive(first: int) -> str:
    return (
        "\t{ .reg .pred others; .reg .b32 thread; mov.u32 thread, %tid.x; "
        f"setp.ge.u32 others, thread, {first}; @others barrier.cluster.arrive.release; }}\n"
    )
