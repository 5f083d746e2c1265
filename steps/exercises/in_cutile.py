"""An exercise inside a cuTile kernel, which is also translated as for a GPU, and whose typical mistakes are named."""

from __future__ import annotations

import dataclasses
import random
import re
import textwrap
import traceback
from dataclasses import dataclass

from steps import get_step
from steps.core.fused import FusedStep
from steps.core.tiles import Tile
from steps.cutile.skeleton import signature
from steps.exercises.in_kernel import InKernel
from steps.writing.written import WrittenStep, kernel_in
from tutorial_lib.accuracy import compare
from tutorial_lib.passes import pass_of
from tutorial_lib.problem import Problem
from tutorial_lib.values import alike

TRANSLATED_FOR = "sm_90"


@dataclass(frozen=True, kw_only=True)
class InCuTile(InKernel):
    """tile: of queries and keys, in place of those that the interpreter takes.

    Where the numbers, or the error, are those of one of the wrong answers, the message says which mistake it is:
    ``Wrong.what`` ends the sentence "This is what comes out when ...".
    """

    tile: Tile | None = None

    def whole(self) -> FusedStep:
        return dataclasses.replace(super().whole(), tile=self.tile) if self.tile else super().whole()

    def _on(self, problem: Problem, source: str, chance: random.Random) -> str | None:
        if refused := _refused(self.kernel(problem, source), problem):
            return f"cuTile cannot translate the kernel with your function in it:\n\n```\n{refused}\n```"
        same = random.Random()
        same.setstate(chance.getstate())
        try:
            wrong = super()._on(problem, source, chance)
        except Exception as error:
            wrong = f"{_told(error)}{self._line(error)}."
        if wrong and (known := self._recognised(problem, source, same.getrandbits(32))):
            return f"{wrong} **This is what comes out when {known}.**"
        return wrong

    def _line(self, error: Exception) -> str:
        """Where in the learner's function an error arose."""
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.name == self.function]
        return f", in `{frames[-1].line}`" if frames else ""

    def _recognised(self, problem: Problem, source: str, seed: int) -> str | None:
        """The one mistake among the wrong answers that gives the same numbers, or the same error; or None."""
        kind = pass_of(get_step(self.step))
        inputs = kind.inputs(problem, seed)
        [exact] = references = kind.reference(problem, inputs)
        [allowed] = kind.yardstick(problem, inputs, references)

        def outcome(text: str):
            [out] = outputs = kind.poisoned(inputs)
            try:
                kind.call(self.kernel(problem, text), problem, inputs, outputs)
            except Exception as error:
                return _told(error)
            return out

        mine = outcome(source)
        limit = 0.0 if isinstance(mine, str) else compare(mine, exact, allowed).limit
        found = [wrong.what for wrong in self.wrong if alike(mine, outcome(self.wrong_source(wrong)), limit)]
        return found[0] if len(found) == 1 else None


def _told(error: Exception) -> str:
    return f"`{type(error).__name__}`: {error}"


def _refused(step: WrittenStep, problem: Problem) -> str | None:
    """What cuTile says of a kernel that it cannot translate, with the line that it is about."""
    import io

    from cuda.tile import TileError
    from cuda.tile.compilation import export_kernel

    kernel, how = step.base.compiled_when_launched(kernel_in(step.text)), {"output_format": "tileir_bytecode"}
    try:
        export_kernel(kernel, [signature(problem)], io.BytesIO(), gpu_code=TRANSLATED_FOR, **how)
    except TileError as error:
        told = [line for line in str(error).splitlines() if line.strip()]
        shown = [line for line in told[1:] if not line.lstrip().startswith('"')][-2:]  # of the innermost call
        first = re.sub(r" \(line \d+\)", "", told[0])
        return "\n".join([first, *textwrap.dedent("\n".join(shown)).splitlines()])
    return None
