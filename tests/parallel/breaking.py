"""``steps.run`` with a fault on rank 1, for ``torchrun -m tests.parallel.breaking FAULT ...``.

dies: it ends in the middle of a call, once all have agreed on it. silent: it never sends anything, and the others
wait for a second.
"""

import os
import sys
import threading
from datetime import timedelta

from steps.parallel.ranks import Passing
from steps.parallel.ring import Ring
from steps.run import main

FAULT = sys.argv.pop(1)
compute = Ring.__call__


def breaking(self, q, k, v, causal, ranks, parts):
    if ranks.own == 1 and FAULT == "dies":
        os._exit(9)
    if ranks.own == 1 and FAULT == "silent":
        threading.Event().wait()
    return compute(self, q, k, v, causal, ranks, parts)


def wait_a_second(self):
    """As ``Passing.wait``, with a timeout of its own: a group's would hold while the processes start, too."""
    with self._ranks.heard():
        for work in self._works:
            work.wait(timedelta(seconds=1))
    return self._into


Ring.__call__ = breaking
if FAULT == "silent":
    Passing.wait = wait_a_second
sys.exit(main())
