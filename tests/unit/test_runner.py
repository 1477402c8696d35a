"""Many files at once, with a server that is played."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from styleserve import video
from styleserve.errors import RemoteError, RequestError
from styleserve.plan import Job
from styleserve.remote import Options, Remote
from styleserve.report import Report
from styleserve.runner import Runner

OPTIONS = Options(strength=0.5)


class Played:
    """Answers with the file in capitals; what the file says can make it fail or be interrupted."""

    def __init__(self) -> None:
        self.running = self.most = 0
        self.gate = threading.Barrier(3)

    def stylise_file(self, file: bytes, style: str, options: Options) -> bytes:
        assert (style, options) == ("dots", OPTIONS)
        if file == b"meet":
            self.gate.wait(timeout=10)  # passes only when three are under way
        if file == b"bad":
            raise RequestError("it is damaged")
        if file == b"interrupt":
            raise KeyboardInterrupt
        return file.upper()


@pytest.fixture
def jobs(tmp_path: Path) -> Callable[..., list[Job]]:
    def make(*contents: str, suffix: str = ".jpg") -> list[Job]:
        made = []
        for number, content in enumerate(contents):
            source = tmp_path / f"{number}{suffix}"
            source.write_text(content)
            made.append(Job(source, tmp_path / "out" / source.name, "dots"))
        return made

    return make


def run(jobs: list[Job], in_flight: int = 1, stdin: bytes = b"") -> Report:
    report = Report(len(jobs))
    Runner(cast(Remote, Played()), OPTIONS, in_flight, stdin).run(jobs, report)
    return report


def test_a_bad_file_does_not_stop_the_others(jobs: Callable[..., list[Job]]) -> None:
    made = jobs("a", "bad", "c")
    gone = Job(Path("gone.jpg"), Path("never.jpg"), "dots")
    report = run([*made, gone])
    texts = [job.target.read_text() for job in made if job.target and job.target.exists()]
    assert texts == ["A", "C"]
    assert [entry["error"] for entry in report.failures] == [
        "it is damaged",
        "No such file or directory",
    ]
    assert report.results == [made[0].describe(), made[2].describe()]
    assert report.seconds > 0


def test_several_are_under_way_at_once(jobs: Callable[..., list[Job]]) -> None:
    assert len(run(jobs(*["meet"] * 3), in_flight=3).results) == 3


def test_an_interrupt_keeps_what_is_done(jobs: Callable[..., list[Job]]) -> None:
    made = jobs("a", "interrupt", "c", "d")
    report = run(made)
    assert report.interrupted
    assert report.results == [made[0].describe()]
    assert report.failures == []


def test_standard_input_goes_to_standard_output(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    report = run([Job(None, None, "dots")], stdin=b"photo")
    assert capfdbinary.readouterr().out == b"PHOTO"
    assert len(report.results) == 1


def test_videos_fail_and_succeed_like_photos(
    jobs: Callable[..., list[Job]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def convert(source: Path, target: Path, *_: object) -> list[str]:
        target.write_text("half")
        if source.read_text() == "bad":
            raise RemoteError("it is gone")
        return ["no sound"]

    monkeypatch.setattr(video, "convert", convert)
    made = jobs("good", "bad", suffix=".mp4")
    report = run(made)
    assert report.results == [made[0].describe() | {"note": "no sound"}]
    assert report.failures == [made[1].describe() | {"error": "it is gone"}]
    assert [job.target.exists() for job in made if job.target] == [True, False]
