"""Find out by running a model which picture sizes it keeps. Knows arrays only, no ONNX."""

from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from styleserve.errors import StyleServeError

Tensor = NDArray[np.float32]
Run = Callable[[Tensor], Tensor]

PHOTO = Path(__file__).with_name("photo.jpg")  # a part of docs/examples/astronaut.jpg
SMALLEST_SIDE_PX = 32  # no smaller side is ever tried: pad smaller pictures up to it
MULTIPLES = (1, 2, 4, 8, 16, 32, 64)


def photo(height: int, width: int, count: int = 1) -> Tensor:
    """Draw `count` different pictures like photos: soft light, hard edges, grain.

    Returns float32 N x 3 x height x width RGB with whole values 0..255, always the same ones.
    """
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    grain = np.random.default_rng(7).normal(0, 12, (count, 3, height, width))
    pictures = []
    for index in range(count):
        waves = [np.sin(x / (9 + 4 * c) + index) * np.cos(y / (13 - 3 * c)) for c in range(3)]
        light = 60 * np.stack(waves) + 150 * (x / width) - 70 * (y / height) + 110
        inside = np.hypot(x - width / 3, y - height / 2) < min(height, width) / 4
        stripes = (x + 2 * y + 5 * index) % 24 < 5
        light[:, inside] = np.array([[220.0], [90.0], [40.0]])
        light[:, stripes & ~inside] *= 0.3
        pictures.append(light)
    pixels: Tensor = np.rint(np.clip(np.stack(pictures) + grain, 0, 255)).astype(np.float32)
    return pixels


def haze(height: int, width: int) -> Tensor:
    """Draw soft light with a little grain, and a white and a black square in it.

    Few photos stir a network as much: normalisation enlarges what stands out from an even
    surrounding. Returns float32 1 x 3 x height x width RGB with whole values 0..255, always the
    same ones.
    """
    x, y = np.meshgrid(np.linspace(0, 1, width), np.linspace(0, 1, height))
    light = np.stack([90 + 80 * x, 110 + 60 * y, 170 - 60 * x])
    light += np.random.default_rng(3).normal(0, 3, light.shape)
    side = min(height, width) // 10
    for level, top, left in ((255, height // 3, width // 4), (0, height // 2, width * 2 // 3)):
        light[:, top : top + side, left : left + side] = level
    return np.asarray(np.rint(light)[np.newaxis], np.float32)


def real_photo() -> NDArray[np.uint8]:
    """Read the face that comes with this package, as uint8 256 x 256 x 3 RGB."""
    return np.asarray(cv2.cvtColor(cv2.imread(str(PHOTO)), cv2.COLOR_BGR2RGB), dtype=np.uint8)


def psnr(answer: Tensor, expected: Tensor) -> float:
    """Return the peak signal-to-noise ratio in dB of .. x C x H x W: a mask's peak is 1."""
    white = 1.0 if expected.shape[-3] == 1 else 255.0
    return float(cv2.PSNR(np.clip(answer, 0, white), np.clip(expected, 0, white), white))


def picture(height: int, width: int) -> NDArray[np.uint8]:
    """Draw the first of these pictures as uint8 height x width x 3 RGB."""
    return np.ascontiguousarray(photo(height, width)[0].transpose(1, 2, 0).astype(np.uint8))


def size_multiple(run: Run) -> int | None:
    """Find the smallest M of 1, 2, 4 .. 64 whose multiples the model gives back in their size.

    `run` maps 1x3xHxW to 1xCxHxW and raises StyleServeError where it cannot take a size.
    None means that no M does: the model must be run at its own size.
    """
    return next((multiple for multiple in MULTIPLES if _keeps(run, multiple)), None)


def _keeps(run: Run, multiple: int) -> bool:
    """Whether odd and even times `multiple`, on both axes, come back unchanged."""
    odd = max(SMALLEST_SIDE_PX // multiple, 1) | 1
    sizes = [(odd, odd + 1), (odd + 3, odd + 2)]
    try:
        return all(_same_size(run, high * multiple, wide * multiple) for high, wide in sizes)
    except StyleServeError:
        return False


def _same_size(run: Run, height: int, width: int) -> bool:
    return run(photo(height, width)).shape[-2:] == (height, width)
