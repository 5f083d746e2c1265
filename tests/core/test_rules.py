"""Launch rules: every one compiles for what it is for, fits, and says what spills; what is recorded is what counts."""

import ast
import dataclasses
import json
import re
import tomllib
from itertools import product

import pytest
import torch

from steps import get_step, search
from steps.core import rules
from steps.core.ladder import PARTS
from steps.core.problems import standard
from steps.core.recorded import find_recorded, recorded_search
from steps.core.rules import Rule, rule_for
from steps.core.tiles import IN_PANELS, BlockShape, Tile
from steps.trials import get_trial, recorded_trial
from tests.selection import ROOT, sampled
from tutorial_lib.architectures import ARCHITECTURES, KIB, blocks_per_multiprocessor
from tutorial_lib.files import RESULTS
from tutorial_lib.passes import BACKWARD, FORWARD
from tutorial_lib.problem import FP8

ALL = [rule for kernel in rules.rules().values() for rule in kernel]
COMPILED = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120", "sm_121")
HEAD_DIMS = (32, 64, 128, 256)
OF_GRADIENTS = {
    "keys": ("mask_loops", "keys"),
    "queries": ("mask_loops", "queries"),
    "searched_keys": ("two_blocks", "keys"),
    "searched_queries": ("two_blocks", "queries"),
}
SEARCHED = ("searched_keys", "searched_queries")


def compiled(kernel: str, problem, arch: str):
    """What the compiler makes of the kernel that a rule is for."""
    if kernel in OF_GRADIENTS:
        name, own = OF_GRADIENTS[kernel]
        return get_step(name).configured(problem, arch).compile_one(own, problem, arch)
    names = {"attention": "approx_division", "searched": "autotuned", "hopper": "next_softmax_first"}
    names |= {"hopper_together": "tma_reduce_add", "hopper_apart": "decoupled_warpgroups", "fp8": "p_offset"}
    names["hopper_short"] = "deferred_reduce_add"
    names |= {"hopper": "narrow_values"} if problem.head_dim_v else {}
    names |= {"hopper": "warpgroup_per_query_head"} if problem.window else {}
    problem = dataclasses.replace(problem, dtype=FP8) if kernel == "fp8" else problem
    return get_step(names[kernel]).compile(problem, arch)


def cases() -> list:
    """A launch for every rule, architecture and head_dim that it is for."""
    found = []
    for kernel in rules.rules():
        for arch in COMPILED:
            for head_dim in (*HEAD_DIMS, *[IN_PANELS] * (kernel == "hopper")):
                hopper = kernel.startswith("hopper")
                rule = rule_for(kernel, standard(head_dim=head_dim, causal=True), arch)
                spills = rule is not None and rule.spilled > 0
                # With a mask these are other kernels, most of cuTile's hardly.
                masks = (True, False)[: 1 + (hopper or kernel in SEARCHED or spills)]
                lengths = (4096, 8192, 2048, 1024) if hopper else (4096, 512)  # what steps change depends on these
                for causal, seq_len in product(masks, lengths):
                    problem = standard(seq_len, head_dim=head_dim, causal=causal)
                    problem = dataclasses.replace(problem, head_dim_v=128 if head_dim == IN_PANELS else None)
                    rule = rule_for(kernel, problem, arch)
                    if rule is not None and (arch == "sm_90" or not hopper):
                        name = f"{kernel}-{rule.name}-{arch}-{problem.head_dim}{'-causal' * causal}"
                        name += f"-{seq_len}" * (kernel == "hopper")
                        if all(case.id != name for case in found):
                            found.append(pytest.param(rule, problem, arch, id=name))
    short = product(((1024, 128, 8), (448, 64, 8), (448, 64, 20)), (True, False))
    for seq_len, head_dim, heads, causal in [*((*what, causal) for what, causal in short), (256, 64, 96, False)]:
        problem = dataclasses.replace(standard(seq_len, head_dim, causal), batch=1, heads=heads, kv_heads=heads)
        rule = rule_for("hopper_short", problem, "sm_90")
        name = f"hopper_short-{rule.name}-sm_90-{head_dim}{'-causal' * causal}"
        found.append(pytest.param(rule, problem, "sm_90", id=name))
    for kv_heads in (32, 8):
        problem = dataclasses.replace(standard(head_dim=64, causal=True), kv_heads=kv_heads, window=128)
        rule = rule_for("hopper", problem, "sm_90")
        found.append(pytest.param(rule, problem, "sm_90", id=f"hopper-{rule.name}-sm_90-64-causal-{kv_heads}"))
    for causal in (True, False):
        problem = dataclasses.replace(standard(head_dim=64, causal=causal), softcap=50.0)
        rule = rule_for("hopper_apart", problem, "sm_90")
        found.append(pytest.param(rule, problem, "sm_90", id=f"hopper_apart-{rule.name}-sm_90-64{'-causal' * causal}"))
    return found


