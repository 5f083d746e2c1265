"""The CPU interpreter keeps what matters to a result."""

import cuda.tile as ct
import pytest
import torch

from tutorial_lib import interpreter, tensor_cores
from tutorial_lib.interpreter import Tile, UnsupportedOperation


def run(function, *args, grid=(1,)):
    interpreter.launch(grid, function, args)


def test_grid_and_block_indices():
    seen = torch.zeros(2, 3, 4, dtype=torch.int32)

    def kernel(array):
        x, y, z = ct.bid(0), ct.bid(1), ct.bid(2)
        ct.store(array, (z, y, x), ct.full((1, 1, 1), 1 + x + 10 * y + 100 * z, ct.int32))
        assert (ct.num_blocks(0), ct.num_blocks(1), ct.num_blocks(2)) == (4, 3, 2)

    run(kernel, seen, grid=(4, 3, 2))
    assert seen[1, 2, 3] == 1 + 3 + 20 + 100
    assert (seen > 0).all()


def test_loads_pad_and_stores_drop_out_of_bounds():
    source, target = torch.arange(1.0, 6.0), torch.zeros(5)

    def kernel(a, b):
        tile = ct.load(a, (1,), (4,), padding_mode=ct.PaddingMode.ZERO)
        assert tile.tensor.tolist() == [5, 0, 0, 0]
        assert ct.load(a, (1,), (4,), padding_mode=ct.PaddingMode.NEG_INF).tensor.tolist()[1:] == [-torch.inf] * 3
        assert ct.load(a, (1,), (4,)).tensor[1:].isnan().all()  # undetermined: nobody may rely on it
        ct.store(b, (1,), tile + 1)

    run(kernel, source, target)
    assert target.tolist() == [0, 0, 0, 0, 6]


def test_a_tile_entirely_outside_is_an_error():
    def kernel(a):
        ct.load(a, (2,), (4,))

    with pytest.raises(IndexError, match=r"tile at index \(2,\) lies entirely outside"):
        run(kernel, torch.zeros(5))


def test_unchecked_bounds_are_checked_here():
    def kernel(a):
        ct.load(a, (1,), (4,), check_bounds=False)

    with pytest.raises(IndexError, match="check_bounds=False"):
        run(kernel, torch.zeros(5))


def test_load_order_swaps_axes():
    matrix = torch.arange(32.0).reshape(4, 8)

    def kernel(a):
        tile = ct.load(a, (1, 0), (4, 4), order=(1, 0))
        assert torch.equal(tile.tensor, matrix[:, 4:8].T)
        assert ct.num_tiles(a, 0, (4, 4), order=(1, 0)) == 2

    run(kernel, matrix)


def test_a_loaded_tile_does_not_change_with_its_array():
    array = torch.zeros(4)

    def kernel(a):
        before = ct.load(a, (0,), (4,))
        ct.store(a, (0,), before + 1)
        assert before.tensor.tolist() == [0, 0, 0, 0]

    run(kernel, array)
    assert array.tolist() == [1, 1, 1, 1]


def test_astype_rounds_to_nearest_even():
    def kernel():
        halfway = ct.full((2,), 1 + 2**-11, ct.float32)  # between 1 and the next float16
        assert halfway.astype(ct.float16).tensor.tolist() == [1.0, 1.0]
        assert (halfway + 2**-10).astype(ct.float16).tensor.tolist() == [1 + 2**-9] * 2
        assert ct.full((1,), 70000.0, ct.float32).astype(ct.float16).tensor.isinf().all()

    run(kernel)


def test_tiles_keep_their_dtype_and_scalars_are_float32():
    def kernel(scale):
        half = ct.full((2,), 1.0, ct.float16)
        assert (half * 2.0).dtype == ct.float16  # a constant takes the tile's dtype
        assert (half * scale).dtype == ct.float32  # a kernel's float argument is a float32
        assert (half + ct.full((2,), 1.0, ct.float32)).dtype == ct.float32
        assert (half < 2.0).dtype == ct.bool_
        assert ct.sum(half).dtype == ct.float16

    run(kernel, 0.1)


def test_mma_accumulates_in_float32():
    def kernel():
        x = ct.full((1, 4096), 1.0, ct.float16)
        y = ct.full((4096, 1), 1 + 2**-10, ct.float16)
        result = ct.mma(x, y, ct.zeros((1, 1), ct.float32))
        assert result.dtype == ct.float32
        assert float(result) == 4096 + 4  # float16 sums would have stalled at 2048

    run(kernel)


@pytest.mark.parametrize("dtype", [ct.float8_e4m3fn, ct.float8_e5m2], ids=str)
@pytest.mark.parametrize("batch", [(), (3,)], ids=["one", "several"])
def test_products_in_fp8_are_those_of_the_tensor_cores(dtype, batch):
    """Of several tiles at once as of each alone, and not the exact ones."""
    its = getattr(torch, dtype.name)
    x, y = torch.randn(*batch, 4, 640).to(its), torch.randn(640, 8).to(its)
    acc = torch.randn(*batch, 4, 8) * 100
    whole = acc + x.float() @ y.float()

    def kernel():
        tiles = Tile(x), Tile(y), Tile(acc)
        for fast, sums in ((False, torch.zeros_like(acc)), (True, acc)):
            found = ct.mma(*tiles, use_fast_acc=fast).tensor
            each = zip(x.view(-1, 4, 640), sums.view(-1, 4, 8))
            made = torch.stack([tensor_cores.product(one, y, its_sum) for one, its_sum in each]).view(acc.shape)
            assert torch.equal(found, made if fast else acc + made) and not torch.equal(found, whole)
            assert (found - whole).abs().max() < 1

    run(kernel)


