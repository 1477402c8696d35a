"""Pictures as arrays: check, fit into a network's input, undo the fit, blend. Knows no model.

A picture is uint8, HxWx3, RGB, rows from top to bottom; a mask is float32, HxW, from 0 to 1.
"""

from dataclasses import dataclass
from typing import TypeVar

import cv2
import numpy as np
from numpy.typing import NDArray

from styleserve.errors import RequestError

Image = NDArray[np.uint8]
Mask = NDArray[np.float32]
Either = TypeVar("Either", Image, Mask)

CHANNELS = 3
TILE_PX = 16


def is_smooth(image: Image) -> bool:
    """Tell whether a good part of a picture (uint8 HxWx3) has hardly any texture: sky, fog, paper.

    A style makes texture of next to nothing there, so that rounding shows. The limits are from
    100 pictures, in bf16 against fp32: the smooth ones have 13 to 50 dB, the others 44 and more.
    """
    grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY).astype(np.float32)
    texture = cv2.absdiff(grey, cv2.blur(grey, (9, 9)))
    height, width = (max(side // TILE_PX, 1) for side in grey.shape)
    tiles = cv2.resize(texture, (width, height), interpolation=cv2.INTER_AREA)
    return bool(tiles.mean() < 3 or (tiles < 0.5).mean() > 0.22)  # levels of 255


def check(image: NDArray[np.generic], max_pixels: int) -> Image:
    """Return `image` as a contiguous picture.

    Raises:
        RequestError: if it is not uint8 HxWx3, is empty or has more than `max_pixels` pixels.
    """
    if image.dtype != np.uint8:
        raise RequestError(f"a picture must be UINT8 with values 0..255, got {image.dtype}")
    if image.ndim != 3 or image.shape[2] != CHANNELS:
        raise RequestError(f"a picture must have the shape [height, width, 3], got {image.shape}")
    if image.size == 0:
        raise RequestError(f"a picture must have at least one pixel, got the shape {image.shape}")
    check_size(image.shape[0], image.shape[1], max_pixels)
    return np.ascontiguousarray(image, dtype=np.uint8)


def check_size(height: int, width: int, max_pixels: int) -> None:
    """Refuse a picture of more than `max_pixels` pixels.

    Raises:
        RequestError: naming the size and the limit.
    """
    if height * width > max_pixels:
        raise RequestError(
            f"the picture has {width}x{height} = {height * width:,} pixels, at most "
            f"{max_pixels:,} are allowed; send a smaller one or raise STYLESERVE_MAX_PIXELS"
        )


@dataclass(frozen=True)
class Frame:
    """Where a picture lies on a network's canvas; undoes the fit. Sizes are (height, width)."""

    original: tuple[int, int]
    fitted: tuple[int, int]
    offset: tuple[int, int]

    def undo(self, canvas: Either) -> Either:
        """Cut the picture or mask out of `canvas` and bring it back to its original size."""
        return resize(self.inside(canvas), self.original)

    def inside(self, canvas: Either) -> Either:
        """Cut the picture or mask out of `canvas`, without the border."""
        top, left = self.offset
        height, width = self.fitted
        return canvas[top : top + height, left : left + width]


def fit_native(image: Image, max_side: int, multiple: int, min_side: int) -> tuple[Image, Frame]:
    """Fit `image` for a network that takes any size.

    The picture keeps its size up to `max_side` pixels on the longer side (0: no limit) and is
    padded at the bottom and right to sides that are multiples of `multiple` and at least
    `min_side`.
    """
    fitted = _within(image, max_side)
    canvas = (
        _round_up(max(fitted[0], min_side), multiple),
        _round_up(max(fitted[1], min_side), multiple),
    )
    return _place(image, fitted, canvas, (0, 0), mirror=True)


def fit_fixed(image: Image, size: tuple[int, int]) -> tuple[Image, Frame]:
    """Fit `image` for a network that takes one `size` (height, width): centred, never distorted."""
    height, width = image.shape[:2]
    scale = min(size[0] / height, size[1] / width)
    fitted = max(1, round(height * scale)), max(1, round(width * scale))
    offset = (size[0] - fitted[0]) // 2, (size[1] - fitted[1]) // 2
    return _place(image, fitted, size, offset, mirror=False)


def resize(image: Either, size: tuple[int, int]) -> Either:
    """Resample `image` to `size` (height, width): by area when shrinking, else cubic."""
    if image.shape[:2] == size:
        return image
    shrinks = size[0] * size[1] < image.shape[0] * image.shape[1]
    method = cv2.INTER_AREA if shrinks else cv2.INTER_CUBIC
    resized = cv2.resize(image, (size[1], size[0]), interpolation=method)
    if image.dtype != np.uint8:
        resized = np.clip(resized, 0, 1)  # cubic overshoots at edges, and nothing saturates floats
    return np.asarray(resized, dtype=image.dtype)


def shrink(image: Image, max_side: int) -> Image:
    """Resample `image` so that no side exceeds `max_side` pixels; never enlarge it."""
    return resize(image, _within(image, max_side))


def keep_color(styled: Image, original: Image) -> Image:
    """Give `styled` the colours of `original`: its luma (BT.601), the original's chroma."""
    chroma = cv2.cvtColor(original, cv2.COLOR_RGB2YCrCb)
    chroma[..., 0] = cv2.cvtColor(styled, cv2.COLOR_RGB2YCrCb)[..., 0]
    return np.asarray(cv2.cvtColor(chroma, cv2.COLOR_YCrCb2RGB), dtype=np.uint8)


def blend(original: Image, styled: Image, strength: float) -> Image:
    """Mix `original` (`strength` 0) and `styled` (`strength` 1), rounded."""
    mixed = cv2.addWeighted(styled, strength, original, 1.0 - strength, 0.0)
    return np.asarray(mixed, dtype=np.uint8)


def _within(image: Image, max_side: int) -> tuple[int, int]:
    height, width = image.shape[:2]
    scale = min(1.0, max_side / max(height, width)) if max_side else 1.0
    return max(1, round(height * scale)), max(1, round(width * scale))


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _place(
    image: Image,
    fitted: tuple[int, int],
    canvas: tuple[int, int],
    offset: tuple[int, int],
    mirror: bool,
) -> tuple[Image, Frame]:
    frame = Frame((image.shape[0], image.shape[1]), fitted, offset)
    top, left = offset
    bottom, right = canvas[0] - fitted[0] - top, canvas[1] - fitted[1] - left
    inner = resize(image, fitted)
    if not (top or left or bottom or right):
        return inner, frame
    mirror = mirror and bottom < fitted[0] and right < fitted[1]  # else too few pixels to reflect
    border = cv2.BORDER_REFLECT_101 if mirror else cv2.BORDER_REPLICATE
    padded = cv2.copyMakeBorder(inner, top, bottom, left, right, border)
    return np.asarray(padded, dtype=np.uint8), frame