@pytest.mark.parametrize(
    ("where", "shape", "others"),
    [
        ("few_blocks", {"heads": 8, "seq_len_kv": 1024}, [{"heads": 8, "seq_len_kv": 1153}, {"heads": 9}]),
        ("few_blocks", {"batch": 33, "heads": 1, "seq_len_kv": 256}, [{"batch": 34}, {"seq_len_kv": 257}]),
        ("few_blocks", {"seq_len_kv": 129}, [{"seq_len_kv": 128}]),
        (
            "two_tiles_of_keys",
            {"heads": 67, "seq_len_q": 256, "seq_len_kv": 256},
            [{"heads": 66}, {"seq_len_q": 257}, {"seq_len_kv": 257}, {"causal": True}],
        ),
        ("two_tiles_of_keys", {"heads": 67, "seq_len_kv": 129}, [{"seq_len_kv": 128}]),
        ("saves_a_tenth_of_rows", {"seq_len_q": 448}, [{"seq_len_q": 384}, {"seq_len_q": 449}, {"seq_len_q": 512}]),
        ("narrow_window", {"causal": True, "window": 256}, [{"window": 257}, {"window": None}]),
        ("soft_cap", {"softcap": 50.0}, [{"softcap": None}]),
        ("saves_a_tenth_of_rows", {"seq_len_q": 513}, [{"seq_len_q": 577}, {"seq_len_q": 641}, {"seq_len_q": 1024}]),
    ],
)
def test_where_a_rule_holds(where, shape, others):
    """few_blocks: 66 of them; two_tiles_of_keys: more; narrow_window: at most 256; saves_a_tenth_of_rows: 64 of 640."""
    problem = dataclasses.replace(standard(128, causal=False), batch=1, heads=1, kv_heads=1)

    def holds(**fields):
        found = dataclasses.replace(problem, **fields)
        return rules.WHERE[where](dataclasses.replace(found, kv_heads=found.heads))

    assert holds(**shape) and not any(holds(**{**shape, **other}) for other in others)
    named = {rule.where for rule in ALL if rule.where}
    assert named == set(rules.WHERE)


@sampled(core=lambda rule, problem, arch: arch == "sm_90")
@pytest.mark.parametrize(("rule", "problem", "arch"), cases())
def test_a_rule_fits_spills_no_more_than_it_says_and_reaches_its_occupancy(rule, problem, arch):
    made = compiled(rule.kernel, problem, arch)
    assert made.shared_bytes <= rules.shared_kib(arch) * KIB
    assert made.spilled_bytes <= rule.spilled
    blocks, _ = blocks_per_multiprocessor(arch, made.threads, made.registers, made.shared_bytes)
    assert blocks >= rule.blocks


def test_what_an_h100_launches_spills_only_by_a_rule_with_a_record():
    for kernel, head_dim, causal, seq_len in product(rules.rules(), HEAD_DIMS, (True, False), (1, 1280, 2048, 8192)):
        rule = rule_for(kernel, standard(seq_len, head_dim, causal), "sm_90")
        assert rule is None or rule.record or not rule.spilled


def test_gpus_of_one_family_take_the_same_rules():
    families = (100, 103, 107, 110), (120, 121), (86, 89)
    for kernel, head_dim, family in product(("attention", "keys", "queries"), HEAD_DIMS, families):
        found = {rule_for(kernel, standard(head_dim=head_dim), f"sm_{n}").name for n in family}
        assert len(found) == 1


