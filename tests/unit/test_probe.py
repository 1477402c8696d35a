"""The size multiple, found with plain functions in place of models."""

from collections.abc import Callable

import numpy as np
import pytest

from styleserve.errors import InferenceError
from styleserve.probe import MULTIPLES, SMALLEST_SIDE_PX, Tensor, haze, photo, size_multiple


def resizing(side: Callable[[int], int]) -> Callable[[Tensor], Tensor]:
    """Make a model that only changes the height and the width."""

    def run(picture: Tensor) -> Tensor:
        assert min(picture.shape[2:]) >= SMALLEST_SIDE_PX
        height, width = (side(size) for size in picture.shape[2:])
        return np.zeros((1, 3, height, width), np.float32)

    return run


@pytest.mark.parametrize("multiple", MULTIPLES)
def test_finds_the_multiple_of_models_that_round(multiple: int) -> None:
    assert size_multiple(resizing(lambda side: -(-side // multiple) * multiple)) == multiple
    assert size_multiple(resizing(lambda side: side // multiple * multiple)) == multiple


@pytest.mark.parametrize(
    "side",
    [lambda side: side * 2, lambda side: 224, lambda side: side | 1, lambda side: side // 3 * 3],
)
def test_finds_none_where_no_multiple_helps(side: Callable[[int], int]) -> None:
    assert size_multiple(resizing(side)) is None


@pytest.mark.parametrize("axis", [2, 3])
@pytest.mark.parametrize("parity", [0, 1])
def test_each_side_is_tried_odd_and_even(axis: int, parity: int) -> None:
    def run(picture: Tensor) -> Tensor:
        keeps = picture.shape[axis] % 2 == parity
        return picture if keeps else picture[:, :, 1:, 1:]

    assert size_multiple(run) == (None if parity else 2)


def test_swapped_sides_are_not_the_same_size() -> None:
    assert size_multiple(lambda picture: picture.transpose(0, 1, 3, 2)) is None


def test_sizes_that_the_model_refuses_are_passed_over() -> None:
    def run(picture: Tensor) -> Tensor:
        if picture.shape[2] % 8:
            raise InferenceError("cannot reshape")
        return picture

    assert size_multiple(run) == 8


def test_photos_are_pixels_repeatable_and_different() -> None:
    pictures = photo(40, 60, count=2)

    assert pictures.shape == (2, 3, 40, 60)
    assert pictures.dtype == np.float32
    assert (pictures == np.rint(pictures)).all()
    assert (pictures.min(), pictures.max()) == (0, 255)
    assert (photo(40, 60, count=2) == pictures).all()
    assert (pictures[0] != pictures[1]).mean() > 0.5
    assert len({pictures[0, channel].tobytes() for channel in range(3)}) == 3


def test_haze_is_pixels_repeatable_and_has_black_and_white_in_an_even_surrounding() -> None:
    picture = haze(100, 120)

    assert picture.shape == (1, 3, 100, 120)
    assert (picture == np.rint(picture)).all()
    assert (picture == haze(100, 120)).all()
    for level in (0, 255):
        assert (picture == level).all(axis=1).sum() == 100
    assert ((picture == 0) | (picture == 255)).mean() < 0.02
