"""Picture files in, picture files out: every format, odd kinds of pixel, ways to be broken."""

import base64
import io
import struct
import subprocess
import sys
import tracemalloc
import zlib
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image, ImageCms, JpegImagePlugin

from styleserve.codec import decode, encode
from styleserve.errors import RequestError

# pytest takes back the filter that the module sets for itself.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

MAX_PIXELS = 1_000_000
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "HEIF")
MODES = {
    "PNG": ("1", "L", "P", "LA", "RGBA"),
    "TIFF": ("1", "L", "P", "LA", "PA", "RGBA", "LAB"),
}
WITH_EXIF = ("PNG", "JPEG", "WEBP", "TIFF", "AVIF", "HEIF")
LOSSLESS = ("PNG", "GIF", "BMP", "TIFF")
FINE: dict[str, dict[str, object]] = {
    "JPEG": {"quality": 95, "subsampling": 0},
    "WEBP": {"quality": 95},
    "AVIF": {"quality": 95, "subsampling": "4:4:4", "speed": 10},
    "HEIF": {"quality": 95, "enc_params": {"preset": "ultrafast"}},
}
MAKE, ORIENTATION, EXIF_IFD, GPS_IFD = 0x010F, 0x0112, 0x8769, 0x8825
Pixels = NDArray[np.uint8]


def scene(height: int = 48, width: int = 80) -> Pixels:
    """Four flat fields of unequal size: no flip, turn or swap of channels leaves it as it is."""
    pixels = np.empty((height, width, 3), np.uint8)
    pixels[:] = (200, 40, 20)
    pixels[:16, 32:] = (30, 180, 60)
    pixels[16:, :32] = (20, 60, 210)
    pixels[16:, 32:] = (220, 210, 90)
    return pixels


def shade() -> Pixels:
    return np.linspace(0, 255, 48 * 80).astype(np.uint8).reshape(48, 80)


def write(image: Image.Image | Pixels, file_format: str, **options: object) -> bytes:
    if not isinstance(image, Image.Image):
        image = Image.fromarray(image)
    if isinstance(exif := options.get("exif"), Image.Exif):
        options["exif"] = exif.tobytes()
    file = io.BytesIO()
    image.save(file, file_format, **(FINE.get(file_format, {}) | options))
    return file.getvalue()


def with_alpha(alpha: Pixels) -> Image.Image:
    image = Image.fromarray(scene())
    image.putalpha(Image.fromarray(alpha))
    return image


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(
    samples: NDArray[Any],
    kind: int,
    depth: int,
    *extra: bytes,
    size: tuple[int, int] | None = None,
) -> bytes:
    """Write a PNG by hand; `samples` are its rows as they lie in the file (packed, big endian)."""
    width, height = size or (samples.shape[1], samples.shape[0])
    rows = b"".join(b"\0" + row.tobytes() for row in samples)
    header = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0)
    parts = (chunk(b"IHDR", header), *extra, chunk(b"IDAT", zlib.compress(rows)))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts) + chunk(b"IEND", b"")


def tiff(tags: dict[int, int], data: bytes) -> bytes:
    """Write a little-endian TIFF by hand: one strip or tile, every tag a single LONG."""
    start = 8 + 2 + 12 * len(tags) + 4
    tags = {tag: start if tag in (273, 324) else value for tag, value in tags.items()}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, tags[tag]) for tag in sorted(tags))
    return b"II*\0\x08\0\0\0" + struct.pack("<H", len(tags)) + entries + bytes(4) + data


def profile(space: bytes, pcs: bytes, tags: dict[bytes, bytes]) -> bytes:
    """Write a colour profile by hand."""
    tags = {b"wtpt": b"XYZ \0\0\0\0" + struct.pack(">iii", 63190, 65536, 54061), **tags}
    at, table, body = 128 + 4 + 12 * len(tags), b"", b""
    for name, data in tags.items():
        table += name + struct.pack(">II", at + len(body), len(data))
        body += data
    head = struct.pack(">I4sI4s4s4s", 0, b"lcms", 0x02400000, b"prtr", space, pcs)
    head += bytes(12) + b"acsp" + bytes(28) + struct.pack(">iii", 63190, 65536, 54061)
    size = 128 + 4 + len(table) + len(body)
    return (
        struct.pack(">I", size)
        + head.ljust(128, b"\0")[4:]
        + struct.pack(">I", len(tags))
        + table
        + body
    )


@cache
def srgb() -> bytes:
    """Make a profile, once: it holds the time to the second."""
    return ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()


