"""Photo files in, painted PNG files out: what the page does, without its widgets.

file -> decode (codec) -> flat on white -> server (remote) -> Painting: PNG files, a line of facts
"""

import base64
import json
import re
import secrets
import time
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock

import cv2
import numpy as np

from styleserve import codec
from styleserve.batch import unique_names
from styleserve.errors import RequestError, StyleServeError
from styleserve.image import Image, shrink
from styleserve.remote import Options, Remote, Style

VIEW_SIDE_PX = 1600  # what a browser shows; files to download have every pixel
TILE_SIDE_PX = 800
FRAME_SIDE_PX = 384  # of a webcam, where speed counts
THUMBNAIL_SIDE_PX = 144
THUMBNAIL_PAINTED_PX = 384  # strokes have a width of their own: painted small, they hide the photo


@dataclass(frozen=True)
class Painting:
    """A styled photo as files: the whole result, and what to show before and after."""

    file: Path
    before: Path
    after: Path
    facts: str


class Studio:
    """Paints photo files, through a server, into files below `folder`. Safe to share."""

    def __init__(
        self, remote: Remote, folder: Path, max_pixels: int, examples: Sequence[Path] = ()
    ) -> None:
        """Take the files below `folder`, and `examples`, as photos of up to `max_pixels`."""
        self._remote = remote
        self._folder = folder
        self._examples = [example.resolve() for example in examples]
        self._max_pixels = max_pixels
        self._thumbnails: dict[str, str] = {}
        self._lock = Lock()

    def read(self, photo: Path) -> codec.Picture:
        """Return a photo upright and without transparency: what shows through is white.

        Raises:
            RequestError: if it cannot be read or has too many pixels.
        """
        return self._decode(self._own(photo).read_bytes())

    def paint(
        self, photo: Path, name: str, style: str, options: Options, side: int = 0
    ) -> Painting:
        """Style a photo called `name`, first made to fit `side` if that is given."""
        picture = self.read(photo)
        pixels = shrink(picture.pixels, side) if side else picture.pixels
        start = time.monotonic()
        styled = self._remote.stylise(pixels, style, options)
        seconds = time.monotonic() - start
        folder = self._new_folder()
        file = folder / result_name(name, style)
        file.write_bytes(_png(picture, styled))
        before, after = folder / "before.png", file
        shown = replace(picture, exif=b"")
        before.write_bytes(_png(shown, shrink(pixels, VIEW_SIDE_PX)))
        if max(styled.shape) > VIEW_SIDE_PX:
            after = folder / "after.png"
            after.write_bytes(_png(shown, shrink(styled, VIEW_SIDE_PX)))
        height, width = styled.shape[:2]
        facts = f"{style} · {width} × {height} pixels · {seconds:.1f} s"  # noqa: RUF001
        return Painting(
            file, before, after, facts + (" · on white" if picture.alpha is not None else "")
        )

    def paint_tile(self, photo: Path, name: str, style: str, options: Options) -> Painting:
        """Style a photo at the size of a tile of the contact sheet."""
        return self.paint(photo, name, style, options, TILE_SIDE_PX)

    def paint_frame(self, frame: bytes, style: str, options: Options) -> str:
        """Style one picture of a webcam; returns a data URL."""
        pixels = shrink(self._decode(frame).pixels, FRAME_SIDE_PX)
        return _data_url(self._remote.stylise(pixels, style, options))

    def take(self, file: Path) -> bytes:
        """Read an uploaded file and delete it."""
        own = self._own(file)
        data = own.read_bytes()
        if own not in self._examples:
            own.unlink()
        return data

    def styles(self) -> list[Style]:
        """List what the server serves now."""
        return self._remote.styles()

    def thumbnails(self, example: Path) -> list[str]:
        """Return a small painting of `example` for each style, a data URL; empty if it fails."""
        styles = self.styles()
        with self._lock:  # visitors who come at once wait for the first one's
            return [self._thumbnail(style, example) for style in styles]

    def pack(self, paintings: Sequence[Painting], style: str) -> Path:
        """Return a ZIP file with the paintings, each under a name of its own."""
        file = self._new_folder() / f"{style}.zip"
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:  # PNG is compressed
            names = unique_names([painting.file.name for painting in paintings])
            for painting, name in zip(paintings, names, strict=True):
                archive.write(painting.file, name)
        return file

    def _own(self, file: Path) -> Path:
        """Return where a photo is; a visitor's script may name any file of this machine."""
        try:
            real = file.resolve(strict=True)
        except (OSError, RuntimeError, ValueError):
            real = Path()
        below = real.is_relative_to(self._folder.resolve()) and real.is_file()
        if not below and real not in self._examples:
            raise RequestError("the photo is not here any more: choose it again")
        return real

    def _decode(self, data: bytes) -> codec.Picture:
        try:
            picture = codec.decode(data, self._max_pixels)
        except RequestError as error:
            raise RequestError(_for_people(str(error))) from error
        return replace(picture, pixels=_flatten(picture), text=False, format="PNG")

    def _thumbnail(self, style: Style, example: Path) -> str:
        key = f"{style.name} {json.dumps(style.details, sort_keys=True)}"
        if key not in self._thumbnails:
            try:
                small = shrink(self.read(example).pixels, THUMBNAIL_PAINTED_PX)
                painted = self._remote.stylise(small, style.name)
            except StyleServeError:
                return ""
            self._thumbnails[key] = _data_url(shrink(painted, THUMBNAIL_SIDE_PX))
        return self._thumbnails[key]

    def _new_folder(self) -> Path:
        folder = self._folder / secrets.token_hex(16)
        folder.mkdir(parents=True)
        return folder


def result_name(photo: str, style: str) -> str:
    """Name a result: holiday.jpg in dots becomes holiday-dots.png."""
    stem = re.sub(r"[^\w. -]+", "_", Path(photo).stem).strip(". ") or "photo"
    return f"{stem[:100]}-{style}.png"


def _for_people(problem: str) -> str:
    """Say what the codec says of a request in the words of somebody who chose a file."""
    if problem.startswith("'encoded'"):
        return f"this file is no picture that can be read: choose {codec.ACCEPTED}"
    return problem.replace(" in 'encoded'", "").replace(": send ", ": choose ", 1)


def _flatten(picture: codec.Picture) -> Image:
    if picture.alpha is None:
        return picture.pixels
    alpha = picture.alpha[:, :, None].astype(np.uint16)
    mixed = picture.pixels * alpha + 255 * (255 - alpha)
    return ((mixed + 127) // 255).astype(np.uint8)


def _png(picture: codec.Picture, pixels: Image) -> bytes:
    return codec.encode(replace(picture, alpha=None), pixels)


def _data_url(pixels: Image) -> str:
    jpeg = cv2.imencode(".jpg", cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR))[1].tobytes()
    return f"data:image/jpeg;base64,{base64.b64encode(jpeg).decode()}"
