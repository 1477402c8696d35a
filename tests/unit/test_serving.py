"""The edge to PyTriton, without Triton: declared tensors, errors, configuration, waiting."""

import logging
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
from pytriton.proxy.types import Request

from styleserve import machine, processes, serving
from styleserve.catalog import Stylizer
from styleserve.endpoint import Answer, CatalogEndpoint, Limits, StyleEndpoint, Tensors
from styleserve.errors import InferenceError, RequestError
from styleserve.image import Image
from styleserve.serving import Server, StartError
from styleserve.settings import ServerSettings, load
from tests.pictures import noise, png


class Same:
    def __call__(self, image: Image, max_side: int) -> Image:
        return image

    def describe(self) -> dict[str, Any]:
        return {}


# --- the declared tensors are those of the API contract, and those that the endpoints know


def declared(tensors: tuple[Any, ...]) -> dict[str, tuple[Any, tuple[int, ...], bool]]:
    return {each.name: (each.dtype, tuple(each.shape), bool(each.optional)) for each in tensors}


def test_a_style_declares_the_contract() -> None:
    assert declared(serving.STYLE_INPUTS) == {
        "image": (np.uint8, (-1, -1, 3), True),
        "strength": (np.float32, (1,), True),
        "keep_color": (np.bool_, (1,), True),
        "max_side": (np.int32, (1,), True),
        "encoded": (bytes, (1,), True),
    }
    assert serving.STYLE_INPUTS[0].name == "image"
    assert serving.STYLE_OUTPUTS[0].name == "styled_image"
    assert [each.name for each in serving.CATALOG_INPUTS] == ["name"]


@pytest.mark.parametrize("given", ["image", "encoded"])
def test_the_answers_of_a_style_are_declared(given: str) -> None:
    tensor = {"image": noise(4, 5), "encoded": np.array([png(noise(4, 5))], np.object_)}[given]
    names = [each.name for each in serving.STYLE_OUTPUTS]

    answer = StyleEndpoint(Same(), Limits(0, 100))({given: tensor}, names)

    assert_declared(answer, serving.STYLE_OUTPUTS)


def test_the_answers_of_the_catalog_are_declared() -> None:
    catalog: dict[str, Stylizer] = {"a": Same(), "b": Same()}
    names = [each.name for each in serving.CATALOG_OUTPUTS]

    answer = CatalogEndpoint(catalog)({}, names)

    assert list(answer) == names
    assert_declared(answer, serving.CATALOG_OUTPUTS)


def assert_declared(answer: Answer, outputs: tuple[Any, ...]) -> None:
    known = declared(outputs)
    for name, array in answer.items():
        dtype, shape, _ = known[name]
        assert array.dtype == (np.uint8 if dtype == np.uint8 else np.object_)
        assert len(array.shape) == len(shape)
        assert all(want in (-1, got) for want, got in zip(shape, array.shape, strict=True))


# --- what PyTriton calls


def call(endpoint: serving.Endpoint, *requests: dict[str, Any]) -> list[Answer]:
    wrapped = [Request(data=data, requested_output_names=["x"]) for data in requests]
    return serving._Callable("udnie", endpoint)(wrapped)


def test_every_request_gets_its_answer_in_order(caplog: pytest.LogCaptureFixture) -> None:
    def endpoint(tensors: Tensors, outputs: list[str]) -> Answer:
        return {**tensors, "asked": np.array(outputs)}

    with caplog.at_level(logging.DEBUG, "styleserve"):
        first, second = call(endpoint, {"n": np.array(1)}, {"n": np.array(2)})

    assert [first["n"].item(), second["n"].item()] == [1, 2]
    assert first["asked"].tolist() == ["x"]
    assert [record.levelno for record in caplog.records] == [logging.DEBUG] * 2


@pytest.mark.parametrize(
    ("failure", "seen_as", "level"),
    [
        (RequestError("send more"), RequestError("send more"), logging.DEBUG),
        (InferenceError("no room"), InferenceError("no room"), logging.ERROR),
        (KeyError("/srv/secret"), InferenceError("the server failed inside"), logging.ERROR),
        (MemoryError(), InferenceError("the server failed inside"), logging.ERROR),
    ],
)
def test_failures_keep_their_kind_and_are_logged_once(
    caplog: pytest.LogCaptureFixture, failure: Exception, seen_as: Exception, level: int
) -> None:
    def endpoint(tensors: Tensors, outputs: list[str]) -> Answer:
        raise failure

    with (
        caplog.at_level(logging.DEBUG, "styleserve"),
        pytest.raises(type(seen_as), match=str(seen_as)) as caught,
    ):
        call(endpoint, {})

    assert "secret" not in str(caught.value)
    (record,) = caplog.records
    assert (record.levelno, record.levelno == logging.ERROR) == (level, bool(record.exc_info))
    assert "udnie" in record.getMessage()


