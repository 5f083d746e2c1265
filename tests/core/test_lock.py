"""The lock of compiled code: by what a kernel is known, when it is compiled all the same, and what goes stale."""

import importlib.util
import json
from types import SimpleNamespace

import pytest

from steps import get_step
from steps.core.problems import HEADLINE
from tests import changed, lock
from tutorial_lib import compiler, identity

CUTILE = '''"""A kernel."""
import cuda.tile as ct


def fmha(x):
    """Twice as much."""
    tile = ct.load(x, index=(0,), shape=(16,))
    ct.store(x, index=(0,), tile=tile * 2)
'''
GLUON = '''"""A kernel."""
from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def twice(x):
    return x * 2


@gluon.jit
def fmha(place):
    """Twice as much."""
    gl.store(place, twice(gl.load(place)))
'''
ELSEWHERE = {  # what changes where a kernel stands, and not the kernel
    "a comment": ("Twice as much.", "As much again."),
    "lines": ('"""A kernel."""', '"""A kernel,\n\nand more."""'),
}
ANOTHER = {"cutile": ("tile * 2", "tile * 3"), "gluon": ("return x * 2", "return x * 3")}


def module_at(folder, text: str):
    """The module with this text, from a file in a folder."""
    path = folder / "steps" / "kernel.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("kernel", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def known_by(backend: str, folder, text: str) -> tuple[bytes, bytes]:
    """By what a kernel in a project's folder is known without places, and with them."""
    kernel = module_at(folder, text).fmha
    if backend == "gluon":
        source, _ = compiler.gluon_source(kernel, (compiler.Placeholder((1,), "float16"),), 4, "sm_90")
        return identity.triton_source(source).encode(), source.hash().encode()
    import cuda.tile as ct
    from cuda.tile.compilation import CallingConvention, KernelSignature

    from steps.cutile.skeleton import array

    signature = KernelSignature([array((64,), ct.float16)], CallingConvention.cutile_python_v1(), symbol="fmha")
    return tuple(
        make(ct.kernel(kernel), signature, "sm_90") for make in (identity.tile_ir, identity.tile_ir_and_places)
    )


@pytest.mark.parametrize(("backend", "text"), [("cutile", CUTILE), ("gluon", GLUON)])
def test_a_kernel_is_known_wherever_it_stands(backend, text, tmp_path, monkeypatch):
    """Another checkout changes nothing; comments and lines change the places alone; a statement changes both."""
    found = []
    for checkout in (tmp_path / "one", tmp_path / "another, whose path is longer"):
        monkeypatch.setattr(identity, "ROOT", checkout)
        found.append(known_by(backend, checkout, text))
    assert found[0] == found[1]
    for change in ELSEWHERE.values():
        without, _ = known_by(backend, checkout, text.replace(*change))
        assert without == found[0][0]
    assert not set(known_by(backend, checkout, text.replace(*ANOTHER[backend]))) & set(found[0])


class Compiles:
    """In place of the lens's disk: counts what is compiled."""

    def __init__(self, monkeypatch, known: lock.Lock):
        self.count, usual = 0, compiler._kept
        monkeypatch.setattr(compiler, "lock", known)
        monkeypatch.setattr(compiler, "_kept", lambda *what: self.one(usual, *what))

    def one(self, usual, *what):
        self.count += 1
        return usual(*what)


def test_what_is_known_is_not_compiled_but_for_its_texts(monkeypatch):
    step = get_step("explicit")
    written = lock.Lock({})
    monkeypatch.setattr(compiler, "lock", written)
    real = step.compile(HEADLINE)
    known = lock.Lock(json.loads(json.dumps(written.new)))
    compiles = Compiles(monkeypatch, known)
    answered = step.compile(HEADLINE)
    assert answered == real and answered.as_dict() == real.as_dict() and compiles.count == 0
    assert not known.new and known.asked == written.asked
    assert answered.ptx == real.ptx and compiles.count == 1


