"""Small videos whose frames tell their number by their brightness."""

import struct
from pathlib import Path

import cv2
import numpy as np

from styleserve.image import Image

HEIGHT, WIDTH = 128, 160
CODECS = {".avi": "MJPG", ".webm": "VP80"}


def brightness(number: int, count: int) -> float:
    return 40 + 150 * number / (count - 1)


def make_clip(path: Path, count: int, rate: float, tint: tuple[int, int, int] = (0, 0, 0)) -> Path:
    """Write frames of one colour each, from dark to light; `tint` is added to it, RGB."""
    fourcc = cv2.VideoWriter.fourcc(*CODECS.get(path.suffix, "mp4v"))
    writer = cv2.VideoWriter(str(path), fourcc, rate, (WIDTH, HEIGHT))
    assert writer.isOpened()
    for number in range(count):
        colour = np.add(tint, round(brightness(number, count)))
        writer.write(np.full((HEIGHT, WIDTH, 3), colour[::-1], np.uint8))
    writer.release()
    return path


def turn(path: Path) -> None:
    """Note in an MP4 file that its frames are to be shown turned by a quarter, as phones do."""
    file = path.read_bytes()
    matrix = file.index(b"tkhd") + 44
    quarter = struct.pack(">9i", 0, 1 << 16, 0, -1 << 16, 0, 0, 0, 0, 1 << 30)
    path.write_bytes(file[:matrix] + quarter + file[matrix + len(quarter) :])


def read_clip(path: Path) -> tuple[list[Image], float]:
    """Return the frames, RGB, and how many there are in a second."""
    capture = cv2.VideoCapture(str(path))
    frames: list[Image] = []
    while (answer := capture.read())[0]:
        frames.append(np.asarray(answer[1][..., ::-1], np.uint8))
    return frames, capture.get(cv2.CAP_PROP_FPS)
