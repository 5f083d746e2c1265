"""Shared by all tests: GPU tests are skipped where there is no GPU, big matrices sampled, PyTorch kept to one core."""

import os

import pytest

from tests import lock, selection

# The interpreter's tensors are tiny, and threads that wait for each other cost more than they bring: on busy cores by a
# factor of eight. Read when PyTorch is loaded, here and in every process that a test starts.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_addoption(parser):
    parser.addoption("--selection", metavar="N", help=f"which part of the big matrices runs: {selection.__doc__}")
    parser.addoption("--lock", choices=[lock.WRITE], help="write into tests/expected.json what is asked for")


def pytest_configure(config):
    """Chooses once; workers are given what was chosen."""
    chosen = config.option.selection
    if chosen is None:
        number, config.chosen_by = selection.of_this_commit()
        config.option.selection = str(number)
    else:
        config.chosen_by = "as asked"
    try:
        selection.parse(config.option.selection)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    config.pluginmanager.register(lock.Plugin(config), "lock")


def pytest_report_header(config):
    chosen = config.option.selection
    return f"selection: {chosen} ({config.chosen_by}); --selection {chosen} runs it again, --selection all everything"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    _skip_without_a_gpu(items)
    chosen = selection.parse(config.option.selection)
    if chosen == selection.ALL:
        return
    kept, left = [], []
    for item in items:
        (kept if selection.runs(item, chosen) else left).append(item)
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = kept


def _skip_without_a_gpu(items):
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    from tutorial_lib.hardware import has_gpu

    if not has_gpu():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))
