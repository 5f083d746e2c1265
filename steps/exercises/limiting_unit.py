"""Which unit of an SM has most to do for a tile, from instructions that are counted in the machine code."""

from __future__ import annotations

import math

from tutorial_lib.exercises import Plain, Wrong

TENSOR, MUFU, FP32, ISSUE, LANES = 4096, 16, 128, 4, 32


def right(operations, mufu, fp32, issued, warps) -> dict[str, float]:
    return {
        "tensor cores": operations / TENSOR,
        "exponentials": mufu * warps * LANES / MUFU,
        "FP32": fp32 * warps * LANES / FP32,
        "issue slots": issued * warps / ISSUE,
    }


def cases(chance):
    """A tile of step pv_wait_after_max at two head_dims, and tiles at which each unit limits.

    In a kernel FP32 never does: its instructions need as many clocks to be issued as to be computed, and others are
    issued, too. So the last case is made up, and has nothing but FP32.
    """
    yield 4 * 128 * 128 * 128, 66, 264, 515, 8
    yield 4 * 128 * 128 * 64, 66, 264, 470, 8
    for unit in ("tensor cores", "exponentials", "issue slots"):
        while True:
            rows, warps = chance.choice([64, 128, 192]), chance.choice([4, 8, 12])
            mufu, fp32 = chance.randint(20, 200), chance.randint(100, 1500)
            found = (
                4 * rows * 128 * chance.choice([32, 64, 128]),
                mufu,
                fp32,
                mufu + fp32 + chance.randint(50, 900),
                warps,
            )
            times = right(*found)
            if max(times, key=times.get) == unit:
                yield found
                break
    yield 0, 0, chance.randint(100, 1500), 0, chance.choice([4, 8, 12])


def judge(function, chance) -> str | None:
    for case in cases(chance):
        times = right(*case)
        unit = max(times, key=times.get)
        call = f"`limiting_unit({', '.join(map(str, case))})`"
        found = function(*case)
        if not (isinstance(found, tuple | list) and len(found) == 2):
            return f"{call} must give a unit and its clocks, and yours gives `{found!r}`."
        name, clocks = found
        if name == unit and math.isclose(clocks, times[unit], rel_tol=1e-9):
            continue
        needs = ", ".join(f"{its} {clocks:,.4g}" for its, clocks in times.items())
        told = f"{call} must give ({unit!r}, {times[unit]:,.4g}), and yours gives ({name!r}, {clocks:,.4g})."
        if name == min(times, key=times.get):
            told += " That is the unit with the least to do."
        elif name in times and name != "tensor cores":
            warps, share = case[-1], clocks / times[name]
            if math.isclose(share, 1 / warps, rel_tol=1e-9):
                told += " The counts are of one warp, and all of them share the unit."
            elif name != "issue slots" and math.isclose(share, 1 / LANES, rel_tol=1e-9):
                told += " An instruction of a warp gives a result for each of its 32 lanes."
            elif name == "issue slots" and math.isclose(share, LANES, rel_tol=1e-9):
                told += " A scheduler issues an instruction for a whole warp at once, not for each of its lanes."
        return f"{told} Clocks that the units need: {needs}."
    return None


EXERCISE = Plain(
    name="limiting_unit",
    function="limiting_unit",
    by=judge,
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
        Wrong("the least", "least to do", old="max(clocks", new="min(clocks"),
        Wrong(
            "one warp for all",
            "Clocks that the units need",
            source="""
def limiting_unit(operations, mufu, fp32, issued, warps):
    clocks = {
        "tensor cores": operations / 4096,
        "exponentials": mufu * 32 / 16,
        "FP32": fp32 * 32 / 128,
        "issue slots": issued / 4,
    }
    unit = max(clocks, key=clocks.get)
    return unit, clocks[unit]
""",
        ),
        Wrong(
            "lanes forgotten",
            "Clocks that the units need",
            source="""
def limiting_unit(operations, mufu, fp32, issued, warps):
    clocks = {
        "tensor cores": operations / 4096,
        "exponentials": mufu * warps / 16,
        "FP32": fp32 * warps / 128,
        "issue slots": issued * warps / 4,
    }
    unit = max(clocks, key=clocks.get)
    return unit, clocks[unit]
""",
        ),
        Wrong(
            "lanes forgotten in float32",
            "each of its 32 lanes",
            old="fp32 * warps * 32 / 128",
            new="fp32 * warps / 128",
        ),
        Wrong(
            "issue slots by lane", "for a whole warp at once", old="issued * warps / 4", new="issued * warps * 32 / 4"
        ),
    ),
    debrief="The unit with most to do is the least time that a tile can take, if everything else hides behind it. A "
    "kernel that takes longer does not lack that unit: something waits.",
)
