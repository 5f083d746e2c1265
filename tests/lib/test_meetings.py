"""Which meetings of a group's warps are taken out of a kernel's PTX, and what is refused."""

import pytest

from tutorial_lib import multicast, rewriting
from tutorial_lib.meetings import MARK, VERSION, without

MEET = "\tbar.sync \t2, 128;"
LOC = "\t.loc\t1 2 3"
ADD = "\tadd.s32 \t%r1, %r2, %r3;"
WAIT = "\tmbarrier.try_wait.parity.shared.b64 complete, [%r1], %r2;"
ARRIVE = "\t@%p1 mbarrier.arrive.shared::cta.b64 _, [%r1];"
EXPECT = "\t@%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r1], 32768;"
BEGIN = "\twgmma.commit_group.sync.aligned;"
COMPLETE = "\twgmma.wait_group.sync.aligned 0;"
WRITE = "\tstmatrix.sync.aligned.m8n8.x4.shared.b16 [%r1], {%r2, %r3, %r4, %r5};"
STORE = "\t@%p1 cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%rd1, {%r1, %r2}], [%r3];"
READ = "\tcp.async.bulk.wait_group.read \t0;"
LABEL = "$L__BB0_9:"


def ptx(*lines: str) -> str:
    return "\n".join((f"\t{MARK}", *lines)) + "\n"


def left(*lines: str) -> list[str]:
    return without(ptx(*lines)).splitlines()[1:]


@pytest.mark.parametrize(
    ("before", "behind"),
    [
        ([], [WAIT]),
        ([LABEL], [LOC, ADD, WAIT]),
        ([MEET, ARRIVE], [WAIT]),
        ([BEGIN, COMPLETE, LOC, ADD], [ADD, ARRIVE]),
    ],
)
def test_in_front_of_waits_and_behind_complete_products_they_go(before, behind):
    made = left(*before, MEET, *behind)
    assert made == [*before, *behind]


def test_of_arrivals_behind_a_complete_product_all_lose_theirs():
    assert left(COMPLETE, MEET, ARRIVE, MEET, ARRIVE, MEET, WAIT) == [COMPLETE, ARRIVE, ARRIVE, WAIT]


@pytest.mark.parametrize(
    "lines",
    [
        [WAIT, MEET, ARRIVE],
        [COMPLETE, BEGIN, MEET, ARRIVE],
        [COMPLETE, LABEL, MEET, ARRIVE],
        [COMPLETE, READ, MEET, ARRIVE],
        [COMPLETE, "\tfence.proxy.async.shared::cta;", MEET, ARRIVE],
        [COMPLETE, "\tsetmaxnreg.dec.sync.aligned.u32 \t24;", MEET, ARRIVE],
        [COMPLETE, "\tst.global.b32 \t[%rd1], %r1;", MEET, ARRIVE],
        [COMPLETE, "\tbrx.idx \t%r1, $L_brx_0;", MEET, ARRIVE],
        [COMPLETE, MEET, "{ .reg .b32 there; mbarrier.arrive.shared::cluster.b64 _, [there]; }", WAIT],
        [COMPLETE, READ, MEET, WRITE, WRITE],
        [WRITE.replace("stmatrix", "fence.proxy.async"), MEET, STORE],
        [COMPLETE, MEET, "\tbra.uni \t$L__BB0_9;", LABEL],
        [EXPECT, WAIT],
    ],
)
def test_all_others_stay(lines):
    assert left(*lines) == lines


JUMP, JUMP_OR_NOT, JUMP_ANYWHERE = "\tbra.uni \t$L__BB0_9;", "\t@%p2 bra \t$L__BB0_9;", "\tbrx.idx \t%r3, $L_brx_0;"


@pytest.mark.parametrize(
    "unknown",
    [
        ["\tld.shared.b32 \t%r1, [%r2];"],
        ["\tst.shared.b32 \t[%r1], %r2;"],
        ["\tatom.shared.add.u32 \t%r1, [%r2], 1;"],
        ["\tred.shared.add.u32 \t[%r2], 1;"],
        ["\tld.volatile.shared.b32 \t%r1, [%r2];"],
        ["\tld.shared.b32 \t%r1, [global_smem+8];"],
        ["\tst.shared.b32 \t[global_smem+8], %r1;"],
        ["\tmbarrier.arrive.release.cta.shared::cta.b64 _, [%r1];"],
        [WAIT, ARRIVE],
        [MEET, WRITE, ARRIVE],
        [READ, WRITE],
        [MEET, WRITE, WAIT, STORE],
        [MEET, WRITE, JUMP_OR_NOT, MEET, "$L__BB0_9:", STORE],
    ],
)
def test_what_may_lean_on_a_meeting_is_refused_in_one_line(unknown):
    with pytest.raises(ValueError, match=r"written for the PTX of Triton 3\.6 to 3\.9, .*: \S+") as error:
        left(COMPLETE, MEET, ARRIVE, MEET, WAIT, *unknown)
    assert "\n" not in str(error.value)


