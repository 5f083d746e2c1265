"""The ladder: its parts in their order, and the steps that stand in their folders.

A step is found by its file: ``steps/<part>/stepNNN_name.py`` holds ``STEP``, whose number is NNN and whose name is
``name``. ``INSIDE``, where a module has it, holds variants, steps without a number: what the step was put together
from, what else was tried on it, and over several GPUs the other direction. They are measured by name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from tutorial_lib.naming import STEPS_LISTED, unknown
from tutorial_lib.needs import stood_in_for

ROOT = Path(__file__).resolve().parent.parent
KERNELS = ROOT / "kernels"
FILE = re.compile(r"step(?P<number>\d\d\d)_(?P<name>\w+)")


@dataclass(frozen=True)
class Part:
    """A part of the course. numbers: a hundred, of its steps; folders: where they stand.

    untimed: why no GPU could run its steps, as a clause; empty where one could. Untimed steps are compiled, and run on
    the CPU. Which steps of the other parts were timed, and on which problems, is told by the records alone.
    """

    name: str
    title: str
    numbers: range
    folders: tuple[str, ...]
    untimed: str = ""

    @property
    def timed(self) -> bool:
        """Whether there was a GPU to time its steps on."""
        return not self.untimed


NO_SUCH_GPU = "no such GPU was at hand"

PARTS = (
    Part("cutile", "cuTile: the compiler decides about shared memory and warps", range(100), ("reference", "cutile")),
    Part("gluon", "Gluon: shared memory and warps by hand, on every GPU since Ampere", range(100, 200), ("gluon",)),
    Part("hopper", "Hopper: TMA, wgmma and warps with roles, in Gluon", range(200, 300), ("hopper",)),
    Part("fp8", "fp8: inputs of 8 bits, for Hopper, in Gluon and cuTile", range(300, 400), ("fp8",)),
    Part("backward", "The backward pass in cuTile", range(400, 500), ("backward_cutile",)),
    Part("backward_hopper", "The backward pass for Hopper, in Gluon", range(500, 600), ("backward_hopper",)),
    Part(
        "blackwell",
        "Blackwell: tensor memory and tcgen05, compiled and simulated, not timed",
        range(600, 700),
        ("blackwell", "backward_blackwell"),
        untimed=NO_SUCH_GPU,
    ),
    Part("cdna", "AMD CDNA: MFMA and LDS, compiled and simulated, not timed", range(700, 800), ("cdna",), NO_SUCH_GPU),
    Part("parallel", "Several GPUs: one sequence over all of them", range(800, 900), ("parallel",)),
    Part("everyday", "Everyday problems: grouped heads, decoding, masks", range(900, 1000), ("everyday",)),
)

# What steps were called before: in old records, links and answers they are found under their new names.
OLD_NAMES = {
    "turns": "three_warpgroups",
    "early_query": "split_epilogue",
    "eight_warps": "larger_tile",
    "large_tile": "larger_tile_four_warps",
    "stay": "persistent",
    "apart": "output_buffer",
    "counted": "static_scheduler",
    "sections": "l2_aware",
    "found": "autotuned",
    "halves": "intra_tile_overlap",
    "wide_block": "gluon_larger_tile",
    "fine_grained": "head_dim_tiling",
    "shared_kv": "shared_kv_buffer",
    "registers": "register_reallocation",
    "overlap": "intra_warpgroup_overlap",
    "dealt": "lpt_scheduler",
    "linked": "epilogue_overlap",
    "room": "split_epilogue",
    "three_groups": "three_warpgroups",
    "third_group": "three_warpgroups_unordered",
    "own_end": "warpgroup_causal_bound",
    "lean_sum": "hopper_deferred_sum",
    "at_maxima": "pv_wait_after_max",
    "late_wait": "pv_wait_after_softmax",
    "diagonal_first": "reverse_kv_order",
    "computed_tiles": "hopper_static_scheduler",
    "pieces": "split_head_dim",
    "even_end": "balanced_tail",
    "four_chains": "row_max_ilp",
    "chains_in_pairs": "row_max_ilp_multicast",
    "no_meetings": "no_redundant_barriers",
    "quarter_query": "quarter_q_registers",
    "softmax_ahead": "next_softmax_first",
    "relaxed": "relaxed_atomics",
    "atomics": "ordered_atomics",
    "folded": "folded_lse",
    "prepared": "preprocess_kernel",
    "on_its_side": "transposed_scores",
    "under_way": "async_products",
    "fours": "vectorized_atomics",
    "reduction": "tma_reduce_add",
    "groups_apart": "decoupled_warpgroups",
    "in_turn": "deterministic",
    "alternate": "backward_ping_pong",
    "in_sections": "l2_aware_lpt",
    "even_banks": "conflict_free_layout",
    "last_scales": "last_block_scales",
    "spare_warps": "fused_pre_post",
    "adder": "dq_writer_warp",
    "two_adders": "two_dq_writers",
    "sections_in_turn": "deterministic_l2_aware",
    "short_turns": "fast_deterministic",
    "heads_apart": "cta_per_query_head",
    "freed_together": "joint_release",
    "keys_kept": "k_registers",
    "zeros_ahead": "tma_zero_fill",
    "whole_lines": "coalesced_atomics",
    "early": "dependent_launch",
    "fence_behind": "deferred_fence",
    "no_turns": "unordered_softmax",
    "from_row_sums": "delta_accumulator",
    "added_later": "deferred_reduce_add",
    "correction": "correction_warpgroup",
    "threshold": "lazy_rescaling",
    "polynomial": "exp2_emulation",
    "lasting_blocks": "blackwell_persistent",
    "taken": "dynamic_scheduler",
    "pair": "two_cta_mma",
    "direct": "direct_to_lds",
    "priorities": "wave_priorities",
    "heads_first": "xcd_swizzle",
    "two_buffers": "double_buffering",
    "two_buffers_gradients": "double_buffering_gradients",
    "tiles_taken": "parallel_dynamic_scheduler",
    "split_keys": "split_kv",
    "last_merges": "last_block_merges",
}
# The numbers that steps had before the parts were numbered in hundreds: the first of a run, and the names in order.
# Where today's ladder has such a number, that is meant.
NUMBERED_BEFORE = {
    12: "counted cluster sections found halves",
    20: "explicit swizzle split_q stages wide_block shared_kv q_registers fine_grained",
    30: (
        "wgmma producer registers overlap dealt linked three_groups own_end room at_maxima sdpa_gradients formulas "
        "atomics relaxed folded two_kernels mask_loops longest_first prepared two_blocks on_its_side under_way "
        "fours reduction groups_apart in_turn in_sections alternate even_banks two_streams tensor_memory warp_roles "
        "correction threshold polynomial lasting_blocks pair taken multicast"
    ),
    70: "plain_triton mfma direct scaled_query vote priorities heads_first by_shape",
    80: (
        "gather ring two_buffers zigzag ulysses gather_gradients ring_gradients two_buffers_gradients "
        "zigzag_gradients ulysses_gradients deferred_sum ping_pong lean_sum diagonal_first"
    ),
    108: "window soft_cap varlen",
    112: "pack_gqa",
    115: "hopper_window hopper_varlen hopper_soft_cap",
    120: "kv_multicast four_chains chains_in_pairs no_meetings quarter_query softmax_ahead",
    130: (
        "last_scales spare_warps adder heads_apart freed_together keys_kept zeros_ahead whole_lines early "
        "newest_first pieces even_end computed_tiles"
    ),
    150: "copy_engines copy_engines_gradients tiles_taken",
    160: "sections_in_turn two_adders fence_behind no_turns from_row_sums added_later short_turns",
}


class Deleted(NamedTuple):
    """A step that is no more. nearest: the step whose chapter has a row for it. What is recorded of it stays."""

    nearest: str
    change: str


DELETED = {
    "one_loop": Deleted("persistent", "The loops over tiles of queries and over tiles of keys were one."),
    "two_streams": Deleted("backward_ping_pong", "A call was cut in two halves, which ran on two streams."),
    "last_block_scales": Deleted("backward_ping_pong", "The last block of a head scaled dQ, in place of a kernel."),
}


def today(name: str | None) -> str | None:
    """What a step, or an exercise that is named for one, is called now; other names stay as they are."""
    while name in OLD_NAMES:
        name = OLD_NAMES[name]
    return name


def part_of(number: int) -> Part:
    """The part that a step's number belongs to; raises ValueError for a number of no part."""
    for part in PARTS:
        if number in part.numbers:
            return part
    raise ValueError(f"a step's number must be one of a part ({', '.join(map(_span, PARTS))}), got {number}")


