"""Triton's worker with readable errors, run with stand-ins for Triton and for PyTriton's worker."""

import importlib.util
import json
import shutil
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.managers import BaseManager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

import styleserve
from styleserve.errors import InferenceError, RequestError
from styleserve.ticket import Ticket

FILE = Path(styleserve.__file__).with_name("worker.py")
FOLDER = "a_folder_in_the_model_store"
LOGGED: list[str] = []
MEANWHILE: list[Callable[[], object]] = []  # what happens while PyTriton's worker waits


class TritonError(Exception):
    INVALID_ARG = "invalid argument"
    INTERNAL = "internal"

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.message, self.code = message, code


@dataclass
class Response:
    error: TritonError | None = None


class Tensor:
    def __init__(self, *shape: int, values: list[bytes] | None = None) -> None:
        self._array = np.zeros(shape, np.uint8) if values is None else np.array(values, object)

    def shape(self) -> list[int]:
        return list(self._array.shape)

    def as_numpy(self) -> np.ndarray[Any, Any]:
        return self._array


@dataclass
class Request:
    """Fails inside the callable with `failure`, if any."""

    failure: BaseException | None = None
    tensors: list[Tensor] = field(default_factory=lambda: [Tensor(4, 5, 3), Tensor(1)])

    gone: bool = False

    def inputs(self) -> list[Tensor]:
        return self.tensors

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


class TritonModelException(Exception):  # noqa: N818  Triton's name
    pass


class PyTritonModel:
    """Answers like PyTriton's worker: the callable's whole traceback as the message."""

    ready = False

    deaf = 0  # times that the first worker of the model does not listen yet

    def initialize(self, args: dict[str, str]) -> None:
        if self.deaf:
            type(self).deaf -= 1
            raise TritonModelException("Connection refused")
        self.ready, self.args = True, args

    def execute(self, requests: list[Request]) -> list[Response]:
        assert self.ready
        for request in requests:
            for act in MEANWHILE:
                act()
            if request.failure:
                raise RuntimeError("".join(traceback.format_exception(request.failure)))
        return [Response() for _ in requests]


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:  # noqa: ANN401
    """Load a copy of the worker as Triton does."""
    utils = ModuleType("triton_python_backend_utils")
    vars(utils).update(TritonError=TritonError, InferenceResponse=Response)
    vars(utils).update(MetricFamily=MetricFamily, TritonModelException=TritonModelException)
    vars(utils).update(Logger=type("Logger", (), {"log_error": staticmethod(LOGGED.append)}))
    model = ModuleType(f"{FOLDER}.pytriton_model")
    vars(model).update(TritonPythonModel=PyTritonModel)
    data = ModuleType(f"{FOLDER}.data")
    vars(data).update(BlocksStoreManager=type("BlocksStoreManager", (BaseManager,), {}))
    for module in (utils, ModuleType(FOLDER), model, data):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    copy = shutil.copy(FILE, tmp_path / "model.py")
    spec = importlib.util.spec_from_file_location(f"{FOLDER}.model", copy)
    assert spec
    assert spec.loader
    loaded: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    LOGGED.clear()
    MEANWHILE.clear()
    MetricFamily.counts.clear()
    monkeypatch.setattr(loaded, "HANDSHAKE_PAUSE_S", 0)
    monkeypatch.setattr(loaded.TritonPythonModel, "deaf", 0)
    return loaded.TritonPythonModel()


def arguments(instance: int = 0) -> dict[str, str]:
    config = json.dumps({"name": "udnie", "parameters": {"workspace-path": {"string_value": ""}}})
    name = f"udnie_0_{instance}"
    return {"model_name": "udnie", "model_instance_name": name, "model_config": config}


@pytest.fixture
def answer(worker: Any) -> Callable[..., list[Response]]:  # noqa: ANN401
    """Start the worker of the model udnie; return its `execute`."""
    worker.initialize(arguments())
    return lambda *requests: worker.execute(list(requests))


@pytest.mark.parametrize(
    ("instance", "deaf", "starts"), [(1, 49, True), (1, 50, False), (0, 0, True), (0, 1, False)]
)
def test_only_a_models_second_worker_waits_for_the_first(
    worker: Any,  # noqa: ANN401
    instance: int,
    deaf: int,
    starts: bool,
) -> None:
    type(worker).deaf = deaf
    args = arguments(instance)
    if starts:
        worker.initialize(args)
    else:
        with pytest.raises(TritonModelException):
            worker.initialize(args)
    assert worker.ready is starts


def test_pytriton_is_told_where_its_sockets_are(worker: Any, tmp_path: Path) -> None:  # noqa: ANN401
    worker.initialize(arguments())
    config = json.loads(worker.args["model_config"])
    home = str(tmp_path.parents[2])  # model.py lies in <workspace>/model-store/<name>/1
    assert config == {"name": "udnie", "parameters": {"workspace-path": {"string_value": home}}}


def raised(error: Exception, cause: Exception | None = None) -> Exception:
    """Raise the error for real, so that it has source frames like any other."""
    try:
        try:
            raise cause or ValueError("inner")
        except Exception as inner:
            raise error from inner
    except Exception as caught:  # noqa: BLE001  any kind is made here
        return caught


def error_of(response: Response) -> TritonError:
    assert response.error
    assert "\n" not in response.error.message
    assert str(FILE.parent) not in response.error.message
    assert "Traceback" not in response.error.message
    return response.error


def counted() -> dict[str, float]:
    """Tell how many failures were counted, by whose fault; all of them of this model."""
    assert {key[:2] for key in MetricFamily.counts} == {("styleserve_request_failure", "udnie")}
    return {key[-1]: count for key, count in MetricFamily.counts.items()}


