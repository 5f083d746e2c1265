"""AMD's assembly is read: what a kernel takes, what its instructions do, which loop is the hot one."""

import re

import pytest

from tutorial_lib import amdgcn
from tutorial_lib.architectures import blocks_per_multiprocessor

ASSEMBLY = """\t.text
fmha:                                   ; @fmha
\ts_load_dwordx4 s[0:3], s[4:5], 0x0
\tbuffer_load_dwordx4 v1, s[0:3], 0 offen lds
\tbuffer_load_dwordx4 v[2:5], v1, s[0:3], 0 offen
.LBB0_1:                                ; %fetch
\tds_read_b128 v[6:9], v1
\ts_cbranch_scc1 .LBB0_1
.LBB0_2:                                ; the loop over whole tiles
\ts_waitcnt vmcnt(8) lgkmcnt(0)
\ts_barrier
\ts_setprio 1
\tv_mfma_f32_32x32x16_f16 v[16:31], v[2:5], v[6:9], v[16:31]
\tv_max3_f32 v1, v16, v17, v18
\tv_exp_f32_e32 v1, v1
\tv_pk_mul_f32 v[16:17], v[16:17], v[2:3]
\tv_cvt_pk_f16_f32 v1, v1, v2
\tv_permlane32_swap_b32_e32 v1, v2
\ts_cbranch_scc1 .LBB0_2
.LBB0_3:
\tv_mfma_f32_32x32x16_f16 v[16:31], v[2:5], v[6:9], v[16:31]
\tv_exp_f32_e32 v1, v1
\tv_accvgpr_write_b32 a0, v1
\tscratch_store_dword off, v1, s32
\ts_cbranch_scc1 .LBB0_3
\tbuffer_store_dwordx2 v[1:2], v3, s[0:3], 0 offen
\ts_endpgm
.Lfunc_end0:
\t.size\tfmha, .Lfunc_end0-fmha
; Occupancy: 2
    .agpr_count:     4
    .private_segment_fixed_size: 16
    .sgpr_count:     30
    .sgpr_spill_count: 1
    .vgpr_count:     254
    .vgpr_spill_count: 2
    .wavefront_size: 64
"""


def test_a_kernel_tells_what_it_takes():
    assert amdgcn.facts(ASSEMBLY) == amdgcn.Facts(
        vgprs=254,
        agprs=4,
        sgprs=30,
        spilled_vgprs=2,
        spilled_sgprs=1,
        scratch_bytes=16,
        wave_lanes=64,
        occupancy=2,
    )
    assert amdgcn.facts(re.sub(r".*agpr_count.*\n", "", ASSEMBLY)).agprs == 0
    with pytest.raises(ValueError, match="the assembly does not tell sgprs, occupancy"):
        amdgcn.facts(re.sub(r".*(sgpr_count|Occupancy).*\n", "", ASSEMBLY))


def test_instructions_are_counted_by_what_they_do():
    kinds = amdgcn.count_kinds(amdgcn.parse(ASSEMBLY).instructions)
    assert tuple(kinds) == amdgcn.ALL_KINDS
    once = {"LDS", "VALU", "packed VALU", "conversion", "cross-lane", "barrier", "priority", "wait", "spill"}
    assert {kind: kinds[kind] for kind in once} == dict.fromkeys(once, 1)
    assert kinds["MFMA"] == kinds["transcendental"] == 2 and kinds["direct to LDS"] == 1
    assert kinds["vector memory"] == 2 and kinds["control"] == 4 and kinds["scalar"] == 1
    assert kinds["register move"] == 1 and sum(kinds.values()) == 22


def test_the_hot_loop_is_the_first_that_multiplies_and_exponentiates():
    body = amdgcn.hot_loop(amdgcn.parse(ASSEMBLY))
    assert [body[0].text, body[-1].text] == ["s_waitcnt vmcnt(8) lgkmcnt(0)", "s_cbranch_scc1 .LBB0_2"]
    assert amdgcn.hot_loop(amdgcn.parse(ASSEMBLY.replace("v_exp", "v_add"))) == []


def test_waves_share_registers_and_lds():
    """Of 512 registers a lane on each of four SIMDs, in units of 8; of 160 or 64 KiB of LDS; at most 8 waves a SIMD."""
    assert blocks_per_multiprocessor("gfx950", 256, 254, 65536) == (2, "registers and shared memory")
    assert blocks_per_multiprocessor("gfx950", 256, 257, 0) == (1, "registers")
    assert blocks_per_multiprocessor("gfx950", 256, 128, 98304) == (1, "shared memory")
    assert blocks_per_multiprocessor("gfx942", 256, 128, 32768) == (2, "shared memory")
    assert blocks_per_multiprocessor("gfx942", 512, 24, 0) == (4, "warps")


def test_instructions_in_plain_text_begin_a_line_and_are_read():
    """LLVM writes inline assembly as it was given: only its first line is indented."""
    text = (
        "fmha:\n\tv_cmp_neq_f32 vcc, 1.0, v7\ns_cbranch_vccz 0f\nv_mul_f32 v2, v2, v7\n0:\n\ts_endpgm\n.Lfunc_end0:\n"
    )
    code = amdgcn.parse(text)
    assert [i.kind for i in code.instructions] == ["VALU", "control", "VALU", "control"]
    assert code.labels == {"fmha": 0, "0": 3}
