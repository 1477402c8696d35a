"""Videos: read and written frame by frame, several frames at the server at once, order kept.

file -> OpenCV -> RGB frames -> crew of callers -> styled frames in order -> OpenCV -> sound -> file
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import cv2
import numpy as np
from tqdm import tqdm

from styleserve.crew import Crew
from styleserve.errors import RequestError
from styleserve.files import saving
from styleserve.image import Image

# What players read, among what OpenCV's wheels can write; they have no H.264.
_CODECS = {".avi": "MJPG", ".webm": "VP80", ".wmv": "WMV2", ".mpg": "PIM1", ".mpeg": "PIM1"}
_USUAL_CODEC = "mp4v"
_FASTEST_PER_S = 1000
_ENOUGH = 0.9
_SOUND_TIMEOUT_S = 600


def convert(source: Path, target: Path, stylise: Callable[[Image], Image], crew: Crew) -> list[str]:
    """Write the video `source` to `target`, every frame through `stylise`.

    On an error, half a video may be left.

    Returns:
        What the result lacks, a sentence each.

    Raises:
        RequestError: if the video cannot be read, or not be written in the target's format.
        StyleServeError: what `stylise` raises.
    """
    _silence()
    with _reading(source) as capture:
        total = int(capture.get(cv2.CAP_PROP_FRAME_COUNT))
        frames = _frames(capture)
        first = next(frames, None)
        if first is None:
            raise RequestError(f"{source} holds no frame that can be read; save it anew")
        count = 0
        with _writing(target, first, capture.get(cv2.CAP_PROP_FPS)) as write:
            styled = crew.in_order(stylise, chain([first], frames))
            for frame in tqdm(styled, source.name, max(total, 1), unit="frame", disable=None):
                write(frame)
                count += 1
        return [*_shortfalls(first, count, total), *_add_sound(target, source)]


def _silence() -> None:
    """Keep OpenCV's and FFmpeg's own words off the terminal: we tell what went wrong."""
    cv2.setLogLevel(0)
    os.putenv("OPENCV_FFMPEG_LOGLEVEL", "-8")  # the C library's environment, read at the first use


@contextmanager
def _reading(source: Path) -> Iterator[cv2.VideoCapture]:
    source.open("rb").close()  # OpenCV does not tell why it cannot open a file
    capture = cv2.VideoCapture(str(source), cv2.CAP_FFMPEG)
    capture.set(cv2.CAP_PROP_ORIENTATION_AUTO, 1)  # phones turn their videos by a note in the file
    try:
        if not capture.isOpened():
            raise RequestError(f"{source} is no video that OpenCV can read; save it as MP4 or AVI")
        yield capture
    finally:
        capture.release()


def _frames(capture: cv2.VideoCapture) -> Iterator[Image]:
    while True:
        is_frame, frame = capture.read()
        if not is_frame:
            return
        yield np.asarray(cv2.cvtColor(frame, cv2.COLOR_BGR2RGB), np.uint8)


@contextmanager
def _writing(target: Path, first: Image, rate: float) -> Iterator[Callable[[Image], None]]:
    if not 0 < rate <= _FASTEST_PER_S:
        raise RequestError(f"the video names no frame rate that is possible, got {rate} per second")
    height, width = first.shape[:2]
    codec = _CODECS.get(target.suffix.lower(), _USUAL_CODEC)
    fourcc = cv2.VideoWriter.fourcc(*codec)
    writer = cv2.VideoWriter(str(target), cv2.CAP_FFMPEG, fourcc, rate, (width, height))
    try:
        if not writer.isOpened():
            raise RequestError(
                f"OpenCV cannot write {target.suffix} of {width}x{height} pixels at {rate:g} "
                "frames per second; name a result that ends in .mp4, .mkv or .avi"
            )
        yield lambda frame: writer.write(cv2.cvtColor(frame, cv2.COLOR_RGB2BGR))
    finally:
        writer.release()


def _shortfalls(first: Image, count: int, total: int) -> Iterator[str]:
    height, width = first.shape[:2]
    if height % 2 or width % 2:
        even = f"{width & ~1}x{height & ~1}"
        yield f"{width}x{height} pixels became {even}: video codecs want even sides"
    if count < _ENOUGH * total:  # formats without an index only guess their total
        yield f"it ended after {count} of the {total} frames that it announces"


def _add_sound(styled: Path, source: Path) -> Iterator[str]:
    ffmpeg = shutil.which("ffmpeg")
    if ffmpeg is None:
        yield "without sound, if it had any: ffmpeg is not installed"
        return
    sources = [word for path in (styled, source) for word in ("-i", f"file:{path.resolve()}")]
    copy = ["-map", "0:v:0", "-map", "1:a?", "-c", "copy"]
    try:
        with saving(styled) as mixed:
            command = [
                ffmpeg,
                "-nostdin",
                "-v",
                "error",
                *sources,
                *copy,
                f"file:{mixed.resolve()}",
            ]
            subprocess.run(command, check=True, capture_output=True, timeout=_SOUND_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        yield f"without sound: ffmpeg took more than {_SOUND_TIMEOUT_S} s to copy it"
    except subprocess.CalledProcessError as error:
        reason = error.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        yield f"without sound: ffmpeg could not copy it ({reason or 'no reason given'})"
