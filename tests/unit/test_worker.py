"""Triton's worker, run with stand-ins for Triton, and with the server's end of its channel."""

import importlib.util
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

import styleserve
from styleserve import channel
from styleserve.binding import FILES
from styleserve.channel import Desk, Error, Reply
from styleserve.errors import HIDDEN
from styleserve.mailbox import FullError, Tensors

FOLDER = "a_folder_in_the_model_store"
NAME = "udnie"
LOGGED: list[str] = []


class TritonError(Exception):
    INVALID_ARG = "invalid argument"
    INTERNAL = "internal"

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.message, self.code = message, code


@dataclass
class Tensor:
    named: str
    array: Any

    def name(self) -> str:
        return self.named

    def shape(self) -> list[int]:
        return list(self.array.shape)

    def as_numpy(self) -> Any:  # noqa: ANN401
        return self.array


def picture(*shape: int) -> Tensor:
    return Tensor("image", np.zeros(shape, np.uint8))


@dataclass
class Response:
    error: TritonError | None = None
    output_tensors: list[Tensor] = field(default_factory=list)


@dataclass
class Request:
    tensors: list[Tensor] = field(default_factory=lambda: [picture(4, 5, 3)])
    gone: bool = False

    def inputs(self) -> list[Tensor]:
        return self.tensors

    def requested_output_names(self) -> list[str]:
        return ["styled_image"]

    def is_cancelled(self) -> bool:
        return self.gone


class MetricFamily:
    """Counts, in its class, each metric of each family that a worker makes."""

    COUNTER = "counter"
    counts: ClassVar[dict[tuple[str, ...], float]] = {}  # name, model, reason or node

    def __init__(self, name: str, description: str, kind: str) -> None:
        assert kind == self.COUNTER
        assert description
        self.name = name

    def Metric(self, labels: dict[str, str]) -> "Metric":  # noqa: N802  Triton's name
        assert list(labels) in (["model"], ["model", "node"], ["model", "reason"])
        return Metric((self.name, *labels.values()))


class Metric:
    def __init__(self, key: tuple[str, ...]) -> None:
        self._key = key
        MetricFamily.counts[key] = 0  # so it is seen before the first failure

    def increment(self, value: float) -> None:
        MetricFamily.counts[self._key] += value


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """Load copies of the worker and its channel as Triton does."""
    utils = ModuleType("triton_python_backend_utils")
    vars(utils).update(TritonError=TritonError, InferenceResponse=Response, Tensor=Tensor)
    vars(utils).update(MetricFamily=MetricFamily)
    vars(utils).update(Logger=type("Logger", (), {"log_error": staticmethod(LOGGED.append)}))
    for module in (utils, ModuleType(FOLDER)):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    folder = tmp_path / "model-store" / NAME / "1"
    folder.mkdir(parents=True)
    loaded: dict[str, Any] = {}
    for file, name in reversed(FILES.items()):  # the worker imports the channel
        copy = Path(shutil.copy(Path(styleserve.__file__).with_name(file), folder / name))
        spec = importlib.util.spec_from_file_location(f"{FOLDER}.{copy.stem}", copy)
        assert spec
        assert spec.loader
        loaded[copy.stem] = module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
    for module in (channel, loaded["channel"], loaded["model"]):
        monkeypatch.setattr(module, "SHM", tmp_path)
    LOGGED.clear()
    MetricFamily.counts.clear()
    return loaded


@dataclass
class Served:
    """A worker, and what its server does with a request."""

    worker: Any
    desk: Desk
    call: Callable[[Tensors, list[str]], Reply]

    def ask(self, *requests: Request) -> list[Response]:
        return list(self.worker.execute(list(requests)))


@pytest.fixture
def served(modules: dict[str, Any], tmp_path: Path) -> Iterator[Served]:
    """Start the second worker of the model udnie, which gets its picture back."""
    desk = Desk(tmp_path, f"{NAME}_1")
    worker = modules["model"].TritonPythonModel()

    def same(tensors: Tensors, outputs: list[str]) -> Reply:
        return Reply({outputs[0]: tensors["image"]}, None, [])

    made = Served(worker, desk, same)
    desk.serve(lambda *request: made.call(*request))
    worker.initialize({"model_name": NAME, "model_instance_name": f"{NAME}_0_1"})
    yield made
    desk.close()


def failing(message: str, is_callers: bool) -> Callable[[Tensors, list[str]], Reply]:
    return lambda *_: Reply({}, Error(message, is_callers), [])


def error_of(response: Response) -> TritonError:
    assert response.error
    assert response.output_tensors == []
    return response.error


def counted() -> dict[str, float]:
    """Tell how many failures were counted, by whose fault; all of them of this model."""
    assert {key[:2] for key in MetricFamily.counts} == {("styleserve_request_failure", NAME)}
    return {key[-1]: count for key, count in MetricFamily.counts.items()}


def test_a_request_goes_to_the_server_and_its_answer_comes_back(served: Served) -> None:
    pictures = [np.full((2, 3, 3), value, np.uint8) for value in (1, 2)]

    for given in pictures:
        (response,) = served.ask(Request([Tensor("image", given)]))
        (output,) = response.output_tensors
        assert response.error is None
        assert output.name() == "styled_image"
        assert np.array_equal(output.as_numpy(), given)

    assert counted() == {"caller": 0, "server": 0}
    assert LOGGED == []


