"""Parts of attention: put together by their log-sum-exp, and shared out so that every score is computed once."""

import itertools

import pytest
import torch

from steps.parallel.merging import _merge, accumulator, merge
from steps.parallel.shares import IN_ORDER, ZIGZAG
from tutorial_lib.reference import attention_and_lse_float64

SHARES = {"in order": IN_ORDER, "zigzag": ZIGZAG}


def parts(*sizes: int, scale: float = 0.3, dtype=torch.float32):
    """((o, lse) of all keys, the same of each piece of them), from float64."""
    q = torch.randn(2, 3, 5, 16, dtype=torch.float64)
    k, v = (torch.randn(2, 3, sum(sizes), 16, dtype=torch.float64) for _ in range(2))

    def over(k, v):
        o, lse = attention_and_lse_float64(q, k, v, scale=scale)
        return o.to(dtype), lse.float()

    return over(k, v), [over(*pair) for pair in zip(k.split(sizes, dim=2), v.split(sizes, dim=2))]


@pytest.mark.parametrize("order", [*itertools.permutations(range(3))])
def test_parts_in_any_order_are_the_whole(order):
    (o, lse), found = parts(4, 1, 30)
    first, *others = [found[n] for n in order]
    mine, my_lse = first[0].clone(), first[1].clone()
    for other in others:
        merge(mine, my_lse, *other)
    assert (mine - o).abs().max() < 1e-6 and (my_lse - lse).abs().max() < 1e-5


def test_sums_that_would_overflow_are_put_together():
    """exp of such a log-sum-exp is infinite, or zero."""
    (o, lse), found = parts(7, 9, scale=2000.0)
    assert lse.abs().max() > 1000
    (mine, my_lse), other = found
    merge(mine, my_lse, *other)
    assert torch.equal(my_lse.isfinite(), torch.ones_like(my_lse, dtype=bool))
    rounded = torch.finfo(lse.dtype).eps * lse.abs().max()  # of a log-sum-exp, and so the relative error of a weight
    assert (mine - o).abs().max() < rounded and ((my_lse - lse) / lse).abs().max() < 1e-6


def test_a_query_that_has_seen_no_key_takes_the_other_part_as_it_is():
    _, [(o, lse), _] = parts(6, 1)
    nothing, minus = torch.zeros_like(o), torch.full_like(lse, -torch.inf)
    mine, my_lse = nothing.clone(), minus.clone()
    merge(mine, my_lse, o, lse)
    assert torch.equal(mine, o) and torch.equal(my_lse, lse)
    merge(mine, my_lse, nothing, minus)
    assert torch.equal(mine, o) and torch.equal(my_lse, lse)
    merge(nothing, minus, nothing.clone(), minus.clone())  # nor in the other: no NaN
    assert torch.equal(nothing, torch.zeros_like(o)) and torch.equal(minus, torch.full_like(lse, -torch.inf))


def test_what_is_put_together_is_rounded_once():
    """In float16: as near as the rounding of the parts and of the result allow."""
    (o, _), [first, second] = parts(40, 50, dtype=torch.float16)
    merge(*first, *second)
    assert first[0].dtype == torch.float16
    step = torch.finfo(torch.float16).eps * o.abs().max()
    assert (first[0].double() - o.double()).abs().max() <= 1.5 * step
    assert accumulator(o, 1) is o and accumulator(o, 2).dtype == torch.float32


def test_rows_of_a_larger_output_are_written_in_place():
    (_, _), [(o, lse), part] = parts(6, 4)
    before = o.clone()
    late = slice(2, None)
    merge(o[:, :, late], lse[:, :, late], part[0][:, :, late], part[1][:, :, late])
    assert torch.equal(o[:, :, :2], before[:, :, :2]) and not torch.equal(o[:, :, 2:], before[:, :, 2:])


def test_a_gpu_gets_the_same_function_compiled():
    """Compiled for the CPU here: PyTorch's compiler takes it whole, with what it writes to."""
    _, [(o, lse), part] = parts(6, 4)
    mine = o.clone(), lse.clone()
    torch.compile(_merge, dynamic=True, fullgraph=True, backend="aot_eager")(*mine, *part)
    merge(o, lse, *part)
    assert torch.equal(mine[0], o) and torch.equal(mine[1], lse)


# --- who computes what ---


def tokens_of(share, rank: int, ranks: int, length: int) -> list[int]:
    return share.part(torch.arange(length).view(1, 1, -1), rank, ranks).flatten().tolist()


def pairs(share, own: int, owner: int, ranks: int, length: int, causal: bool) -> list[tuple[int, int]]:
    """(query, key) of the sequence that rank ``own`` computes with the keys of ``owner``."""
    block = share.block(own, owner, length // ranks, causal)
    if block is None:
        return []
    rows, keys = (tokens_of(share, rank, ranks, length) for rank in (own, owner))
    rows, keys = list(enumerate(rows))[block.rows], list(enumerate(keys))[block.keys]
    return [(i, j) for m, i in rows for n, j in keys if not block.causal or n <= m]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("name", SHARES)
def test_every_score_that_the_mask_lets_through_is_computed_once(name, ranks):
    share, length = SHARES[name], 2 * ranks * 3
    for causal in (True, False):
        made = [pairs(share, a, b, ranks, length, causal) for a in range(ranks) for b in range(ranks)]
        wanted = [(i, j) for i in range(length) for j in range(length) if not causal or j <= i]
        assert sorted(itertools.chain(*made)) == wanted


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_in_a_zigzag_everybody_has_the_same_work_in_every_turn(ranks):
    length = 2 * ranks * 4
    counts = [[len(pairs(ZIGZAG, a, b, ranks, length, True)) for b in range(ranks)] for a in range(ranks)]
    own = {counts[a][a] for a in range(ranks)}
    others = {counts[a][b] for a in range(ranks) for b in range(ranks) if a != b}
    assert len(own) == len(others) == 1
    first, last = (sum(len(pairs(IN_ORDER, a, b, ranks, length, True)) for b in range(ranks)) for a in (0, ranks - 1))
    assert last > ranks * first  # in order the last rank has all the work


def test_a_sequence_that_makes_no_even_pieces_is_refused():
    with pytest.raises(ValueError, match="must be a multiple of 6 tokens for 3 ranks, got 15"):
        ZIGZAG.part(torch.zeros(1, 1, 15, 4), 0, 3)
    assert IN_ORDER.uneven(15, 3) is None
