"""The operations of a pipeline: small pure functions on pictures and masks.

A picture is uint8 HxWx3 RGB, a mask is float32 HxW from 0 to 1. Arguments before the star are
inputs, those after it options: `styleserve.declaration` reads from the signature what a node may
say, so that a new operation is one more function in `OPERATIONS`. All raise InferenceError where
inputs differ in size that must not.
"""

import math
from collections.abc import Callable
from typing import Annotated, Any, Literal

import cv2
import numpy as np
from pydantic import AfterValidator, Field, Strict, ValidationInfo
from pydantic_core import PydanticCustomError

from styleserve import image as pictures
from styleserve.errors import InferenceError
from styleserve.image import Either, Image, Mask
from styleserve.saliency import find_subject

Value = Image | Mask

TURNS = {90: cv2.ROTATE_90_CLOCKWISE, 180: cv2.ROTATE_180, 270: cv2.ROTATE_90_COUNTERCLOCKWISE}
AXES = {"horizontal": 1, "vertical": 0}
LARGEST_SCALE = 4.0
MOST = {"aspect": math.inf, "size": math.inf, "brightness": 1, "area": 1}
MOST_PIXELS = 100_000_000  # several enlargements in a row multiply


def _check_region(region: tuple[float, float, float, float]) -> tuple[float, float, float, float]:
    left, top, right, bottom = region
    if left >= right or top >= bottom:
        raise PydanticCustomError("region", "left must be below right, and top below bottom")
    return region


def _check_limits(limits: list[float], info: ValidationInfo) -> list[float]:
    if limits != sorted(set(limits)):
        raise PydanticCustomError("order", "each must be above the one before it")
    if measure := info.data.get("measure"):  # else that is the fault to tell
        most = MOST[measure]
        if limits[0] <= 0 or limits[-1] > most:
            end = f", up to {most:g}" if most < math.inf else ""
            about = {"measure": measure, "end": end}
            raise PydanticCustomError("range", "limits of {measure} are above 0{end}", about)
    return limits


Share = Annotated[float, Field(ge=0, le=1)]
Weights = list[Annotated[float, Field(gt=0, le=1e6)]]
Region = Annotated[tuple[Share, Share, Share, Share], Strict(False), AfterValidator(_check_region)]
Limits = Annotated[list[float], Field(min_length=1), AfterValidator(_check_limits)]
Measure = Literal["aspect", "size", "brightness", "area"]


def blend(*images: Image, weights: Weights) -> Image:
    """Mix pictures of one size, each by its weight; only the ratio of the weights counts."""
    _check_same_size(*images)
    if len(weights) != len(images):
        raise InferenceError(f"it has {len(images)} inputs, but {len(weights)} weights")
    mixed: Any = np.zeros(images[0].shape, np.float32)
    for image, weight in zip(images, weights, strict=True):
        mixed = cv2.addWeighted(mixed, 1.0, image, weight / sum(weights), 0.0, dtype=cv2.CV_32F)
    return np.asarray(np.rint(mixed), np.uint8)


def composite(front: Image, back: Image, mask: Mask) -> Image:
    """Show `front` where the mask is 1 and `back` where it is 0, all of one size."""
    _check_same_size(front, back, mask)
    return np.asarray(cv2.blendLinear(front, back, mask, 1 - mask), np.uint8)


def keep_color(styled: Image, original: Image) -> Image:
    """Give `styled` the colours of `original`, of the same size."""
    _check_same_size(styled, original)
    return pictures.keep_color(styled, original)


def saliency(image: Image) -> Mask:
    """Find the subject: 1 where it is, 0 elsewhere (see styleserve.saliency)."""
    return find_subject(image)


def invert(value: Either) -> Either:
    """Give the negative of a picture, or the mask of all that a mask leaves out."""
    white = 255 if value.dtype == np.uint8 else 1
    return np.asarray(white - value, value.dtype)


def blur(value: Either, *, radius: Annotated[float, Field(gt=0, le=0.2)]) -> Either:
    """Blur; the Gaussian's standard deviation is `radius` times the longer side."""
    sigma = radius * max(value.shape[:2])
    return np.asarray(cv2.GaussianBlur(value, (0, 0), sigma), value.dtype)


