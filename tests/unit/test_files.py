"""Which files the inputs name, and that results are written whole or not at all."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from styleserve.errors import ConfigError
from styleserve.files import Found, find, is_video, prepare, saving

Tree = Callable[..., Path]


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """Make files below a folder, which becomes the working directory."""
    monkeypatch.chdir(tmp_path)

    def make(*names: str) -> Path:
        for name in names:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(b"x")
        return tmp_path

    return make


def places(*inputs: str, out: str = "out") -> list[str]:
    return [str(one.place) for one in find(inputs, out)]


def test_a_folder_is_searched_at_any_depth_and_keeps_its_tree(tree: Tree) -> None:
    tree("in/b.JPG", "in/deep/er/a.png", "in/clip.mp4")
    assert places("in") == ["b.JPG", "clip.mp4", "deep/er/a.png"]


def test_other_kinds_and_hidden_files_are_left_out(tree: Tree) -> None:
    tree("in/a.jpg", "in/notes.txt", "in/._a.jpg", "in/.cache/b.jpg", "in/no-suffix")
    assert places("in") == ["a.jpg"]


def test_a_file_named_by_itself_is_taken_whatever_it_is_called(tree: Tree) -> None:
    tree("deep/photo", "deep/.a.jpg")
    assert places("deep/photo", "deep/.a.jpg") == ["photo", ".a.jpg"]


def test_old_results_in_an_input_folder_are_no_inputs(tree: Tree) -> None:
    tree("in/a.jpg", "in/out/a.jpg", "in/outer/b.jpg")
    assert places("in", out="in/out") == ["a.jpg", "outer/b.jpg"]
    assert places("in/out", out="in") == ["a.jpg"]
    assert places("in/out", out="in/out") == ["a.jpg"]  # the plan refuses this


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("in/*.jpg", ["a.jpg", "b.jpg"]),
        ("in/?.png", ["a.png"]),
        ("in/[ab].*", ["a.jpg", "a.png", "b.jpg"]),
        ("in/**/*.jpg", ["a.jpg", "b.jpg", "deep/a.jpg"]),
        ("*/deep/*.jpg", ["in/deep/a.jpg"]),
    ],
)
def test_a_pattern_keeps_the_folders_that_it_leaves_open(
    tree: Tree, pattern: str, expected: list[str]
) -> None:
    folder = tree("in/a.jpg", "in/a.png", "in/b.jpg", "in/deep/a.jpg", "in/a.txt")
    assert places(pattern) == expected
    assert places(str(folder / pattern)) == expected


def test_a_file_whose_name_looks_like_a_pattern_is_that_file(tree: Tree) -> None:
    tree("photo[1].jpg", "photo1.jpg")
    assert places("photo[1].jpg") == ["photo[1].jpg"]


def test_a_dash_is_standard_input(tree: Tree) -> None:
    tree()
    assert find(["-"], "-") == [Found(None, Path("-"))]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("gone.jpg", "gone.jpg does not exist"),
        ("*.gif", r"\*.gif holds no photo or video"),
        ("in", "in holds no photo or video; looked for files with .png, .jpg"),
        ("a**/b.jpg", r"is no pattern"),
    ],
)
def test_inputs_without_a_picture_are_refused_by_name(tree: Tree, text: str, told: str) -> None:
    tree("in/notes.txt")
    with pytest.raises(ConfigError, match=told):
        find([text], "out")


@pytest.mark.parametrize(
    "name", ["x" * 252 + ".jpg", "\u00e9" * 128, f"in/{'x' * 256}/a.jpg", "?" * 256]
)
def test_names_that_no_file_can_have_are_refused(tree: Tree, name: str) -> None:
    tree("in/a.jpg")
    for inputs, out in (([name], "out"), (["in"], name), (["in", name], "-")):
        with pytest.raises(ConfigError, match=r"^the name \S+ has 256 bytes, allowed are 255; "):
            find(inputs, out)


def test_the_longest_name_is_taken(tree: Tree) -> None:
    tree("x" * 251 + ".jpg")
    assert places("x" * 251 + ".jpg") == ["x" * 251 + ".jpg"]


def test_videos_are_told_by_their_names() -> None:
    assert is_video(Path("a.MP4"))
    assert not is_video(Path("mp4.jpg"))


def test_a_result_appears_whole_with_usual_permissions(tmp_path: Path) -> None:
    target, usual = tmp_path / "new" / "a.jpg", tmp_path / "usual"
    usual.touch()
    with saving(target) as part:
        part.write_bytes(b"whole")
        assert part.suffix == ".jpg"
        assert not target.exists()
    assert target.read_bytes() == b"whole"
    assert target.stat().st_mode == usual.stat().st_mode
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_nothing_is_left_when_writing_fails(tmp_path: Path, error: type[BaseException]) -> None:
    target = tmp_path / "a.jpg"
    target.write_bytes(b"old")
    with pytest.raises(error), saving(target) as part:  # noqa: PT012  the half file is the point
        part.write_bytes(b"half")
        raise error
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_comes_after_a_result_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    replace = Path.replace

    def interrupted(part: Path, target: Path) -> Path:
        moved = replace(part, target)
        signal.raise_signal(number)
        return moved

    monkeypatch.setattr(Path, "replace", interrupted)
    target, counted = tmp_path / "a.jpg", []
    before = signal.signal(number, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), saving(target, lambda: counted.append(1)) as part:
            part.write_bytes(b"whole")
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, before)
    assert (target.read_bytes(), counted) == (b"whole", [1])


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file cannot be written to"):
        prepare(tmp_path / "file" / "a.jpg")
    prepare(tmp_path / "new" / "a.jpg")
    assert list((tmp_path / "new").iterdir()) == []
