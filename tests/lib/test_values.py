"""Values beside those that they should be: of one kind, equal, and what differs."""

import math

import numpy as np
import pytest
import torch

from tutorial_lib.values import alike, difference, fits, kind_of

TENSOR = torch.tensor([[1.0, math.nan], [math.inf, -2.0]])


@pytest.mark.parametrize(
    ("mine", "right", "does"),
    [
        *(([1, 2], (1, 2), True), ((1,), (1, 2), False), (2.5, 3, True), (None, 8, True), ("a", 1, False)),
        *((1, True, False), ({"a": 1}, {"a": 2.5}, True), ({"b": 1}, {"a": 1}, False)),
        *((TENSOR, TENSOR + 1, True), (TENSOR[0], TENSOR, False), (1.0, TENSOR, False)),
        *((np.int64(3), 3, True), (np.float32(3), 3.0, True), (torch.tensor(3), 3, True), (np.array(3), 3, True)),
        *((np.bool_(True), True, True), (np.int64(1), True, False), (torch.ones(1), 1.0, False)),
        *(
            ([torch.tensor(1), np.int64(2)], (1, 2), True),
            (TENSOR[0, 0], TENSOR[0, 0], True),
            (1.0, TENSOR[0, 0], False),
        ),
    ],
)
def test_a_value_is_of_the_kind_of_the_right_one(mine, right, does):
    assert fits(mine, right) is does


@pytest.mark.parametrize(
    ("a", "b", "are"),
    [
        *((1, 1, True), (1, 2, False), (1.0, 1 + 1e-9, True), (1.0, 1.1, False), ((1, "a"), [1, "a"], True)),
        *(({"a": 1.0}, {"a": 1.0}, True), ({"a": 1.0}, {"b": 1.0}, False), (1.0, None, False), (None, None, True)),
        *((math.nan, math.nan, True), (math.nan, 1.0, False), (1, math.nan, False)),
        *(
            (TENSOR, TENSOR.clone(), True),
            (TENSOR, TENSOR[0], False),
            (TENSOR, TENSOR + 1, False),
            (1.0, TENSOR, False),
        ),
        *((torch.tensor(3), 3, True), (3.0, np.float32(3), True), (torch.tensor(2.0), 3, False)),
        *(
            ((torch.tensor(1), np.int64(2)), (1, 2), True),
            (TENSOR[0, 0], TENSOR[0, 0], True),
        ),
    ],
)
def test_values_are_alike(a, b, are):
    assert alike(a, b, 1e-6) is are


def test_what_differs_is_told():
    assert difference(2.5, 3, 1e-6) == "must be 3, and yours gives 2.5"
    wrong = "is 2 at [1], where it must be 1; 2 of 3 numbers are wrong"
    assert difference(torch.tensor([1.0, 2, 2]), torch.ones(3), 1e-6) == wrong
    both = difference((torch.ones(3), torch.tensor([1.0, 2, 2])), (torch.ones(3), torch.ones(3)), 1e-6)
    beside_nan = difference(TENSOR + torch.tensor([[0.0, 0], [0, 1]]), TENSOR, 1e-6)
    assert beside_nan == "is -1 at [1, 1], where it must be -2; 1 of 4 numbers are wrong"
    for two in (np.int64(2), torch.tensor(2)):
        assert difference(two, 3, 1e-6) == "must be 3, and yours gives 2"
    assert both == f"has a second result that {wrong}" and kind_of((1, True)) == "(a whole number, True or False)"
