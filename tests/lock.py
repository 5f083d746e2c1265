"""The lock of compiled code: what the compilers are known to make, so that a test need not wait for them.

``tests/expected.json`` holds, by a hash of all that a compiler sees of a kernel, the figures of its machine code. The
compiler lens asks here first (``tutorial_lib.compiler.lock``). What is not known is compiled, and the end of the run
says which tests asked for it. Of what is known one in twenty is compiled all the same, others at every commit, and a
figure that is not the compiler's any more fails the test that asked.

``python -m tests.expected`` makes the file again.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import pytest

from tests import selection

PATH = Path(__file__).with_name("expected.json")
PACKAGES = ("cuda-tile", "nvidia-cuda-tileiras", "triton")
KINDS = ("compilers", "digests", "lines", "asking", "compiled")
WRITE = "write"


class Stale(AssertionError):
    """What is known of a kernel is not what its compiler makes today."""


def read() -> dict:
    """What the file holds; nothing of everything where there is none."""
    empty = {kind: [] if kind == "asking" else {} for kind in KINDS}
    return empty | (json.loads(PATH.read_text(encoding="utf-8")) if PATH.exists() else {})


def write(known: dict) -> None:
    """Write the file, an entry a line, in order: so that changes are seen, and merged."""
    from tutorial_lib.files import write_whole

    parts = []
    for kind in KINDS:
        entries = known[kind]
        if kind == "asking":
            lines = [json.dumps(name) for name in sorted(set(entries))]
            parts.append(f'"{kind}": [\n' + ",\n".join(lines) + "\n]")
        else:
            names = entries if kind == "digests" else sorted(entries)
            lines = [f"{json.dumps(name)}:{json.dumps(entries[name], separators=(',', ':'))}" for name in names]
            parts.append(f'"{kind}": {{\n' + ",\n".join(lines) + "\n}")
    write_whole(PATH, "{\n" + ",\n".join(parts) + "\n}\n")


def installed() -> dict[str, str]:
    """The compilers here."""
    return {package: version(package) for package in PACKAGES}


def stored(compiled) -> dict:
    """What is kept of a kernel: its figures, without texts, and without what is as it is by default."""
    fields = compiled.fields()
    del fields["texts"]
    kept = {name: value for name, value in fields.items() if value not in (None, [], ()) or name == "figures"}
    figures = kept["figures"]
    figures["codes"] = compiled.figures.codes  # itself: a step that launches other kernels adds a fingerprint
    for counts in (figures["kinds"] or {}, *(counts for _, counts in figures["hot"].values())):
        for kind in [kind for kind, count in counts.items() if not count]:
            del counts[kind]
    return kept


def restored(kept: dict) -> dict:
    """``Compiled.fields`` without texts, from what ``stored`` kept."""
    from tutorial_lib import amdgcn, sass

    figures = kept["figures"]
    none = dict.fromkeys((amdgcn if figures["amd"] else sass).ALL_KINDS, 0)
    kinds = figures["kinds"] and none | figures["kinds"]
    hot = {role: (length, none | counts) for role, (length, counts) in figures["hot"].items()}
    # Its fingerprints stay the lock's own: a step that launches other kernels adds one.
    return {"other_kernels": ()} | kept | {"figures": figures | {"kinds": kinds, "hot": hot}}


@dataclass
class Lock:
    """What a process asked for.

    known: by key, as the file has it. part: the selection that is compiled all the same; None: nothing. asked: keys;
    new: what was not known, by key; asking: the functions of the tests that asked, and for what.
    """

    known: dict[str, dict]
    part: int | None = None
    asked: set[str] = field(default_factory=set)
    new: dict[str, dict] = field(default_factory=dict)
    asking: dict[str, set[str]] = field(default_factory=dict)
    _checked: set[str] = field(default_factory=set)

    def find(self, key: str) -> dict | None:
        self.asked.add(key)
        self.asking.setdefault(_running(), set()).add(key)
        kept = self.known.get(key) or self.new.get(key)
        if kept is None or (self._compiled_all_the_same(key) and key not in self._checked):
            return None
        return restored(kept)

    def _compiled_all_the_same(self, key: str) -> bool:
        return self.part is not None and selection.in_part(key, self.part)

    def missed(self, key: str, compiled) -> None:
        self._checked.add(key)
        if key not in self.known:
            self.new[key] = stored(compiled)
        elif not _agree(self.known[key], stored(compiled)):
            raise Stale(
                f"tests/expected.json is stale: {compiled.compiler} makes other code for {compiled.arch} of kernel "
                f"{key}. If it should, `python -m tests.expected` makes the file again."
            )

    def found(self) -> dict:
        """What another process can be told: asked keys, new kernels, and who asked for what."""
        asking = {name: sorted(keys) for name, keys in self.asking.items() if name}
        return {"asked": sorted(self.asked), "new": self.new, "asking": asking}


def _agree(known: dict, made: dict) -> bool:
    """Whether both are one kernel: the same figures and the same code, or the same PTX.

    ptxas was seen to let a debugger's labels decide about registers, and tileiras to order instructions of sm_100
    differently from run to run: there the same figures will do.
    """
    if known["figures"]["ptx"] is not None and known["figures"]["ptx"] == made["figures"]["ptx"]:
        return True
    same_code = known["figures"]["codes"].get("") == made["figures"]["codes"].get("")
    return _counts(known) == _counts(made) and (same_code or known["arch"] == "sm_100")


def told_apart(compiled, digest: str, file: dict) -> str:
    """What is known of how a kernel differs from that of the file with this digest, in words."""
    before = [
        kept
        for kept in file["compiled"].values()
        if digest in (*kept["figures"]["codes"].values(), kept["figures"]["ptx"])
    ]
    if not before:
        return "other code; the lock has no figures of what it was"
    (was, *_), now = before, stored(compiled)
    pairs = [(name, now.get(name), was.get(name)) for name in now | was if name != "figures"]
    pairs += [(name, now["figures"][name], was["figures"][name]) for name in ("instructions", "exponentials")]
    kinds, its = now["figures"]["kinds"] or {}, was["figures"]["kinds"] or {}
    pairs += [(f"instructions of kind {name}", kinds.get(name, 0), its.get(name, 0)) for name in kinds | its]
    told = [f"{name} {mine}, was {before}" for name, mine, before in pairs if mine != before]
    return f"other code: {'; '.join(told) or 'as many instructions of every kind, in another order or other registers'}"


def _counts(kept: dict) -> str:
    """All but fingerprints, in words that do not tell a tuple from a list."""
    return json.dumps(kept | {"figures": kept["figures"] | {"codes": None, "ptx": None}})


def _running() -> str:
    """The function of the test that runs, without its case; nothing outside of tests."""
    return os.environ.get("PYTEST_CURRENT_TEST", "").split(" (")[0].split("[")[0]


class Plugin:
    """Lets the lens ask the lock in this process, and gathers what the workers' locks were asked.

    With ``--lock write`` nothing is known, and the file gets everything that the tests of this run ask for.
    """

    def __init__(self, config):
        from tutorial_lib import compiler

        self.file, self.writes = read(), config.option.lock == WRITE
        chosen = selection.parse(config.option.selection)
        part = selection.of_this_commit()[0] if chosen == selection.ALL else chosen
        self.lock = compiler.lock = Lock({} if self.writes else self.file["compiled"], None if self.writes else part)
        self.found: list[dict] = []

    def pytest_sessionfinish(self, session):
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["lock"] = json.dumps(self.lock.found())
            return
        self.found.append(self.lock.found())
        if self.writes:
            self._write(session)
        elif self._unasked(session):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node, error):
        if told := getattr(node, "workeroutput", {}).get("lock"):
            self.found.append(json.loads(told))

    def _asked(self) -> set[str]:
        return {key for found in self.found for key in found["asked"]}

    @staticmethod
    def _whole(session) -> bool:
        """Whether every test had a chance to ask."""
        config = session.config
        whole = config.option.selection == selection.ALL and config.args_source is config.ArgsSource.TESTPATHS
        return whole and not config.option.keyword and session.testsfailed == 0

    def _unasked(self, session) -> list[str]:
        """Kernels of the file that nobody asked for, where every test had a chance to."""
        same = self.file["compilers"] == installed()
        return sorted(set(self.file["compiled"]) - self._asked()) if self._whole(session) and same else []

    def _write(self, session) -> None:
        now = read()
        if self._whole(session):
            now |= {"compiled": {}, "asking": []}
        for found in self.found:
            now["compiled"] |= found["new"]
            now["asking"] = [*now["asking"], *found["asking"]]
        write(now)

    def pytest_terminal_summary(self, terminalreporter):
        session = terminalreporter._session
        new = {key: made for found in self.found for key, made in found["new"].items()}
        if self.writes:
            terminalreporter.write_line(f"{PATH.name}: {len(new)} kernels written down")
            return
        if new:
            asking: dict[str, int] = {}
            for found in self.found:
                for name, keys in found["asking"].items():
                    asking[name] = asking.get(name, 0) + len(set(keys) & new.keys())
            terminalreporter.section("compiled, as the lock does not know them")
            for name, count in sorted(asking.items()):
                if count:
                    terminalreporter.write_line(f"{name}: {count}")
            terminalreporter.write_line("`python -m tests.expected TEST...` adds what these tests ask for.")
        if unasked := self._unasked(session):
            terminalreporter.section("stale")
            terminalreporter.write_line(
                f"{PATH.name} holds {len(unasked)} kernels that no test asks for: `python -m tests.expected` makes it "
                f"again. The first: {', '.join(unasked[:3])}"
            )
