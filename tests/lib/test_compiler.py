"""The compiler lens: what it reads from machine code, what it keeps, and how it counts blocks an SM."""

import dataclasses

import pytest
from cuda.tile._compile import default_tile_context
from cutile_cache._cache import cache_entries, cache_lookup

from steps import STEPS, get_step
from steps.core.problems import HEADLINE as EVEN
from tests.core.test_one_change import CUTILE
from tests.expected import same_compilers
from tutorial_lib import compiler, ptxas, sass
from tutorial_lib.architectures import ARCHITECTURES, blocks_per_multiprocessor
from tutorial_lib.compiler import AMD_ARCHITECTURES, CUTILE_ARCHITECTURES, parse_remarks

# Two loops, the second with a select in it as a mask has, a barrier that spins, and a slow path behind the end.
TEXT = """
        /*0000*/                   MOV R1, c[0x0][0x28] ;
        /*0010*/                   HGMMA.64x128x16.F32 R24, gdesc[UR4], R24 ;
        /*0020*/                   MUFU.EX2 R5, R4 ;
        /*0030*/                   MUFU.EX2 R6, R4 ;
        /*0040*/                   MUFU.EX2 R7, R4 ;
        /*0050*/                   MUFU.EX2 R8, R4 ;
        /*0060*/                   MUFU.EX2 R5, R4 ;
        /*0070*/                   MUFU.EX2 R6, R4 ;
        /*0080*/                   MUFU.EX2 R7, R4 ;
        /*0090*/                   MUFU.EX2 R8, R4 ;
        /*00a0*/              @P0  BRA 0x10 ;
        /*00b0*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R2], R3 ;
        /*00c0*/              @!P0 BRA 0xb0 ;
        /*00d0*/                   HGMMA.64x128x16.F32 R24, gdesc[UR4], R24 ;
        /*00e0*/                   FSEL R5, R5, -INF , P0 ;
        /*00f0*/                   MUFU.EX2 R5, R4 ;
        /*0100*/                   MUFU.EX2 R6, R4 ;
        /*0110*/                   MUFU.EX2 R7, R4 ;
        /*0120*/                   MUFU.EX2 R8, R4 ;
        /*0130*/                   MUFU.EX2 R5, R4 ;
        /*0140*/                   MUFU.EX2 R6, R4 ;
        /*0150*/                   MUFU.EX2 R7, R4 ;
        /*0160*/                   MUFU.EX2 R8, R4 ;
        /*0170*/              @P1  BRA 0xd0 ;
        /*0180*/                   STL [R1], R5 ;
        /*0190*/                   EXIT ;
        /*01a0*/                   NANOSLEEP 0x20 ;
        /*01b0*/                   BRA 0x100 ;
        /*01c0*/                   BRA 0x1c0;
"""


def test_instructions_are_told_apart():
    instructions = sass.parse(TEXT)
    assert len(instructions) == 29
    assert instructions[10] == sass.Instruction(0xA0, "P0", "BRA", "0x10")
    kinds = sass.count_kinds(instructions)
    expected = {"tensor core": 2, "MUFU": 16, "FP32": 1, "spill": 1, "synchronisation": 2, "control": 6}
    assert {kind: count for kind, count in kinds.items() if count} == expected | {"integer and move": 1}
    assert sum(kinds.values()) == len(instructions)


def test_the_hot_loop_is_the_first_that_works():
    """Not the masked one behind it, not a barrier that spins, not the way back from a slow path."""
    instructions = sass.parse(TEXT)
    assert [(body[0].address, body[-1].address) for body in sass.loops(instructions)] == [(0x10, 0xA0), (0xD0, 0x170)]
    hot = sass.hot_loops(instructions)
    assert list(hot) == ["compute"] and hot["compute"][0].address == 0x10


def test_the_order_of_work_is_that_of_the_code():
    code = """
        /*0000*/ HGMMA.64x64x16.F32 R24, gdesc[UR8], !UPT ;
        /*0010*/ HGMMA.64x64x16.F32 R24, gdesc[UR12], R24, gsb0 ;
        /*0020*/ WARPGROUP.ARRIVE ;
        /*0030*/ WARPGROUP.DEPBAR.LE gsb0, 0x1 ;
        /*0040*/ FADD R1, R2, R3 ;
        /*0048*/ FMNMX R1, R2, R3, !PT ;
        /*0050*/ MUFU.EX2 R1, R1 ;
        /*0058*/ FMNMX R4, R2, R3, !PT ;
        /*0060*/ MUFU.RCP R2, R1 ;
        /*0068*/ WARPGROUP.DEPBAR.LE gsb0, 0x0 ;
        /*0070*/ MUFU.EX2 R3, R1 ;
    """
    expected = [("HGMMA", 2), ("wait", 1), ("FMNMX", 2), ("EX2", 1), ("wait", 1), ("EX2", 1)]
    assert sass.order_of_work(sass.parse(code)) == expected


