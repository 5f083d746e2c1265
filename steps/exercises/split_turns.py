"""How many tiles of keys a launch goes through one after another, for a number of splits."""

from steps.everyday.decoding import START
from tutorial_lib.exercises import Plain, Wrong, first_wrong


def right(splits: int, tiles: int, groups: int, at_a_time: int) -> int:
    """Counted one by one."""
    blocks, turns, share = groups * splits, 0, 0
    while turns * at_a_time < blocks:
        turns += 1
    while share * splits < tiles:
        share += 1
    return turns * (share + START)


def told(splits: int, tiles: int, groups: int, at_a_time: int) -> str:
    return (
        f"There are {groups * splits} blocks, of which the GPU holds {at_a_time} at a time, and each {splits} of them "
        f"share {tiles} tiles of keys."
    )


def judge(function, chance):
    fixed = [(1, 512, 64, 264), (4, 512, 64, 264), (5, 512, 64, 264), (33, 512, 8, 264), (3, 10, 2, 4)]
    drawn = [
        (chance.randint(1, 40), chance.randint(40, 600), chance.randint(1, 300), chance.randint(2, 300))
        for _ in range(20)
    ]
    return first_wrong(function, right, [*fixed, *drawn], told)


EXERCISE = Plain(
    name="split_turns",
    function="tiles_in_turn",
    by=judge,
    hints=(
        "There are groups * splits blocks. The GPU holds at_a_time of them, and takes the next when these have ended. "
        "How many turns does that take?",
        "A block has its share of the tiles, rounded up, and START more for beginning and ending.",
        "turns = -(-groups * splits // at_a_time), which rounds up; share = -(-tiles // splits); the result is turns * "
        "(share + START).",
    ),
    solution=f"""
def tiles_in_turn(splits, tiles, groups, at_a_time):
    START = {START}  # what beginning and ending a block costs, in tiles
    turns = -(-groups * splits // at_a_time)
    share = -(-tiles // splits)
    return turns * (share + START)
""",
    wrong=(
        Wrong(
            "turns are rounded down",
            "There are 64 blocks",
            old="-(-groups * splits // at_a_time)",
            new="groups * splits // at_a_time",
        ),
        Wrong("the share is rounded down", "share 512 tiles of keys", old="-(-tiles // splits)", new="tiles // splits"),
        Wrong("a block begins for nothing", "must be", old="turns * (share + START)", new="turns * share"),
        Wrong("all blocks begin once", "must be", old="turns * (share + START)", new="turns * share + START"),
    ),
    debrief="More splits make a block's share shorter, until the blocks no longer fit on the GPU together: then there "
    "is one more turn. The best numbers are those that just fill it.",
)
