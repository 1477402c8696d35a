"""Loaded files: what they forget, and when, and for whom nothing is run any more."""

import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from styleserve import session
from styleserve.backend import REFERENCE, Backend
from styleserve.errors import ModelError, RequestError
from styleserve.model import StyleModel
from styleserve.network import Network
from styleserve.runtime import Runtime
from styleserve.session import Session, Tensor
from styleserve.ticket import IS_OVER
from tests import tiny_models as tiny
from tests.pictures import noise
from tests.unit.test_model import SpyRuntime, spying


class ManualTimer:
    """Fires when a test says so."""

    waiting: ClassVar[list["ManualTimer"]] = []
    daemon = False

    def __init__(self, pause_s: float, act: Callable[[], None]) -> None:
        self.act = act

    def start(self) -> None:
        self.waiting.append(self)

    def cancel(self) -> None:
        if self in self.waiting:
            self.waiting.remove(self)

    @classmethod
    def fire(cls) -> None:
        while cls.waiting:
            cls.waiting.pop().act()


@pytest.fixture
def keeping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[StyleModel, SpyRuntime]:
    """Make a model on a backend that keeps memory; a picture of 50 x 50 is large for it."""
    monkeypatch.setattr(threading, "Timer", ManualTimer)
    runtime = spying()
    path = tiny.save(tiny.identity(), tmp_path / "a-9.onnx")
    model = StyleModel(Network(path, runtime).on(Backend(("openvino", "cpu"))))
    monkeypatch.setattr(session, "LARGE_PIXELS", 2000)
    runtime.opened.clear()
    return model, runtime


def test_a_model_is_loaded_anew_once_after_the_last_large_picture(
    keeping: tuple[StyleModel, SpyRuntime],
) -> None:
    model, runtime = keeping
    for _ in range(3):
        model(noise(50, 50), 0)

    assert runtime.opened == []
    ManualTimer.fire()
    assert len(runtime.opened) == 1
    assert (model(noise(40, 50), 0) == noise(40, 50)).all()


def test_what_sessions_share_is_given_back_too_by_a_small_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "Timer", ManualTimer)
    path = tiny.save(tiny.identity(), tmp_path / "a-9.onnx")
    loaded = Session(path, Runtime.create("cpu"), REFERENCE)
    seen: list[tuple[tuple[int, ...], bool]] = []
    run = loaded._run

    def spy(tensor: Tensor, is_large: bool) -> Tensor:
        seen.append((tensor.shape[2:], is_large))
        return run(tensor, is_large)

    monkeypatch.setattr(loaded, "_run", spy)
    for height, width in ((64, 64), (1000, 1000), (40, 50), (60, 60)):
        loaded.run(lambda: np.zeros((1, 3, height, width), np.float32))  # noqa: B023
    ManualTimer.fire()

    assert seen[1] == ((1000, 1000), True)
    assert seen[2:] == [((40, 50), False), ((60, 60), False), ((40, 50), True)]


def test_small_pictures_load_nothing_anew(keeping: tuple[StyleModel, SpyRuntime]) -> None:
    model, runtime = keeping
    model(noise(32, 32), 0)
    ManualTimer.fire()

    assert runtime.opened == []


@pytest.mark.parametrize("gone", [True, False])
def test_a_file_that_has_changed_since_is_not_loaded(
    keeping: tuple[StyleModel, SpyRuntime],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    gone: bool,
) -> None:
    model, runtime = keeping
    (tmp_path / "a-9.onnx").unlink()
    if not gone:
        tiny.save(tiny.invert(), tmp_path / "a-9.onnx")
    model(noise(50, 50), 0)
    ManualTimer.fire()

    assert runtime.opened == []
    assert (model(noise(40, 50), 0) == noise(40, 50)).all()
    assert "keeps the memory" in caplog.text


@pytest.mark.parametrize("backend", [REFERENCE, Backend(("openvino", "cpu"), "int8")])
def test_a_file_that_is_gone_before_it_is_loaded_is_named(tmp_path: Path, backend: Backend) -> None:
    with pytest.raises(ModelError, match=r"a-9\.\w+ cannot be read: No such file"):
        Session(tmp_path / "a-9.onnx", spying(), backend)


@pytest.mark.parametrize("held_up", [True, False])
def test_what_nobody_waits_for_is_not_run(tmp_path: Path, held_up: bool) -> None:
    runtime = spying()
    model = StyleModel(Network(tiny.save(tiny.identity(), tmp_path / "a-9.onnx"), runtime))
    runtime.shapes.clear()
    token = IS_OVER.set(lambda: True)
    busy = runtime.gate if held_up else nullcontext()
    with busy, pytest.raises(RequestError, match="nobody waits"):
        model(noise(32, 32), 0)
    IS_OVER.reset(token)

    assert runtime.shapes == []
    assert (model(noise(32, 32), 0) == noise(32, 32)).all()  # its place is free again