def assert_close(got: Pixels, wanted: Pixels, mean: float) -> None:
    assert got.shape == wanted.shape
    assert got.dtype == np.uint8
    assert np.abs(got.astype(int) - wanted.astype(int)).mean() <= mean


@cache
def samples() -> dict[str, bytes]:
    """One file of each way to store a picture."""
    picture, clear = Image.fromarray(scene()), with_alpha(shade())
    exif = Image.Exif()
    exif[MAKE] = "Maker"
    exif[GPS_IFD] = {1: "N", 2: (50.0, 5.0, 1.0)}
    wide = scene().astype(np.uint16) * 257
    files = {name: write(picture, name, exif=exif) for name in FORMATS}
    files |= {f"{name} alpha": write(clear, name) for name in WITH_EXIF if name != "JPEG"}
    files |= {
        "JPEG progressive": write(picture, "JPEG", progressive=True),
        "JPEG grey": write(picture.convert("L"), "JPEG"),
        "JPEG CMYK": write(picture.convert("CMYK"), "JPEG"),
        "PNG palette": write(picture.quantize(16), "PNG"),
        "PNG 1 bit": write(picture.convert("1"), "PNG"),
        "PNG 16 bit": png(wide.astype(">u2"), 2, 16),
        "WEBP lossless": write(picture, "WEBP", lossless=True),
        "BMP palette": write(picture.quantize(16), "BMP"),
        "TIFF LZW": write(picture, "TIFF", compression="tiff_lzw"),
        "TIFF JPEG": write(picture, "TIFF", compression="jpeg"),
        "TIFF 16 bit": cv2.imencode(".tif", wide[..., ::-1])[1].tobytes(),
        "GIF animated": write(picture, "GIF", save_all=True, append_images=[picture.rotate(180)]),
        "PNG animated": write(picture, "PNG", save_all=True, append_images=[picture.rotate(180)]),
    }
    return files


@pytest.mark.parametrize("file_format", FORMATS)
def test_every_format_is_read_in_order(file_format: str) -> None:
    picture = decode(write(scene(), file_format), MAX_PIXELS)
    assert picture.format == file_format
    assert picture.alpha is None
    assert not picture.text
    assert picture.pixels.flags.c_contiguous
    assert_close(picture.pixels, scene(), 0 if file_format in LOSSLESS else 3)


@pytest.mark.parametrize("file_format", FORMATS)
def test_the_answer_is_a_file_of_the_same_format(file_format: str) -> None:
    picture = decode(write(scene(), file_format), MAX_PIXELS)
    styled = ~scene()
    answer = encode(picture, styled)
    assert Image.open(io.BytesIO(answer)).format == file_format
    assert_close(decode(answer, MAX_PIXELS).pixels, styled, 0 if file_format in LOSSLESS else 3)


@pytest.mark.parametrize("file_format", FORMATS)
def test_any_size_goes_there_and_back(file_format: str) -> None:
    for size in ((1, 1), (1, 300), (300, 1), (3, 7)):
        pixels = np.full((*size, 3), (200, 90, 40), np.uint8)
        picture = decode(write(pixels, file_format), MAX_PIXELS)
        assert_close(picture.pixels, pixels, 4)
        assert_close(decode(encode(picture, pixels), MAX_PIXELS).pixels, pixels, 4)


def stored(upright: NDArray[Any], orientation: int) -> NDArray[Any]:
    """Lay out `upright` as the EXIF standard tells by where row 0 and column 0 are."""
    return {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.swapaxes(0, 1),
        6: upright[:, ::-1].swapaxes(0, 1),
        7: upright[::-1, ::-1].swapaxes(0, 1),
        8: upright[::-1].swapaxes(0, 1),
    }[orientation]


@pytest.mark.parametrize("file_format", WITH_EXIF)
def test_exif_orientation_is_applied_once(file_format: str) -> None:
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[ORIENTATION] = orientation
        data = write(np.ascontiguousarray(stored(scene(), orientation)), file_format, exif=exif)
        picture = decode(data, MAX_PIXELS)
        assert_close(picture.pixels, scene(), 3)
        assert_close(decode(encode(picture, picture.pixels), MAX_PIXELS).pixels, scene(), 4)


