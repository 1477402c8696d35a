"""The subject of drawn pictures, and of any size."""

import numpy as np
import pytest
from numpy.typing import NDArray

from styleserve.image import Image
from styleserve.saliency import find_subject
from tests.pictures import disc, noise, plain


def scene(height: int, width: int) -> tuple[Image, NDArray[np.bool_]]:
    """Draw a grainy red disc on grainy grey; also tell where it is."""
    inside = disc(height, width)[..., 0] > 0
    picture = plain(height, width, 150)
    picture[inside] = (200, 40, 30)
    grain = noise(height, width) // 16
    return np.asarray(picture + grain, np.uint8), inside


@pytest.mark.parametrize("size", [(100, 100), (300, 200), (480, 640)])
def test_the_subject_of_a_plain_scene_is_found(size: tuple[int, int]) -> None:
    picture, inside = scene(*size)

    found = find_subject(picture)

    assert found.shape == size
    assert found.dtype == np.float32
    assert found[inside].mean() > 0.9
    assert found[~inside].mean() < 0.1


def test_the_same_picture_has_the_same_subject() -> None:
    picture, _ = scene(90, 120)

    assert (find_subject(picture) == find_subject(picture)).all()


@pytest.mark.parametrize(
    "size", [(1, 1), (1, 60), (60, 1), (2, 3), (15, 15), (16, 16), (17, 400), (3, 900)]
)
@pytest.mark.parametrize("kind", [plain, noise])
def test_any_picture_gives_a_mask(size: tuple[int, int], kind: type) -> None:
    found = find_subject(kind(*size))

    assert found.shape == size
    assert found.min() >= 0
    assert found.max() <= 1
