"""The real client.py against the real server."""

import contextlib
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pillow
from PIL import ImageCms
from PIL.ExifTags import Base

from tests.clips import HEIGHT, WIDTH, brightness, make_clip, read_clip
from tests.e2e.running import ROOT, Running, free_ports
from tests.pictures import gap, marked, noise

LIMIT_S = 30
PICTURE = marked(48, 64)


class Answer:
    """What one call of client.py gave."""

    def __init__(self, url: str, *argv: object, stdin: bytes = b"") -> None:
        done = subprocess.run(
            command(url, *argv), cwd=ROOT, input=stdin, capture_output=True, timeout=LIMIT_S
        )
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr.decode()

    @property
    def json(self) -> Any:  # noqa: ANN401  JSON
        return json.loads(self.out)


def command(url: str, *argv: object) -> list[str]:
    return [sys.executable, "client.py", "--url", url, *map(str, argv)]


@pytest.fixture(scope="module")
def url(server: Running) -> str:
    return f"127.0.0.1:{server.http}"


def save(path: Path, **options: Any) -> Path:  # noqa: ANN401  Pillow's
    path.parent.mkdir(parents=True, exist_ok=True)
    Pillow.fromarray(PICTURE).save(path, **options)
    return path


def is_inverted(path: Path, tolerance: int = 0) -> bool:
    with Pillow.open(path) as image:
        return gap(np.asarray(image.convert("RGB")), 255 - PICTURE) <= tolerance


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A nested folder with good and bad files."""
    folder = tmp_path / "in"
    save(folder / "a.png")
    save(folder / "deep" / "er" / "b.bmp")
    whole = save(folder / "deep" / "broken.png").read_bytes()
    (folder / "deep" / "broken.png").write_bytes(whole[: len(whole) // 2])
    (folder / "empty.jpg").touch()
    (folder / "notes.txt").write_text("no photo")
    return folder


def test_a_folder_with_bad_files_is_done_but_for_these(
    url: str, photos: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    answer = Answer(url, photos, out, "--style", "invert")
    *failed, total = answer.err.splitlines()
    assert answer.code == 1
    assert names(out) == ["a.png", "deep/er/b.bmp"]
    assert is_inverted(out / "a.png")
    assert is_inverted(out / "deep/er/b.bmp")
    assert {line.partition(" in invert: ")[0] for line in failed} == {
        str(photos / "deep" / "broken.png"),
        str(photos / "empty.jpg"),
    }
    assert total.startswith("2 done, 2 failed in ")
    assert answer.out == b""


def test_json_tells_all_of_it(url: str, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    save(out / "a.png")
    answer = Answer(url, photos, out, "--style", "invert", "--skip", "--json")
    told = answer.json
    entry = {"source": f"{photos}/deep/er/b.bmp", "target": f"{out}/deep/er/b.bmp"}
    assert (answer.code, answer.err) == (1, "")
    assert told["results"] == [entry | {"style": "invert"}]
    assert [one["target"] for one in told["skipped"]] == [f"{out}/a.png"]
    assert {Path(one["source"]).name for one in told["failures"]} == {"broken.png", "empty.jpg"}
    assert all(one["error"] for one in told["failures"])
    assert 0 < told["seconds"] < LIMIT_S
    assert told["interrupted"] is False


def test_existing_results_are_refused_skipped_or_replaced(url: str, tmp_path: Path) -> None:
    source, out = save(tmp_path / "a.png"), tmp_path / "out"
    old = save(out / "a.png").read_bytes()
    save(tmp_path / "b.png")
    pattern = tmp_path / "[ab].png"
    refused = Answer(url, pattern, out, "--style", "invert")
    assert refused.code == 2
    assert "1 of 2 results exist already" in refused.err
    assert names(out) == ["a.png"]
    skipped = Answer(url, pattern, out, "--style", "invert", "--skip")
    assert skipped.code == 0, skipped.err
    assert ((out / "a.png").read_bytes(), names(out)) == (old, ["a.png", "b.png"])
    assert Answer(url, source, out, "--style", "invert", "--overwrite").code == 0
    assert is_inverted(out / "a.png")


def test_every_style_at_once(url: str, tmp_path: Path) -> None:
    answer = Answer(url, save(tmp_path / "a.png"), tmp_path / "out", "--style", "all")
    assert answer.code == 0, answer.err
    assert names(tmp_path / "out") == ["a-fixed-size.png", "a-identity.png", "a-invert.png"]
    assert is_inverted(tmp_path / "out" / "a-invert.png")
    assert not is_inverted(tmp_path / "out" / "a-identity.png")


def test_standard_input_to_standard_output(url: str, tmp_path: Path) -> None:
    photo = save(tmp_path / "a.png").read_bytes()
    answer = Answer(url, "-", "-", "--style", "invert", stdin=photo)
    assert (answer.code, answer.err) == (0, "")
    assert gap(np.asarray(Pillow.open(io.BytesIO(answer.out))), 255 - PICTURE) == 0
    bad = Answer(url, "-", "-", "--style", "invert", stdin=b"no photo")
    assert (bad.code, bad.out) == (1, b"")
    assert bad.err.startswith("- in invert: ")


@pytest.mark.parametrize(
    ("argv", "redirected", "code", "told"),
    [
        ("- {out}", "<&-", 2, "standard input, which is closed; pipe one in"),
        ("- -", "<&-", 2, "standard input, which is closed; pipe one in"),
        ("{photo} -", ">&-", 2, "standard output, which is closed; "),
        ("{photo} {out} --json", ">&-", 2, "standard output, which is closed; "),
        ("--list", ">&-", 2, "standard output, which is closed; "),
        ("--list", ">/dev/full", 1, "standard input or output failed: No space left on device; "),
        ("{photo} -", ">/dev/full", 1, "a.png in invert: No space left on device"),
        ("--help", ">&-", 0, ""),
        ("{photo} {out} --bad", "2>&-", 2, ""),
        ("gone.png {out}", "2>&-", 2, ""),
        ("gone.png {out}", "2>/dev/full", 2, ""),
        ("{photo} {out}", "<&- >&- 2>&-", 0, ""),
    ],
)
def test_closed_and_full_streams(
    url: str, tmp_path: Path, argv: str, redirected: str, code: int, told: str
) -> None:
    photo, out = save(tmp_path / "a.png"), tmp_path / "out.png"
    words = argv.format(photo=photo, out=out).split()
    script = ["sh", "-c", f'exec "$@" {redirected}', "sh", *command(url, *words), "--style=invert"]
    done = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == code, done.stderr
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) < 3 or "--help" in argv
    assert not out.exists() or is_inverted(out)
    assert out.exists() == (argv == "{photo} {out}")


def test_names_with_a_dash_or_too_long(url: str, tmp_path: Path) -> None:
    photo, out = save(tmp_path / "-dash.png"), tmp_path / "out"
    refused = Answer(url, "-dash.png", out, "--style", "invert")
    assert refused.code == 2
    assert "no option -dash.png, see --help; a file of this name is ./-dash.png" in refused.err
    assert Answer(url, "--style", "invert", "--", photo, out).code == 0
    assert is_inverted(out / "-dash.png")
    long = save(tmp_path / f"{'x' * 250}.png")
    refused = Answer(url, long, tmp_path / "new", "--style", "all")
    assert (refused.code, len(refused.err.splitlines())) == (2, 1)
    assert "-fixed-size.png has 265 bytes, allowed are 255; shorten it" in refused.err
    assert not (tmp_path / "new").exists()


def test_format_exif_and_profile_are_kept(url: str, tmp_path: Path) -> None:
    exif = Pillow.Exif()
    exif[Base.Artist] = "Jane"
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    source = save(tmp_path / "a.jpg", exif=exif, icc_profile=profile, quality=95)
    target = tmp_path / "new" / "b.jpeg"
    assert Answer(url, source, target, "--style", "identity").code == 0
    with Pillow.open(source) as before, Pillow.open(target) as after:
        assert (after.format, after.size) == ("JPEG", before.size)
        assert after.getexif()[Base.Artist] == "Jane"
        assert after.info["icc_profile"] == before.info["icc_profile"]


def test_options_reach_the_server(url: str, tmp_path: Path) -> None:
    source, out = save(tmp_path / "a.png"), tmp_path / "out.png"
    Answer(url, source, out, "--style", "invert", "--strength", "0")
    assert gap(np.asarray(Pillow.open(out)), PICTURE) == 0
    refused = Answer(url, source, tmp_path / "o.png", "--style", "invert", "--max-side", "65536")
    assert refused.code == 1
    assert "max_side must be at most 1024 pixels on this server, got 65536" in refused.err


def test_styles_are_listed(url: str) -> None:
    assert Answer(url, "--list").out.decode().split() == ["fixed-size", "identity", "invert"]
    styles = {style["name"]: style for style in Answer(url, "--list", "--json").json["styles"]}
    assert styles["fixed-size"]["size"] == "224x224"


def test_an_unknown_style_is_told_with_those_there_are(url: str, tmp_path: Path) -> None:
    answer = Answer(url, save(tmp_path / "a.png"), tmp_path / "out", "--style", "invrt")
    assert answer.code == 2
    assert "did you mean invert? served are fixed-size, identity, invert" in answer.err
    assert not (tmp_path / "out").exists()


def test_a_missing_server_is_one_sentence_with_its_address(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    photo = save(tmp_path / "a.png")
    answer = Answer(f"127.0.0.1:{port}", photo, tmp_path / "out", "--style", "invert")
    assert answer.code == 1
    (line,) = answer.err.splitlines()
    assert f"127.0.0.1:{port} cannot be reached" in line


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"no HTTP at all\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}",
    ],
)
def test_an_answer_that_breaks_off_is_one_sentence(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as broken:
        broken.settimeout(5)

        def serve() -> None:
            with contextlib.suppress(TimeoutError):
                while True:  # an answer that has not begun is asked for again
                    connection, _ = broken.accept()
                    with connection:
                        connection.recv(65_536)
                        connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        told = Answer(f"127.0.0.1:{broken.getsockname()[1]}", "--list")
        thread.join(LIMIT_S)
    assert told.code == 1
    (line,) = told.err.splitlines()
    assert "broke off its answer, or is no HTTP server" in line


def test_a_video_is_inverted_frame_by_frame(url: str, tmp_path: Path) -> None:
    count, rate, loss = 30, 12.5, 6  # levels of 255 that the codec takes from a plain picture
    source = make_clip(tmp_path / "clip.mp4", count, rate)
    broken = tmp_path / "broken.mp4"
    broken.write_bytes(b"no video")
    out = tmp_path / "out"
    answer = Answer(url, source, broken, out, "--style", "invert", "--json")
    told = answer.json
    assert (answer.code, answer.err) == (1, "")
    assert "is no video that OpenCV can read" in told["failures"][0]["error"]
    frames, styled_rate = read_clip(out / "clip.mp4")
    assert styled_rate == pytest.approx(rate)
    assert [frame.shape for frame in frames] == [(HEIGHT, WIDTH, 3)] * count
    expected = [255 - brightness(number, count) for number in range(count)]
    assert [frame.mean() for frame in frames] == pytest.approx(expected, abs=loss)
    assert names(out) == ["clip.mp4"]


def test_a_terminal_shows_progress_with_rate_and_time_left(url: str, tmp_path: Path) -> None:
    for number in range(3):
        save(tmp_path / "in" / f"{number}.png")
    parent, child = os.openpty()
    termios.tcsetwinsize(child, (24, 80))
    argv = command(url, tmp_path / "in", tmp_path / "out", "--style", "invert")
    with subprocess.Popen(argv, cwd=ROOT, stderr=child, stdout=subprocess.DEVNULL) as process:
        assert process.wait(LIMIT_S) == 0
    os.close(child)
    shown = os.read(parent, 65_536).decode()
    os.close(parent)
    assert "3/3" in shown
    assert re.search(r"\[\d\d:\d\d<\d\d:\d\d, .*(photo/s|s/photo)\]", shown)


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """More photos than are done in a moment, and a video."""
    photo = tmp_path / "in" / "0000.png"
    photo.parent.mkdir()
    Pillow.fromarray(noise(300, 400)).save(photo)
    for number in range(1, 800):
        (photo.parent / f"{number:04}.png").hardlink_to(photo)
    return photo.parent


def interrupt(
    argv: list[str],
    is_time: Path,
    seconds: float = LIMIT_S,
    number: signal.Signals = signal.SIGINT,
) -> tuple[int, str, float]:
    """Send a signal once `is_time` holds something; return exit code, words and time it took."""
    with subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + seconds
        while not (is_time.is_dir() and any(is_time.iterdir())):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        start = time.monotonic()
        process.send_signal(number)
        _, err = process.communicate(timeout=seconds)
    return process.returncode, err, time.monotonic() - start


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_keeps_what_is_done_and_leaves_no_half_files(
    url: str, many: Path, tmp_path: Path, number: signal.Signals
) -> None:
    out = tmp_path / "out"
    argv = command(url, many, out, "--style", "invert")
    code, err, _ = interrupt(argv, out, number=number)
    done = list(out.iterdir())
    assert code == 130
    assert f"{len(done)} done, {800 - len(done)} not done, run it again with --skip" in err
    assert "Traceback" not in err
    assert all(path.name in names(many) for path in done)
    for path in done:
        with Pillow.open(path) as image:
            image.load()


def test_ctrl_c_in_a_video_leaves_nothing(url: str, tmp_path: Path) -> None:
    source = make_clip(tmp_path / "clip.mp4", 2000, 25)
    out = tmp_path / "out"
    code, err, _ = interrupt(command(url, source, out, "--style", "invert"), out)
    assert code == 130
    assert "Traceback" not in err
    assert list(out.iterdir()) == []


def test_ctrl_c_does_not_wait_for_a_server_that_is_silent(tmp_path: Path) -> None:
    (tmp_path / "asked").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(LIMIT_S)
        argv = command(f"127.0.0.1:{silent.getsockname()[1]}", "--list")
        with subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
            connection, _ = silent.accept()
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=LIMIT_S)
            connection.close()
    assert process.returncode == 130
    assert err == "client.py: interrupted\n"