@pytest.mark.parametrize("orientation", [3, 6])
@pytest.mark.parametrize("extension", [".png", ".tif"])
def test_orientation_of_16_bit_colour_and_alpha(extension: str, orientation: int) -> None:
    wide = np.dstack([scene()[..., ::-1], shade()]).astype(np.uint16) * 257
    data = cv2.imencode(extension, stored(wide, orientation))[1].tobytes()
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    if extension == ".png":
        data = data[:33] + chunk(b"eXIf", exif.tobytes()[6:]) + data[33:]
    else:
        (ifd,) = struct.unpack_from("<I", data, 4)
        (count,) = struct.unpack_from("<H", data, ifd)
        tags = data[ifd + 2 : ifd + 2 + 12 * count]
        entries = [tags[i : i + 12] for i in range(0, len(tags), 12)]
        entries = [e for e in entries if e[:2] != struct.pack("<H", ORIENTATION)]
        entries.append(struct.pack("<HHIHH", ORIENTATION, 3, 1, orientation, 0))
        entries.sort(key=lambda e: struct.unpack_from("<H", e))
        moved = struct.pack("<H", len(entries)) + b"".join(entries) + bytes(4)
        data = data[:4] + struct.pack("<I", len(data)) + data[8:] + moved
    picture = decode(data, MAX_PIXELS)
    assert picture.alpha is not None
    assert_close(picture.pixels, scene(), 0)
    assert_close(picture.alpha, shade(), 0)


@pytest.mark.parametrize("file_format", WITH_EXIF)
def test_exif_is_carried_over_without_orientation(file_format: str) -> None:
    exif = Image.Exif()
    exif[MAKE], exif[ORIENTATION] = "Maker", 6
    exif[EXIF_IFD] = {0x9003: "2020:02:03 04:05:06", 0xA002: 80}
    exif[GPS_IFD] = {1: "N", 2: (50.0, 5.0, 1.0)}
    answer = encode(
        picture := decode(write(scene(), file_format, exif=exif), MAX_PIXELS), picture.pixels
    )
    got = Image.open(io.BytesIO(answer)).getexif()
    assert got[MAKE] == "Maker"
    assert got.get(ORIENTATION, 1) == 1
    assert got.get_ifd(EXIF_IFD) == {0x9003: "2020:02:03 04:05:06"}
    assert got.get_ifd(GPS_IFD) == {1: "N", 2: (50.0, 5.0, 1.0)}


@pytest.mark.parametrize("exif", [b"Exif\0\0garbage!", b"Exif\0\0MM\0*\0\0\0\x08\0\x05abc"])
@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "WEBP"])
def test_damaged_exif_hides_no_picture(file_format: str, exif: bytes) -> None:
    picture = decode(write(scene(), file_format, exif=exif), MAX_PIXELS)
    assert_close(picture.pixels, scene(), 3)
    assert picture.exif == b""


def test_exif_that_fits_no_answer_is_left_out() -> None:
    exif = Image.Exif()
    exif[EXIF_IFD] = {0x927C: bytes(70_000)}
    picture = decode(write(scene(), "PNG", exif=exif), MAX_PIXELS)
    assert picture.exif == b""
    assert_close(decode(encode(picture, scene()), MAX_PIXELS).pixels, scene(), 0)


EVERY_VALUE = np.arange(65_536, dtype=np.uint16).reshape(256, 256)
EVERY_VALUE_IN_8_BIT = np.round(EVERY_VALUE / 257).astype(np.uint8)
TWO_CHANNELS = np.dstack([EVERY_VALUE, EVERY_VALUE[::-1]])
COLOUR = np.dstack([EVERY_VALUE, EVERY_VALUE.T, EVERY_VALUE[::-1]])
FOUR_CHANNELS = np.dstack([COLOUR, EVERY_VALUE[:, ::-1]])


@pytest.mark.parametrize(
    "data",
    [
        png(EVERY_VALUE.astype(">u2"), 0, 16),
        write(Image.fromarray(EVERY_VALUE), "TIFF"),
        write(Image.frombytes("I;16B", (256, 256), EVERY_VALUE.astype(">u2").tobytes()), "TIFF"),
        write(Image.fromarray(65_535 - EVERY_VALUE), "TIFF", tiffinfo={262: 0}),
    ],
    ids=["PNG", "TIFF little endian", "TIFF big endian", "TIFF white is zero"],
)
def test_16_bit_grey_is_rounded_exactly(data: bytes) -> None:
    pixels = decode(data, MAX_PIXELS).pixels
    assert all(np.array_equal(pixels[..., i], EVERY_VALUE_IN_8_BIT) for i in range(3))


