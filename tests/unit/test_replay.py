"""Runs at fixed places, here in the CPU's memory: right answers, or none of it at all."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto

from styleserve import replay
from styleserve.backend import REFERENCE, Backend
from styleserve.errors import ModelError
from styleserve.model import load_model, load_models
from styleserve.probe import Tensor, photo
from styleserve.replay import Replay, record
from styleserve.runtime import Runtime
from tests import tiny_models as tiny
from tests.pictures import noise

CUDA = Backend(("cuda", "cpu"))
SIZE = (48, 32)


@dataclass(frozen=True)
class CudaRuntime(Runtime):
    """Has a CPU that is called CUDA, and tells what was opened."""

    opened: list[tuple[Backend, bool]] = field(default_factory=list)
    problem: str = ""

    def open(
        self, model: Path, backend: Backend, *, as_graph: bool = False
    ) -> onnxruntime.InferenceSession:
        self.opened.append((backend, as_graph))
        if as_graph and self.problem:
            raise RuntimeError(self.problem)
        return super().open(model, REFERENCE)


def cuda(problem: str = "", backend: Backend = CUDA) -> CudaRuntime:
    gate = threading.BoundedSemaphore(2)
    return CudaRuntime((backend, REFERENCE), 2, 2, gate, problem=problem)


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "DEVICE", "cpu")


@pytest.fixture
def fixed(tmp_path: Path) -> Path:
    return tiny.save(tiny.invert(SIZE), tmp_path / "a-9.onnx")


@pytest.mark.usefixtures("on_cpu")
def test_each_answer_is_the_one_to_its_own_picture(fixed: Path) -> None:
    made = Replay(cuda().open(fixed, CUDA))
    tensors = [picture[np.newaxis] for picture in photo(*SIZE, count=20)]

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(made, tensors))

    for tensor, answer in zip(tensors, answers, strict=True):
        np.testing.assert_array_equal(answer, 255 - tensor)


@pytest.mark.usefixtures("on_cpu")
def test_all_runs_are_made_by_one_thread(fixed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, threads = Replay(cuda().open(fixed, CUDA)), set()
    run = made._run

    def spy(tensor: Tensor) -> Tensor:
        threads.add(threading.get_ident())
        return run(tensor)

    monkeypatch.setattr(made, "_run", spy)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(made, [photo(*SIZE)] * 20))

    assert len(threads) == 1


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("made", [tiny.invert(SIZE), tiny.mask(SIZE)])
def test_a_model_of_one_size_is_a_graph(tmp_path: Path, made: ModelProto) -> None:
    path = tiny.save(made, tmp_path / "a-9.onnx")
    runtime, picture = cuda(), noise(60, 50)

    answer = load_model(path, runtime)(picture, 0)

    assert runtime.opened == [(REFERENCE, False), (CUDA, False), (CUDA, True)]
    assert (answer == load_model(path, Runtime.create("cpu"))(picture, 0)).all()


@pytest.mark.usefixtures("on_cpu")
def test_a_graph_is_what_runs(fixed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, black = load_model(fixed, cuda()), np.zeros((1, 3, *SIZE), np.float32)
    session: Any = model._network._session
    monkeypatch.setattr(session._replay, "_run", lambda _: black)

    assert (model(noise(60, 50), 0) == 0).all()
    assert session.onnx is session._replay.session  # the other one is given back


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize(
    ("size", "backend"),
    [(None, CUDA), (SIZE, REFERENCE), (SIZE, Backend(("tensorrt", "cuda", "cpu")))],
)
def test_nothing_else_is(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    size: tuple[int, int] | None,
    backend: Backend,
) -> None:
    path = tiny.save(tiny.invert(size), tmp_path / "a-9.onnx")
    runtime = cuda(backend=backend)

    assert record(runtime.open(path, backend), path, runtime, backend) is None
    assert not any(as_graph for _, as_graph in runtime.opened)
    assert caplog.text == ""


def stale(replay: Any, tensor: Tensor) -> Tensor:  # noqa: ANN401  a Replay with one more field
    replay.first = getattr(replay, "first", 255 - tensor)
    return np.asarray(replay.first)


def nonsense(_: Replay, tensor: Tensor) -> Tensor:
    return np.full_like(tensor, np.nan)


@pytest.mark.parametrize(
    ("device", "run", "problem", "told"),
    [
        ("cpu", Replay._run, "no room", "no room"),
        ("cuda", Replay._run, "", "CUDA device"),  # as there is none here
        ("cpu", stale, "", "off where the largest value is 255"),
        ("cpu", nonsense, "", "it is nan off"),
    ],
)
def test_a_graph_that_fails_or_errs_is_told_and_not_used(
    fixed: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    device: str,
    run: Any,  # noqa: ANN401  any way to run
    problem: str,
    told: str,
) -> None:
    if device == "cuda" and "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("there may be a GPU")
    monkeypatch.setattr(replay, "DEVICE", device)
    monkeypatch.setattr(Replay, "_run", run)
    picture = noise(*SIZE)

    answer = load_model(fixed, cuda(problem))(picture, 0)

    assert (answer == 255 - picture).all()
    (line,) = caplog.messages
    assert line.startswith(f"{fixed}: without a CUDA graph")
    assert told in line


@pytest.mark.usefixtures("on_cpu")
def test_nothing_else_runs_on_the_gpu_while_one_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = {name: tiny.save(tiny.invert(SIZE), tmp_path / f"{name}-9.onnx") for name in "abcd"}
    alone = threading.Lock()

    def recorded(*_: object) -> None:
        if not alone.acquire(blocking=False):
            raise ModelError("two at once")
        threading.Event().wait(0.05)
        alone.release()

    monkeypatch.setattr("styleserve.session.record", recorded)

    assert list(load_models(paths, cuda())) == list("abcd")
