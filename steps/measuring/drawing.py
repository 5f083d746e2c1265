"""Draws problems from the models that people run (``models.toml``): the same ones for the same seed.

Families take turns, and so do the models of a family. A problem is left out where its inputs do not fit, or where one
call would take long on an H100. Nothing here needs a GPU.
"""

from __future__ import annotations

import math
import random
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path

from tutorial_lib.passes import BACKWARD, FORWARD
from tutorial_lib.problem import Problem

TABLE = Path(__file__).with_name("models.toml")
TIMED = {"forward": (FORWARD,), "backward": (BACKWARD,), "training": (FORWARD, BACKWARD)}  # the passes of a timed call

MOST_BYTES = 8e9  # of inputs and outputs, and of the mask that PyTorch needs for a window
MOST_SECONDS = 0.03  # of a call
FLOPS, BYTES_PER_S = 4e14, 2.5e12  # that an H100 reaches with good kernels, for that guess
TRIES = 1000  # in a row that give nothing new, until a family is given up


@dataclass(frozen=True, kw_only=True)
class Family:
    """What is done with models: a table ``[families.NAME]`` of ``models.toml``, which says what the fields are."""

    name: str
    title: str
    passes: tuple[str, ...]
    causal: bool
    batches: tuple[int, ...]
    dtypes: tuple[str, ...]
    lengths: tuple[int, int] | None = None
    queries: tuple[int, ...] | None = None
    keys: tuple[int, int] | None = None
    turns: int = 1


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model's attention: one of ``[[models]]``. kv_heads None: as many as heads; causal None: as the family."""

    name: str
    families: tuple[str, ...]
    heads: int
    head_dim: int
    source: str
    kv_heads: int | None = None
    lengths: tuple[int, ...] | None = None
    keys: tuple[int, ...] | None = None
    windows: tuple[int, ...] = (0,)
    causal: bool | None = None


@dataclass(frozen=True)
class Drawn:
    """A problem, and whose it is: the names of a family and of a model."""

    problem: Problem
    family: str
    model: str


@cache
def read_models(path: Path = TABLE) -> tuple[dict[str, Family], tuple[Model, ...]]:
    """The families by name, and the models; raises TypeError for a key that is none."""
    with open(path, "rb") as file:
        data = tomllib.load(file)
    families = {name: Family(name=name, **_frozen(fields)) for name, fields in data["families"].items()}
    return families, tuple(Model(**_frozen(fields)) for fields in data["models"])


def _frozen(fields: dict) -> dict:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}


def problems(seed: int, count: int, timed: str) -> list[Drawn]:
    """So many different problems, fewer where there are no more. timed: a key of ``TIMED``.

    The first of a larger ``count`` are those of a smaller one.
    """
    return list(islice(_without_end(seed, timed), count))


def _without_end(seed: int, timed: str) -> Iterator[Drawn]:
    chance = random.Random(f"{seed} {timed}")
    families, models = read_models()
    asked = [family for family in families.values() if timed in family.passes]
    decks = {f.name: _deck(chance, [model for model in models if f.name in model.families]) for f in asked}
    turns = [family for family in asked for _ in range(family.turns)]
    chance.shuffle(turns)
    seen: set[Problem] = set()
    while turns:
        for family in list(turns):
            for model in islice(decks[family.name], TRIES):
                problem = _drawn(chance, family, model)
                if problem not in seen and fits(problem, timed):
                    seen.add(problem)
                    yield Drawn(problem, family.name, model.name)
                    break
            else:
                turns.remove(family)


def _deck(chance: random.Random, models: list[Model]) -> Iterator[Model]:
    """The models without end: all of them in some order, and then again in another."""
    while True:
        yield from chance.sample(models, len(models))


def _drawn(chance: random.Random, family: Family, model: Model) -> Problem:
    own = chance.choice(model.lengths) if model.lengths else None
    if family.queries:
        queries, keys = chance.choice(family.queries), own
    else:
        queries = keys = own or _between(chance, *family.lengths)
    if model.keys:
        keys = chance.choice(model.keys)
    keys = keys or _between(chance, *family.keys)
    window = chance.choice(model.windows)
    causal = family.causal if model.causal is None else model.causal
    return Problem(
        batch=chance.choice(family.batches),
        heads=model.heads,
        kv_heads=model.kv_heads,
        seq_len_q=queries,
        seq_len_kv=keys,
        head_dim=model.head_dim,
        dtype=chance.choice(family.dtypes),
        causal=causal,
        window=window if causal and 0 < window < keys else None,
    )


def _between(chance: random.Random, least: int, most: int) -> int:
    """A length: half of the time a power of two, else any, and as often between 1000 and 2000 as between that and 4000.

    Both bounds are powers of two.
    """
    low, high = math.log2(least), math.log2(most)
    if chance.random() < 0.5:
        return 2 ** chance.randint(round(low), round(high))
    return round(2 ** chance.uniform(low, high))


def fits(problem: Problem, timed: str) -> bool:
    """Whether inputs and outputs fit, and a call takes no longer than ``MOST_SECONDS`` by a guess."""
    passes = TIMED[timed]
    needed = max(one.needed_bytes(problem, check=False) for one in passes)
    seconds = sum(max(one.operations(problem) / FLOPS, one.least_bytes(problem) / BYTES_PER_S) for one in passes)
    return needed <= MOST_BYTES and seconds <= MOST_SECONDS
