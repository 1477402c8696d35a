"""Picture files: the bytes of a PNG, JPEG, ... to upright RGB pixels, and pixels to such a file.

    file or base64 text -> allowed? size? -> Pillow -> 8-bit RGB (colours) -> upright -> Picture

Pillow reads and writes; this module decides what may be read and what an answer keeps.
"""

import base64
import contextlib
import logging
import re
import warnings
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
import pillow_heif
from numpy.typing import NDArray
from PIL import Image, ImageFile, ImageOps, TiffImagePlugin, UnidentifiedImageError
from PIL.ExifTags import IFD, Base

from styleserve.colours import to_palette, to_rgb
from styleserve.errors import RequestError

ACCEPTED = "a PNG, JPEG, WebP, GIF, BMP, TIFF, AVIF or HEIC file"
# How each format is written; no other plug-in of Pillow ever sees a request. Speed goes before
# size: the usual settings save about a tenth of the bytes and take two to six times as long.
_WRITE: dict[str, dict[str, Any]] = {
    "PNG": {"compress_level": 1},
    "JPEG": {"quality": 95, "subsampling": 0},
    "WEBP": {"quality": 95, "method": 2},
    "GIF": {},
    "BMP": {},
    "TIFF": {},  # libtiff, which would compress, cannot write EXIF
    "AVIF": {"quality": 90, "subsampling": "4:4:4", "speed": 10},
    "HEIF": {"quality": 90, "enc_params": {"preset": "ultrafast"}},
}
_WRITE_LOSSLESS_WEBP = {"lossless": True, "exact": True, "quality": 0, "method": 0}
_DATA_URL = re.compile(rb"\s*data:", re.IGNORECASE)
_TEXT = re.compile(rb"\s*((?i:data:)|[A-Za-z0-9+/=_\s-]+\Z)")
_EXIF_MAX_BYTES = 65_000  # what fits into a JPEG
# What describes the picture; the other tags describe the old file (its strips, its thumbnail).
_EXIF_KEPT = (
    *(Base.ImageDescription, Base.Make, Base.Model, Base.Software, Base.DateTime, Base.Artist),
    *(Base.Copyright, Base.HostComputer, Base.XResolution, Base.YResolution, Base.ResolutionUnit),
    *(Base.Rating, Base.XPTitle, Base.XPComment, Base.XPAuthor, Base.XPKeywords, Base.XPSubject),
)
_EXIF_DROPPED = (Base.ExifImageWidth, Base.ExifImageHeight, IFD.Interop)

pillow_heif.register_heif_opener(thumbnails=False, depth_images=False, aux_images=False)
# Pillow warns of odd metadata, so any caller could fill the log. Per call this is not thread-safe.
warnings.filterwarnings("ignore", module=r"PIL\.")
logging.getLogger("PIL").setLevel(logging.CRITICAL)


@dataclass(frozen=True, eq=False)
class Picture:
    """A decoded picture file, with all that its answer needs."""

    pixels: NDArray[np.uint8]  # HxWx3 RGB, upright, C-contiguous, perhaps read-only
    alpha: NDArray[np.uint8] | None  # HxW, 0 is transparent
    format: str  # one of the keys of _WRITE
    lossless: bool  # a WebP that was compressed without loss
    icc: bytes  # colour profile of the pixels, empty for sRGB
    exif: bytes  # without orientation and thumbnail
    text: bool  # came as base64 text


def decode(data: bytes, max_pixels: int) -> Picture:
    """Read a picture file, or base64 text of one (a data URL too).

    Raises RequestError when `data` is no file of an accepted format, is damaged or cut short, or
    has no pixels or more than `max_pixels`: its header tells, before any pixel is decoded.
    Pillow's own limit of 178,956,970 pixels cannot be exceeded.
    """
    text = _TEXT.match(data[:64]) is not None
    file = _from_base64(data) if text else data
    try:
        with _open(file) as image:
            _check_size(image, max_pixels)
            return _read(image, file, text)
    except RequestError:
        raise
    except UnidentifiedImageError as error:
        raise RequestError(
            f"'encoded' holds no picture that can be read ({len(data)} bytes, beginning "
            f"{data[:24]!r}): send {ACCEPTED}, or its base64 text"
        ) from error
    except Image.DecompressionBombError as error:
        raise RequestError(
            f"the picture in 'encoded' has far more than the {max_pixels} pixels allowed: "
            "send a smaller one"
        ) from error
    except Exception as error:  # decoders raise whatever they like when fed with garbage
        raise RequestError(
            f"the picture in 'encoded' is damaged or cut short ({str(error) or repr(error)}): "
            "send the whole file, or save it anew"
        ) from error


