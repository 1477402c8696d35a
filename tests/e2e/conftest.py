"""One server with tiny models for the tests that only call it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto

from tests import tiny_models as tiny
from tests.e2e.running import Running, serving

Launch = Callable[..., Running]


def slow(size: tiny.Size = None) -> ModelProto:
    """A model that takes a second or so for a picture of 256x256: the picture, blurred often."""
    side = 31
    blur = np.zeros((3, 3, side, side), np.float32)
    blur[range(3), range(3)] = 1 / side**2
    steps = [
        tiny.node("Conv", [f"x{i}" if i else "image", "blur"], f"x{i + 1}", pads=[side // 2] * 4)
        for i in range(20)
    ]
    last = tiny.node("Identity", ["x20"])
    return tiny.model([*steps, last], size=size, blur=blur)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    tiny.save(tiny.identity(), folder / "identity-9.onnx")
    tiny.save(tiny.invert(), folder / "deep" / "er" / "invert-9.onnx")
    tiny.save(tiny.identity(size=(224, 224)), folder / "fixed-size-9.onnx")
    return folder


@pytest.fixture(scope="session")
def server(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(tiny_folder, tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Start a server of the test's own; it is gone when the test ends."""
    started: list[Running] = []

    def start(models: Path, **settings: object) -> Running:
        folder = tmp_path / f"server{len(started)}"
        folder.mkdir()
        started.append(Running(models, folder, **settings))
        return started[-1]

    yield start
    for running in started:
        running.kill()


@pytest.fixture
def slow_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "slow"
    tiny.save(slow(), folder / "slow.onnx")
    tiny.save(tiny.identity(), folder / "identity.onnx")
    return folder