def test_what_is_not_known_is_told_with_the_test_that_asked(monkeypatch):
    known = lock.Lock({})
    compiles = Compiles(monkeypatch, known)
    for _ in range(2):
        get_step("explicit").compile(HEADLINE)
    assert compiles.count == 1 and len(known.new) == 1
    [asking] = known.found()["asking"]
    assert asking.endswith("test_lock.py::test_what_is_not_known_is_told_with_the_test_that_asked")


def test_a_part_of_what_is_known_is_compiled_and_must_be_as_it_was(monkeypatch):
    step = get_step("explicit")
    monkeypatch.setattr(compiler, "lock", known := lock.Lock({}))
    step.compile(HEADLINE)
    [(key, kept)] = known.new.items()
    kept = json.loads(json.dumps(kept))
    part = next(n for n in range(20) if lock.selection.in_part(key, n))
    compiles = Compiles(monkeypatch, lock.Lock({key: kept}, part))
    step.compile(HEADLINE)
    step.compile(HEADLINE)
    assert compiles.count == 1  # once a process
    kept["figures"] |= {"ptx": "other"}  # registers count where the PTX is not the same
    Compiles(monkeypatch, lock.Lock({key: kept}, part))
    step.compile(HEADLINE)
    kept["registers"] += 1
    Compiles(monkeypatch, lock.Lock({key: kept}, part))
    with pytest.raises(lock.Stale, match="makes the file again"):
        step.compile(HEADLINE)
    Compiles(monkeypatch, lock.Lock({key: kept}, (part + 1) % 20))
    assert step.compile(HEADLINE).registers == kept["registers"]


def session(**options):
    """As pytest has it at the end of a run of everything, with other options."""
    chosen = {"selection": "all", "keyword": "", "lock": None} | options
    paths = SimpleNamespace(TESTPATHS="paths")
    config = SimpleNamespace(option=SimpleNamespace(**chosen), args_source=paths.TESTPATHS, ArgsSource=paths)
    return SimpleNamespace(config=config, testsfailed=0)


def test_what_nobody_asks_for_is_stale_where_everything_ran():
    plugin = object.__new__(lock.Plugin)
    plugin.file = {"compiled": {"asked": {}, "left": {}}, "compilers": lock.installed()}
    plugin.found = [{"asked": ["asked"]}, {"asked": []}]
    assert plugin._unasked(session()) == ["left"]
    assert plugin._unasked(session(selection="3")) == plugin._unasked(session(keyword="mma")) == []
    plugin.file["compilers"] = {}  # with other compilers all are others
    assert plugin._unasked(session()) == []


def test_the_file_is_whole_and_in_order(monkeypatch, tmp_path):
    monkeypatch.setattr(lock, "PATH", tmp_path / "expected.json")
    assert lock.read() == {"compilers": {}, "digests": {}, "lines": {}, "asking": [], "compiled": {}}
    known = {"compilers": {"a": "1"}, "digests": {"b": "2", "a": "1"}, "lines": {}, "asking": ["b", "a", "b"]}
    lock.write(known | {"compiled": {"k": {"figures": 1}}})
    assert lock.read() == known | {"asking": ["a", "b"], "compiled": {"k": {"figures": 1}}}
    assert '"k":{"figures":1}' in lock.PATH.read_text(encoding="utf-8").splitlines()  # an entry a line


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


def test_what_differs_from_a_digest_is_told_in_figures():
    file = {"compiled": {"a": kept("as it was", 120)}}
    now = SimpleNamespace(
        fields=lambda: kept("other", 118) | {"texts": None}, figures=SimpleNamespace(codes={"": "other"})
    )
    told = lock.told_apart(now, "as it was", file)
    assert told == "other code: instructions 118, was 120; instructions of kind FP32 118, was 120"
    assert "another order" in lock.told_apart(now, "b", {"compiled": {"b": kept("b", 118)}})
    assert "no figures" in lock.told_apart(now, "unknown", file)


def kept(digest: str, count: int) -> dict:
    """What a lock holds of a kernel with so many instructions."""
    figures = {"codes": {"": digest}, "ptx": None, "instructions": count, "kinds": {"FP32": count}}
    return {"arch": "sm_90", "figures": figures | {"hot": {}, "exponentials": 0, "order": [], "amd": None}}
