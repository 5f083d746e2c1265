"""LDS by its banks: what the model says of layouts, and that the compiler reads as the model supposes."""

from functools import partial

import pytest

from steps import get_step, layouts
from steps.core.problems import FULL, standard
from tutorial_lib import layouts as model

PROBLEMS = [standard(head_dim=64), FULL, standard(head_dim=256)]
DIRECT = ("direct_to_lds", "scaled_query", "vote", "wave_priorities", "xcd_swizzle")


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
@pytest.mark.parametrize("instruction", model.READS)
def test_every_lane_is_served_once(arch, instruction):
    groups = model.groups_of_lanes(arch, instruction)
    assert sorted(lane for group in groups for lane in group) == list(range(64))
    assert len({len(group) for group in groups}) == 1
    # A group asks for no more than all banks hold; of 16 bytes a lane, for all of it.
    bits = len(groups[0]) * model.READS[instruction]
    assert bits <= model.LDS_BANKS[arch] * 4 and (instruction != "ds_read_b128" or bits == model.LDS_BANKS[arch] * 4)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.slug)
def test_the_swizzle_frees_reads_of_k_from_conflicts_and_those_of_v_not(problem):
    """All that direct copies allow by padding leaves conflicts in both. Padding behind a row would do for K."""
    rows = {
        told: [float(cell.split()[0]) for cell in cells]
        for arch, told, *cells in layouts.lds_rows(problem)
        if arch == "gfx950"
    }
    assert rows["swizzled: step direct_to_lds"][0] == 1 < rows["swizzled: step direct_to_lds"][1]
    assert rows["16 bytes of padding after each row"][0] == 1
    assert min(rows["16 bytes after every 1024: what direct copies allow"]) > 1
    assert rows["in order: step mfma"][0] >= 8


@pytest.mark.parametrize("name", DIRECT)
def test_every_step_with_direct_copies_reads_k_without_conflicts(name):
    (cycles, least), _ = layouts.lds_cycles(get_step(name), FULL, "gfx950")
    assert cycles == least


def test_a_swizzle_by_other_bits_of_the_row_would_free_both():
    """Four rows that follow each other, which a transposed read of V meets together, then lie in different quarters."""

    def address(columns, row, column):
        chunk = column // 8 ^ (row % 4 << 2 | row // 4 % 4)
        return 2 * (row * columns + 8 * chunk + column % 8)

    for problem in PROBLEMS[1:]:
        both = layouts.lds_cycles(get_step("mfma"), problem, "gfx950", lambda columns: partial(address, columns))
        assert all(cycles == least for cycles, least in both)


@pytest.mark.parametrize(("name", "arch"), [("mfma", "gfx942"), ("mfma", "gfx950"), ("direct_to_lds", "gfx950")])
def test_the_compiler_reads_as_the_model_supposes(name, arch):
    opcodes = get_step(name).compile(FULL, arch).opcodes("LDS")
    reads = {opcode for opcode in opcodes if opcode.startswith("ds_read")}
    of_keys, of_values = layouts.LDS_READS[arch]
    assert reads == {of_keys.replace("read_b64", "read2_b64"), of_values}  # two of 8 bytes in one instruction


def test_conflicts_by_hand():
    """64 lanes read one chunk of rows 0 to 31 and its neighbour: of plain rows, all 16 of a group collide."""
    v = get_step("mfma").variant(FULL, "gfx950")
    plain = partial(model.shared_address, v.shared, 128)
    cycles = model.lds_cycles("gfx950", "ds_read_b128", v.right, [128, 64], lambda column, row: plain(row, column))
    instructions = 128 * 64 * 2 // (64 * 16)
    assert cycles == (instructions * 4 * 16, instructions * 4)