def test_where_a_second_loop_would_spill_there_is_one_loop():
    step, problem = get_step("mask_loop"), standard(causal=True)
    loops = {arch: step.variant(problem, arch).mask_loop for arch in (*COMPILED, "cpu")}
    assert {arch for arch, loop in loops.items() if loop is None} == {"sm_80", "sm_86", "sm_89"}
    assert step.compile(problem, "sm_80").spilled_bytes == 0


def test_gradients_with_fewer_queries_spill_no_more_and_are_slower():
    trial = get_trial("fewer_queries")
    runs = recorded_trial(trial, RESULTS)
    assert {run.the_problem() for run in runs} == set(trial.problems)
    for run in runs:
        assert rule_for("hopper_apart", run.the_problem(), "sm_90").name == "SM90_GroupsApart_128x128"
        times = {m.name: [r.latency_ms[m.name] for r in run.rounds] for m in run.steps}
        for step in ("decoupled_warpgroups", "newest_first"):
            spilling, other = times[f"fewer_queries_{step}"], times[f"fewer_queries_{step} with 64"]
            assert max(a / b for a, b in zip(spilling, other, strict=True)) < 1
        apart, apart_fewer, last, last_fewer = (m.resources["spilled_bytes"] for m in run.steps[1:])
        assert apart >= apart_fewer == 0 and last >= last_fewer
        assert not run.the_problem().causal or (apart > 0 and last > last_fewer)


def test_two_warp_groups_that_spill_nothing_are_slower_than_three_in_long_sequences():
    problem = standard(8192, head_dim=64, causal=True)
    assert (
        get_step("epilogue_overlap").compile(problem).spilled_bytes == 0
        and get_step("three_warpgroups").previous.name == "epilogue_overlap"
    )
    assert find_recorded(problem).measurement("three_warpgroups").speedup_vs_previous.verdict == "faster"


def test_short_sequences_have_two_groups_that_spill_nothing_under_a_mask():
    short, longer = (standard(seq_len, head_dim=64, causal=True) for seq_len in (1024, 1280))
    assert (
        get_step("no_redundant_barriers").variant(short).groups,
        get_step("no_redundant_barriers").variant(longer).groups,
    ) == (2, 3)
    assert get_step("no_redundant_barriers").compile(short).spilled_bytes == 0
    assert get_step("no_redundant_barriers").variant(standard(1024, head_dim=64)).groups == 3


def test_at_head_dim_256_no_tile_of_gradients_with_more_keys_fits(monkeypatch):
    from steps.backward_hopper.skeleton import HopperGradients

    larger = dataclasses.replace(
        rule_for("hopper_apart", standard(head_dim=256), "sm_90"), choice=BlockShape(Tile(64, 128))
    )
    monkeypatch.setattr(HopperGradients, "rule", lambda step, problem: larger)
    made = compiled("hopper_apart", standard(head_dim=256), "sm_90")
    assert made.shared_bytes > rules.shared_kib("sm_90") * KIB


def test_every_rule_is_compiled_by_that_test():
    """Or is for the CPU, where nothing is compiled."""
    tried = {(case.values[0].kernel, case.values[0].name) for case in cases()}
    left = {(rule.kernel, rule.name) for rule in ALL} - tried
    assert left == {(kernel, "CPU_Block_64x64") for kernel in ("attention", "keys", "queries")}


@pytest.mark.parametrize("arch", [*ARCHITECTURES, "sm_999", "cpu"])
def test_every_architecture_has_a_rule(arch):
    for kernel, head_dim in product(("attention", "keys", "queries"), HEAD_DIMS):
        assert rule_for(kernel, standard(1, head_dim), arch)


def test_a_name_is_of_one_rule_and_ends_with_its_tile_and_its_record_exists():
    assert len({(rule.kernel, rule.name) for rule in ALL}) == len(ALL)
    for rule in ALL:
        assert re.fullmatch(rf"[A-Z]\w+_{rule.choice.tile.query}x{rule.choice.tile.key}", rule.name)
        assert rule.record is None or (RESULTS / rule.record).exists(), rule.name