@pytest.mark.parametrize(
    ("is_callers", "code", "counts"),
    [
        (True, TritonError.INVALID_ARG, {"caller": 1, "server": 0}),
        (False, TritonError.INTERNAL, {"caller": 0, "server": 1}),
    ],
)
def test_a_failure_is_told_and_counted_by_whose_it_is(
    served: Served, is_callers: bool, code: str, counts: dict[str, float]
) -> None:
    served.call = failing("größe: 'x'", is_callers)

    (response,) = served.ask(Request())

    assert (error_of(response).message, error_of(response).code) == ("größe: 'x'", code)
    assert counted() == counts
    assert LOGGED == []


def test_a_server_that_ends_is_our_fault_and_logged(served: Served) -> None:
    def end(tensors: Tensors, outputs: list[str]) -> Reply:
        served.desk.close()
        return Reply({}, None, [])

    served.call = end
    responses = served.ask(Request(), Request())

    assert {error_of(each).message for each in responses} == {HIDDEN}
    assert {error_of(each).code for each in responses} == {TritonError.INTERNAL}
    assert counted() == {"caller": 0, "server": 2}
    assert len(LOGGED) == 2


@pytest.mark.parametrize("shape", [(0, 5, 3), (5, 0, 3), (0,)])
def test_a_side_of_zero_never_reaches_the_server(served: Served, shape: tuple[int, ...]) -> None:
    served.call = failing("it came", is_callers=False)

    (response,) = served.ask(Request([Tensor("strength", np.zeros(1)), picture(*shape)]))

    assert error_of(response).code == TritonError.INVALID_ARG
    assert error_of(response).message.startswith("an input has no values; ")
    assert counted() == {"caller": 1, "server": 0}
    assert LOGGED == []


@pytest.mark.parametrize("files", [[b"x" * 60, b"y" * 40], None], ids=["files", "pixels"])
@pytest.mark.parametrize(("free", "fits"), [(100, True), (99, False)])
def test_an_answer_for_which_triton_has_no_memory_is_our_failure(
    served: Served,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    files: list[bytes] | None,
    free: int,
    fits: bool,
) -> None:
    values = np.zeros(100, np.uint8) if files is None else np.array(files, np.object_)
    served.call = lambda *_: Reply({"a": values}, None, [])
    places = {tmp_path: SimpleNamespace(free=free)}
    monkeypatch.setattr(shutil, "disk_usage", lambda place: places[place])

    (response,) = served.ask(Request())

    assert (response.error is None) is fits
    assert counted() == {"caller": 0, "server": int(not fits)}
    assert len(LOGGED) == int(not fits)
    if not fits:
        assert error_of(response).code == TritonError.INTERNAL
        assert "enlarge /dev/shm" in error_of(response).message


def test_a_request_for_which_there_is_no_memory_is_our_failure(
    served: Served, modules: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(file: int, start: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(modules["mailbox"].os, "posix_fallocate", refuse)
        (response,) = served.ask(Request())

    assert error_of(response).message == FullError.MESSAGE
    assert counted() == {"caller": 0, "server": 1}
    assert "No space left" in LOGGED[0]
    assert served.ask(Request())[0].error is None


def test_one_failure_stays_one_failure(served: Served) -> None:
    def call(tensors: Tensors, outputs: list[str]) -> Reply:
        error = Error("no", is_callers=True) if "bad" in tensors else None
        return Reply({}, error, [])

    served.call = call
    bad, empty = Request([Tensor("bad", np.ones(1))]), Request([picture(0)])

    responses = served.ask(Request(), bad, Request(), empty, Request())

    assert [each.error is None for each in responses] == [True, False, True, False, True]
    assert counted() == {"caller": 2, "server": 0}


@pytest.mark.parametrize("gone", [True, False])
def test_the_server_is_told_when_the_caller_goes(served: Served, gone: bool) -> None:
    seen: list[bool] = []

    def wait(tensors: Tensors, outputs: list[str]) -> Reply:
        deadline = time.monotonic() + (10 if gone and not seen else 0.3)
        while not served.desk.is_gone() and time.monotonic() < deadline:
            time.sleep(0.01)
        seen.append(served.desk.is_gone())
        return Reply({}, None, [])

    served.call = wait
    served.ask(Request(gone=gone), Request())

    assert seen == [gone, False]  # the next request starts anew


@pytest.mark.parametrize("error", [None, Error("no", is_callers=True)])
def test_the_figures_of_the_server_are_added_up(served: Served, error: Error | None) -> None:
    figures = [
        ("styleserve_node_failure", {"model": NAME, "node": "mask"}, 0),
        ("styleserve_node_seconds", {"model": NAME, "node": "mask"}, 0.25),
        ("styleserve_node_seconds", {"model": "inner", "node": "dots"}, 0.5),
        ("styleserve_cache_hit", {"model": NAME}, 1),
    ]
    served.call = lambda *_: Reply({}, error, figures)

    served.ask(Request(), Request())

    counts = {key: value for key, value in MetricFamily.counts.items() if "request" not in key[0]}
    assert counts == {
        ("styleserve_node_failure", NAME, "mask"): 0,
        ("styleserve_node_seconds", NAME, "mask"): 0.5,
        ("styleserve_node_seconds", "inner", "dots"): 1.0,
        ("styleserve_cache_hit", NAME): 2,
    }
