"""From a photo file to a painted PNG file, with an inverting server in memory."""

import os
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from PIL import Image as Pillow

from styleserve.errors import RemoteError, RequestError
from styleserve.image import Image
from styleserve.remote import Options, Remote, Style
from styleserve.studio import VIEW_SIDE_PX, Studio, result_name
from tests.pictures import gap, marked, noise


class Inverting:
    """What the studio needs of a server."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[int, ...]]] = []
        self.details: dict[str, Any] = {}
        self.away = False

    def styles(self) -> list[Style]:
        return [Style("invert", "", self.details), Style("other", "", {})]

    def stylise(self, image: Image, style: str, options: Options | None = None) -> Image:
        if self.away:
            raise RemoteError("the server is away")
        self.calls.append((style, image.shape))
        return np.invert(image)


@pytest.fixture
def server() -> Inverting:
    return Inverting()


@pytest.fixture
def studio(server: Inverting, tmp_path: Path) -> Studio:
    return Studio(cast(Remote, server), tmp_path, 1_000_000, [tmp_path / "example.jpg"])


def save(path: Path, image: Pillow.Image, **options: Any) -> Path:  # noqa: ANN401
    image.save(path, **options)
    return path


def pixels(path: Path) -> Image:
    with Pillow.open(path) as image:
        assert image.mode == "RGB"
        return np.asarray(image)


def test_a_result_is_a_lossless_png_named_after_photo_and_style(
    studio: Studio, tmp_path: Path
) -> None:
    picture = noise(40, 60)
    photo = save(tmp_path / "x.png", Pillow.fromarray(picture))

    painting = studio.paint(photo, "holiday.jpeg", "invert", Options())

    assert painting.file.name == "holiday-invert.png"
    assert np.array_equal(pixels(painting.file), 255 - picture)
    assert np.array_equal(pixels(painting.before), picture)
    assert painting.after == painting.file
    assert painting.facts.startswith("invert · 60 × 40 pixels · 0.")  # noqa: RUF001


def test_a_large_result_is_shown_smaller_and_kept_whole(studio: Studio, tmp_path: Path) -> None:
    photo = save(tmp_path / "wide.png", Pillow.fromarray(noise(40, 2000)))

    painting = studio.paint(photo, "wide.png", "invert", Options())

    assert pixels(painting.file).shape == (40, 2000, 3)
    for shown in (painting.before, painting.after):
        assert pixels(shown).shape == (32, VIEW_SIDE_PX, 3)


def test_a_tile_is_painted_small(studio: Studio, server: Inverting, tmp_path: Path) -> None:
    photo = save(tmp_path / "a.png", Pillow.fromarray(noise(400, 1600)))

    studio.paint_tile(photo, "a.png", "invert", Options())

    assert server.calls == [("invert", (200, 800, 3))]


def test_a_phone_photo_is_turned_upright(studio: Studio, tmp_path: Path) -> None:
    exif = Pillow.Exif()
    exif[0x0112] = 6
    photo = save(tmp_path / "phone.jpg", Pillow.fromarray(marked(200, 400)), exif=exif)

    painting = studio.paint(photo, "phone.jpg", "invert", Options())

    assert pixels(painting.file).shape == (400, 200, 3)
    assert pixels(painting.before).shape == (400, 200, 3)


def test_what_shows_through_is_white_and_said_so(studio: Studio, tmp_path: Path) -> None:
    picture = np.zeros((2, 3, 4), np.uint8)
    picture[:, 1, 3], picture[:, 2, 3] = 128, 255
    photo = save(tmp_path / "logo.png", Pillow.fromarray(picture, "RGBA"))

    painting = studio.paint(photo, "logo.png", "invert", Options())

    assert pixels(painting.before)[0, :, 0].tolist() == [255, 127, 0]
    assert painting.facts.endswith("on white")


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "I;16"])
def test_every_kind_of_picture_is_painted(mode: str, studio: Studio, tmp_path: Path) -> None:
    grey = np.full((20, 30), 128, np.uint8)
    if mode == "I;16":
        image = Pillow.fromarray(grey.astype(np.uint16) * 257)
    elif mode == "P":
        image = Pillow.fromarray(grey).quantize(16)
    else:
        image = Pillow.fromarray(grey).convert("RGB").convert(mode)
    photo = save(tmp_path / "x.tif", image)

    before = pixels(studio.paint(photo, "x.tif", "invert", Options()).before)

    assert before.shape == (20, 30, 3)
    assert mode == "1" or gap(before, np.full((20, 30, 3), 128, np.uint8)) <= 2


@pytest.mark.parametrize("suffix", ["png", "jpg", "webp", "gif", "bmp", "tif", "avif", "heic"])
def test_every_format_is_read(suffix: str, studio: Studio, tmp_path: Path) -> None:
    photo = save(tmp_path / f"x.{suffix}", Pillow.new("RGB", (32, 16), (200, 100, 50)))

    assert studio.read(photo).pixels.shape == (16, 32, 3)


@pytest.mark.parametrize("content", [b"", b"no picture", b"\x00\x01\x02", b"<svg></svg>"])
def test_what_is_no_picture_is_refused(content: bytes, studio: Studio, tmp_path: Path) -> None:
    photo = tmp_path / "x.jpg"
    photo.write_bytes(content)

    with pytest.raises(RequestError, match=r"^this file is no picture that can be read: choose a"):
        studio.read(photo)


def test_half_a_picture_is_refused(studio: Studio, tmp_path: Path) -> None:
    file = BytesIO()
    Pillow.fromarray(noise(50, 50)).save(file, "PNG")
    photo = tmp_path / "half.png"
    photo.write_bytes(file.getvalue()[:4000])

    with pytest.raises(RequestError, match="damaged or cut short"):
        studio.read(photo)


def test_too_many_pixels_are_refused_with_the_limit(studio: Studio, tmp_path: Path) -> None:
    photo = save(tmp_path / "x.png", Pillow.new("RGB", (2000, 1000)))

    with pytest.raises(RequestError, match=r"^the picture has 2000x1000 pixels.*1000000"):
        studio.read(photo)


def test_a_photo_that_was_deleted_is_asked_for_again(studio: Studio, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="choose it again"):
        studio.read(tmp_path / "gone.png")


def test_a_thumbnail_is_painted_once(studio: Studio, server: Inverting, tmp_path: Path) -> None:
    example = save(tmp_path / "x.png", Pillow.fromarray(noise(500, 500)))
    start = threading.Barrier(5)

    def visit() -> list[str]:
        start.wait(10)
        return studio.thumbnails(example)

    with ThreadPoolExecutor(5) as pool:
        visits = [pool.submit(visit) for _ in range(5)]
    urls = [visit.result() for visit in visits]

    assert [style for style, _ in server.calls] == ["invert", "other"]
    assert all(url == urls[0] for url in urls)
    assert all(url.startswith("data:image/jpeg;base64,") for url in urls[0])


def test_another_model_of_the_same_name_gets_another_thumbnail(
    studio: Studio, server: Inverting, tmp_path: Path
) -> None:
    example = save(tmp_path / "x.png", Pillow.fromarray(noise(50, 50)))
    studio.thumbnails(example)
    server.details = {"description": "another one"}
    studio.thumbnails(example)

    assert [style for style, _ in server.calls] == ["invert", "other", "invert"]


def test_a_thumbnail_that_fails_is_tried_again(
    studio: Studio, server: Inverting, tmp_path: Path
) -> None:
    example = save(tmp_path / "x.png", Pillow.fromarray(noise(50, 50)))
    server.away = True
    assert studio.thumbnails(example) == ["", ""]
    server.away = False

    assert all(studio.thumbnails(example))


def test_a_webcam_picture_becomes_a_data_url(studio: Studio, server: Inverting) -> None:
    file = BytesIO()
    Pillow.fromarray(noise(480, 640)).save(file, "JPEG")

    assert studio.paint_frame(file.getvalue(), "invert", Options()).startswith("data:image/jpeg")
    assert server.calls == [("invert", (288, 384, 3))]


def test_only_uploads_are_deleted(studio: Studio, tmp_path: Path) -> None:
    upload, other = tmp_path / "frames" / "frame.jpg", tmp_path / "example.jpg"
    upload.parent.mkdir()
    for path in (upload, other):
        path.write_bytes(b"1")
        assert studio.take(path) == b"1"

    assert not upload.exists()
    assert other.exists()


def test_no_other_file_of_the_machine_is_read_or_deleted(server: Inverting, tmp_path: Path) -> None:
    studio = Studio(cast(Remote, server), tmp_path / "own", 1_000_000)
    (tmp_path / "own").mkdir()
    private = save(tmp_path / "private.png", Pillow.fromarray(noise(10, 10)))
    (tmp_path / "own" / "link.png").symlink_to(private)
    os.mkfifo(tmp_path / "own" / "pipe.png")  # to read it would take for ever
    ways = [
        private,
        tmp_path / "own" / ".." / "private.png",
        tmp_path / "own" / "link.png",
        tmp_path / "own" / "pipe.png",
        tmp_path / "own",
        tmp_path / "nothing.png",
        Path("/dev/zero"),
        Path("a\0b"),
    ]
    for way in ways:
        with pytest.raises(RequestError, match="not here any more"):
            studio.paint(way, "a.png", "invert", Options())
        with pytest.raises(RequestError, match="not here any more"):
            studio.take(way)
    assert private.exists()


def test_a_zip_file_holds_every_painting(studio: Studio, tmp_path: Path) -> None:
    photo = save(tmp_path / "a.png", Pillow.fromarray(noise(10, 10)))
    paintings = [studio.paint(photo, "a.png", "invert", Options()) for _ in range(2)]

    with zipfile.ZipFile(studio.pack(paintings, "invert")) as archive:
        assert archive.namelist() == ["a-invert.png", "a-invert (2).png"]
        assert archive.testzip() is None


@pytest.mark.parametrize(
    ("photo", "name"),
    [
        ("holiday.jpg", "holiday-dots.png"),
        ("Grüße aus Köln.JPEG", "Grüße aus Köln-dots.png"),
        ("../../etc/passwd", "passwd-dots.png"),
        ('a"b<c>|d.png', "a_b_c_d-dots.png"),
        ("...", "photo-dots.png"),
        ("", "photo-dots.png"),
        ("x" * 300 + ".png", "x" * 100 + "-dots.png"),
    ],
)
def test_a_result_is_named_safely(photo: str, name: str) -> None:
    assert result_name(photo, "dots") == name