def rotate(value: Either, *, degrees: Literal[90, 180, 270]) -> Either:
    """Turn clockwise; 90 and 270 swap height and width."""
    return np.asarray(cv2.rotate(value, TURNS[degrees]), value.dtype)


def flip(value: Either, *, axis: Literal["horizontal", "vertical"]) -> Either:
    """Mirror: horizontal swaps left and right, vertical top and bottom."""
    return np.asarray(cv2.flip(value, AXES[axis]), value.dtype)


def crop(value: Either, *, region: Region) -> Either:
    """Cut out [left, top, right, bottom], in shares of width and height; at least one pixel."""
    return value[_pixels(value, region)].copy()  # a view would keep the whole in memory


def paste(base: Either, patch: Either, *, region: Region) -> Either:
    """Put `patch` over [left, top, right, bottom] of `base`, resized to fit."""
    pasted, place = base.copy(), _pixels(base, region)
    height, width = pasted[place].shape[:2]
    pasted[place] = pictures.resize(patch, (height, width))
    return pasted


def resize(
    value: Either,
    like: Value | None = None,
    *,
    scale: Annotated[float, Field(gt=0, le=LARGEST_SCALE)] = 1.0,
) -> Either:
    """Resample to `scale` times its own size, or that of a second input."""
    height, width = (value if like is None else like).shape[:2]
    size = max(1, round(height * scale)), max(1, round(width * scale))
    if size[0] * size[1] > MOST_PIXELS:
        raise InferenceError(
            f"it would give {size[1]}x{size[0]}, more than {MOST_PIXELS} pixels; enlarge less"
        )
    return pictures.resize(value, size)


def select(measured: Value, *choices: Either, measure: Measure, below: Limits) -> Either:
    """Pick the first choice whose limit in `below` is above what is measured, else the last.

    Measures: aspect (width / height), size (longer side in pixels), brightness (mean luma of a
    picture, 0..1), area (mean of a mask, 0..1). The choices are of one size; of them a pipeline
    runs only the one that is picked.
    """
    if len(choices) != len(below) + 1:
        raise InferenceError(
            f"{len(below)} limits in `below` divide {len(below) + 1} choices, but it has "
            f"{len(choices)} inputs after the one that is measured"
        )
    _check_same_size(*choices)
    return choices[choose(measured, measure=measure, below=below)]


def choose(measured: Value, *, measure: Measure, below: Limits) -> int:
    """Return the position of what `select` picks, without needing the choices themselves."""
    return int(np.searchsorted(below, _amount(measured, measure), side="right"))


OPERATIONS: dict[str, Callable[..., Any]] = {
    operation.__name__: operation
    for operation in (
        *(blend, composite, keep_color, saliency, invert, blur),
        *(rotate, flip, crop, paste, resize, select),
    )
}


def _amount(value: Value, measure: Measure) -> float:
    height, width = value.shape[:2]
    if measure == "aspect":
        return width / height
    if measure == "size":
        return max(height, width)
    if (measure == "area") != (value.ndim == 2):
        raise InferenceError("area is a measure of masks, brightness one of pictures")
    if measure == "area":
        return float(value.mean())
    return float(cv2.cvtColor(value, cv2.COLOR_RGB2GRAY).mean()) / 255


def _check_same_size(*values: Value) -> None:
    sizes = [f"{value.shape[1]}x{value.shape[0]}" for value in values]
    if len(set(sizes)) > 1:
        raise InferenceError(
            f"its inputs differ in size, a picture of some size gives {', '.join(sizes)}; "
            "bring them to one size with resize"
        )


def _pixels(value: Value, region: Region) -> tuple[slice, slice]:
    height, width = value.shape[:2]
    left, top, right, bottom = region
    return _span(top, bottom, height), _span(left, right, width)


def _span(start: float, end: float, length: int) -> slice:
    first = min(round(start * length), length - 1)
    return slice(first, max(round(end * length), first + 1))
