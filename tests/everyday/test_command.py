"""``python -m steps.run`` asks for decoding and for pages, and says what does not go together."""

import json
from dataclasses import replace

from steps import inspect, run
from steps.core.grids import GRIDS
from steps.core.problems import PAGED_DECODING
from steps.reference.peers import peers_of
from tutorial_lib.architectures import REFERENCE_GPUS
from tutorial_lib.limits import floor
from tutorial_lib.passes import PAGED


def call(capsys, *arguments):
    status = run.main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return status, out, err


def recorded(folder):
    [path] = folder.rglob("results.json")
    return json.loads(path.read_text(encoding="utf-8"))


def test_decoding_has_no_mask_and_few_queries(capsys, tmp_path):
    asked = ["--seq-len-q", 2, "--seq-len", 300, "--kv-heads", 2, "--heads", 8, "--head-dim", 64]
    status, out, _ = call(
        capsys, *asked, "--steps", "0,group_rows,split_kv", "--device", "cpu", "--output-dir", tmp_path
    )
    found = recorded(tmp_path)
    assert status == 0 and "B=1 H=8/2 S=2x300 D=64 fp16 full" in out and found["direction"] == "forward"
    correct = [(m["name"], m["correct"]) for m in found["steps"]]
    assert correct == [("sdpa", True), ("split_kv", True), ("group_rows", True)]  # a variant comes behind the steps


def test_keys_in_fp8_are_of_the_pass_fp8(capsys, tmp_path):
    asked = ["--seq-len-q", 1, "--seq-len", 300, "--kv-heads", 2, "--kv-dtype", "float8_e4m3fn", "--head-dim", 64]
    status, out, _ = call(capsys, *asked, "--device", "cpu", "--output-dir", tmp_path)
    found = recorded(tmp_path)
    assert status == 0 and "S=1x300 D=64 fp16 kv=fp8 full" in out
    assert found["direction"] == "fp8" and found["problem"]["kv_dtype"] == "float8_e4m3fn"
    assert [(m["name"], m["correct"]) for m in found["steps"]] == [("fp8_dequantized", True), ("fp8_kv", True)]
    [told] = found["notes"]
    assert told in out and "Largest errors by cause: quantized inputs" in told and "rounded weights" in told


def test_pages_are_a_pass_of_their_own_with_a_mask(capsys, tmp_path):
    asked = ["--seq-len-q", 1, "--seq-len", 300, "--kv-heads", 2, "--page-size", 16, "--head-dim", 64]
    status, out, _ = call(capsys, *asked, "--device", "cpu", "--output-dir", tmp_path)
    found = recorded(tmp_path)
    assert status == 0 and "Attention to keys in pages" in out and "causal pages of 16" in out
    assert found["direction"] == "paged" and found["problem"]["page_size"] == 16
    assert [(m["name"], m["correct"]) for m in found["steps"]] == [("gathered", True), ("paged", True)]
    status, out, _ = call(
        capsys, *asked, "--kv-dtype", "float8_e4m3fn", "--device", "cpu", "--output-dir", tmp_path / "fp8"
    )
    found = recorded(tmp_path / "fp8")
    assert status == 0 and "fp16 kv=fp8 causal pages of 16" in out and found["direction"] == "paged"
    assert [(m["name"], m["correct"]) for m in found["steps"]] == [("gathered", True), ("paged", True)]


def test_grids_of_decoding():
    decode, paged = GRIDS["decode"].problems, GRIDS["paged"].problems
    assert {p.seq_len_q for p in decode} == {1, 2, 4, 8, 16} and not any(p.causal for p in decode)
    assert {p.seq_len_kv for p in decode} == {2**n for n in range(13, 18)}
    assert {replace(p, causal=False, page_size=None) for p in paged if p.page_size == 64} == set(decode)
    for size in (16, 256):
        assert {p.seq_len_kv for p in paged if p.page_size == size} == {2**n for n in range(13, 18)}


def test_peers_of_pages_are_not_run_on_the_cpu():
    [peer] = peers_of("paged")
    assert peer.direction == "paged" and peer.unsupported(GRIDS["paged"].problems[0], "cpu") == (
        "peers are timed on a GPU only"
    )


# --- steps.inspect ---


def test_what_a_step_became_is_told_of_its_own_problem(capsys):
    """A step that does not take the standard problem has its own, and pages may be asked for."""
    assert inspect.main(["split_kv"]) == 0
    out = capsys.readouterr().out.replace("\n", " ")
    assert "Compiled for B=8 H=64/8 S=1x32768 D=128 bf16" in out and "the memory bound it" in out
    assert inspect.main(["paged", "--page-size", "16"]) == 0
    out = capsys.readouterr().out.replace("\n", " ")
    least = 1000 * floor(replace(PAGED_DECODING, page_size=16), REFERENCE_GPUS["sm_90"], PAGED).units["memory"]
    assert "pages of 16" in out and f"memory {least:.3g} ms" in out
    for asked in (["exp2", "--page-size", "16"], ["paged", "--page-size", "16", "--seq-len", "5"]):
        assert inspect.main(asked) == 2
        assert "--page-size goes with a step that reads pages" in capsys.readouterr().err