def test_an_answer_is_passed_on(answer: Callable[..., list[Response]]) -> None:
    assert [each.error for each in answer(Request(), Request())] == [None, None]
    assert counted() == {"caller": 0, "server": 0}


@pytest.mark.parametrize(
    "text",
    ["strength must be 1", "got: this: and that", "größe 'x'", "line one\n  line two", "x\u2028y"],
)
def test_a_callers_mistake_is_told_in_one_line(
    answer: Callable[..., list[Response]], text: str
) -> None:
    (response,) = answer(Request(raised(RequestError(text))))

    assert error_of(response).code == TritonError.INVALID_ARG
    assert error_of(response).message == " ".join(text.split())
    assert LOGGED == []
    assert counted() == {"caller": 1, "server": 0}


def test_our_fault_is_internal(answer: Callable[..., list[Response]]) -> None:
    (response,) = answer(Request(raised(InferenceError("it failed at 9x9"))))

    assert error_of(response).code == TritonError.INTERNAL
    assert error_of(response).message == "it failed at 9x9"
    assert counted() == {"caller": 0, "server": 1}


@pytest.mark.parametrize(
    "failure",
    [
        ValueError("RequestError: looks like one"),
        KeyError("image"),
        MemoryError(),
        RuntimeError("a\nstyleserve.errors.OtherError: no"),
    ],
)
def test_anything_else_is_hidden_and_logged(
    answer: Callable[..., list[Response]], failure: Exception
) -> None:
    (response,) = answer(Request(raised(failure)))

    assert error_of(response).code == TritonError.INTERNAL
    assert error_of(response).message == "the server failed inside; its log has the details"
    assert "Traceback" in LOGGED[0]
    assert counted() == {"caller": 0, "server": 1}


@pytest.mark.parametrize("tensor", [Tensor(0, 5, 3), Tensor(5, 0, 3), Tensor(0)])
def test_a_side_of_zero_never_reaches_pytriton(
    answer: Callable[..., list[Response]], tensor: Tensor
) -> None:
    request = Request(RuntimeError("PyTriton fails on these"), [Tensor(1), tensor])

    (response,) = answer(request)

    assert error_of(response).code == TritonError.INVALID_ARG
    assert error_of(response).message.startswith("an input has no values; ")
    assert counted() == {"caller": 1, "server": 0}
    assert LOGGED == []


@pytest.mark.parametrize("tensor", [Tensor(10, 10, 1), Tensor(values=[b"x" * 60, b"x" * 40])])
@pytest.mark.parametrize(("free", "fits"), [(101, True), (100, False)])
def test_what_shared_memory_cannot_take_never_reaches_pytriton(
    answer: Callable[..., list[Response]],
    monkeypatch: pytest.MonkeyPatch,
    tensor: Tensor,
    free: int,
    fits: bool,
) -> None:
    places = {"/dev/shm": SimpleNamespace(free=free)}
    monkeypatch.setattr(shutil, "disk_usage", lambda place: places[place])

    (response,) = answer(Request(None, [tensor, Tensor(1)]))

    assert (response.error is None) is fits
    assert counted() == {"caller": 0, "server": int(not fits)}
    if not fits:
        assert error_of(response).code == TritonError.INTERNAL
        assert "enlarge /dev/shm" in error_of(response).message


def test_one_failure_stays_one_failure(answer: Callable[..., list[Response]]) -> None:
    bad, empty = Request(raised(RequestError("no"))), Request(None, [Tensor(0)])
    broken = Request(raised(KeyError("x")))

    responses = answer(Request(), bad, Request(), empty, broken, Request())

    assert [each.error is None for each in responses] == [True, False, True, False, False, True]
    assert counted() == {"caller": 2, "server": 1}


# --- notes to and from the server


@pytest.mark.parametrize("gone", [True, False])
def test_the_server_is_told_when_the_caller_goes(
    answer: Callable[..., list[Response]],
    tmp_path: Path,
    gone: bool,
) -> None:
    ticket = Ticket(tmp_path, 0)
    seen: list[bool] = []

    def wait() -> None:
        deadline = time.monotonic() + (10 if gone else 0.3)
        while not ticket.is_gone() and time.monotonic() < deadline:
            time.sleep(0.01)
        seen.append(ticket.is_gone())

    MEANWHILE.append(wait)
    answer(Request(gone=gone), Request())

    assert seen == [gone, False]  # the next request starts anew


@pytest.mark.parametrize("failure", [None, raised(RequestError("no"))])
def test_the_figures_of_the_server_are_added_up(
    answer: Callable[..., list[Response]],
    tmp_path: Path,
    failure: Exception | None,
) -> None:
    ticket = Ticket(tmp_path, 0)

    def work() -> None:
        ticket.add("styleserve_node_failure", 0, model="udnie", node="mask")
        ticket.add("styleserve_node_seconds", 0.25, model="udnie", node="mask")
        ticket.add("styleserve_node_seconds", 0.5, model="inner", node="dots")
        ticket.add("styleserve_cache_hit", 1, model="udnie")
        ticket.hand_over()

    MEANWHILE.append(work)
    answer(Request(failure), Request(failure))

    figures = {key: value for key, value in MetricFamily.counts.items() if "request" not in key[0]}
    assert figures == {
        ("styleserve_node_failure", "udnie", "mask"): 0,
        ("styleserve_node_seconds", "udnie", "mask"): 0.5,
        ("styleserve_node_seconds", "inner", "dots"): 1.0,
        ("styleserve_cache_hit", "udnie"): 2,
    }
    assert not list(tmp_path.glob("*.figures"))