def encode(picture: Picture, pixels: NDArray[np.uint8]) -> bytes:
    """Write `pixels` (HxWx3 RGB, as many as `picture` has) as `picture` came.

    PNG, BMP, TIFF and lossless WebP hold exactly these pixels, GIF 256 colours of them; JPEG,
    AVIF, HEIC and other WebP are of high quality. Alpha is written where it was.
    """
    image = Image.fromarray(pixels)
    if picture.format == "GIF":
        image = to_palette(image, picture.alpha)
    elif picture.alpha is not None:
        image.putalpha(Image.fromarray(picture.alpha))
    options = _WRITE_LOSSLESS_WEBP if picture.lossless else _WRITE[picture.format]
    metadata = {"icc_profile": picture.icc, "exif": picture.exif}
    file = BytesIO()
    image.save(file, picture.format, **options, **{k: v for k, v in metadata.items() if v})
    return base64.b64encode(file.getvalue()) if picture.text else file.getvalue()


def _from_base64(text: bytes) -> bytes:
    body = text.partition(b",")[2] if _DATA_URL.match(text) else text
    body = body.translate(bytes.maketrans(b"-_", b"+/"), b" \t\r\n\v\f").rstrip(b"=")
    try:
        return base64.b64decode(body + b"=" * (-len(body) % 4), validate=True)
    except ValueError as error:
        raise RequestError(
            f"'encoded' looks like base64 text (it starts with {text[:24]!r}) but is broken "
            f"({error}): send {ACCEPTED}, or the whole base64 text of one and nothing else"
        ) from error


def _open(file: bytes) -> ImageFile.ImageFile:
    return Image.open(BytesIO(file), formats=tuple(_WRITE))


def _check_size(image: ImageFile.ImageFile, max_pixels: int) -> None:
    tags = getattr(image, "tag_v2", {})  # a small TIFF can be the corner of a huge tile
    tile = (tags.get(TiffImagePlugin.TILEWIDTH, 1), tags.get(TiffImagePlugin.TILELENGTH, 1))
    for width, height in (image.size, tile):
        if not 0 < width * height <= max_pixels:
            raise RequestError(
                f"the picture in 'encoded' has {width}x{height} pixels, "
                f"allowed are 1 to {max_pixels} in all: send another size"
            )


def _read(image: ImageFile.ImageFile, file: bytes, text: bool) -> Picture:
    rgb, icc = to_rgb(image, file)
    exif = _keep_exif(image)
    orientation = image.getexif().get(Base.Orientation, 1)
    rgb.info = {}
    rgb.getexif()[Base.Orientation] = orientation
    ImageOps.exif_transpose(rgb, in_place=True)
    samples = np.asarray(rgb)
    file_format = "JPEG" if image.format == "MPO" else str(image.format)
    return Picture(
        pixels=np.ascontiguousarray(samples[:, :, :3]),
        alpha=np.ascontiguousarray(samples[:, :, 3]) if rgb.mode == "RGBA" else None,
        format=file_format,
        lossless=file_format == "WEBP" and _is_lossless(file),
        icc=icc,
        exif=exif,
        text=text,
    )


def _keep_exif(image: ImageFile.ImageFile) -> bytes:
    kept = Image.Exif()
    with contextlib.suppress(Exception):  # damaged EXIF hides no picture in any viewer
        exif = image.getexif()
        for tag in _EXIF_KEPT:
            if tag in exif:
                kept[tag] = exif[tag]
        for ifd in (IFD.Exif, IFD.GPSInfo):
            if tags := {k: v for k, v in exif.get_ifd(ifd).items() if k not in _EXIF_DROPPED}:
                kept[ifd] = tags
        if len(kept) and len(data := kept.tobytes()) <= _EXIF_MAX_BYTES:
            return data
    return b""


def _is_lossless(file: bytes) -> bool:
    at = 12
    while (chunk := file[at : at + 4]) not in (b"VP8L", b"VP8 ", b"ANMF", b""):
        at += 8 + (int.from_bytes(file[at + 4 : at + 8], "little") + 1) // 2 * 2
    return chunk == b"VP8L"