def test_comparisons_that_wait_for_the_one_before_are_counted():
    code = """
        /*0000*/ FMNMX R1, R2, R3, !PT ;
        /*0010*/ FMNMX R1, R1, R4, !PT ;
        /*0020*/ FADD R1, R1, R5 ;
        /*0030*/ FMNMX R6, R5, R1, !PT ;
        /*0040*/ FMNMX R7, R8, R9, !PT ;
        /*0050*/ FMNMX R6, R6, R5, !PT ;
        /*0060*/ @!P0 FMNMX R6, R11, |R6|, !PT ;
        /*0070*/ FMNMX R6, R12, R13, !PT ;
    """
    body = sass.parse(code)
    assert sass.one_behind_another(body, "FMNMX") == (7, 3)
    nowhere = sass.parse("/*0000*/ FMNMX RZ, R2, R3, !PT ;\n/*0010*/ FMNMX R1, RZ, R2, !PT ;")
    assert sass.one_behind_another(nowhere, "FMNMX") == (2, 0)
    without = sass.parse("/*0000*/ BAR.SYNC 0x1 ;\n/*0010*/ BAR.SYNC 0x1 ;")
    assert sass.one_behind_another(without, "BAR") == (2, 0)
    assert sass.one_behind_another(body, "FADD") == (1, 0) and sass.one_behind_another(body, "MUFU") == (0, 0)


def test_code_is_the_same_whatever_its_addresses():
    moved = TEXT.replace("/*0", "/*1")
    assert sass.without_addresses(TEXT) == sass.without_addresses(moved)
    assert sass.without_addresses(TEXT) != sass.without_addresses(TEXT.replace("FSEL", "FMUL"))


def test_compiled_again_it_comes_from_disk(monkeypatch, tmp_path, tmp_path_factory):
    """And where cuTile looks when the kernel is launched, it lies, too (``tests/core/test_compiled_ahead.py``)."""
    launches = str(tmp_path_factory.mktemp("launches"))
    monkeypatch.setattr(default_tile_context.config, "cache_dir", launches)
    monkeypatch.setattr(compiler, "lock", None)
    monkeypatch.setenv("FMHA_TUTORIAL_CACHE", str(tmp_path))
    first = CUTILE[-1].compile(EVEN, "sm_90")
    [entry] = cache_entries(launches)
    assert cache_lookup(launches, entry.key).startswith(b"\x7fELF")
    monkeypatch.setattr(compiler, "_compile", lambda *arguments: pytest.fail("compiled twice"))
    again = CUTILE[-1].compile(EVEN, "sm_90")
    assert again == first and again.hot_loop == first.hot_loop
    made = []
    monkeypatch.setattr(compiler, "_compile", lambda *arguments: made.append("again") or first)
    [kept] = tmp_path.iterdir()
    kept.write_text("{not json", encoding="utf-8")
    assert CUTILE[-1].compile(EVEN, "sm_90") == first and len(made) == 1  # a spoilt file is compiled over
    assert CUTILE[-1].compile(EVEN, "sm_90") == first and len(made) == 1
    monkeypatch.setenv("FMHA_TUTORIAL_CACHE", "/proc/nowhere")
    assert CUTILE[-1].compile(EVEN, "sm_90") == first and len(made) == 2  # nothing can be kept there


def test_cutiles_cache_is_held_to_its_size_limit(monkeypatch, tmp_path):
    """Also where nothing is compiled but ahead."""
    config = default_tile_context.config
    monkeypatch.setattr(config, "cache_dir", str(tmp_path))
    for limit, kept in ((60, [60]), (200, [60, 60])):
        monkeypatch.setattr(config, "cache_size_limit", limit)
        for bytecode in (b"one", b"another"):
            compiler._keep_for_launches(bytecode, "sm_90", bytes(60))
        assert [entry.size for entry in cache_entries(str(tmp_path))] == kept
    monkeypatch.setattr(config, "cache_dir", "/proc/nowhere")
    compiler._keep_for_launches(b"one", "sm_90", bytes(60))


