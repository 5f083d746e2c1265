"""Which tile a block computes, so that long tiles begin first and heads come in sections."""

from dataclasses import dataclass
from types import SimpleNamespace

from steps.exercises.in_kernel import InKernel
from tutorial_lib.exercises import Wrong, define, source_of


@dataclass(frozen=True, kw_only=True)
class Sections(InKernel):
    """The order is looked at first: every order gives right results, and not every one is this."""

    def judge(self, function, chance):
        source = source_of(function)
        for section, sections, a_head in [
            (2, 3, 4),
            (chance.randint(2, 4), chance.randint(2, 3), chance.randint(3, 6)),
        ]:
            own = define(source, function.__name__, ct=SimpleNamespace(cdiv=lambda a, b: -(-a // b)), SECTION=section)
            told = f"SECTION={section}, {section * sections} heads of {a_head} tiles: "
            for block in range(section * sections * a_head):
                number = block % (section * a_head)
                right = (a_head - 1 - number // section, block // (section * a_head) * section + number % section)
                mine = tuple(own(block, a_head))
                if mine != right:
                    return told + (
                        f"block {block} is number {number} of section {block // (section * a_head)}. It computes tile "
                        f"{right[0]} of head {right[1]}, and yours gives i, head = {mine}."
                    )
        return super().judge(function, chance)


EXERCISE = Sections(
    name="l2_aware",
    step="l2_aware",
    function="place",
    kinds=({"causal": True, "batch": 2, "heads": 2, "kv_heads": 1},),
    lengths=(260, 380),
    replaces="place_in_section",
    hints=(
        "A section has SECTION * tiles_a_head blocks. Which section is a block in, and which of its blocks is it?",
        "In a section the first SECTION blocks compute the longest tile, one for each head. The next SECTION blocks "
        "compute the second longest. So the head changes fastest.",
        "number = block % (SECTION * tiles_a_head); the tile is tiles_a_head - 1 - number // SECTION; the head is the "
        "section's number times SECTION, plus number % SECTION.",
    ),
    solution="""
def place(block, tiles_a_head):
    tiles_a_section = SECTION * tiles_a_head
    number = block % tiles_a_section
    i = tiles_a_head - 1 - number // SECTION
    head = block // tiles_a_section * SECTION + number % SECTION
    return i, head
""",
    wrong=(
        Wrong("the shortest first", "block 0 is number 0", old="tiles_a_head - 1 - number", new="number"),
        Wrong("off by one", "block 0 is number 0", old="tiles_a_head - 1 -", new="tiles_a_head -"),
        Wrong(
            "the tiles change fastest",
            "block 1 is number 1",
            old="""    i = tiles_a_head - 1 - number // SECTION
    head = block // tiles_a_section * SECTION + number % SECTION""",
            new="""    i = tiles_a_head - 1 - number % tiles_a_head
    head = block // tiles_a_section * SECTION + number // tiles_a_head""",
        ),
        Wrong("all sections have the same heads", "of section 1", old="block // tiles_a_section * SECTION + ", new=""),
        Wrong(
            "a section is one head further", "of section 1", old="tiles_a_section * SECTION +", new="tiles_a_section +"
        ),
    ),
    debrief="A block's number is an order in time: the GPU begins blocks by their numbers. A few integer operations "
    "decide which tiles run together, and which begin last.",
)
