"""The command line where no server is needed, or one is only listed."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from styleserve import cli
from styleserve.errors import RemoteError
from styleserve.remote import Remote, Style
from tests.e2e.running import ROOT

Captured = pytest.CaptureFixture[str]
STYLES = [Style("dots", "Ink dots", {"size": "any"}), Style("rain-princess", "", {})]


@pytest.fixture(autouse=True)
def _served(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let every server list STYLES, and nothing else be asked of it."""
    monkeypatch.setattr(Remote, "styles", lambda _: STYLES)
    monkeypatch.setattr(Remote, "stylise_file", lambda *_: pytest.fail("a picture was sent"))
    monkeypatch.chdir(tmp_path)
    Path("a.jpg").touch()


def test_styles_are_listed_with_their_descriptions(capsys: Captured) -> None:
    assert cli.main(["--list"]) == cli.OK
    assert capsys.readouterr().out == "dots           Ink dots\nrain-princess\n"


def test_styles_are_listed_for_scripts(capsys: Captured) -> None:
    assert cli.main(["--list", "--json"]) == cli.OK
    listed = [{"name": "dots", "size": "any"}, {"name": "rain-princess"}]
    assert json.loads(capsys.readouterr().out) == {"styles": listed}


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["gone.jpg", "out", "--style", "dots"], "gone.jpg does not exist"),
        (["a.jpg", "out", "--style", "dot"], "no style 'dot' at http://h:1; did you mean dots?"),
        (["a.jpg", "out", "--style", "x"], "served are dots, rain-princess, or all"),
        (["a.jpg", ".", "--style", "dots"], "a.jpg is one of the inputs"),
        (["a.jpg", "a.jpg/out", "--style", "dots"], "a.jpg/out cannot be written to"),
        (["a.jpg", "b.jpg", "--style", "all"], "one file and there would be 2 results"),
    ],
)
def test_wrong_usage_is_one_sentence_and_2(argv: list[str], told: str, capsys: Captured) -> None:
    assert cli.main([*argv, "--url", "http://h:1"]) == cli.REFUSED
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("client.py: ")
    assert told in line


def test_existing_results_are_refused_before_anything_is_sent(capsys: Captured) -> None:
    Path("out").mkdir()
    Path("out/a-dots.jpg").write_bytes(b"mine")
    assert cli.main(["a.jpg", "out", "--style", "all"]) == cli.REFUSED
    assert "add --overwrite or --skip" in capsys.readouterr().err
    assert [path.name for path in Path("out").iterdir()] == ["a-dots.jpg"]
    assert Path("out/a-dots.jpg").read_bytes() == b"mine"


def test_the_flag_wins_over_the_environment(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STYLESERVE_URL", "http://environment:1")
    for extra, url in (([], "http://environment:1"), (["--url", "flag:2"], "flag:2")):
        cli.main(["a.jpg", "out", "--style", "x", *extra])
        assert f"no style 'x' at {url};" in capsys.readouterr().err


def test_a_bad_setting_is_named(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STYLESERVE_CLIENT_TIMEOUT", "soon")
    assert cli.main(["--list"]) == cli.REFUSED
    (line,) = capsys.readouterr().err.splitlines()
    assert "STYLESERVE_CLIENT_TIMEOUT" in line


def test_a_server_that_fails_is_1(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Remote) -> list[Style]:
        raise RemoteError("it is\ngone")

    monkeypatch.setattr(Remote, "styles", fail)
    assert cli.main(["--list"]) == cli.FAILED
    assert capsys.readouterr().err == "client.py: it is gone\n"


def test_ctrl_c_is_130(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: Remote) -> list[Style]:
        raise KeyboardInterrupt

    left: list[int] = []
    monkeypatch.setattr("os._exit", left.append)
    monkeypatch.setattr(Remote, "styles", interrupt)
    cli.main(["--list"])
    assert left == [130]
    assert capsys.readouterr().err == "client.py: interrupted\n"


def test_a_terminal_is_no_photo(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", terminal)
    assert cli.main(["-", "-", "--style", "dots"]) == cli.REFUSED
    assert "which is a terminal" in capsys.readouterr().err


@pytest.mark.parametrize("stream", ["stdin", "stdout"])
def test_a_closed_stream_is_told(
    stream: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, stream, None)
    assert cli.main(["-", "-", "--style", "dots"]) == cli.REFUSED
    monkeypatch.undo()
    (line,) = capsys.readouterr().err.splitlines()
    assert f"standard {stream.removeprefix('std')}put, which is closed; " in line


@pytest.mark.parametrize("call", ["is_dir", "exists", "rglob"])
def test_a_path_that_the_system_refuses_is_named(
    call: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, *_: object) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    Path("in").mkdir()
    monkeypatch.setattr(Path, call, refuse)
    assert cli.main(["in" if call == "rglob" else "a.jpg", "out", "--style", "dots"]) == cli.REFUSED
    (line,) = capsys.readouterr().err.splitlines()
    assert " cannot be used: Permission denied; name another file or folder" in line


def test_help_answers_at_once() -> None:
    """The libraries that take half a second to load are not needed for it."""
    code = "import sys; from styleserve import cli; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert "styleserve.cli" in loaded
    assert not {"cv2", "numpy", "tritonclient", "pydantic", "gradio"} & set(loaded)
