"""What a chapter tells of a small kernel: its text, and the instructions that the compiler made of it."""

from __future__ import annotations

import inspect
import re

from tutorial_lib.display import Page, code


def source(*kernels) -> Page:
    """The text of kernels."""
    return Page(code("\n\n".join(inspect.getsource(kernel.fn) for kernel in kernels)))


def matching(kernel, arguments: tuple, warps: int, pattern: str, arch: str = "sm_90") -> list[str]:
    """The machine instructions that match, in their order. arguments: what a launch passes."""
    import torch

    from tutorial_lib import compiler, sass

    known = tuple(
        compiler.Placeholder(tuple(x.shape), str(x.dtype).removeprefix("torch.")) if isinstance(x, torch.Tensor) else x
        for x in arguments
    )
    made = compiler.compile_gluon(kernel, known, warps, arch, 1)
    return [one.text for one in sass.parse(made.sass or "") if re.search(pattern, one.text)]
