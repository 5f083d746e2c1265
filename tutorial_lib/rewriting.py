"""What Triton has no words for: written into the PTX that it makes (``multicast``), or taken out (``meetings``).

And what ptxas makes better code of when it stands elsewhere (``descriptors``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tutorial_lib import descriptors, meetings, multicast

# Part of the name under which a compiled kernel is kept.
VERSION = f"{multicast.VERSION}, meetings {meetings.VERSION}, descriptors {descriptors.VERSION}"


def rewritten(ptx: str, warps: int) -> str:
    """The PTX of a kernel as its comments ask for it, and descriptors where they are used.

    warps: with which a block begins.

    Raises ValueError where the PTX of a pair of blocks is not as known.
    """
    return descriptors.where_used(meetings.without(multicast.rewritten(ptx, warps)))


@contextmanager
def written_into_ptx() -> Iterator[None]:
    """Inside, Triton's compiler has its PTX rewritten. For one thread at a time."""
    from triton import knobs

    def stages_are_added(compiler=None, stages=None, options=None, language=None, capability=None):
        if stages is None:  # Triton asks by what it should know the compiled kernel
            return VERSION, VERSION
        made = stages["ptx"]
        stages["ptx"] = lambda source, metadata: rewritten(made(source, metadata), options.num_warps)

    with knobs.runtime.scope():
        knobs.runtime.add_stages_inspection_hook = stages_are_added
        yield
