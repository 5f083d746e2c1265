"""Asynchronous copies: commit two groups, wait for the first, use it, and wait for the second."""

import ast
import re

from tutorial_lib.exercises import Plain, Wrong, define, source_of


def judge(function, chance):
    """The learner's kernel on the simulator: its numbers, its order, and whether copy and use overlap."""
    import torch
    from triton.experimental import gluon
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.language.nvidia.ampere import async_copy

    from steps.primers.first_kernels import PLAIN, TILE, WARPS
    from tutorial_lib.simulator.block import Deadlock, KernelError, Unknown
    from tutorial_lib.simulator.run import launch

    known = {"gl": gl, "async_copy": async_copy, "PLAIN": PLAIN, "TILE": TILE}
    kernel = gluon.jit(define(source_of(function), "double", **known))
    for seed in (None, *(chance.getrandbits(32) for _ in range(4))):
        source = torch.randn(2, 16, 32, generator=torch.Generator().manual_seed(chance.getrandbits(32))).half()
        target = torch.full_like(source, float("nan"))
        try:
            run = launch(kernel, (1,), (source, target), WARPS["double"], trace=True, seed=seed)
        except (Deadlock, KernelError, Unknown) as error:
            return f"The kernel cannot run: {error}"
        if run.found:
            told = re.sub(r"<answer [-0-9a-f]+>:", "line ", next(iter(run.found.values())))
            return f"{_about(run)}The simulator says:\n\n```\n{told}\n```"
        for tile in (0, 1):
            if not torch.equal(target[tile], 2 * source[tile]):
                unwritten = bool(torch.isnan(target[tile]).any())
                what = (
                    "holds NaN: nobody wrote it, or it was read too early" if unwritten else "is not twice its source"
                )
                return f"Tile {tile} of the result {what}."
        if seed is None and (told := _overlap(run) or _order_of_calls(source_of(function))):
            return told
    return None


def _order_of_calls(source: str) -> str | None:
    """What is wrong with the order of the calls. A run does not show it: the simulator has one clock for all warps."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    calls.sort(key=lambda node: (node.lineno, node.col_offset))
    order = [node.func.attr for node in calls if isinstance(node.func, ast.Attribute)]
    copies = [n for n, name in enumerate(order) if name == "async_load"]
    if "wait_group" in order[: copies[-1]]:
        return (
            "The numbers are right, but the block waits for its first copy before it has begun the second. Begin both "
            "copies, and wait behind them."
        )
    waits = [n for n, name in enumerate(order) if name == "wait_group"]
    for tile, load in enumerate(n for n, name in enumerate(order) if name == "load"):
        last = max(n for n in waits if n < load)
        if "barrier" not in order[last:load]:
            return (
                f"The numbers are right, but no `gl.barrier()` stands between the wait and the load of tile {tile}. A "
                "thread has waited for its own copies only, and it reads what other threads have copied. Triton's "
                "compiler would put the barrier in here, and the simulator does as the compiler does. Write it down."
            )
    return None


def _groups(run) -> list[tuple]:
    return [event for event in run.trace if event[1] == "copies"]


def _about(run) -> str:
    """What an order that is wrong comes from, where that is plain to see."""
    if not _groups(run):
        return "No group was committed, so `wait_group` had nothing to wait for. "
    if len(_groups(run)) == 1:
        return (
            "Only one group was committed: `wait_group(1)` allows one group to be under way, and so waits for nothing. "
        )
    return "A tile was read before its copy was known to have ended. "


def _overlap(run) -> str | None:
    """What is wrong with the time at which the first wait ends."""
    groups = _groups(run)
    first_read = next(event[4] for event in run.trace if event[2:4] == ("smem", "load"))
    waited = max(event[5] for event in run.trace if event[2:4] == ("wait", "copies") and event[5] <= first_read)
    if len(groups) == 2 and waited >= groups[1][5]:
        return (
            "The numbers are right, but your first wait lasts until both copies have ended. Let the second one still "
            "be "
            "under way while the first tile is used."
        )
    if len(groups) != 2:
        return (
            f"The numbers are right, but the two copies are committed as {len(groups)} group"
            f"{'s' * (len(groups) > 1)}: then nobody can wait for the first tile alone."
        )
    return None


EXERCISE = Plain(
    name="first_copies",
    function="double",
    by=judge,
    hints=(
        "A wait counts groups, not copies. So each copy needs a group of its own: which call closes a group?",
        "wait_group(n) returns once at most n of the youngest groups are still under way. When the first tile is "
        "read, the "
        "second may be under way. When the second is read, none may.",
        "commit_group() after each copy; wait_group(1) and gl.barrier() before the first load; wait_group(0) and "
        "gl.barrier() before the second.",
    ),
    solution="""
