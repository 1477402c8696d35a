"""Which file becomes which, and what is refused before anything is sent."""

from pathlib import Path

import pytest

from styleserve.errors import ConfigError
from styleserve.files import Found
from styleserve.plan import Job, plan, settle


def found(*paths: str) -> list[Found]:
    return [Found(Path(path), Path(Path(path).name)) for path in paths]


def targets(files: list[Found], out: str, *styles: str, named: bool = False) -> list[str]:
    return [str(job.target) for job in plan(files, out, styles or ("dots",), named)]


STDIN = Found(None, Path("-"))


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_out_is_a_folder_or_the_file_for_one_input() -> None:
    Path("there.jpg").mkdir()
    assert targets(found("in/a.jpg"), "out") == ["out/a.jpg"]
    assert targets(found("in/a.jpg"), "out.d/") == ["out.d/a.jpg"]
    assert targets(found("in/a.jpg"), "there.jpg") == ["there.jpg/a.jpg"]
    assert targets(found("in/a.jpg"), "b.JPEG") == ["b.JPEG"]
    assert targets(found("in/a.mp4"), "b.avi") == ["b.avi"]
    assert targets([STDIN], "b.png") == ["b.png"]
    assert targets(found("in/a.jpg", "in/b.jpg"), "out.v2") == ["out.v2/a.jpg", "out.v2/b.jpg"]


def test_every_style_gets_a_name_of_its_own() -> None:
    named = targets(found("in/a.b.jpg"), "out", "dots", "woodcut", named=True)
    assert named == ["out/a.b-dots.jpg", "out/a.b-woodcut.jpg"]


def test_one_photo_goes_to_standard_output() -> None:
    assert plan([STDIN], "-", ["dots"], False) == [Job(None, None, "dots")]
    described = plan(found("a.jpg"), "-", ["dots"], False)[0].describe()
    assert described == {"source": "a.jpg", "target": "-", "style": "dots"}


@pytest.mark.parametrize(
    ("files", "out", "told"),
    [
        (found("a.jpg"), "b.png", "b.png would hold a .jpg file.*call it b.jpg"),
        (found("a.jpg"), "b.mp4", "call it b.jpg"),
        (found("a.mp4"), "b.jpg", "call it b.mp4"),
        (found("a.jpg", "b.jpg"), "c.jpg", "one file and there would be 2 results"),
        (found("a.jpg", "b.jpg"), "-", "takes one photo, got 2 results"),
        (found("a.mp4"), "-", "takes one photo, got a video"),
        ([STDIN], "out", "no name for out"),
        (found("x/a.jpg", "y/a.jpg"), "out", "x/a.jpg and y/a.jpg would both become out/a.jpg"),
        (found("in/a.jpg"), "in", "in/a.jpg is one of the inputs"),
        (found("in/a.jpg"), "in/../in/a.jpg", "is one of the inputs"),
    ],
)
def test_what_cannot_be_is_refused(files: list[Found], out: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        plan(files, out, ["dots"], False)


def test_a_style_may_make_a_name_too_long() -> None:
    files = found("x" * 247 + ".jpg")
    assert plan(files, "out", ["dots"], False)
    with pytest.raises(ConfigError, match=r"xx-dots\.jpg has 256 bytes, allowed are 255; shorten"):
        plan(files, "out", ["dots"], True)


def test_a_link_to_an_input_is_not_overwritten() -> None:
    Path("a.jpg").touch()
    Path("out").mkdir()
    Path("out/a.jpg").symlink_to(Path("a.jpg").resolve())
    with pytest.raises(ConfigError, match="is one of the inputs"):
        plan(found("a.jpg"), "out", ["dots"], False)


def test_a_file_given_twice_is_done_once() -> None:
    assert targets(found("in/a.jpg", "in/../in/a.jpg"), "out") == ["out/a.jpg"]


def test_existing_results_need_a_decision() -> None:
    jobs = plan(found("in/a.jpg", "in/b.jpg"), "out", ["dots"], False)
    assert settle(jobs, False, False) == (jobs, [])
    Path("out").mkdir()
    Path("out/b.jpg").touch()
    with pytest.raises(ConfigError, match=r"1 of 2 results exist already.* is out/b\.jpg"):
        settle(jobs, False, False)
    assert settle(jobs, True, False) == (jobs, [])
    assert settle(jobs, False, True) == (jobs[:1], jobs[1:])


def test_videos_are_told_from_photos() -> None:
    jobs = plan(found("a.jpg", "b.mov"), "out", ["dots"], False)
    assert [job.is_video for job in jobs] == [False, True]
    assert not Job(None, None, "dots").is_video