def _span(part: Part) -> str:
    return f"{part.name} {part.numbers[0]} to {part.numbers[-1]}"


@cache
def _load() -> tuple[tuple, tuple]:
    """(all steps, part by part in the order of their numbers, of both directions; their variants)."""
    found, inside = {}, []
    for part in PARTS:
        for folder in part.folders:
            for path in sorted((ROOT / folder).glob("step*.py")):
                named = FILE.fullmatch(path.stem)
                if not named or int(named["number"]) not in part.numbers:
                    raise ValueError(f"{path}: a step of this folder is stepNNN_name.py with NNN of {_span(part)}")
                with stood_in_for():
                    module = import_module(f"steps.{folder}.{path.stem}")
                step = module.STEP
                if (step.number, step.name) != (int(named["number"]), named["name"]):
                    raise ValueError(f"{path} must hold the step of its file's name, got {step.label}")
                if step.number in found:
                    raise ValueError(
                        f"step {step.number} must be there once, got {found[step.number].name}, {step.name}"
                    )
                found[step.number] = step
                inside += getattr(module, "INSIDE", ())
    if old := [step.name for step in (*found.values(), *inside) if step.name in OLD_NAMES or step.name in DELETED]:
        told = f"(steps/core/ladder.py), got {old[0]}"
        raise ValueError(f"a step must not be called what another one was called before {told}")
    return tuple(found[number] for part in PARTS for number in part.numbers if number in found), tuple(inside)