@pytest.mark.parametrize(
    ("data", "wide"),
    [
        (png(COLOUR.astype(">u2"), 2, 16), COLOUR),
        (png(FOUR_CHANNELS.astype(">u2"), 6, 16), FOUR_CHANNELS),
        (png(TWO_CHANNELS.astype(">u2"), 4, 16), TWO_CHANNELS[..., [0, 0, 0, 1]]),
        (cv2.imencode(".tif", COLOUR[..., ::-1])[1].tobytes(), COLOUR),
        (
            cv2.imencode(".tif", COLOUR[..., ::-1], [cv2.IMWRITE_TIFF_COMPRESSION, 1])[1].tobytes(),
            COLOUR,
        ),
        (cv2.imencode(".tif", FOUR_CHANNELS[..., [2, 1, 0, 3]])[1].tobytes(), FOUR_CHANNELS),
    ],
    ids=["PNG RGB", "PNG RGBA", "PNG LA", "TIFF RGB", "TIFF RGB uncompressed", "TIFF RGBA"],
)
def test_16_bit_colour_is_rounded_exactly(data: bytes, wide: NDArray[np.uint16]) -> None:
    picture = decode(data, MAX_PIXELS)
    assert_close(picture.pixels, np.round(wide[..., :3] / 257).astype(np.uint8), 0)
    if wide.shape[2] == 4:
        assert picture.alpha is not None
        assert_close(picture.alpha, np.round(wide[..., 3] / 257).astype(np.uint8), 0)
    else:
        assert picture.alpha is None


def test_hidden_colour_of_16_bit_pngs_is_compared_in_16_bit() -> None:
    grey = np.array([[1000, 1001, 1000]], ">u2")
    picture = decode(png(grey, 0, 16, chunk(b"tRNS", struct.pack(">H", 1000))), MAX_PIXELS)
    assert picture.alpha is not None
    assert picture.alpha.tolist() == [[0, 255, 0]]
    colour = np.array([[[1000, 2000, 3000], [1000, 2000, 3001]]], ">u2")
    hidden = chunk(b"tRNS", struct.pack(">HHH", 1000, 2000, 3000))
    picture = decode(png(colour, 2, 16, hidden), MAX_PIXELS)
    assert picture.alpha is not None
    assert picture.alpha.tolist() == [[0, 255]]
    assert decode(encode(picture, picture.pixels), MAX_PIXELS).alpha is not None


@pytest.mark.parametrize(
    ("depth", "row", "grey"),
    [
        (1, 0b00011011, [0, 0, 0, 255, 255, 0, 255, 255]),
        (2, 0b00011011, [0, 85, 170, 255]),
        (4, 0b00111010, [51, 170]),
    ],
)
def test_grey_of_few_bits_and_its_hidden_shade(depth: int, row: int, grey: list[int]) -> None:
    packed = np.array([[row]], np.uint8)
    plain = decode(png(packed, 0, depth, size=(len(grey), 1)), MAX_PIXELS)
    assert plain.pixels[0, :, 0].tolist() == grey
    assert plain.alpha is None
    last = grey[-1] * (2**depth - 1) // 255
    hidden = chunk(b"tRNS", struct.pack(">H", last))
    clear = decode(png(packed, 0, depth, hidden, size=(len(grey), 1)), MAX_PIXELS)
    assert clear.alpha is not None
    assert clear.alpha[0].tolist() == [0 if value == grey[-1] else 255 for value in grey]


@pytest.mark.parametrize(
    ("file_format", "mode"),
    [(file_format, mode) for file_format, modes in MODES.items() for mode in modes],
)
def test_every_mode_becomes_rgb(file_format: str, mode: str) -> None:
    image = with_alpha(shade()) if mode.endswith("A") else Image.fromarray(scene())
    image = Image.merge("LAB", image.split()) if mode == "LAB" else image.convert(mode)
    picture = decode(write(image, file_format), MAX_PIXELS)
    assert_close(picture.pixels, np.asarray(image.convert("RGB")), 0)
    assert (picture.alpha is not None) == mode.endswith("A")
    if picture.alpha is not None:
        assert_close(picture.alpha, np.asarray(image.convert("RGBA"))[..., 3], 0)


def test_palette_with_one_hidden_colour_and_with_shades_of_alpha() -> None:
    image = Image.fromarray(scene()).quantize(4)
    index = np.asarray(image)
    one = decode(write(image, "PNG", transparency=2), MAX_PIXELS)
    assert one.alpha is not None
    assert_close(one.alpha, np.where(index == 2, 0, 255), 0)
    many = decode(write(image, "PNG", transparency=bytes([255, 10, 128, 0])), MAX_PIXELS)
    assert many.alpha is not None
    assert_close(many.alpha, np.array([255, 10, 128, 0], np.uint8)[index], 0)
    assert_close(many.pixels, scene(), 0)