def test_tma_stores_behind_any_meeting_that_stays():
    """In front of its store Triton 3.9 leaves a meeting out where warps have met since they wrote."""
    written = [MEET, WRITE, MEET, ARRIVE]
    assert left(COMPLETE, MEET, ARRIVE, *written, WAIT, STORE) == [COMPLETE, ARRIVE, *written, WAIT, STORE]


def test_behind_a_wait_a_complete_product_counts_no_more():
    """A group passes over a tile: one warp might arrive while another has not begun to wait."""
    assert left(COMPLETE, MEET, ARRIVE, MEET, WAIT, MEET, ARRIVE) == [COMPLETE, ARRIVE, WAIT, MEET, ARRIVE]


def test_a_compiled_kernel_is_kept_under_a_name_that_tells_what_was_taken_out():
    assert VERSION in MARK and VERSION in rewriting.VERSION and multicast.VERSION in rewriting.VERSION


def test_how_warps_learn_their_roles_leans_on_none():
    roles = ["\tst.shared.b32 \t[global_smem+139688], 67240707;", "\tld.shared.b8 \t%r1, [%r2+139676];"]
    assert left(*roles, MEET, WAIT) == [*roles, WAIT]


def test_without_the_comment_nothing_changes_and_something_else_may_take_their_places():
    text = ptx(COMPLETE, MEET, ARRIVE, MEET, WAIT)
    unmarked = text.replace(MARK, "// a comment")
    assert without(unmarked) == unmarked
    assert "bar.sync" not in without(text.replace(VERSION, "an older one"))
    assert without(text, "nap\n").count("nap\n") == 2


LOAD = "\tldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1, %r2, %r3, %r4}, [%r9];"
TAKES = "\twgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {%r5,%r6}, {%r1,%r2,%r3,%r4}, %rd1;"
OTHER = "\twgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {%r5,%r6}, %rd1, %rd2;"
OLDER_COMPLETE = COMPLETE.replace("0;", "1;")
END = [COMPLETE, MEET, ARRIVE]


@pytest.mark.parametrize(
    ("lines", "stays"),
    [
        ([OTHER, *END], False),
        ([LOAD, TAKES, BEGIN, *END], False),
        ([OTHER, BEGIN, LOAD, TAKES, BEGIN, OLDER_COMPLETE, *END[1:]], True),  # begun, and not complete
        ([LOAD, TAKES, BEGIN, OTHER, BEGIN, OLDER_COMPLETE, *END[1:]], False),
        ([LOAD, TAKES, *END], True),  # begun and in no batch, so no wait is for it
        ([LOAD, OTHER, *END], True),  # begun behind the load, but it does not need it
        ([LOAD, TAKES.replace("{%r1,", "{%r8,"), BEGIN, *END], True),  # one register of the load is not taken
        ([TAKES, LOAD, *END], True),
        ([*END, LOAD], False),
        ([LOAD, MEET, WRITE, OTHER, *END], False),  # all have met, and that meeting stays
        ([LOAD, JUMP_OR_NOT, TAKES, LABEL, OTHER, *END], True),  # on one of two ways it is taken
        ([LOAD, TAKES, BEGIN, JUMP, LOAD, LABEL, OTHER, *END], False),  # the second load never is
        ([LABEL, OTHER, *END, LOAD, JUMP], True),  # round a loop
        ([LABEL, OTHER, BEGIN, *END, LOAD, TAKES, BEGIN, JUMP], False),
        ([JUMP, OTHER, *END, LABEL], True),  # no way leads to the meeting
        ([JUMP_OR_NOT, LOAD, JUMP_ANYWHERE, LABEL, OTHER, *END], True),  # to any label
    ],
)
def test_a_meeting_stays_where_on_any_way_a_load_is_not_behind_a_complete_product(lines, stays):
    at = next(n for n, line in enumerate(lines) if lines[n : n + 2] == END[1:])
    assert left(*lines) == (lines if stays else [*lines[:at], *lines[at + 1 :]])


def test_a_meeting_that_goes_holds_up_no_load():
    assert left(LOAD, MEET, WAIT, OTHER, *END) == [LOAD, WAIT, OTHER, *END]
