"""Peak memory of the front door: it grows with the length, and not with its square."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import steps
from tutorial_lib.packing import cu_seqlens

# What is asked for with a causal mask; tensors are made at the call. "narrow": values of 8 beside keys of 16. With
# gradients what one function of ``blockwise`` computes is asked for at once.
OF_MANY_KEYS = {
    False: [("sinks",), ("window",), ("softcap",), ("packed",), ("narrow",), ("return_lse",)],
    True: [("window",), ("packed",), ("sinks", "softcap", "narrow", "return_lse")],
}
MANY = 16384


def long_call(length: int, device: str, what: tuple[str, ...], wanted: bool) -> None:
    """A call of one head and that many queries and keys, and its gradients where they are wanted."""
    shape = (length, 1) if "packed" in what else (1, 1, length)
    widths = (16, 16, 8 if "narrow" in what else 16)
    q, k, v = (torch.randn(*shape, n, dtype=torch.float16, device=device).requires_grad_(wanted) for n in widths)
    asked = {"window": 100, "softcap": 5.0, "return_lse": True}
    asked["sinks"] = torch.zeros(1, device=device).requires_grad_(wanted)
    asked = {name: asked[name] for name in what if name in asked}
    if "packed" in what:
        asked["cu_seqlens_q"] = cu_seqlens([length], device)
    made = steps.attention(q, k, v, causal=True, **asked)
    if wanted:
        sum(x.sum() for x in (made if "return_lse" in what else (made,))).backward()


def most_bytes_on_the_cpu(wanted: bool) -> None:
    """Prints how far the memory of this process has grown after each call; short ones come first."""
    for what in OF_MANY_KEYS[wanted]:
        long_call(64, "cpu", what, wanted)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for what in OF_MANY_KEYS[wanted]:
        long_call(MANY, "cpu", what, wanted)
        print(1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before), *what)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("wanted", [False, True], ids=["forward", "gradients"])
def test_the_front_door_needs_no_memory_for_all_scores(device, wanted):
    """At 16384 queries and keys, where one number for each pair would take 1 GiB in float32."""
    if device == "cuda":
        most = {}
        for what in OF_MANY_KEYS[wanted]:
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            long_call(MANY, device, what, wanted)
            most[" ".join(what)] = torch.cuda.max_memory_allocated() - before
    else:
        words = f"from tests.core.test_peak_memory import most_bytes_on_the_cpu as told; told({wanted})"
        found = subprocess.run(
            [sys.executable, "-c", words], cwd=Path(__file__).parents[2], capture_output=True, text=True,
            encoding="utf-8", check=True,
        )  # fmt: skip
        most = {what: int(number) for number, what in (line.split(" ", 1) for line in found.stdout.splitlines())}
    assert list(most) == [" ".join(what) for what in OF_MANY_KEYS[wanted]]
    assert max(most.values()) < 4 * MANY**2 / 2, most