def test_what_is_not_known_of_fp8_is_refused():
    def kernel():
        x, y = ct.ones((4, 32), ct.float8_e4m3fn), ct.ones((32, 4), ct.float8_e4m3fn)
        with pytest.raises(UnsupportedOperation, match="adds fp8 products in float32 only"):
            ct.mma(x, y, ct.zeros((4, 4), ct.float16))
        with pytest.raises(UnsupportedOperation, match="has no ct"):
            x @ y
        with pytest.raises(ct.TileTypeError, match="the same dtype"):
            ct.mma(x, ct.astype(y, ct.float8_e5m2), ct.zeros((4, 4), ct.float32))

    run(kernel)


def test_flush_to_zero():
    tiny = 2.0**-130  # subnormal in float32

    def kernel():
        x = ct.full((2,), -130.0, ct.float32)
        assert ct.exp2(x).tensor.tolist() == [tiny] * 2
        assert ct.exp2(x, flush_to_zero=True).tensor.tolist() == [0, 0]
        negative = ct.mul(ct.full((1,), -tiny, ct.float32), 1.0, flush_to_zero=True).tensor
        assert negative.item() == 0 and negative.signbit().item()
        big = ct.full((1,), -torch.inf, ct.float32)
        assert ct.add(big, 1.0, flush_to_zero=True).tensor.item() == -torch.inf

    run(kernel)


def test_maximum_ignores_nan_as_cutile_does():
    def kernel(a):
        tile = ct.load(a, (0,), (4,))
        assert float(ct.max(tile)) == 3 and float(ct.min(tile)) == 1
        assert ct.maximum(tile, 0.0).tensor.tolist() == [1, 0, 3, 2]

    run(kernel, torch.tensor([1, torch.nan, 3, 2]))


def test_a_missing_operation_is_named():
    def kernel(a):
        ct.atomic_max(a, (0,), 1.0)

    with pytest.raises(UnsupportedOperation, match=r"no ct\.atomic_max"):
        run(kernel, torch.zeros(4))

    def view(a):
        a.tiled_view((4,))

    with pytest.raises(UnsupportedOperation, match=r"no ct\.Array\.tiled_view"):
        run(view, torch.zeros(4))

    def rounding(a):
        ct.load(a, (0,), (4,)).astype(ct.float16, rounding_mode=ct.RoundingMode.RZ)

    with pytest.raises(UnsupportedOperation, match=r"RoundingMode\.RZ"):
        run(rounding, torch.zeros(4))


def test_tile_functions_of_the_kernels_own_run():
    @ct.function
    def twice(tile):
        return tile * 2

    def kernel(a):
        ct.store(a, (0,), twice(ct.load(a, (0,), (4,))))

    array = torch.ones(4)
    run(kernel, array)
    assert array.tolist() == [2, 2, 2, 2]


def test_printing_shows_tiles(capsys):
    def kernel():
        tile = ct.full((2,), 1.5, ct.float32)
        ct.print("tile", tile, sep="=")
        print(f"{tile:.2f}")
        ct.printf("100%% of %6.3f and %lld\n", tile, ct.full((), 7, ct.int64))

    run(kernel)
    assert capsys.readouterr().out == "tile=[1.5, 1.5]\n[1.50, 1.50]\n100% of  1.500,  1.500 and 7\n"


def test_a_breakpoint_stops_inside_a_kernel(monkeypatch):
    stopped = []
    monkeypatch.setattr("sys.breakpointhook", lambda: stopped.append(True))

    def kernel():
        breakpoint()

    run(kernel, grid=(2,))
    assert len(stopped) == 2


def test_kernels_cannot_be_called_outside():
    run(lambda: None)
    with pytest.raises(RuntimeError, match="device code"):
        ct.zeros((1,), ct.float32)  # the mode ends with the launch


def test_atomic_additions_meet_and_stay_inside():
    """Two blocks add to the same place, an index twice in one tile counts twice, and outside nothing happens."""

    def kernel(X, Old):
        index = ct.full((4,), 1, ct.int32) * ct.bid(0) + ct.arange(4, dtype=ct.int32)
        old = ct.atomic_add(X, (index, 0), ct.full((4,), 1.5, ct.float32))
        ct.store(Old, (ct.bid(0), 0), ct.reshape(old, (1, 4)))
        ct.atomic_add(X, (ct.full((2,), 0, ct.int32), ct.full((2,), 1, ct.int32)), 1.0)

    x, old = torch.zeros(4, 2), torch.full((2, 4), -1.0)
    interpreter.launch((2,), kernel, (x, old))
    assert x[:, 0].tolist() == [1.5, 3.0, 3.0, 3.0] and x[0, 1] == 4.0
    assert old.tolist() == [[0, 0, 0, 0], [1.5, 1.5, 1.5, 0]]

    def outside(X):
        ct.atomic_add(X, (ct.full((2,), 7, ct.int32), 0), 1.0, check_bounds=False)

    with pytest.raises(IndexError, match="lies outside"):
        interpreter.launch((1,), outside, (x,))
