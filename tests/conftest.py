"""Shared by all tests: GPU tests are skipped where there is no GPU, and PyTorch keeps to one core."""

import os

import pytest

# The interpreter's tensors are tiny, and threads that wait for each other cost more than they bring: on busy cores by a
# factor of eight. Read when PyTorch is loaded, here and in every process that a test starts.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collection_modifyitems(items):
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    from tutorial_lib.hardware import has_gpu

    if not has_gpu():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))
