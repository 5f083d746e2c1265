"""The softmax of one row, seen in pieces."""

from tutorial_lib.exercises import Plain, Wrong


def rows(chance):
    """(what the row is like, scores [key], values [key, head_dim], tile): each exposes other mistakes."""
    import torch

    seeded = torch.Generator().manual_seed(chance.getrandbits(32))

    def random(*shape):
        return torch.randn(shape, generator=seeded)

    tile, head_dim = chance.choice((16, 32)), chance.choice((3, 5, 7))
    yield "a row in a single piece", random(tile - 3), random(tile - 3, head_dim), tile
    keys = 4 * tile + chance.randint(1, tile - 1)
    growing = torch.arange(keys) // tile  # so that the maximum grows in every iteration
    yield "a row in five pieces", random(keys) + growing, random(keys, head_dim), tile
    large = random(keys)
    large[:tile] += 400  # overflows without a maximum; and later pieces are far below
    yield "a row whose first scores are near 400", large, random(keys, head_dim), tile
    yield "a row of scores near -400", random(keys) + growing - 400, random(keys, head_dim), tile
    spiky = random(keys)
    spiky[chance.randint(1, tile - 1) :: tile] += 200  # overflows relative to another score of the piece
    yield "a row with one score near 200 in each piece", spiky, random(keys, head_dim), tile
    late = random(keys)
    late[-1] += 400  # overflows relative to the maximum of what came before
    yield "a row whose last score is near 400", late, random(keys, head_dim), tile


def watch(scores, tile: int, head_dim: int, file: str):
    """A watch that stops what makes a tensor of the whole row, or computes from the whole row."""
    import torch

    from tutorial_lib.tiled import TooLarge, Watch

    keys, row = len(scores), scores.untyped_storage().data_ptr()

    def refused(shape):
        if keys > tile and keys in shape and head_dim not in shape:
            return f"that is the whole row of {keys} scores at once; only {tile} of them may be seen at a time."
        return None

    class Looks(Watch):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            made = super().__torch_dispatch__(function, types, args, kwargs)
            for tensor in args:
                if not isinstance(tensor, torch.Tensor) or tensor.numel() < keys or keys <= tile:
                    continue
                if tensor.untyped_storage().data_ptr() == row and not function.is_view:
                    raise TooLarge(
                        f"The whole row of {keys} scores is looked at{self._where()}; only {tile} of them may be seen "
                        "at a time."
                    )
            return made

    return Looks(refused, file)


def judge(function, chance):
    import torch

    from tutorial_lib.tiled import TooLarge

    wrong, seen = "", []
    for what, scores, values, tile in rows(chance):
        try:
            with watch(scores, tile, values.shape[1], function.__code__.co_filename):
                mine = function(scores, values, tile)
        except TooLarge as error:
            return f"On {what}: {error}"
        right = torch.softmax(scores.double(), 0) @ values.double()
        if not isinstance(mine, torch.Tensor) or mine.shape != right.shape:
            came = f"shape {list(mine.shape)}" if isinstance(mine, torch.Tensor) else type(mine).__name__
            return f"On {what}: the result must be a tensor of shape {list(right.shape)}, [head_dim]; got {came}."
        if not wrong and not (mine.double() - right).abs().max() <= 1e-3:  # NaN is wrong, too
            shown = [", ".join(f"{x:.4g}" for x in row.tolist()) for row in (mine, right)]
            wrong = f"On {what} ({len(scores)} scores, tile {tile}) the result is {shown[0]}; it should be {shown[1]}."
        seen.insert(0 if wrong else len(seen), ((scores, values, tile), mine))
    return wrong + EXERCISE.recognised(seen) if wrong else None


EXERCISE = Plain(
    name="online_softmax",
    function="weighted_mean",
    hints=(
        "row_sum and accumulator hold sums of exp(score - row_max). When the maximum grows, every one of their "
        "summands shrinks by the same factor. Which?",
        "exp(score - new_max) is exp(score - row_max) times exp(row_max - new_max). The second factor is the "
        "correction. new_max is the larger of row_max and the maximum of the piece.",
        "Both row_sum and accumulator are multiplied by the correction, and then this piece's share is added: "
        "weights.sum() and weights @ part. In the end, divide accumulator by row_sum.",
    ),
    solution="""
def weighted_mean(scores, values, tile):
    row_max, row_sum = torch.tensor(-math.inf), torch.tensor(0.0)
    accumulator = torch.zeros(values.shape[1])
    for first_key in range(0, len(scores), tile):
        piece, part = scores[first_key : first_key + tile], values[first_key : first_key + tile]
        new_max = torch.maximum(row_max, piece.max())
        weights = torch.exp(piece - new_max)
        correction = torch.exp(row_max - new_max)
        row_sum = row_sum * correction + weights.sum()
        accumulator = accumulator * correction + weights @ part
        row_max = new_max
    return accumulator / row_sum
""",
    wrong=(
        Wrong(
            "the sum is not rescaled: row_sum is relative to the old maximum, so it must be multiplied by the "
            "correction before the new weights are added",
            old="row_sum * correction",
            new="row_sum",
        ),
        Wrong(
            "the accumulator is not rescaled: it is relative to the old maximum, so it must be multiplied by the "
            "correction before the new product is added",
            old="accumulator * correction",
            new="accumulator",
        ),
        Wrong(
            "neither the sum nor the accumulator is rescaled: both are relative to the old maximum",
            old="correction = torch.exp(row_max - new_max)",
            new="correction = 1",
        ),
        Wrong(
            "the division is missing: at the end the accumulator must be divided by row_sum",
            old="accumulator / row_sum",
            new="accumulator",
        ),
        Wrong(
            "the correction is turned around (it must be exp(old maximum - new maximum))",
            old="row_max - new_max",
            new="new_max - row_max",
        ),
        Wrong(
            "the maximum is that of the tile alone: where a later tile has much smaller scores, the correction is "
            "infinite; the new maximum must be the larger one of the old and the tile's",
            old="torch.maximum(row_max, piece.max())",
            new="piece.max()",
        ),
        Wrong(
            "the maximum of the whole row",
            "is looked at in `new_max",
            old="torch.maximum(row_max, piece.max())",
            new="scores.max()",
        ),
        Wrong(
            "the first piece's maximum serves for all",
            old="torch.maximum(row_max, piece.max())",
            new="piece.max() if first_key == 0 else row_max",
        ),
        Wrong(
            "one score of a piece is taken for its maximum",
            old="piece.max()",
            new="piece[0]",
        ),
        Wrong(
            "the weights are relative to the old maximum, which is minus infinite in the first iteration (they must "
            "be relative to the new one)",
            old="piece - new_max",
            new="piece - row_max",
        ),
        Wrong(
            "the new maximum is not kept for the next iteration: the correction is then always 0, and only the last "
            "tile of keys counts",
            old="row_max = new_max",
            new="pass",
        ),
        Wrong(
            "the whole row at once",
            "whole row of",
            source="def weighted_mean(scores, values, tile):\n    return torch.softmax(scores, 0) @ values",
        ),
        Wrong(
            "no maximum is subtracted: the exponential of a large score is infinite, and infinite divided by infinite"
            " is NaN",
            old="new_max = torch.maximum(row_max, piece.max())",
            new="row_max = new_max = torch.tensor(0.0)",
        ),
    ),
    debrief="Three things are carried from piece to piece: the maximum, the sum and the output. Whatever the length of "
    "the row, that is two numbers and one row of head_dim numbers.",
    by=judge,
)
