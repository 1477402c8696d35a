"""The real server.py as a subprocess on free ports."""

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import tritonclient.grpc as grpc
import tritonclient.http as triton
from numpy.typing import NDArray

ROOT = Path(__file__).parents[2]
START_S = 90.0
STOP_S = 60.0

DTYPES: dict[str, tuple[str, Any]] = {
    "image": ("UINT8", np.uint8),
    "strength": ("FP32", np.float32),
    "keep_color": ("BOOL", np.bool_),
    "max_side": ("INT32", np.int32),
    "encoded": ("BYTES", np.object_),
    "name": ("BYTES", np.object_),
}


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Running:
    """A server process, its ports, its log, and calls to it."""

    def __init__(self, models: Path, folder: Path, **settings: object) -> None:
        self.http, self.grpc, self.metrics = free_ports(3)
        self.cache = Path(tempfile.mkdtemp(prefix="ss-"))  # sockets need a short path
        self.log_file = folder / "server.log"
        own: dict[str, object] = {
            "http_port": self.http,
            "grpc_port": self.grpc,
            "metrics_port": self.metrics,
            "models_dir": models,
            "cache_dir": self.cache,
            "host": "127.0.0.1",
        }
        names = {f"STYLESERVE_{key.upper()}": str(value) for key, value in (own | settings).items()}
        with self.log_file.open("w") as log:
            self.process = psutil.Popen(
                [sys.executable, "server.py"],
                cwd=ROOT,
                env=os.environ | names,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    def messages(self, level: str) -> list[str]:
        lines = [json.loads(line) for line in self.log.splitlines() if line.startswith("{")]
        return [line["message"] for line in lines if line["level"] == level]

    def is_ready(self) -> bool:
        try:
            return self.get("/v2/health/ready")[0] == http.HTTPStatus.OK
        except OSError:
            return False

    def wait_ready(self, seconds: float = START_S) -> "Running":
        deadline = time.monotonic() + seconds
        while not self.is_ready():
            assert self.process.is_running(), f"the server ended:\n{self.log}"
            assert self.process.status() != psutil.STATUS_ZOMBIE, f"the server ended:\n{self.log}"
            assert time.monotonic() < deadline, f"not ready after {seconds} s:\n{self.log}"
            time.sleep(0.1)
        return self

    def wait_log(self, text: str, seconds: float, after: int = 0) -> None:
        """Wait until `text` stands in the log behind its first `after` characters."""
        deadline = time.monotonic() + seconds
        while text not in self.log[after:]:
            assert time.monotonic() < deadline, f"no {text!r} after {seconds} s:\n{self.log}"
            time.sleep(0.05)

    def get(self, path: str, port: int | None = None) -> tuple[int, bytes]:
        return self._request("GET", path, None, {}, port or self.http)

    def post(
        self, path: str, body: bytes | str, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        return self._request("POST", path, body, headers or {}, self.http)

    def infer(self, model: str, output: str = "styled_image", **inputs: object) -> NDArray[Any]:
        """Call over HTTP with binary tensors."""
        with triton.InferenceServerClient(f"127.0.0.1:{self.http}", network_timeout=60.0) as client:
            tensors = [_tensor(triton, name, value) for name, value in inputs.items()]
            answer: NDArray[Any] = client.infer(model, tensors).as_numpy(output)
            return answer

    def infer_grpc(
        self, model: str, output: str = "styled_image", **inputs: object
    ) -> NDArray[Any]:
        with grpc.InferenceServerClient(f"127.0.0.1:{self.grpc}") as client:
            tensors = [_tensor(grpc, name, value) for name, value in inputs.items()]
            answer: NDArray[Any] = client.infer(model, tensors).as_numpy(output)
            return answer

    def processes(self, name: str = "") -> list[psutil.Process]:
        """The processes below server.py whose name starts with `name`."""
        found = []
        for process in self.process.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.name().startswith(name):
                    found.append(process)
        return found

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal; return the exit code once the process has ended."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self, seconds: float = STOP_S) -> int:
        return int(self.process.wait(seconds))

    def kill(self) -> None:
        """End everything, whatever state it is in."""
        family = [*self.processes(), self.process] if self.process.is_running() else []
        for process in family:
            process.kill()
        psutil.wait_procs(family, 10)
        shutil.rmtree(self.cache, ignore_errors=True)

    def _request(
        self, method: str, path: str, body: bytes | str | None, headers: dict[str, str], port: int
    ) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=100)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


@contextlib.contextmanager
def serving(models: Path, folder: Path) -> Iterator[Running]:
    """Serve `models` until the block ends."""
    running = Running(models, folder)
    try:
        yield running.wait_ready()
    finally:
        running.kill()


def json_body(image: NDArray[np.uint8]) -> str:
    shape = ",".join(map(str, image.shape))
    data = ",".join(map(str, image.reshape(-1).tolist()))
    return (
        f'{{"inputs":[{{"name":"image","shape":[{shape}],"datatype":"UINT8","data":[{data}]}}],'
        f'"outputs":[{{"name":"styled_image"}}]}}'
    )


def _tensor(client: Any, name: str, value: object) -> Any:  # noqa: ANN401  two untyped clients
    datatype, dtype = DTYPES[name]
    array = np.asarray(value, dtype=dtype)
    array = array if name == "image" else array.reshape(1)
    tensor = client.InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array)
    return tensor