def test_what_was_found_is_the_fastest_of_the_recorded_search():
    for (kernel, head_dim, causal), shape in search.fastest(recorded_search("sm_90")).items():
        assert kernel is None
        assert rule_for("searched", standard(head_dim=head_dim, causal=causal), "sm_90").choice == shape
    found = search.fastest(recorded_search("sm_90", direction="backward"))
    kept = {key: shape for key, shape in found.items() if key[0] in ("keys", "queries")}
    assert set(kept) >= set(product(("keys", "queries"), (64, 128), (True, False)))
    for (kernel, head_dim, causal), shape in kept.items():
        assert rule_for(f"searched_{kernel}", standard(head_dim=head_dim, causal=causal), "sm_90").choice == shape


@pytest.mark.parametrize("arch", ["sm_90", "sm_100", "cpu"])
def test_the_backward_step_takes_what_was_found_and_else_what_the_step_before_takes(arch):
    problem = standard(head_dim=64)
    step, before = (get_step(name).configured(problem, arch) for name in ("two_blocks", "preprocess_kernel"))
    assert (step.keys.occupancy, step.queries.occupancy) == ((2, 1) if arch == "sm_90" else (None, None))
    assert (before.keys.occupancy, before.queries.occupancy) == (None, None)
    assert arch == "sm_90" or (step.keys, step.queries) == (before.keys, before.queries)


def test_a_mask_and_head_dim_decide_what_the_backward_step_takes():
    small, large, eight = "SM90_TwoBlocks_64x64", "SM90_TwoBlocks_128x64", "SM90_EightWarps_128x64"
    taken = {(64, True): (small, small), (64, False): (large, eight), (80, False): (small, eight)}  # 80 as 128
    for (head_dim, causal), choices in taken.items():
        assert get_step("two_blocks").choices(standard(head_dim=head_dim, causal=causal), "sm_90") == choices


def test_the_step_takes_what_was_found():
    problem = standard(head_dim=64)
    step, shape = get_step("autotuned").configured(problem, "sm_90"), rule_for("searched", problem, "sm_90").choice
    assert (step.tile, step.warps, step.cluster, step.occupancy) == (shape.tile, shape.warps, shape.cluster, 2)
    assert not step.searched
    short, longer = (get_step("autotuned").configured(standard(n, head_dim=64), "sm_90") for n in (1023, 1024))
    assert (short.tile, short.occupancy, longer) == (Tile(64, 64), 4, step)


def test_where_nothing_was_searched_the_step_is_the_one_before():
    step = get_step("autotuned")
    assert step.configured(standard(), "sm_80").holes() == step.previous.holes()


def test_the_first_rule_whose_conditions_hold_counts(monkeypatch):
    def rule(name, **conditions):
        return Rule(name=name, kernel="k", choice=BlockShape(Tile(64, 64)), **conditions)

    rows = (
        rule("long", seq_len=8192, architectures=("sm_90",)),
        rule("many", batch=16, causal=True),
        rule("large", shared_kib=176, head_dims=(64,)),
        rule("medium", shared_kib=144),
        rule("rest"),
    )
    monkeypatch.setattr(rules, "rules", lambda: {"k": rows})

    def chosen(arch, seq_len=4096, batch=4, head_dim=64, causal=True):
        problem = dataclasses.replace(standard(seq_len, head_dim, causal), batch=batch)
        return rule_for("k", problem, arch).name

    assert chosen("sm_90", 8192) == "long" and chosen("sm_90", 8191) == "large"
    assert chosen("sm_80", 8192) == "medium" and chosen("sm_90", head_dim=128) == "medium"
    assert chosen("sm_90", batch=16) == "many" and chosen("sm_90", batch=16, causal=False) == "large"
    assert chosen("sm_86") == chosen("cpu") == chosen("sm_999") == "rest"


def test_a_rule_for_a_head_dim_that_no_tile_has_is_an_error():
    """Launches ask with the head_dim of their tiles, so nothing would ever take it."""
    with pytest.raises(ValueError, match=r"head_dims of rule a must be those of tiles, .*, got 192"):
        rules._rule("attention", {"name": "a", "tile": [64, 64], "head_dims": [192]})


