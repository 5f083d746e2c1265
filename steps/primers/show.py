"""What a chapter shows of a small kernel: its text, and the instructions that the compiler made of it."""

from __future__ import annotations

import inspect
import re

from tutorial_lib.display import Html, Page, code


def source(*kernels) -> Page:
    """The text of kernels."""
    return Page(code("\n\n".join(inspect.getsource(kernel.fn) for kernel in kernels)))


def instructions(kernel, arguments: tuple, warps: int, pattern: str, arch: str = "sm_90") -> Page:
    """The machine instructions that match, in their order. arguments: what a launch passes."""
    found = matching(kernel, arguments, warps, pattern, arch)
    told = f"Kernel `{kernel.fn.__name__}`, compiled for {arch}: {len(found)} instructions match `{pattern}`."
    return Page(told, Html(f"<pre>{chr(10).join(found)}</pre>", "\n".join(found)))


def matching(kernel, arguments: tuple, warps: int, pattern: str, arch: str = "sm_90") -> list[str]:
    """As ``instructions``, as text."""
    import torch

    from tutorial_lib import compiler, sass

    known = tuple(
        compiler.Placeholder(tuple(x.shape), str(x.dtype).removeprefix("torch.")) if isinstance(x, torch.Tensor) else x
        for x in arguments
    )
    made = compiler.compile_gluon(kernel, known, warps, arch, 1)
    return [one.text for one in sass.parse(made.sass or "") if re.search(pattern, one.text)]
