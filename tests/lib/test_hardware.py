"""What is asked of the GPU beside timing, where it does not answer as it should."""

import pytest
import torch

from tutorial_lib import hardware


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no"), torch.AcceleratorError("CUDA error: out of memory\n")])
def test_on_a_gpu_that_others_have_filled_no_memory_is_free(monkeypatch, error):
    def fails():
        raise error

    monkeypatch.setattr("torch.cuda.mem_get_info", fails)
    assert hardware.available_bytes("cuda") == 0


def test_another_error_of_the_gpu_is_not_taken_for_a_lack_of_memory(monkeypatch):
    def fails():
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr("torch.cuda.mem_get_info", fails)
    with pytest.raises(torch.AcceleratorError, match="illegal"):
        hardware.available_bytes("cuda")
