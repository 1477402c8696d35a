"""Videos, frame by frame, with a style that is played."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest

from styleserve import video
from styleserve.crew import Crew
from styleserve.errors import RemoteError, RequestError
from styleserve.files import saving
from styleserve.image import Image
from tests.clips import HEIGHT, WIDTH, brightness, make_clip, read_clip, turn

FRAMES, RATE = 12, 12.5
LOSS = 12  # levels of 255 that the codecs take from a plain picture


@pytest.fixture(autouse=True)
def _no_ffmpeg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)


def invert(frame: Image) -> Image:
    time.sleep(0.02 if frame.mean() < 100 else 0)  # dark frames come back late
    return np.asarray(255 - frame, np.uint8)


def convert(source: Path, target: Path, style: Callable[[Image], Image] = invert) -> list[str]:
    with saving(target) as part:
        return video.convert(source, part, style, Crew(4))


@pytest.mark.parametrize("suffix", [".mp4", ".avi", ".mov", ".mkv", ".webm"])
def test_size_rate_number_and_order_of_frames_are_kept(tmp_path: Path, suffix: str) -> None:
    source = make_clip(tmp_path / f"clip{suffix}", FRAMES, RATE)
    target = tmp_path / "new" / f"styled{suffix}"
    convert(source, target)
    frames, rate = read_clip(target)
    assert rate == pytest.approx(RATE)
    assert [frame.shape for frame in frames] == [(HEIGHT, WIDTH, 3)] * FRAMES
    expected = [255 - brightness(number, FRAMES) for number in range(FRAMES)]
    assert [frame.mean() for frame in frames] == pytest.approx(expected, abs=LOSS / 2)
    assert list(target.parent.iterdir()) == [target]


def test_colours_stay_where_they_are(tmp_path: Path) -> None:
    """Red comes to the style as red, and goes back as it is."""
    source = make_clip(tmp_path / "clip.avi", FRAMES, RATE, tint=(60, 0, 0))
    seen: list[Image] = []

    def keep(frame: Image) -> Image:
        seen.append(frame)
        return frame

    convert(source, tmp_path / "styled.avi", keep)
    frames, _ = read_clip(tmp_path / "styled.avi")
    for frame in (seen[0], frames[0]):
        red, green, blue = frame.reshape(-1, 3).mean(axis=0)
        assert red - green == pytest.approx(60, abs=LOSS)
        assert green == pytest.approx(blue, abs=LOSS)


def test_a_video_of_a_phone_comes_out_upright(tmp_path: Path) -> None:
    source = make_clip(tmp_path / "clip.mp4", FRAMES, RATE)
    turn(source)
    convert(source, tmp_path / "out.mp4")
    frames, _ = read_clip(tmp_path / "out.mp4")
    assert frames[0].shape == (WIDTH, HEIGHT, 3)
    assert len(frames) == FRAMES


@pytest.mark.parametrize("content", [b"", b"no video", os.urandom(4000)])
def test_a_file_that_is_no_video_is_refused(tmp_path: Path, content: bytes) -> None:
    source = tmp_path / "clip.mp4"
    source.write_bytes(content)
    with pytest.raises(RequestError, match=r"clip\.mp4 is no video that OpenCV can read"):
        convert(source, tmp_path / "out.mp4")
    assert list(tmp_path.iterdir()) == [source]


def test_a_missing_file_is_told_as_such(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        convert(tmp_path / "gone.mp4", tmp_path / "out.mp4")


def test_a_failing_frame_leaves_no_half_video(tmp_path: Path) -> None:
    source = make_clip(tmp_path / "clip.mp4", FRAMES, RATE)

    def fail_late(frame: Image) -> Image:
        if frame.mean() > 150:
            raise RemoteError("it is gone")
        return frame

    with pytest.raises(RemoteError):
        convert(source, tmp_path / "out.mp4", fail_late)
    assert list(tmp_path.iterdir()) == [source]


def test_what_is_lost_is_told(tmp_path: Path) -> None:
    source = make_clip(tmp_path / "clip.avi", FRAMES, RATE)
    whole = source.read_bytes()
    assert convert(source, tmp_path / "out.avi") == [
        "without sound, if it had any: ffmpeg is not installed"
    ]
    source.write_bytes(whole[: len(whole) * 3 // 4])
    cut, _ = convert(source, tmp_path / "cut.avi")
    frames, _ = read_clip(tmp_path / "cut.avi")
    assert cut == f"it ended after {len(frames)} of the {FRAMES} frames that it announces"
    odd = np.zeros((31, 41, 3), np.uint8)
    assert list(video._shortfalls(odd, 1, 1)) == [
        "41x31 pixels became 40x30: video codecs want even sides"
    ]


def test_a_suffix_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    source = make_clip(tmp_path / "clip.avi", FRAMES, RATE)  # MPEG has no 12.5 frames per second
    with pytest.raises(RequestError, match=r"cannot write \.mpg of 160x128 pixels at 12\.5 frames"):
        convert(source, tmp_path / "out.mpg")
    black = np.zeros((2, 2, 3), np.uint8)
    refused = pytest.raises(RequestError, match="names no frame rate that is possible, got 0")
    with refused, video._writing(tmp_path / "out.avi", black, 0.0):
        pass


def test_sound_is_copied_with_ffmpeg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ffmpeg = tmp_path / "ffmpeg"
    ffmpeg.write_text(
        '#!/bin/sh\necho "$@" > "$0.told"\nfor last; do :; done\nprintf mixed > "${last#file:}"\n'
    )
    ffmpeg.chmod(0o755)
    monkeypatch.setattr("shutil.which", lambda _: str(ffmpeg))
    source = make_clip(tmp_path / "clip.avi", FRAMES, RATE)
    assert convert(source, tmp_path / "out.avi") == []
    assert (tmp_path / "out.avi").read_text() == "mixed"
    told = (tmp_path / "ffmpeg.told").read_text()
    assert f"-i file:{source} -map 0:v:0 -map 1:a? -c copy" in told


def test_a_failing_ffmpeg_costs_the_sound_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ffmpeg = tmp_path / "ffmpeg"
    ffmpeg.write_text("#!/bin/sh\necho no such codec >&2\nexit 1\n")
    ffmpeg.chmod(0o755)
    monkeypatch.setattr("shutil.which", lambda _: str(ffmpeg))
    source = make_clip(tmp_path / "clip.avi", FRAMES, RATE)
    told = convert(source, tmp_path / "out.avi")
    assert told == ["without sound: ffmpeg could not copy it (no such codec)"]
    assert len(read_clip(tmp_path / "out.avi")[0]) == FRAMES
    assert cv2.VideoCapture(str(source)).isOpened()
