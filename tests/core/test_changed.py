"""The table of what other compilers made of the same kernels."""

import pytest

from tests import changed


def known(digest: str, spilled: int, ptx: str | None = None) -> dict:
    """A lock of two kernels: one of step swizzle, and one of step wgmma with this digest."""

    def kernel(code, spilled, ptx=None):
        return {"spilled_bytes": spilled, "figures": {"codes": {"": code}, "ptx": ptx}}

    kernels = {"a": kernel("as it was", 4), "b": kernel(digest if ptx is None else "other code", spilled, ptx)}
    digests = {"swizzle p sm_90": "as it was", "wgmma p sm_90": ptx or digest}
    return {"compilers": {"triton": "3"}, "digests": digests, "compiled": kernels}


@pytest.mark.parametrize("ptx", [None, "ptx"])
def test_spills_are_counted_by_kind_and_told_of_the_steps_that_changed(ptx):
    rows = changed.table(known("one", 0), known("another", 12, ptx))
    assert rows == [
        ["**gluon forward, sm_90**", "1", "1", "1", "1", "4", "4"],
        ["**hopper forward, sm_90**", "1", "0", "0", "1", "0", "12"],
        ["wgmma", "1", "0", "0", "1", "0", "12"],
    ]
    assert changed.markdown(rows).splitlines()[0].startswith("|  | kernels |")


def test_what_one_lock_does_not_know_is_in_no_sum():
    before, now = known("one", 0), known("another", 12)
    del before["compiled"]["b"]
    assert changed.table(before, now)[-1] == ["**hopper forward, sm_90**", "1", "0", "0", "0", "0", "0"]


def test_a_revision_without_a_lock_is_refused(capsys):
    assert changed.main(["no-such-revision"]) == 2
    assert "got 'no-such-revision'" in capsys.readouterr().err
