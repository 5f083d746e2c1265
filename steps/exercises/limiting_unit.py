"""Which unit of an SM has most to do for a tile, from instructions that are counted in the machine code."""

from tutorial_lib.exercises import Compared, Wrong

KNOWN = (  # operations, mufu, fp32, issued, warps
    # A tile of step pv_wait_after_max at two head_dims, and tiles at which each unit limits. In a kernel FP32 never
    # does: its instructions need as many clocks to be issued as to be computed, and others are issued, too.
    *((4 * 128 * 128 * 128, 66, 264, 515, 8), (4 * 128 * 128 * 64, 66, 264, 470, 8)),
    *((4 * 64 * 128 * 32, 150, 400, 700, 8), (4 * 64 * 128 * 32, 20, 1000, 1700, 12), (0, 0, 700, 0, 4)),
)


def told(operations, mufu, fp32, issued, warps) -> str:
    needs = {"tensor cores": operations / 4096, "exponentials": mufu * warps * 32 / 16}
    needs |= {"FP32": fp32 * warps * 32 / 128, "issue slots": issued * warps / 4}
    return f"Clocks that the units need: {', '.join(f'{unit} {clocks:,.4g}' for unit, clocks in needs.items())}."


def cases(chance):
    yield from KNOWN
    for _ in range(10):
        mufu, fp32, warps = chance.randint(20, 200), chance.randint(100, 1500), chance.choice([4, 8, 12])
        products = chance.choice([64, 128, 192]) * 128 * chance.choice([32, 64, 128])
        yield 4 * products, mufu, fp32, mufu + fp32 + chance.randint(50, 900), warps


EXERCISE = Compared(
    name="limiting_unit",
    function="limiting_unit",
    cases=cases,
    told=told,
    hints=(
        "For each unit: how much is there to do for a tile, and how much does it do in a clock?",
        "An instruction of a warp gives 32 results, one a lane, and the counts are of one warp. So the exponentials "
        "need mufu * warps * 32 / 16 clocks. A scheduler counts instructions, not results.",
        "Put the four into a dictionary: operations / 4096, mufu * warps * 32 / 16, fp32 * warps * 32 / 128 and "
        "issued * warps / 4. Then max(clocks, key=clocks.get) is the unit.",
    ),
    solution="""
def limiting_unit(operations, mufu, fp32, issued, warps):
    clocks = {
        "tensor cores": operations / 4096,
        "exponentials": mufu * warps * 32 / 16,
        "FP32": fp32 * warps * 32 / 128,
        "issue slots": issued * warps / 4,
    }
    unit = max(clocks, key=clocks.get)
    return unit, clocks[unit]
""",
    wrong=(
        Wrong("it is the unit with the least to do", old="max(clocks", new="min(clocks"),
        Wrong(
            "only one warp is counted: all of them share the units",
            old="clocks[unit]",
            new="clocks[unit] / warps",
        ),
        Wrong(
            "an instruction of a warp gives one result, and not one for each of its 32 lanes",
            old='mufu * warps * 32 / 16,\n        "FP32": fp32 * warps * 32 / 128',
            new='mufu * warps / 16,\n        "FP32": fp32 * warps / 128',
        ),
        Wrong(
            "an instruction of float32 gives one result, and not one for each of its 32 lanes",
            old="fp32 * warps * 32 / 128",
            new="fp32 * warps / 128",
        ),
        Wrong(
            "instructions are issued for each lane, and not for a whole warp at once",
            old="issued * warps / 4",
            new="issued * warps * 32 / 4",
        ),
    ),
    debrief="The unit with most to do is the least time that a tile can take, if everything else hides behind it. A "
    "kernel that takes longer does not lack that unit: something waits.",
)
