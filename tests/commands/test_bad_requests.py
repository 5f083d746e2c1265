"""A request that makes no sense gets one line on standard error and exit status 2, and nothing is written."""

import importlib
import re

import pytest

from steps.run import make_parser, make_problems
from tutorial_lib.command import BadRequest

REQUESTS = {  # module of the command -> its arguments, and what the line must hold
    "steps.run": [
        (["--seq-len", "0"], "--seq-len: must be a whole number of at least 1, got '0'"),
        (["--seq-len", "-5"], "--seq-len: must be a whole number of at least 1, got '-5'"),
        (["--seq-len", "long"], "--seq-len: must be a whole number of at least 1, got 'long'"),
        (["--seq-len", "1.5"], "--seq-len: must be a whole number of at least 1, got '1.5'"),
        (["--seq-len"], "--seq-len: expected at least one argument"),
        (["--seq-len-kv", "0"], "--seq-len-kv: must be a whole number"),
        (["--batch", "0"], "--batch: must be a whole number"),
        (["--heads", "-1"], "--heads: must be a whole number"),
        (["--head-dim", "44"], "--head-dim: must be one of 32, 64, 128, 256, 512, 1024 (steps in cuTile, and"),
        (["--direction", "backward", "--head-dim", "264"], "--head-dim: must be one of 32, 64, 128, 256 (steps in"),
        (["--kv-heads", "5"], "argument --kv-heads: must divide --heads (32 in what is recorded, unless given), got 5"),
        (["--heads", "6", "--kv-heads", "4"], "argument --kv-heads: must divide --heads (6), got 4"),
        (["--steps", "exp3"], "argument --steps: no step exp3; did you mean exp2?"),
        (["--steps", "path,hoper"], "argument --steps: no step hoper; did you mean hopper?"),
        (["--steps", "99"], "argument --steps: no step 99; `python -m steps.run --list` lists them"),
        (
            ["--steps", "97-99"],
            "argument --steps: no step has a number of 97-99; `python -m steps.run --list` lists them",
        ),
        (["--steps", "5-3"], "--steps: a range must not run backwards, got '5-3'"),
        (["--steps", ""], "argument --steps: no step without a name; `python -m steps.run --list` lists them"),
        (["--peers", "sdpa_cudnn,tensorrt"], "argument --peers: no peer tensorrt; all takes those there are"),
        (["--peers", "sdpa_cudn"], "argument --peers: no peer sdpa_cudn; did you mean sdpa_cudnn?"),
        (["--peers", ""], "argument --peers: no peer without a name; all takes those there are"),
        (["--list", "hoper"], "argument --list: no part hoper; did you mean hopper?"),
        (
            ["--dtype", "float32"],
            "--dtype: invalid choice: 'float32' (choose from 'float16', 'bfloat16', 'float8_e4m3fn', 'float8_e5m2')",
        ),
        (["--dtype", "float8_e4m3fn", "float16"], "--dtype: float8_e4m3fn goes alone"),
        (["--dtype", "float8_e5m2", "float8_e4m3fn"], "--dtype: float8_e5m2 goes alone"),
        (["--dtype", "float8_e4m3fn", "--direction", "backward"], "--dtype: float8_e4m3fn goes alone"),
        (["--dtype", "float8_e4m3fn", "--page-size", "64"], "--dtype: float8_e4m3fn goes alone"),
        (["--dtype", "float8_e4m3fn", "--window", "5"], "--window: no step for inputs in float8_e4m3fn takes it"),
        (["--dtype", "float8_e5m2", "--sinks"], "--sinks: no step for inputs in float8_e5m2 takes it"),
        (["--dtype", "float8_e4m3fn", "--sinks"], "--sinks: no step for inputs in float8_e4m3fn takes it"),
        (["--dtype", "float8_e4m3fn", "--steps", "exp2"], "must be steps of the fp8 pass, got 3 exp2"),
        (["--kv-dtype", "float16"], "--kv-dtype: invalid choice: 'float16' (choose from 'float8_e4m3fn')"),
        (["--kv-dtype", "float8_e4m3fn", "--direction", "backward"], "--kv-dtype: is for attention on one GPU"),
        (["--kv-dtype", "float8_e4m3fn", "--page-size", "64", "--window", "5"], "--window: no step for inputs in"),
        (["--kv-dtype", "float8_e4m3fn", "--window", "5"], "--window: no step for inputs in float8_e4m3fn takes it"),
        (["--kv-dtype", "float8_e4m3fn", "--steps", "exp2"], "must be steps of the fp8 pass, got 3 exp2"),
        (["--device", "tpu"], "--device: invalid choice: 'tpu'"),
        (["--iterations", "0"], "--iterations: must be a whole number"),
        (["--timeout", "0"], "--timeout: must be a number of seconds above 0"),
        (["--timeout", "nan"], "--timeout: must be a number of seconds above 0"),
        (["--seed", "x"], "--seed: must be a whole number"),
        (["--grid", "gqa", "--batch", "3"], "--grid: goes without --batch, which it decides itself"),
        (["--grid", "gqa", "--no-causal"], "--grid: goes without --causal"),
        (["--grid", "gqa", "--device", "cpu"], "--grid: needs a GPU; without one, ask for one problem"),
        (["--grid", "paged", "--direction", "backward"], "--grid: goes without --direction backward"),
        (["--grid", "all"], "--grid: invalid choice: 'all' (choose from 'standard', 'fp8', 'gradients'"),
        (["--problems", "d64_"], "--problems: goes with --grid, whose problems it selects"),
        (["--problems", ""], "--problems: goes with --grid, whose problems it selects"),
        (["--frobnicate"], "unrecognized arguments: --frobnicate"),
        (["4096"], "unrecognized arguments: 4096"),
        (["--sustained-steps", "exp2"], "argument --sustained-steps: says which steps --sustained measures"),
        (["--sustained", "--sustained-steps", "exp3"], "argument --sustained-steps: no step exp3; did you mean exp2?"),
        (["--device", "cuda"], "argument --device: PyTorch finds no CUDA GPU here; use --device cpu"),
        (["--seq-len", 99999999999999, "--device", "cpu"], "are free here"),
        (["--output-dir", "/proc/results"], "--output-dir: cannot write to /proc/results"),
        (["--page-size", 0], "argument --page-size: "),
        (["--page-size", 16, "--direction", "backward"], "argument --page-size: goes without --direction backward"),
        (["--page-size", 16, "--window", 4], "page_size goes with no other feature, got window, too"),
        (["--page-size", 16, "--sinks"], "page_size goes with no other feature, got sinks, too"),
        (["--page-size", 16, "--lengths", "3,4"], "argument --lengths: goes without --page-size"),
        (["--page-size", 16, "--steps", "exp2"], "must be steps of the paged pass, got 3 exp2"),
        (["--seq-len-q", 9, "--lengths", "3,4"], "argument --lengths: goes without --seq-len-q"),
        (["--seq-len-q", 9, "--seq-len", 8, "--page-size", 16], "seq_len_q must be at most seq_len_kv (8) with pages"),
        (["--seq-len-q", 9, "--grid", "decode"], "argument --grid: goes without --seq-len-q"),
        (["--page-size", 16, "--peers", "flex"], "argument --peers: no peer flex; all takes those there are"),
        (["--lengths", "100,a"], "argument --lengths: must be ragged, or whole numbers such as 1000,3001,17"),
        (["--lengths", "100,0"], "argument --lengths: must be ragged"),
        (["--lengths", "100", "--batch", "2"], "argument --lengths: goes without --batch"),
        (["--lengths", "100", "--seq-len", "64"], "argument --lengths: goes without --seq-len"),
        (["--window", "0"], "argument --window"),
        (["--window", "9", "--no-causal"], "window takes a causal mask"),
        (["--softcap", "-1"], "argument --softcap: must be a number above 0"),
        (
            ["--parallel", "ring"],
            "takes a process for each GPU: torchrun --nproc-per-node 2 -m steps.run --parallel ring",
        ),
        (["--parallel"], "takes a process for each GPU: torchrun --nproc-per-node 2 -m steps.run --parallel\n"),
        (["--steps", "ring"], "argument --steps: step 801 ring computes on several GPUs at once: torchrun --nproc"),
        (["--steps", "gather_gradients"], "argument --steps: must be steps of the forward pass, got gather_gradients"),
    ],
    "steps.inspect": [
        (["warp"], "no step warp"),
        (["exp2", "--against", "nothing"], "no step nothing"),
        (["exp2", "--arch", "sm_55"], "--arch: must be all or some of sm_80"),
        (["exp2", "--arch", ""], "--arch: must be all or some of sm_80"),
        (["sdpa"], "step 0 sdpa has no kernel of its own to compile"),
        (["exp2", "--head-dim", "44"], "head_dim must be a multiple of 8 up to 256, got 44"),
        (["exp2", "--seq-len", "0"], "--seq-len: must be a whole number of at least 1, got '0'"),
        (["all", "--against", "mma"], "--against and --text: go with a single step"),
        (["exp2", "--against", "mma", "--text", "sass"], "--against: goes without --text"),
        (["all", "--output", "/proc/somewhere"], "--output: cannot write to /proc/somewhere"),
        (["exp2", "--output", "somewhere"], "--output: goes with the step all"),
        ([], "the following arguments are required: step"),
        (["mfma", "--arch", "gfx90a"], "--arch: must be all or some of sm_80"),
        (
            ["direct_to_lds", "--arch", "gfx942"],
            "straight into LDS, which gfx950 alone can, not gfx942",
        ),
        (["mfma", "--arch", "sm_90"], "made for AMD's CDNA GPUs, gfx942 and gfx950, not for sm_90"),
        (["epilogue_overlap", "--arch", "gfx950"], "made for NVIDIA's GPUs, not for gfx950"),
        (["static_scheduler", "--arch", "gfx950"], "made for NVIDIA's GPUs, not for gfx950"),
    ],
    "steps.simulate": [
        ([], "the following arguments are required: step"),
        (["nothing"], "no step nothing; `python -m steps.run --list`"),
        (["mma"], "simulated are Gluon's kernels"),
        (["epilogue_overlap", "--head-dim", "512"], "head_dim must be a multiple of 8"),
        (["epilogue_overlap", "--seq-len", "99999"], "ask for a smaller --seq-len"),
        (["epilogue_overlap", "--without", "nothing"], "no such synchronisation"),
        (["/nothing.py"], "cannot read /nothing.py"),
        (["epilogue_overlap", "--timeline", "t.xyz"], "argument --timeline: must be a .png file, got t.xyz"),
        (["epilogue_overlap", "--timeline", "t"], "argument --timeline: must be a .png file, got t"),
        (["epilogue_overlap", "--timeline", "/"], "argument --timeline: must be a file, got the folder /"),
    ],
    "steps.trace": [
        (["mma"], "step 2 mma: traced are Gluon's kernels, whose waits are their own"),
        (["nobody"], "nobody"),
        (["epilogue_overlap", "--head-dim", "-1"], "must be a whole number of at least 1"),
        (
            ["epilogue_overlap", "--figure", "/proc/nowhere/trace.png"],
            "argument --figure: cannot write to /proc/nowhere",
        ),
        (["epilogue_overlap", "--figure", "t.svg"], "argument --figure: must be a .png file, got t.svg"),
        (["epilogue_overlap", "--figure", "/"], "argument --figure: must be a file, got the folder /"),
        (["epilogue_overlap", "--seq-len", 77], "no trace of step 204 epilogue_overlap at "),
    ],
    "steps.once": [
        (["exp2"], "the following arguments are required: PROBLEM"),
        (["exp2", "{"], "argument PROBLEM: not a problem in JSON: {: "),
        (["exp2", "[4]"], "argument PROBLEM: must hold the fields of a Problem, got [4]"),
        (["exp2", '{"batch": 1, "seq_len_q": 9}'], "has no heads, seq_len_kv, head_dim"),
        (["exp2", '{"batch": 1, "head": 2, "colour": 3}'], "argument PROBLEM: a Problem has no field head, colour"),
    ],
    "steps.check_gpu": [
        ([], "this needs a GPU"),
        (["--iterations", "0"], "whole number"),
        (["--all"], "unrecognized arguments: --all"),
    ],
    "steps.sweep": [
        (["--pass", "sideways"], "argument --pass: must be one of forward, backward, training, got 'sideways'"),
        (["--pass", "forward,"], "argument --pass: must be one of forward, backward, training, got ''"),
        (["--count", "0"], "argument --count: must be a whole number of at least 1"),
        (["--seconds", "soon"], "argument --seconds: must be a whole number"),
        (["--seed", "x"], "argument --seed"),
        ([], "nothing is recorded"),
    ],
    "steps.physics": [
        ([], "this needs a GPU, and nothing is recorded under "),
    ],
    "steps.train": [
        ([], "nothing is recorded"),
    ],
    "steps.search": [
        (["--seq-len", "0"], "must be a whole number of at least 1"),
    ],
    "steps.trials.__main__": [
        (["polynomail"], "did you mean polynomial?"),
        (["polynomial", "--problems", ""], "argument --problems: must stand in names of polynomial's, such as "),
        (["polynomial", "--problems", "d128_,"], "argument --problems: must stand in names of polynomial's, such as "),
    ],
    "steps.report": [
        (["missing.json"], "cannot read"),
        (["--colour"], "unrecognized arguments"),
    ],
    "steps.learn": [
        (["--all"], "unrecognized arguments"),
    ],
    "steps.progress": [
        (["--all"], "unrecognized arguments"),
    ],
    "tutorial_lib.notebooks": [
        (["17_nothing"], "argument NAME: must be some of 000_start_here"),
    ],
    "tests.newest": [
        (["tests/nothing"], "there is no tests/nothing"),
        (["--nothing"], "unrecognized arguments"),
    ],
    "tests.changed": [
        (["no-such-revision"], "got 'no-such-revision'"),
    ],
}
WRITES = [  # into --output-dir
    *("steps.run", "steps.trace", "steps.sweep", "steps.physics", "steps.train"),
    *("steps.search", "steps.trials.__main__"),
]
CASES = [
    pytest.param(module, *request, id=f"{module} {' '.join(map(str, request[0]))}")
    for module, requests in REQUESTS.items()
    for request in requests
]


@pytest.mark.parametrize(("module", "arguments", "told"), CASES)
def test_a_request_that_makes_no_sense_is_one_line(module, arguments, told, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("tutorial_lib.hardware.has_gpu", lambda: False)
    place = ["--output-dir", tmp_path / "out"] if module in WRITES and "--output-dir" not in arguments else []
    assert importlib.import_module(module).main([str(word) for word in (*place, *arguments)]) == 2
    out, error = capsys.readouterr()
    assert out == "" and error.count("\n") == 1
    assert told.strip().replace("'", "") in error.replace("'", "")  # argparse quotes choices since Python 3.12
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("device", "where"), [("cuda", ""), ("cpu", " in what is recorded")])
def test_heads_that_nobody_gave_are_told_with_where_they_come_from(device, where):
    """On the CPU fewer heads are computed, and those of the GPU's recorded timings count here, too."""
    options = make_parser().parse_args(["--kv-heads", "5"])
    with pytest.raises(BadRequest, match=re.escape(f"must divide --heads (32{where}, unless given), got 5")):
        make_problems(options, device)
