"""What the pixels of a picture file mean: every mode and depth that Pillow reads, as 8-bit RGB."""

import contextlib
import re
import sys
from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageCms, ImageFile, TiffImagePlugin

from styleserve.errors import RequestError

_TO_8_BIT = ((np.arange(65_536) + 128) // 257).astype(np.uint8)
_OTHER_ORDER = {"B": "L", "L": "B", "N": "B" if sys.byteorder == "little" else "L"}
_COLOUR_SPACE = {"1": "GRAY", "L": "GRAY", "LA": "GRAY", "CMYK": "CMYK", "LAB": "LAB"}
_PALETTE_SAMPLE_PX = 640


def to_rgb(image: ImageFile.ImageFile, file: bytes) -> tuple[Image.Image, bytes]:
    """Load `image`, opened from `file`; return it as RGB or RGBA, and its RGB profile or nothing.

    Grey and CMYK with a profile become sRGB. Raises RequestError for samples whose range is
    unknown (32-bit, float), and what Pillow raises for a damaged file.
    """
    args = image.tile[0].args if image.tile else None  # load() empties the list
    rawmode = str(args[0] if isinstance(args, tuple) else args)
    image.load()
    return _convert(_to_8_bit(image, file, rawmode))


def to_palette(image: Image.Image, alpha: NDArray[np.uint8] | None) -> Image.Image:
    """Return RGB in 256 colours, or 255 and a hidden one where `alpha` (HxW uint8) is below 128."""
    sample = image.copy()
    sample.thumbnail((_PALETTE_SAMPLE_PX, _PALETTE_SAMPLE_PX), Image.Resampling.NEAREST)
    colours = sample.quantize(256 if alpha is None else 255)
    indexed = image.quantize(palette=colours)
    if alpha is not None:
        indexed.paste(255, mask=Image.fromarray(alpha < 128))
        indexed.info["transparency"] = 255
    return indexed


def _to_8_bit(image: ImageFile.ImageFile, file: bytes, rawmode: str) -> Image.Image:
    """Scale 16-bit samples, of which Pillow would keep the high byte or clip all."""
    if image.mode in ("I", "F") or rawmode == "I;12":
        raise RequestError(
            f"the picture in 'encoded' has samples of an unusual kind ({rawmode}), whose white is "
            "unknown: save it with 8 or 16 bits a channel"
        )
    hidden = image.info.get("transparency")
    if image.mode.startswith("I;16"):
        samples = np.asarray(image)
        if getattr(image, "tag_v2", {}).get(TiffImagePlugin.PHOTOMETRIC_INTERPRETATION) == 0:
            samples = 65_535 - samples
    elif (colour := re.fullmatch(r"(RGBA?|LA);16([BLN])", rawmode)) is not None:
        high, low = np.asarray(image), _low_bytes(file, str(image.format), *colour.groups())
        samples = high.astype(np.uint16) << 8 | low
    else:
        if rawmode in ("L;2", "L;4") and isinstance(hidden, int):
            image.info["transparency"] = hidden * (85 if rawmode == "L;2" else 17)
        return image
    narrow = Image.fromarray(_TO_8_BIT[samples])
    if hidden is not None:
        shown = np.atleast_3d(samples != np.array(hidden)).any(axis=2)
        narrow.putalpha(Image.fromarray(shown))
    narrow.info["icc_profile"] = image.info.get("icc_profile")
    return narrow


def _low_bytes(file: bytes, kind: str, mode: str, order: str) -> NDArray[np.uint8]:
    """Read 16-bit colour again as if its byte order were the other one."""
    rawmode = "RGBA" if mode == "LA" else f"{mode};16{_OTHER_ORDER[order]}"
    with Image.open(BytesIO(file), formats=[kind]) as image:
        tile = image.tile[0]
        args = (rawmode, *tile.args[1:]) if isinstance(tile.args, tuple) else rawmode
        image.tile = [each._replace(args=args) for each in image.tile]
        image.load()
        low = np.asarray(image)
    return low[:, :, [1, 1, 1, 3]] if mode == "LA" else low


def _convert(image: Image.Image) -> tuple[Image.Image, bytes]:
    """Return the picture as RGB or RGBA, and the profile that its colours then have."""
    mode = "RGBA" if image.has_transparency_data else "RGB"
    rgb = image if image.mode == mode else image.convert(mode)
    icc = image.info.get("icc_profile") or b""
    space = _COLOUR_SPACE.get(image.mode, "RGB")
    with contextlib.suppress(ImageCms.PyCMSError, OSError):  # a profile that is none
        profile = ImageCms.ImageCmsProfile(BytesIO(icc))
        if profile.profile.xcolor_space.strip() != space:
            return rgb, b""
        if space == "RGB":
            return rgb, icc
        source = image.convert("L") if space == "GRAY" else image
        srgb = ImageCms.createProfile("sRGB")
        converted = ImageCms.profileToProfile(source, profile, srgb, outputMode="RGB")
        if converted is not None and rgb.mode == "RGBA":
            converted.putalpha(rgb.getchannel("A"))
        return converted or rgb, b""
    return rgb, b""
