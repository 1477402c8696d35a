"""Test pictures that show any shift, swap or distortion. All are uint8 HxWx3 RGB."""

from io import BytesIO
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image as PillowImage

from styleserve.image import Image

CORNERS = ((250, 10, 20), (20, 240, 10), (10, 20, 230), (240, 230, 30))


def noise(height: int, width: int, seed: int = 0) -> Image:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def plain(height: int, width: int, value: int = 127) -> Image:
    return np.full((height, width, 3), value, np.uint8)


def marked(height: int, width: int, mark: int = 24) -> Image:
    """Draw a grey picture with another colour in each corner: top left, top right, bottom ..."""
    picture = plain(height, width)
    top, bottom = slice(None, mark), slice(-mark, None)
    places = ((top, top), (top, bottom), (bottom, top), (bottom, bottom))
    for (rows, columns), colour in zip(places, CORNERS, strict=True):
        picture[rows, columns] = colour
    return picture


def disc(height: int, width: int) -> Image:
    """Draw a white disc in the middle of a black picture."""
    picture = plain(height, width, 0)
    radius = round(min(height, width) * 0.4)
    cv2.circle(picture, (width // 2, height // 2), radius, (255, 255, 255), cv2.FILLED)
    return picture


def bright_box(picture: Image) -> tuple[int, int]:
    """Return the height and width of the box around all bright pixels."""
    rows, columns = np.nonzero(picture[..., 0] > 127)
    return int(np.ptp(rows)) + 1, int(np.ptp(columns)) + 1


def corners(picture: Image) -> Image:
    """Return the four corner pixels: top left, top right, bottom left, bottom right."""
    return picture[[0, 0, -1, -1], [0, -1, 0, -1]]


def png(picture: Image) -> bytes:
    file = BytesIO()
    PillowImage.fromarray(picture).save(file, "PNG")
    return file.getvalue()


def gap(one: NDArray[Any], other: NDArray[Any]) -> int:
    """Return the largest difference between two pictures, in levels of 255."""
    return int(np.abs(one.astype(np.int16) - other.astype(np.int16)).max())