def __getattr__(name: str):
    if name == "STEPS":
        return steps_of("forward")
    if name == "GRADIENTS":
        return steps_of("backward")
    if name == "PAGED":
        return steps_of("paged")
    if name == "QUANTIZED":
        return steps_of("fp8")
    if name == "PARALLEL":
        return tuple(step for step in whole_ladder() if step.several)
    if name == "INSIDE":
        return _load()[1]
    raise AttributeError(f"module 'steps.core.ladder' has no attribute {name!r}")


def whole_ladder() -> tuple:
    """All steps, part by part in the order of their numbers, and the variants inside them."""
    steps, inside = _load()
    return (*steps, *inside)


def line(step) -> list[str]:
    """The names of a step and of all that it stands on, the nearest first."""
    found = []
    while step is not None:
        found.append(step.name)
        step = step.previous
    return found


def steps_of(direction: str) -> tuple:
    """The steps that compute this pass on one device, part by part, in the order of their numbers."""
    return tuple(step for step in _load()[0] if step.direction == direction and not step.several)


def kernels_of(direction: str) -> tuple:
    """All that compute this pass on one device: the steps with a number, and behind them the variants inside them."""
    return tuple(step for step in whole_ladder() if step.direction == direction and not step.several)


@cache
def _by_key() -> dict[str, object]:
    """All steps, and the variants inside them, by name, by number, and by the number that they had before."""
    steps, inside = _load()
    now = {str(key): step for step in (*inside, *steps) for key in (step.name, step.number) if key is not None}
    before = {number: now.get(name) for number, name in _numbered_before().items()}
    return {number: step for number, step in before.items() if step} | now


