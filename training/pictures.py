"""Pictures from disk: the one that is learnt from and the photos that are learnt on.

A picture is `uint8`, `(H, W, 3)`, RGB; a batch is `float32`, `(N, 3, H, W)`, 0..255.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps
from torch import Tensor

from training.errors import TrainingError

Picture = npt.NDArray[np.uint8]

MIN_STYLE_SIDE_PX = 64
_MAX_PHOTO_SIDE_PX = 720
_MIN_CROP_PX = 144
_SUFFIXES = {".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"}


def load_picture(path: Path, min_side: int = MIN_STYLE_SIDE_PX) -> Image.Image:
    """Read a picture upright, as RGB, on white if transparent; `TrainingError` if it is unfit."""
    if not path.is_file():
        raise TrainingError(
            f"There is no picture {path}: give the path of a PNG, JPEG or WebP file."
        )
    try:
        with Image.open(path) as opened:
            picture = ImageOps.exif_transpose(opened)
            picture.load()
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as err:
        reason = str(err).splitlines()[0] if str(err) else type(err).__name__
        raise TrainingError(
            f"{path} cannot be read as a picture ({reason}): give a whole PNG, JPEG or WebP file."
        ) from err
    if min(picture.size) < min_side:
        width, height = picture.size
        raise TrainingError(
            f"{path} is {width}x{height} pixels, but both sides must be at least {min_side}: "
            "give a larger picture."
        )
    return _on_white(picture)


def _on_white(picture: Image.Image) -> Image.Image:
    if "A" not in picture.getbands() and "transparency" not in picture.info:
        return picture.convert("RGB")
    picture = picture.convert("RGBA")
    white = Image.new("RGBA", picture.size, "white")
    return Image.alpha_composite(white, picture).convert("RGB")


def resize_short_side(picture: Image.Image, side: int) -> Image.Image:
    """Scale `picture` so that its shorter side measures `side` pixels."""
    factor = side / min(picture.size)
    width, height = (max(side, round(length * factor)) for length in picture.size)
    return picture.resize((width, height), Image.Resampling.LANCZOS)


def to_batch(picture: Image.Image | Picture) -> Tensor:
    """Return the picture as a batch of one, `(1, 3, H, W)`."""
    return torch.from_numpy(np.array(picture, np.float32)).permute(2, 0, 1)[None]


def to_image(batch: Tensor) -> Image.Image:
    """Return the first picture of a batch, rounded and clipped to 0..255."""
    pixels = batch[0].detach().float().clamp(0, 255).round().byte()
    return Image.fromarray(pixels.permute(1, 2, 0).cpu().numpy())


class Photos:
    """The content photos of a folder, decoded once and kept in memory.

    A batch depends on nothing but the seed and its number, so that a resumed training sees what an
    uninterrupted one would have seen.
    """

    def __init__(self, folder: Path, seed: int = 0) -> None:
        if not folder.is_dir():
            raise TrainingError(
                f"There is no folder of photos {folder}: name one with --photos FOLDER or fetch "
                "the default ones with 'python -m training fetch'."
            )
        paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in _SUFFIXES)
        if not paths:
            raise TrainingError(f"{folder} holds no PNG, JPEG or WebP file: put photos into it.")
        self.seed = seed
        self.pictures = [_shrunk(load_picture(path)) for path in paths]

    def batch(self, number: int, size: int, crop: int) -> Tensor:
        """Return batch `number`: `size` random crops scaled to `crop` pixels, half mirrored."""
        rng = np.random.default_rng((self.seed, number))
        return torch.cat([self._crop(rng, crop) for _ in range(size)])

    def _crop(self, rng: np.random.Generator, crop: int) -> Tensor:
        picture = self.pictures[int(rng.integers(len(self.pictures)))]
        longest = min(picture.size)
        side = float(rng.uniform(min(_MIN_CROP_PX, longest), longest))
        left, top = (float(rng.uniform(0, length - side)) for length in picture.size)
        box = (left, top, left + side, top + side)
        cut = picture.resize((crop, crop), Image.Resampling.BICUBIC, box=box)
        return to_batch(ImageOps.mirror(cut) if rng.random() < 0.5 else cut)


def _shrunk(picture: Image.Image) -> Image.Image:
    picture.thumbnail((_MAX_PHOTO_SIDE_PX, _MAX_PHOTO_SIDE_PX))
    return picture