# --- configuration


def settings(**values: str | int) -> ServerSettings:
    return ServerSettings(**values)  # type: ignore[arg-type]  # pydantic checks them


@pytest.mark.parametrize("gpu", [True, False])
def test_triton_gets_the_settings(monkeypatch: pytest.MonkeyPatch, gpu: bool) -> None:
    monkeypatch.setattr(machine, "has_gpu", lambda: gpu)

    ports = {"http_port": 7, "grpc_port": 8, "metrics_port": 9}

    config = serving._triton_config(settings(host="127.0.0.9", cache_mb=3, **ports))

    assert (config.http_port, config.grpc_port, config.metrics_port) == (7, 8, 9)
    assert {config.http_address, config.grpc_address, config.metrics_address} == {"127.0.0.9"}
    assert config.strict_readiness
    assert config.exit_on_error
    assert config.allow_gpu_metrics is gpu
    assert config.cache_config == [f"local,size={3 * 2**20}"]


def test_no_cache_is_kept_unless_asked_for() -> None:
    assert serving._triton_config(settings(cache_mb=0)).cache_config is None


def bound(cache: Path, *flags: str) -> Server:
    """Bind two models to a server that is never started."""
    catalog: dict[str, Stylizer] = {"udnie": Same(), "candy": Same()}
    return Server(catalog, load(["--cache-dir", str(cache), *flags]), threading.Event())


@pytest.mark.parametrize(("cache_mb", "cached"), [("0", set()), ("5", {"candy", "udnie"})])
def test_triton_gets_every_model_with_its_queue_its_cache_and_our_worker(
    tmp_path: Path, cache_mb: str, cached: set[str]
) -> None:
    server = bound(tmp_path, "--queue-size", "7", "--cache-mb", cache_mb)

    store = server.workspace / "model-store"
    configs = {folder.name: (folder / "config.pbtxt").read_text() for folder in store.iterdir()}
    assert server.workspace.parent == tmp_path
    assert set(configs) == {"candy", "catalog", "udnie"}
    assert all("max_queue_size: 7 " in text for text in configs.values())
    assert {name for name, text in configs.items() if "response_cache" in text} == cached
    for name in configs:
        worker, original = (
            store / name / "1" / f"{file}.py" for file in ("model", "pytriton_model")
        )
        assert worker.read_bytes() == Path(serving.__file__).with_name("worker.py").read_bytes()
        assert "class TritonPythonModel" in original.read_text()


def test_the_token_is_the_given_one_or_a_new_random_one(tmp_path: Path) -> None:
    given, one, other = (
        bound(tmp_path, "--access-token", token)._security_config.access_token
        for token in ("s3cret", "", "")
    )

    assert given == "s3cret"
    assert len(one) >= 16
    assert one != other


# --- waiting for the start


Child = subprocess.Popen[bytes]


@pytest.fixture
def child() -> Iterator[Child]:
    """A process in the place of tritonserver, with one below it."""
    script = "sleep 60 & echo ready; read -r _"
    pipe = subprocess.PIPE
    shell = subprocess.Popen(["sh", "-c", script], stdin=pipe, stdout=pipe)
    assert shell.stdout
    assert shell.stdout.readline() == b"ready\n"
    members = processes.workers(shell.pid)
    yield shell
    processes.kill(members)
    shell.communicate()


def ends(process: psutil.Process) -> bool:
    deadline = time.monotonic() + 5
    while processes.is_running(process) and time.monotonic() < deadline:
        time.sleep(0.005)
    return not processes.is_running(process)


def serving_with(child: Child | None, url: str = "http://127.0.0.1:1") -> Server:
    """Make a server that never starts Triton, but has this process in its place."""
    made = Server.__new__(Server)
    command = SimpleNamespace(_tritonserver_running_cmd=child)
    made.__dict__.update(
        _stop_asked=threading.Event(),
        _triton_server=command,
        _url=url,
        _connected=False,
        _members=processes.workers(child.pid) if child else [],
    )
    return made


@pytest.fixture
def answering() -> Iterator[HTTPServer]:
    with HTTPServer(("127.0.0.1", 0), Health) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        yield http
        http.shutdown()
        thread.join()


