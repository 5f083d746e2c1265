"""A function that is named takes the place of a kernel's: what is called then, and with which arguments."""

import pytest

from steps import get_step
from steps.core.problems import FULL, standard
from steps.writing.functions import put, with_functions
from steps.writing.written import write_step, written_out

CAUSAL = standard(head_dim=64, causal=True)
BOUNDS = """
def bounds(seq_len_kv, i):
    unmasked = seq_len_kv // TILE_KEY
    end = ct.cdiv(seq_len_kv, TILE_KEY)
    unmasked = min(unmasked, (i * TILE_QUERY) // TILE_KEY)
    return unmasked, min(end, ct.cdiv((i + 1) * TILE_QUERY, TILE_KEY))
"""


def test_arguments_find_their_parameters_by_name():
    """The same statements under another name, with parameters in another order, are the same kernel."""
    step = get_step("mma")
    assert "tiles_to_visit" not in written_out(step, CAUSAL)  # it is written where it is called, unless it is named
    changed = with_functions(step, CAUSAL, {"tiles_to_visit": BOUNDS}, name="mine")
    assert changed.name == "mine" and "= bounds(seq_len_kv, i)" in changed.text
    assert "tiles_to_visit" not in changed.text
    assert changed.compile(CAUSAL).code == step.compile(CAUSAL).code


def test_another_function_is_another_kernel():
    never = "def tiles_to_visit(seq_len_kv):\n    return 0, ct.cdiv(seq_len_kv, TILE_KEY)\n"
    step = get_step("mma")
    changed = with_functions(step, CAUSAL, {"tiles_to_visit": never})
    assert "= tiles_to_visit(seq_len_kv)" in changed.text and changed.text.count("def tiles_to_visit(") == 1
    assert changed.compile(CAUSAL).code != step.compile(CAUSAL).code


def test_as_many_parameters_of_other_names_are_taken_in_their_order():
    other = "def bounds(a, b):\n    return a, b\n"
    assert "= bounds(i, seq_len_kv)" in with_functions(get_step("mma"), CAUSAL, {"tiles_to_visit": other}).text


def test_a_role_of_its_own_is_handed_its_arguments():
    """Warps are specialised by pairs (function, (arguments))."""
    mine = "def fetch_tiles(barriers, arrays):\n    pass\n"
    text = with_functions(get_step("producer"), FULL, {"produce": mine}).text
    assert "(fetch_tiles, (barriers, arrays))" in text and "@gluon.jit\ndef fetch_tiles(" in text


def test_what_the_kernel_does_not_have_is_said():
    step = get_step("mma")
    with pytest.raises(ValueError, match="step mma: its kernel has no function tiles_to_visti"):
        with_functions(step, CAUSAL, {"tiles_to_visti": BOUNDS})
    asks = BOUNDS.replace("(seq_len_kv, i)", "(seq_len_kv, i, head)")
    with pytest.raises(ValueError, match=r"calls tiles_to_visit\(i, seq_len_kv\): nothing tells .* for head"):
        with_functions(step, CAUSAL, {"tiles_to_visit": asks})
    with pytest.raises(ValueError, match="one function must stand in for one, and these are 2"):
        with_functions(step, CAUSAL, {"tiles_to_visit": BOUNDS + asks})
    with pytest.raises(ValueError, match="step mma: its kernel has no constant STAGES"):
        put(write_step(step, CAUSAL), {}, constants={"STAGES": 3})


def test_a_constant_is_changed_by_its_name():
    written = write_step(get_step("producer"), FULL)
    text = put(written, {}, constants={"STAGES": 3}).text
    assert "\nSTAGES = gl.constexpr(3)\n" in text
    assert text.replace("constexpr(3)", "constexpr(2)", 1) == written.text
    assert "\nTILE_KEY = 32\n" in put(write_step(get_step("mma"), FULL), {}, constants={"TILE_KEY": 32}).text


def test_what_stands_beside_comes_before_the_kernel():
    """The kernel is the last function of a text."""
    beside = "def halved(x):\n    return x // 2\n"
    less = "def tiles_to_visit(i, seq_len_kv):\n    return 0, halved(i)\n"
    text = with_functions(get_step("mma"), CAUSAL, {"tiles_to_visit": less}, beside=beside).text
    assert text.index("def halved(") < text.index("def tiles_to_visit(") < text.index("def fmha(")