def test_a_rule_that_nothing_reads_is_an_error():
    with pytest.raises(TypeError, match="warp"):
        rules._rule("attention", {"name": "a", "tile": [64, 64], "warp": 8})


def test_rules_choose_tiles_warps_and_clusters_and_nothing_that_a_step_changes():
    """What is new in a step is for the step to say, and for which problems: ``only_for``."""
    rows = [row for kernel in tomllib.loads(rules.TABLE.read_text(encoding="utf-8")).values() for row in kernel]
    chosen = {name for row in rows for name in row} - {*rules.CONDITIONS, "record"}
    assert chosen <= {"tile", "warps", "cluster", "occupancy"}
    assert chosen <= {field.name for field in dataclasses.fields(BlockShape)}


LINE = r"FMHA_PROFILE: HeadDim=64, Arch=CPU, SeqQ=16, Choice=(\w+)\n"


@pytest.mark.parametrize(
    ("name", "choices"),
    [
        ("exp2", ["CPU_Block_64x64"]),
        ("gluon_larger_tile", None),
        ("pv_wait_after_max", ["SM90_ThreeGroups_192x128"]),
        ("relaxed_atomics", ["CPU_Block_64x64"]),
        ("mask_loops", ["CPU_Block_64x64"] * 2),
        ("decoupled_warpgroups", ["SM90_GroupsApart_128x128"]),
        ("sdpa", []),
    ],
)
def test_every_launch_tells_its_rules(name, choices, monkeypatch, capfd):
    monkeypatch.setenv("FMHA_PROFILE", "1")
    step, problem = (
        dataclasses.replace(get_step(name)),
        dataclasses.replace(standard(16, 64), batch=1, heads=1, kv_heads=1),
    )
    run = BACKWARD if step.direction == "backward" else FORWARD
    inputs = run.inputs(problem, 0)
    for _ in range(2):
        capfd.readouterr()
        run.call(step, problem, inputs)
        said = capfd.readouterr().err
        tile = step.variant(problem, "cpu").tile if choices is None else None
        wanted = [f"Own_{tile.query}x{tile.key}"] if tile else choices
        assert re.sub(LINE, "", said) == "" and re.findall(LINE, said) == wanted


def test_a_rule_is_called_untested_where_its_record_is_of_another_gpu():
    """A record is of the first architecture that its rule names."""
    for rule in ALL:
        if rule.record:
            path = RESULTS / rule.record
            found = json.loads((path / "results.json" if path.is_dir() else path).read_text(encoding="utf-8"))
            assert found["machine"]["arch"] == rule.architectures[0], rule.name
    named = {(step, arch): get_step(step).choices(standard(head_dim=64, causal=True), arch)
             for step in ("exp2", "mask_loops") for arch in ("sm_80", "sm_90", "sm_100", "cpu")}  # fmt: skip
    untested = {asked for asked, names in named.items() if all(name.endswith(" (untested)") for name in names)}
    assert untested == {(step, arch) for step in ("exp2", "mask_loops") for arch in ("sm_80", "sm_100")}
    assert not any("untested" in name for asked, names in named.items() if asked not in untested for name in names)


def test_without_being_asked_launches_say_nothing(monkeypatch, capfd):
    monkeypatch.delenv("FMHA_PROFILE", raising=False)
    step = dataclasses.replace(get_step("exp2"))
    step.attention(*[torch.zeros(1, 1, 16, 32, dtype=torch.float16)] * 3)
    assert capfd.readouterr().err == ""


def test_no_kernel_reads_results():
    """What a launch uses: no module of a skeleton, nor what it imports of the core, knows the folder of records."""
    parts = [folder for part in PARTS for folder in part.folders if folder != "reference"]
    launched = [path for part in parts for path in ROOT.glob(f"steps/{part}/*.py")]
    launched += [
        ROOT / "steps" / "core" / f"{name}.py" for name in ("rules", "tiles", "order", "fused", "step", "launch")
    ]
    assert len(launched) > 60
    for path in launched:
        imported = {
            name.name
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.ImportFrom)
            for name in node.names
        }
        assert not imported & {"RESULTS", "read_run", "recorded_runs", "recorded_searches", "recorded_search"}, path