def url_of(server: HTTPServer) -> str:
    return f"http://127.0.0.1:{server.server_port}"


class Health(BaseHTTPRequestHandler):
    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status if self.path == "/v2/health/ready" else 404)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Keep the test's output clean."""


@pytest.mark.parametrize(("status", "ready"), [(200, True), (400, False), (503, False)])
def test_ready_is_what_triton_says(
    answering: HTTPServer, monkeypatch: pytest.MonkeyPatch, status: int, ready: bool
) -> None:
    monkeypatch.setattr(Health, "status", status)

    assert serving_with(None, url_of(answering))._is_ready() is ready


def test_a_closed_port_is_not_ready() -> None:
    assert serving_with(None)._is_ready() is False


def test_the_wait_ends_when_ready(answering: HTTPServer) -> None:
    serving_with(None, url_of(answering))._wait_for_server()


def stop_is_asked(server: Server, child: Child) -> None:
    server._stop_asked.set()


def child_dies(server: Server, child: Child) -> None:
    child.kill()


def worker_dies(server: Server, child: Child) -> None:
    psutil.Process(child.pid).children()[0].kill()


def time_is_up(server: Server, child: Child) -> None:
    """Nothing happens."""


@pytest.mark.parametrize(
    ("event", "timeout", "told"),
    [
        (stop_is_asked, 60, "it was asked to stop"),
        (child_dies, 60, "tritonserver has ended"),
        (worker_dies, 60, "a worker process has died"),
        (time_is_up, 0, "it was not ready after 0 s"),
    ],
)
def test_a_start_ends_when_it_is_vain_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
    child: Child,
    event: Callable[[Server, Child], None],
    timeout: float,
    told: str,
) -> None:
    monkeypatch.setattr(serving, "START_TIMEOUT_S", timeout)
    monkeypatch.setattr(serving, "POLL_S", 0.01)
    monkeypatch.setattr(serving, "LINGER_S", 0.2)
    server = serving_with(child)
    monkeypatch.setattr(Server, "run", Server._wait_for_server)
    members = processes.workers(child.pid)
    event(server, child)

    with pytest.raises(StartError, match=f"^Triton did not start: {told}$"):
        server.start()

    assert len(members) == 2
    assert ends(members[0])


@pytest.mark.parametrize(
    "failure", [OSError(28, "No space left on device"), ValueError("no such option")]
)
def test_what_pytriton_raises_in_the_start_is_told_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, child: Child, failure: Exception
) -> None:
    members = processes.workers(child.pid)
    fail_in_run(monkeypatch, failure)

    with pytest.raises(StartError, match=f"Triton did not start: .*{failure.args[-1]}"):
        serving_with(child).start()

    assert all(map(ends, members))


@pytest.mark.parametrize("prepared", [True, False])
def test_a_failure_before_there_is_a_process_is_told(
    monkeypatch: pytest.MonkeyPatch, prepared: bool
) -> None:
    server = serving_with(None)
    if not prepared:
        server._triton_server = None
    fail_in_run(monkeypatch, OSError(28, "No space left on device"))

    with pytest.raises(StartError, match=r"Triton did not start: .*No space left"):
        server.start()


def fail_in_run(monkeypatch: pytest.MonkeyPatch, failure: Exception) -> None:
    def run(server: Server) -> None:
        raise failure

    monkeypatch.setattr(Server, "run", run)


# --- watching


@pytest.mark.parametrize(("event", "whole"), [(time_is_up, True), (worker_dies, False)])
def test_a_server_is_whole_while_every_process_runs(
    monkeypatch: pytest.MonkeyPatch,
    child: Child,
    event: Callable[[Server, Child], None],
    whole: bool,
) -> None:
    monkeypatch.setattr(Server, "run", lambda server: None)
    monkeypatch.setattr(Server, "is_alive", lambda server: True)
    server = serving_with(child)
    server.start()
    assert server.is_whole()

    (worker,) = psutil.Process(child.pid).children()
    event(server, child)
    assert whole or ends(worker)

    assert server.is_whole() is whole


def test_a_server_whose_threads_have_died_is_not_whole(
    monkeypatch: pytest.MonkeyPatch, child: Child
) -> None:
    monkeypatch.setattr(Server, "run", lambda server: None)
    monkeypatch.setattr(Server, "is_alive", lambda server: False)
    server = serving_with(child)
    server.start()

    assert not server.is_whole()
