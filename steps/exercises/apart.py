"""Storing the output in halves, with a read of Q that keeps its place in shared memory from the output."""

import dataclasses
from dataclasses import dataclass

from steps import get_step
from steps.core.problems import standard
from steps.exercises.in_kernel import InKernel
from steps.writing.written import write_step
from tutorial_lib.exercises import Wrong, source_of

SHORT = standard(1024, head_dim=64, causal=True)  # what the compiler is asked about


@dataclass(frozen=True, kw_only=True)
class Apart(InKernel):
    """Right numbers are not enough: the compiler must find the output a place of its own."""

    def judge(self, function, chance):
        if wrong := super().judge(function, chance):
            return wrong
        source = source_of(function)
        before = get_step("mask_loop").compile(SHORT).shared_bytes
        step = write_step(get_step(self.step), SHORT)
        mine = (
            dataclasses.replace(step, text=self._filled(step.text, source), name=self.name).compile(SHORT).shared_bytes
        )
        if mine < before + SHORT.head_dim * 64:  # not even half of the output
            return (
                f"The output is right. But compiled for {SHORT.describe()}, your kernel takes {mine:,} bytes of shared "
                f"memory, and step mask_loop takes {before:,}: so the output still leaves through Q's place. Behind "
                "the loop something must read q, in a way that the compiler cannot leave out."
            )
        return None


EXERCISE = Apart(
    name="apart",
    step="apart",
    function="store_in_halves",
    kinds=({"causal": True, "heads": 1},),
    lengths=(130, 200),
    edits=(
        (
            """        half = (TILE_QUERY, HEAD_DIM // 2)
        left, right = ct.extract(o, (0, 0), half), ct.extract(o, (0, 1), half)
        # The scale is never negative. But so Q is read once more, and its place is not free for the output.
        left = ct.where(scale < 0, ct.extract(q, (0, 0), half), left)
        ct.store(Out, (batch, head, i, 0), ct.reshape(left, (1, 1, *half)))
        ct.store(Out, (batch, head, i, 1), ct.reshape(right, (1, 1, *half)))
""",
            "        store_in_halves(Out, o, q, scale, i, head, batch)\n",
        ),
    ),
    hints=(
        "The store's index counts in tiles of the shape that is stored. A tile of half as many columns has the index 0 "
        "or 1 along head_dim.",
        "You need a choice between the left half of the output and that of q, whose condition is never true, but only "
        "when the kernel runs. The scale is never negative.",
        "left = ct.where(scale < 0, ct.extract(q, (0, 0), half), left), then one store at (batch, head, i, 0), and one "
        "of the right half at (batch, head, i, 1).",
    ),
    solution="""
def store_in_halves(Out, o, q, scale, i, head, batch):
    half = (TILE_QUERY, HEAD_DIM // 2)
    left, right = ct.extract(o, (0, 0), half), ct.extract(o, (0, 1), half)
    left = ct.where(scale < 0, ct.extract(q, (0, 0), half), left)
    ct.store(Out, (batch, head, i, 0), ct.reshape(left, (1, 1, *half)))
    ct.store(Out, (batch, head, i, 1), ct.reshape(right, (1, 1, *half)))
""",
    wrong=(
        Wrong(
            "q is not read",
            "through Q's place",
            old="    left = ct.where(scale < 0, ct.extract(q, (0, 0), half), left)\n",
            new="",
        ),
        Wrong(
            "q is read, and nothing is made of it",
            "through Q's place",
            old="left = ct.where(scale < 0, ct.extract(q, (0, 0), half), left)",
            new="unused = ct.extract(q, (0, 0), half)",
        ),
        Wrong(
            "the index counts columns",
            "outside the array",
            old="(batch, head, i, 1)",
            new="(batch, head, i, HEAD_DIM // 2)",
        ),
        Wrong("both halves in the same place", "column 0", old="(batch, head, i, 1)", new="(batch, head, i, 0)"),
        Wrong("the halves are swapped", "column 0", old="left, right = ", new="right, left = "),
        Wrong("the choice is the wrong way round", "column 0", old="scale < 0", new="scale > 0"),
    ),
    debrief="You cannot tell cuTile where a tile lies, but you can give it a reason. Whether the reason is good enough "
    "is seen in the compiled kernel, not in its results.",
)
