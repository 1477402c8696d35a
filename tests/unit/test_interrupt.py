"""Programs that make files, interrupted: they say so, and leave nothing behind."""

import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from styleserve import candidates, convert, quantize
from styleserve.interrupt import interruptible
from tests import tiny_models as tiny

SIGNALS = [signal.SIGINT, signal.SIGTERM]


@pytest.fixture(autouse=True)
def sigterm() -> Iterator[None]:
    """Keep pytest's own handler."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_what_is_not_interrupted_answers_and_is_called_as_before() -> None:
    @interruptible
    def main(code: int, *, more: int = 0) -> int:
        """Do something."""
        return code + more

    assert main(3, more=4) == 7
    assert main.__doc__ == "Do something."


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("at", ["quantize_static", "onnx.save"])
def test_quantize_removes_its_temporary_folder(
    number: int,
    at: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = tiny.save(tiny.residual(), tmp_path / "a-18.onnx")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))

    def interrupted(*_: object, **__: object) -> None:
        assert len(list(temporary.iterdir())) == 1
        signal.raise_signal(number)

    monkeypatch.setattr(f"{candidates.__name__}.{at}", interrupted)
    assert quantize.main([str(source)]) == 130
    assert capsys.readouterr() == ("", "interrupted\n")
    assert sorted(tmp_path.iterdir()) == [source, temporary]
    assert not list(temporary.iterdir())


@pytest.mark.parametrize("number", SIGNALS)
def test_convert_leaves_the_old_model(
    number: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = tiny.save(tiny.identity(), tmp_path / "a-9.onnx")
    target = tmp_path / "a-18.onnx"
    target.write_bytes(b"old")

    def interrupted(part: Path, _: Path) -> NoReturn:
        assert part.exists()
        signal.raise_signal(number)
        raise AssertionError

    monkeypatch.setattr(Path, "replace", interrupted)
    assert convert.main([str(source), str(target), "--opset", "18"]) == 130
    assert capsys.readouterr() == ("", "interrupted\n")
    assert target.read_bytes() == b"old"
    assert sorted(tmp_path.iterdir()) == [target, source]
