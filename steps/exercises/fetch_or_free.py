"""Two CTAs that share what TMA brings: who waits for whom before a copy to both, and who tells whom."""

from steps.exercises.in_kernel import InKernel
from tutorial_lib.exercises import Wrong

# The kernel that steps.show writes holds these pieces inside fetch_or_free; here they have names of their own.
PIECES = """\
@gluon.jit
def announce(ready, ring, stage):
    mbarrier.expect(ready.index(stage), TILE_KEY * HEAD_DIM * ring.dtype.primitive_bitwidth // 8)


@gluon.jit
def fetch_for_both(array, at, ready, place):
    gl.inline_asm_elementwise(
        "// to both CTAs, or to the other:\\n mov.b32 $0, 0;", "=r", [], dtype=gl.int32, is_pure=False, pack=1
    )
    tma.async_copy_global_to_shared(array, at, ready, place)
    gl.inline_asm_elementwise("// to this CTA:\\n mov.b32 $0, 0;", "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def tell_the_other(there):
    gl.inline_asm_elementwise(
        "// to both CTAs, or to the other:\\n mov.b32 $0, 0;", "=r", [], dtype=gl.int32, is_pure=False, pack=1
    )
    mbarrier.arrive(there, count=1)
    gl.inline_asm_elementwise("// to this CTA:\\n mov.b32 $0, 0;", "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def fetch_as_pair("""

OWN_WAIT = "    mbarrier.wait(free.index(stage), turn // STAGES & 1 ^ 1)\n"
OTHERS_WAIT = "        mbarrier.wait(there.index(stage), turn // STAGES & 1)\n"
TELLS = "        tell_the_other(there.index(stage))\n"

EXERCISE = InKernel(
    name="fetch_or_free",
    step="kv_multicast",
    function="fetch_or_free",
    edits=(("@gluon.jit\ndef fetch_as_pair(", PIECES),),
    kinds=(
        {"heads": 1, "head_dim": 128, "causal": True},
        {"heads": 2, "kv_heads": 1, "head_dim": 128, "dtype": "bfloat16"},
    ),
    lengths=(400, 520),
    hints=(),
    solution="""
def fetch_or_free(asks, array, at, ring, ready, free, there, turn):
    stage = turn % STAGES
    mbarrier.wait(free.index(stage), turn // STAGES & 1 ^ 1)
    announce(ready, ring, stage)
    if asks:
        mbarrier.wait(there.index(stage), turn // STAGES & 1)
        fetch_for_both(array, at, ready.index(stage), ring.index(stage))
    else:
        tell_the_other(there.index(stage))
""",
    wrong=(
        Wrong("the other's place is not waited for", "XX", old=OTHERS_WAIT, new=""),
        Wrong("nobody tells", "XX", old=TELLS, new="        pass\n"),
        Wrong(
            "tells before its own place is free",
            "XX",
            source="""
def fetch_or_free(asks, array, at, ring, ready, free, there, turn):
    stage = turn % STAGES
    if asks:
        mbarrier.wait(free.index(stage), turn // STAGES & 1 ^ 1)
        announce(ready, ring, stage)
        mbarrier.wait(there.index(stage), turn // STAGES & 1)
        fetch_for_both(array, at, ready.index(stage), ring.index(stage))
    else:
        tell_the_other(there.index(stage))
        mbarrier.wait(free.index(stage), turn // STAGES & 1 ^ 1)
        announce(ready, ring, stage)
""",
        ),
        Wrong("its own place is not waited for", "XX", old=OWN_WAIT, new=""),
        Wrong(
            "only who asks waits and announces",
            "XX",
            source="""
def fetch_or_free(asks, array, at, ring, ready, free, there, turn):
    stage = turn % STAGES
    if asks:
        mbarrier.wait(free.index(stage), turn // STAGES & 1 ^ 1)
        announce(ready, ring, stage)
        mbarrier.wait(there.index(stage), turn // STAGES & 1)
        fetch_for_both(array, at, ready.index(stage), ring.index(stage))
    else:
        mbarrier.wait(free.index(stage), turn // STAGES & 1 ^ 1)
        tell_the_other(there.index(stage))
""",
        ),
        Wrong(
            "both ask",
            "XX",
            source="""
def fetch_or_free(asks, array, at, ring, ready, free, there, turn):
    stage = turn % STAGES
    mbarrier.wait(free.index(stage), turn // STAGES & 1 ^ 1)
    announce(ready, ring, stage)
    fetch_for_both(array, at, ready.index(stage), ring.index(stage))
""",
        ),
        Wrong(
            "the wait for the other is passable at first",
            "XX",
            old="there.index(stage), turn // STAGES & 1)",
            new="there.index(stage), turn // STAGES & 1 ^ 1)",
        ),
        Wrong(
            "tells the barrier of the place at once, and waits for itself",
            "XX",
            old="tell_the_other(there.index(stage))",
            new="mbarrier.arrive(there.index(stage), count=1)",
        ),
    ),
    debrief="",
)