def double(source, target):
    row = gl.arange(0, 16, gl.SliceLayout(1, TILE))
    column = gl.arange(0, 32, gl.SliceLayout(0, TILE))
    place = row[:, None] * 32 + column[None, :]
    tiles = gl.allocate_shared_memory(gl.float16, [2, 16, 32], PLAIN)

    async_copy.async_load(tiles.index(0), source + place)
    async_copy.commit_group()
    async_copy.async_load(tiles.index(1), source + 512 + place)
    async_copy.commit_group()

    async_copy.wait_group(1)
    gl.barrier()
    first = tiles.index(0).load(TILE)
    gl.store(target + place, first + first)

    async_copy.wait_group(0)
    gl.barrier()
    second = tiles.index(1).load(TILE)
    gl.store(target + 512 + place, second + second)
""",
    wrong=(
        Wrong(
            "the first wait is for both", "lasts until both copies have ended", old="wait_group(1)", new="wait_group(0)"
        ),
        Wrong(
            "the second wait is missing",
            "before its copy was known to have ended",
            old="    async_copy.wait_group(0)\n",
            new="",
        ),
        Wrong(
            "no barrier behind the second wait",
            "and the load of tile 1",
            old="    async_copy.wait_group(0)\n    gl.barrier()\n",
            new="    async_copy.wait_group(0)\n",
        ),
        Wrong(
            "the barriers stand before the waits",
            "and the load of tile 0",
            source="""
def double(source, target):
    row = gl.arange(0, 16, gl.SliceLayout(1, TILE))
    column = gl.arange(0, 32, gl.SliceLayout(0, TILE))
    place = row[:, None] * 32 + column[None, :]
    tiles = gl.allocate_shared_memory(gl.float16, [2, 16, 32], PLAIN)
    async_copy.async_load(tiles.index(0), source + place)
    async_copy.commit_group()
    async_copy.async_load(tiles.index(1), source + 512 + place)
    async_copy.commit_group()
    gl.barrier()
    async_copy.wait_group(1)
    first = tiles.index(0).load(TILE)
    gl.store(target + place, first + first)
    gl.barrier()
    async_copy.wait_group(0)
    second = tiles.index(1).load(TILE)
    gl.store(target + 512 + place, second + second)
""",
        ),
        Wrong(
            "the first copy is waited for before the second begins",
            "before it has begun the second",
            source="""
def double(source, target):
    row = gl.arange(0, 16, gl.SliceLayout(1, TILE))
    column = gl.arange(0, 32, gl.SliceLayout(0, TILE))
    place = row[:, None] * 32 + column[None, :]
    tiles = gl.allocate_shared_memory(gl.float16, [2, 16, 32], PLAIN)
    async_copy.async_load(tiles.index(0), source + place)
    async_copy.commit_group()
    async_copy.wait_group(0)
    gl.barrier()
    async_copy.async_load(tiles.index(1), source + 512 + place)
    async_copy.commit_group()
    first = tiles.index(0).load(TILE)
    gl.store(target + place, first + first)
    async_copy.wait_group(0)
    gl.barrier()
    second = tiles.index(1).load(TILE)
    gl.store(target + 512 + place, second + second)
""",
        ),
        Wrong("the second wait leaves one under way", "before its copy", old="wait_group(0)", new="wait_group(1)"),
        Wrong(
            "one group for both, and wait_group(1)",
            "Only one group was committed",
            old="    async_copy.commit_group()\n    async_copy.async_load(tiles.index(1)",
            new="    async_copy.async_load(tiles.index(1)",
        ),
        Wrong(
            "nothing is committed",
            "No group was committed",
            source="""
def double(source, target):
    row = gl.arange(0, 16, gl.SliceLayout(1, TILE))
    column = gl.arange(0, 32, gl.SliceLayout(0, TILE))
    place = row[:, None] * 32 + column[None, :]
    tiles = gl.allocate_shared_memory(gl.float16, [2, 16, 32], PLAIN)
    async_copy.async_load(tiles.index(0), source + place)
    async_copy.async_load(tiles.index(1), source + 512 + place)
    async_copy.wait_group(0)
    gl.barrier()
    first = tiles.index(0).load(TILE)
    gl.store(target + place, first + first)
    second = tiles.index(1).load(TILE)
    gl.store(target + 512 + place, second + second)
""",
        ),
    ),
    debrief="A copy is asked for, its group is committed, and a wait says how many groups may still be under way. "
    "This is "
    "the pattern of every kernel of this part: step stages makes a ring of it.",
)