@pytest.mark.parametrize("file_format", ["PNG", "WEBP", "TIFF", "AVIF", "HEIF"])
def test_alpha_is_kept(file_format: str) -> None:
    lossy = 2 if file_format in ("AVIF", "HEIF") else 0
    picture = decode(write(with_alpha(shade()), file_format), MAX_PIXELS)
    assert picture.alpha is not None
    assert picture.pixels.flags.c_contiguous
    assert picture.alpha.flags.c_contiguous
    assert_close(picture.alpha, shade(), lossy)
    again = decode(encode(picture, ~scene()), MAX_PIXELS)
    assert again.alpha is not None
    assert_close(again.alpha, picture.alpha, lossy)
    assert_close(again.pixels[:, 40:], ~scene()[:, 40:], 0 if file_format in LOSSLESS else 9)


def test_gif_keeps_what_is_transparent() -> None:
    image = Image.fromarray(scene()).quantize(4)
    picture = decode(write(image, "GIF", transparency=1), MAX_PIXELS)
    assert picture.alpha is not None
    assert_close(picture.alpha, np.where(np.asarray(image) == 1, 0, 255), 0)
    again = decode(encode(picture, ~scene()), MAX_PIXELS)
    assert again.alpha is not None
    assert_close(again.alpha, picture.alpha, 0)
    noise = np.random.default_rng(0).integers(0, 256, (48, 80, 3), np.uint8)
    noisy = decode(encode(picture, noise), MAX_PIXELS)
    assert noisy.alpha is not None
    assert_close(noisy.alpha, picture.alpha, 0)
    shown = picture.alpha == 255
    assert_close(again.pixels[shown], (~scene())[shown], 0)