def test_a_kernel_is_kept_under_the_ptxas_that_made_it():
    """Whatever Triton was asked for in this process before, which it remembers."""
    from triton.backends.nvidia import compiler as nvidia

    usual = nvidia.get_ptxas_version(90)
    with ptxas.chosen_for("sm_90"):
        assert ptxas.version_for("sm_90") in nvidia.get_ptxas_version(90) and nvidia.get_ptxas_version(90) != usual
    assert nvidia.get_ptxas_version(90) == usual


def test_occupancy_by_hand():
    # 255 registers are given out as 256, to 8 warps of 32: 65536, all that an SM has.
    assert blocks_per_multiprocessor("sm_90", 256, 255, 83040) == (1, "registers")
    assert blocks_per_multiprocessor("sm_90", 256, 128, 64 * 1024) == (2, "registers")
    assert blocks_per_multiprocessor("sm_90", 256, 128, 83040) == (2, "registers and shared memory")
    # 228 KiB hold one block of 150 KiB; 100 KiB hold three of 32 KiB, each with 1 KiB for the system.
    assert blocks_per_multiprocessor("sm_90", 128, 64, 150 * 1024) == (1, "shared memory")
    assert blocks_per_multiprocessor("sm_120", 128, 64, 32 * 1024) == (3, "shared memory")
    assert blocks_per_multiprocessor("sm_80", 512, 16, 0) == (4, "warps")
    assert blocks_per_multiprocessor("sm_107", 128, 64, 0) is None


def test_the_systems_shared_memory_is_not_counted_twice():
    """cuobjdump counts it with a cuTile kernel's own from sm_90 on, and not before."""
    for arch, counted in (("sm_80", 0), ("sm_90", 1024), ("sm_120", 1024)):
        made = get_step("mma").compile(EVEN, arch)
        assert made.system_bytes == counted
        most = ARCHITECTURES[arch].shared_bytes - ARCHITECTURES[arch].reserved_bytes
        fits = dataclasses.replace(made, registers=32, shared_bytes=most + counted)
        assert fits.occupancy == (1, "shared memory")
        assert dataclasses.replace(fits, shared_bytes=most + counted + 1).occupancy == (0, "shared memory")


@same_compilers
def test_occupancy_of_a_kernel():
    two_blocks = get_step("occupancy").compile(EVEN, "sm_90")
    assert two_blocks.occupancy == (2, "registers and shared memory")
    assert two_blocks.occupancy_percent == 100 * 2 * (256 / 32) / 64  # of the 64 warps that an SM of sm_90 holds


def test_every_rate_names_its_source():
    assert set(ARCHITECTURES) == {*CUTILE_ARCHITECTURES, *AMD_ARCHITECTURES}
    for architecture in ARCHITECTURES.values():
        assert ("[ROCm]" if architecture.name in AMD_ARCHITECTURES else "[guide]") in architecture.source
        assert architecture.tensor_flops is None or "," in architecture.source  # a tensor rate needs a second source


def test_remarks_are_read_once_each():
    entry = """--- !Passed
Pass: Memory
DebugLoc: {{ File: '/somewhere/steps/cutile/kernel.py', Line: {line}, Column: 8 }}
Args:
  - RemarkId: {number}
  - Remark: Load instruction selected
  - Instruction: TMA Load instruction
  - Shape: '[64, 128]'
...
"""
    text = entry.format(line=9, number=1) + entry.format(line=3, number=2) + entry.format(line=9, number=3)
    remarks = parse_remarks(text)
    assert [remark.line for remark in remarks] == [3, 9]
    assert remarks[0].file == "cutile/kernel.py"
    assert remarks[0].text == "Load instruction selected: TMA Load instruction: [64, 128]"


def test_torch_steps_have_nothing_to_compile():
    with pytest.raises(ValueError, match="no kernel of its own"):
        STEPS[0].compile(EVEN)


@pytest.mark.parametrize(
    "said", ["nvdisasm error   : Opclass 'nop_', undefined value", "Cannot decode architecture 107"]
)
def test_code_that_the_disassembler_does_not_know_is_no_failure(said, monkeypatch, tmp_path):
    def fails(option, cubin, why=said):
        raise compiler.CompilerError(f"cuobjdump {option} failed: {why}")

    monkeypatch.setattr(compiler, "cuobjdump", fails)
    assert compiler._disassemble(tmp_path) is None
    monkeypatch.setattr(compiler, "cuobjdump", lambda *given: fails(*given, "no such file"))
    with pytest.raises(compiler.CompilerError, match="no such file"):
        compiler._disassemble(tmp_path)
