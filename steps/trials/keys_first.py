"""Trial: the producer asks for the next keys before it waits for the place of these values.

The stamps of step at_maxima (``python -m steps.trace``) show each consumer wait for keys in every turn, while the
producer waits for a place of values, which consumers free last. The place of the next keys is free long before.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from steps import get_step
from steps.core.problems import FULL, HEADLINE, standard
from steps.trials.trial import Trial


@dataclass(frozen=True)
class KeysFirst(Trial):
    """Off: keys and values of a tile are asked for together."""

    def version(self, value, problem, **named):
        step = get_step(self.base)
        roles = dataclasses.replace(step.roles, keys_first=value == "on")
        return dataclasses.replace(step, roles=roles, **named)


TRIAL = KeysFirst(
    name="keys_first",
    question="Would it be faster to ask for the next keys before waiting for the place of these values?",
    base="at_maxima",
    values=("off", "on"),
    problems=(standard(head_dim=64), FULL, HEADLINE, standard(head_dim=256), standard(16384), standard(1024)),
)