@cache
def _numbered_before() -> dict[str, str]:
    """Today's name, or that of one that is no more, of each number that steps had before."""
    runs = {**NUMBERED_BEFORE, 94: "one_loop"}
    return {str(first + n): today(name) for first, run in runs.items() for n, name in enumerate(run.split())}


def get_step(key: int | str):
    """The step with this name ("exp2") or number (3, "3"), or one that is inside another, by its name.

    Raises ValueError that tells the nearest names.
    """
    if (found := _by_key().get(today(str(key)))) is not None:
        return found
    if (gone := DELETED.get(today(_numbered_before().get(str(key), str(key))))) is not None:
        raise ValueError(f"step {key} is no more; the nearest is {gone.nearest}")
    raise ValueError(unknown("step", key, (name for name in _by_key() if not name.isdecimal()), STEPS_LISTED))


def owner_of(step):
    """The step with a number that this one is, or is inside of."""
    return get_step(step.inside) if step.inside else step


def is_variant(step) -> bool:
    """Whether a step stands inside another that computes the same; the other direction of a step is no variant."""
    return step.inside is not None and owner_of(step).direction == step.direction


def called(step) -> str:
    """A step as a sentence names it: "step 3 exp2"; one inside another is "variant cheap_mask"."""
    return f"{'variant' if is_variant(step) else 'step'} {step.label}"


def get_part(name: str) -> Part:
    """The part of this name; raises ValueError that tells the nearest ones, or all: they are few."""
    for part in PARTS:
        if part.name == name:
            return part
    names = [part.name for part in PARTS]
    raise ValueError(unknown("part", name, names, f"the parts are {', '.join(names)}"))


def select(text: str, direction: str | None = "forward") -> list:
    """The steps that a text such as ``all``, ``2-7``, ``hopper`` or ``0,exp2,larger_tile_four_warps`` names, in the
    ladder's order.

    Numbers, ranges of numbers, names of steps and of parts. direction: the pass that they must compute; None: any.
    Raises ValueError.
    """
    steps, inside = _load()
    if text == "all":
        return list(steps_of(direction) if direction else steps)
    parts = {part.name: part for part in PARTS}
    chosen = set()
    for word in map(str.strip, text.split(",")):
        if numbers := numbers_in(word):
            found = {step.name for step in steps if step.number in numbers}
            if not found:
                raise ValueError(f"no step has a number of {word}; {STEPS_LISTED}")
            chosen |= found
        elif word in parts:
            chosen |= {step.name for step in steps if step.number in parts[word].numbers}
        elif word in _by_key() or word in OLD_NAMES or word in DELETED:
            chosen.add(get_step(word).name)
        else:
            names = (name for name in (*_by_key(), *parts) if not name.isdecimal())
            raise ValueError(unknown("step", word, names, STEPS_LISTED))
    found = [step for step in (*steps, *inside) if step.name in chosen]
    if others := [step.label for step in found if direction not in (None, step.direction)]:
        raise ValueError(f"must be steps of the {direction} pass, got {', '.join(others)} (see --direction)")
    return found


def numbers_in(word: str) -> range | None:
    """The numbers that a range such as ``2-7`` names, or None for a word that is no range; raises ValueError."""
    first, dash, last = word.partition("-")
    if not (dash and first.isdecimal() and last.isdecimal()):
        return None
    if int(first) > int(last):
        raise ValueError(f"a range must not run backwards, got {word!r}")
    return range(int(first), int(last) + 1)


def module_file(step) -> str:
    """The file of a step relative to the repository's root, such as ``steps/hopper/step201_producer.py``."""
    owner = owner_of(step)
    [folder] = [
        folder
        for folder in part_of(owner.number).folders
        if (ROOT / folder / f"step{owner.number:03}_{owner.name}.py").exists()
    ]
    return f"steps/{folder}/step{owner.number:03}_{owner.name}.py"


def program_file(step) -> Path:
    """Where the program is kept that ``steps.export`` makes of a step, if it is: named as chapters are."""
    owner = owner_of(step)
    return KERNELS / f"{owner.number:03}_{step.name}.py"