def test_gif_of_many_colours_stays_near() -> None:
    rows, columns = np.mgrid[:256, :256]
    pixels = np.dstack([rows, columns, (rows + columns) // 2]).astype(np.uint8)
    picture = decode(write(scene(256, 256), "GIF"), MAX_PIXELS)
    assert_close(decode(encode(picture, pixels), MAX_PIXELS).pixels, pixels, 8)


def test_webp_answers_without_loss_what_came_without_loss() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (48, 80, 3), np.uint8)
    exif = Image.Exif()
    exif[MAKE] = "Maker"  # turns the file into the extended form
    for options in ({}, {"exif": exif}, {"icc_profile": srgb() + b"\0"}):
        picture = decode(write(scene(), "WEBP", lossless=True, **options), MAX_PIXELS)
        assert picture.lossless
        assert_close(decode(encode(picture, noise), MAX_PIXELS).pixels, noise, 0)
    clear = decode(
        write(with_alpha(np.zeros((48, 80), np.uint8)), "WEBP", lossless=True), MAX_PIXELS
    )
    assert_close(decode(encode(clear, noise), MAX_PIXELS).pixels, noise, 0)
    for options in ({}, {"exif": exif}):
        picture = decode(write(scene(), "WEBP", **options), MAX_PIXELS)
        assert not picture.lossless


def test_jpeg_answers_keep_full_colour_resolution_and_quality() -> None:
    picture = decode(write(scene(), "JPEG"), MAX_PIXELS)
    noise = np.random.default_rng(0).integers(0, 256, (48, 80, 3), np.uint8)
    answer = encode(picture, noise)
    assert JpegImagePlugin.get_sampling(Image.open(io.BytesIO(answer))) == 0
    assert_close(decode(answer, MAX_PIXELS).pixels, noise, 4)


def test_jpeg_progressive_grey_and_with_a_second_picture() -> None:
    assert_close(decode(samples()["JPEG progressive"], MAX_PIXELS).pixels, scene(), 3)
    grey = np.asarray(Image.fromarray(scene()).convert("L").convert("RGB"))
    assert_close(decode(samples()["JPEG grey"], MAX_PIXELS).pixels, grey, 3)
    other = Image.fromarray(~scene())
    double = write(scene(), "MPO", save_all=True, append_images=[other], quality=95)
    picture = decode(double, MAX_PIXELS)
    assert picture.format == "JPEG"
    assert_close(picture.pixels, scene(), 5)


@pytest.mark.parametrize("file_format", ["JPEG", "TIFF"])
def test_cmyk_without_profile(file_format: str) -> None:
    image = Image.fromarray(scene()).convert("CMYK")
    picture = decode(write(image, file_format), MAX_PIXELS)
    assert_close(picture.pixels, scene(), 3)
    assert Image.open(io.BytesIO(encode(picture, scene()))).mode == "RGB"


def cmyk_profile() -> bytes:
    """Make all inks but black a middle grey: Lab 50, 0, 0."""
    identity = struct.pack(">9i", 65536, 0, 0, 0, 65536, 0, 0, 0, 65536)
    white, grey, black = bytes([255, 128, 128]), bytes([128, 128, 128]), bytes([0, 128, 128])
    grid = white + black + (grey + black) * 7
    ramp = bytes(range(256))
    lut = b"mft1\0\0\0\0" + bytes([4, 3, 2, 0]) + identity + ramp * 4 + grid + ramp * 3
    return profile(b"CMYK", b"Lab ", {b"A2B0": lut})


@pytest.mark.parametrize("file_format", ["JPEG", "TIFF"])
def test_cmyk_is_converted_by_its_profile(file_format: str) -> None:
    image = Image.new("CMYK", (32, 16))
    image.paste((255, 0, 0, 0), (16, 0, 32, 16))
    picture = decode(write(image, file_format, icc_profile=cmyk_profile()), MAX_PIXELS)
    assert_close(picture.pixels[:, :12], np.full((16, 12, 3), 255, np.uint8), 2)
    assert_close(picture.pixels[:, 20:], np.full((16, 12, 3), 119, np.uint8), 3)
    assert picture.icc == b""


def test_grey_is_converted_by_its_profile_and_keeps_alpha() -> None:
    linear = b"curv\0\0\0\0" + struct.pack(">IHH", 1, 256, 0)
    image = Image.new("LA", (4, 3), (55, 77))
    icc = profile(b"GRAY", b"XYZ ", {b"kTRC": linear})
    picture = decode(write(image, "PNG", icc_profile=icc), MAX_PIXELS)
    assert_close(picture.pixels, np.full((3, 4, 3), 128, np.uint8), 2)
    assert picture.alpha is not None
    assert_close(picture.alpha, np.full((3, 4), 77, np.uint8), 0)
    assert picture.icc == b""


@pytest.mark.parametrize("file_format", WITH_EXIF)
def test_rgb_profile_is_carried_over(file_format: str) -> None:
    picture = decode(write(scene(), file_format, icc_profile=srgb()), MAX_PIXELS)
    assert_close(picture.pixels, scene(), 3)
    answer = Image.open(io.BytesIO(encode(picture, picture.pixels)))
    assert answer.info["icc_profile"] == srgb()


def test_rgb_profile_of_16_bit_colour_is_carried_over() -> None:
    packed = chunk(b"iCCP", b"name\0\0" + zlib.compress(srgb()))
    assert decode(png(COLOUR.astype(">u2"), 2, 16, packed), MAX_PIXELS).icc == srgb()


def test_profiles_that_do_not_fit_are_dropped() -> None:
    for icc in (b"no profile", cmyk_profile()):
        picture = decode(write(scene(), "PNG", icc_profile=icc), MAX_PIXELS)
        assert picture.icc == b""
        assert_close(picture.pixels, scene(), 0)
    lab = Image.merge("LAB", Image.fromarray(scene()).split())
    assert decode(write(lab, "TIFF", icc_profile=srgb()), MAX_PIXELS).icc == b""


@pytest.mark.parametrize("mode", ["I", "F"])
def test_samples_without_a_known_white_are_refused(mode: str) -> None:
    with pytest.raises(RequestError, match="8 or 16 bits"):
        decode(write(Image.new(mode, (3, 3)), "TIFF"), MAX_PIXELS)


def test_packed_12_bit_is_refused() -> None:
    tags = {256: 2, 257: 1, 258: 12, 259: 1, 262: 1, 273: 0, 277: 1, 278: 1, 279: 3}
    with pytest.raises(RequestError, match="8 or 16 bits"):
        decode(tiff(tags, b"\xff\xff\xff"), MAX_PIXELS)


@pytest.mark.parametrize("file_format", ["PNG", "WEBP", "GIF", "TIFF", "AVIF"])
def test_only_the_first_frame_counts(file_format: str) -> None:
    others = [Image.fromarray(np.full((48, 80, 3), i, np.uint8)) for i in range(50)]
    data = write(scene(), file_format, save_all=True, append_images=others)
    picture = decode(data, MAX_PIXELS)
    assert_close(picture.pixels, scene(), 0 if file_format in LOSSLESS else 3)
    assert getattr(Image.open(io.BytesIO(encode(picture, scene()))), "n_frames", 1) == 1


def test_the_limit_of_pixels_is_exact() -> None:
    for name, data in samples().items():
        assert decode(data, 48 * 80).pixels.shape == (48, 80, 3), name
        with pytest.raises(RequestError, match=rf"80x48 pixels.* 1 to {48 * 80 - 1} "):
            decode(data, 48 * 80 - 1)


@pytest.mark.parametrize("name", ["PNG", "JPEG", "GIF", "BMP", "PNG 16 bit"])
def test_size_is_told_by_the_header_alone(name: str) -> None:
    data = samples()[name]
    with pytest.raises(RequestError, match="pixels"):
        decode(data[: len(data) * 9 // 10], 1000)


def test_bombs_are_refused_before_they_are_decoded() -> None:
    huge = png(np.zeros((1, 1), np.uint8), 0, 8, size=(60_000, 60_000))
    canvas = struct.pack("<4sI8sI4x", b"RIFF", 22, b"WEBPVP8X", 10) + b"\xff\x3f\0\xff\x2f\0"
    dispose = b"GIF89a" + struct.pack("<HHBBB", 65535, 65535, 0, 0, 0)
    dispose += b"!\xf9\x04\x09\0\0\0\0," + struct.pack("<HHHHB", 0, 0, 65535, 65535, 0) + b"\x02"
    for data in (huge, canvas, dispose + b"\x02D\x01\0;"):
        # Some Pillows look into a WebP as they open it, and call this one damaged.
        with pytest.raises(RequestError, match=r"more than the 50000000 pixels allowed|damaged"):
            decode(data, 50_000_000)


def test_a_tile_larger_than_its_picture_counts() -> None:
    tags = {256: 2, 257: 1, 258: 8, 259: 8, 262: 1, 277: 1, 322: 12_000, 323: 12_000}
    body = zlib.compress(bytes(1000))
    with pytest.raises(RequestError, match="12000x12000 pixels"):
        decode(tiff(tags | {324: 0, 325: len(body)}, body), 50_000_000)


@pytest.mark.parametrize("head", [b"zTXt:a\0\0", b"iCCP:a\0\0", b"iTXt:a\0\1\0\0\0"])
def test_compressed_text_does_not_eat_memory(head: bytes) -> None:
    packed = zlib.compress(bytes(40_000_000), 1)
    data = png(scene(), 2, 8, chunk(head[:4], head[5:] + packed))
    tracemalloc.start()
    with pytest.raises(RequestError, match="too large"):
        decode(data, MAX_PIXELS)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10_000_000


@pytest.mark.parametrize("name", samples())
def test_cut_files_never_give_a_part_of_the_picture(name: str) -> None:
    data = samples()[name]
    whole = decode(data, MAX_PIXELS)
    for length in {len(data) * i // 40 for i in range(40)} | {len(data) - i for i in range(1, 9)}:
        try:
            picture = decode(data[:length], MAX_PIXELS)
        except RequestError:
            continue
        assert np.array_equal(picture.pixels, whole.pixels), length
    # The second frame of an animation, and metadata at the end, may be missing.
    with pytest.raises(RequestError):
        decode(data[: len(data) // 3], MAX_PIXELS)


@settings(max_examples=500, deadline=2000, derandomize=True)
@given(st.data())
def test_damaged_files_are_refused_or_read_whole(draw: st.DataObject) -> None:
    name = draw.draw(st.sampled_from(sorted(samples())))
    data = bytearray(samples()[name])
    last = draw.draw(st.sampled_from([40, 200, len(data) - 1]))
    places = st.integers(0, min(last, len(data) - 1))
    for at in draw.draw(st.lists(places, min_size=1, max_size=6)):
        data[at] = draw.draw(st.integers(0, 255))
    try:
        picture = decode(bytes(data), MAX_PIXELS)
    except RequestError:
        return
    height, width, channels = picture.pixels.shape
    assert channels == 3
    assert 1 <= height * width <= MAX_PIXELS
    assert picture.pixels.dtype == np.uint8
    assert picture.alpha is None or picture.alpha.shape == (height, width)
    if height * width < 10_000:
        assert encode(picture, picture.pixels)


@settings(max_examples=200, deadline=2000, derandomize=True)
@given(
    st.sampled_from(["\x89PNG\r\n\x1a\n", "GIF89a", "BM", "II*\0", "\xff\xd8\xff", ""]), st.binary()
)
def test_garbage_is_refused(head: str, tail: bytes) -> None:
    with pytest.raises(RequestError):
        decode(head.encode("latin-1") + tail, MAX_PIXELS)


def test_odd_files_print_nothing() -> None:
    odd = [
        tiff({256: 2, 257: 1, 258: 8, 259: 1, 262: 2, 273: 0, 277: 60, 279: 3}, b"abc"),
        write(
            scene(), "JPEG", exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x05" + b"\x01\x0f\0\x02\0\0\xff\0" * 3
        ),
        png(np.zeros((1, 1), np.uint8), 0, 8, size=(10_000, 10_000)),
    ]
    code = (
        "import sys\nfrom styleserve.codec import decode\n"
        "from styleserve.errors import RequestError\n"
        f"for data in {odd!r}:\n"
        "    try:\n        decode(data, 1000000)\n"
        "    except RequestError:\n        pass\n"
        "heavy = {'onnxruntime', 'pytriton', 'tritonclient', 'gradio'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", code], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b" \n ",
        b"hello world",
        b'<svg xmlns="http://www.w3.org/2000/svg"/>',
        b"<!doctype html><p>Not found",
        b"%PDF-1.7\n%\xe2\xe3\xcf\xd3",
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
        b"\0\0\0\x20ftypisom\0\0\2\0isomiso2avc1mp41",
        b"PK\x03\x04\x14\0\0\0",
        write(scene(), "PPM"),
        write(scene(), "ICO"),
        write(scene(), "EPS"),
        base64.b64encode(b"%PDF-1.7 is no picture"),
    ],
)
def test_what_is_no_picture_is_refused_with_what_would_be(data: bytes) -> None:
    with pytest.raises(RequestError) as refusal:
        decode(data, MAX_PIXELS)
    for word in ("PNG", "JPEG", "WebP", "GIF", "BMP", "TIFF", "AVIF", "HEIC", "base64"):
        assert word in str(refusal.value)


@pytest.mark.parametrize("file_format", FORMATS)
def test_base64_text_gets_base64_text(file_format: str) -> None:
    file = write(scene(), file_format)
    plain = decode(file, MAX_PIXELS)
    text = base64.b64encode(file)
    picture = decode(text, MAX_PIXELS)
    assert picture.text
    assert np.array_equal(picture.pixels, plain.pixels)
    assert base64.b64decode(encode(picture, scene()), validate=True) == encode(plain, scene())


@pytest.mark.parametrize("file_format", FORMATS)
def test_base64_in_other_clothes(file_format: str) -> None:
    file = write(np.random.default_rng(1).integers(0, 256, (9, 7, 3), np.uint8), file_format)
    text, url_safe = base64.b64encode(file), base64.urlsafe_b64encode(file)
    for variant in (
        url_safe,
        text.rstrip(b"="),
        base64.encodebytes(file),
        base64.encodebytes(file).replace(b"\n", b"\r\n"),
        b"  \n" + text + b"\n",
        b"data:image/png;base64," + text,
        b" data:image/x-odd;charset=utf-8;base64," + url_safe.rstrip(b"="),
        b"DATA:image/png;base64," + text,
    ):
        assert np.array_equal(
            decode(variant, MAX_PIXELS).pixels, decode(file, MAX_PIXELS).pixels
        ), variant[:40]


@pytest.mark.parametrize("damage", ["#", "=", "%2B", '"', "é"])
def test_broken_base64_is_told(damage: str) -> None:
    text = base64.b64encode(write(scene(), "PNG"))
    for prefix in (b"", b"data:image/png;base64,"):
        with pytest.raises(RequestError, match=r"base64 text .* is broken"):
            decode(prefix + text[:101] + damage.encode() + text[101:], MAX_PIXELS)


def test_cut_base64_is_refused() -> None:
    text = base64.b64encode(write(scene(), "PNG"))
    for length in range(100, 105):
        with pytest.raises(RequestError):
            decode(text[:length], MAX_PIXELS)


def test_threads_do_not_disturb_each_other() -> None:
    files = [data for name, data in samples().items() if "HEIF" not in name] * 8
    alone = [decode(data, MAX_PIXELS) for data in files]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda data: decode(data, MAX_PIXELS), files))
        answers = list(pool.map(lambda p: encode(p, p.pixels), together))
    assert all(np.array_equal(a.pixels, b.pixels) for a, b in zip(alone, together, strict=True))
    assert answers == [encode(picture, picture.pixels) for picture in alone]
