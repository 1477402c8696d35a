"""The sides as running processes, which are all put under load in the same way."""

import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Protocol

import psutil

from benchmarks.comparison import environments, family
from benchmarks.comparison.load import CallError, Load, drive, grpc_call, http_call
from benchmarks.comparison.sides import IN_PROCESS, Side
from benchmarks.comparison.wires import Answer, Request
from benchmarks.comparison.workloads import ROOT, Workload
from benchmarks.peers.stylise import Stylise, load
from styleserve.image import Image
from styleserve.processes import is_running
from tests.e2e.running import free_ports

START_S = 180.0
STOP_S = 15.0
POLL_S = 0.02
LOG_TAIL = 3000

Pictures = list[tuple[str, Image]]


class Server(Protocol):
    """A side that runs."""

    name: str
    exact: bool
    process: psutil.Process
    cold_start_s: float

    def drive(self, threads: int, seconds: float) -> Load:
        """Put it under load; the answers are pictures."""

    def close(self) -> None:
        """End it."""


class InProcess:
    """The measure of all sides: the same work in a process of its own, called by its threads."""

    name = IN_PROCESS
    exact = True

    def __init__(self, workload: Workload, models: Path) -> None:
        start = time.perf_counter()
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(1, context, _start, (models, workload.pictures()))
        self._pool.submit(_drive, 1, 0).result()
        self.cold_start_s = time.perf_counter() - start
        self.process = psutil.Process(self._pool.submit(os.getpid).result())

    def drive(self, threads: int, seconds: float) -> Load:
        """Put it under load."""
        return self._pool.submit(_drive, threads, seconds).result()

    def answers(self) -> list[Image]:
        """Return what is right for each picture."""
        return self._pool.submit(_answers).result()

    def close(self) -> None:
        """End it."""
        self._pool.shutdown()


_STYLES: dict[str, Stylise] = {}
_PICTURES: Pictures = []


def _start(models: Path, pictures: Pictures) -> None:
    _STYLES.update(load(models))
    _PICTURES.extend(pictures)


def _call(asked: tuple[str, Image]) -> Image:
    style, image = asked
    return _STYLES[style](image)


def _drive(threads: int, seconds: float) -> Load:
    return drive(lambda: _call, _PICTURES, threads, seconds)


def _answers() -> list[Image]:
    return list(map(_call, _PICTURES))


class Served:
    """A server and what it is asked."""

    def __init__(self, side: Side, workload: Workload, models: Path) -> None:
        self.name, self.exact, self.side = side.name, side.exact, side
        self._styles = workload.styles
        self._wire = side.wire(workload.numbers)
        pictures = workload.pictures()
        self._shape = pictures[0][1].shape
        self._requests = [self._wire.ask(style, image) for style, image in pictures]
        self._ports = free_ports(side.ports)
        self._folder = tempfile.TemporaryDirectory(prefix="cmp-")  # sockets need a short path
        self._log = Path(self._folder.name, "log")
        python = environments.python_for(side.peer) if side.peer else Path(sys.executable)
        start = time.perf_counter()
        self.process: psutil.Process = self._spawn(python, workload, models)
        try:
            self._wait()
        except BaseException:
            self.close()
            raise
        self.cold_start_s = time.perf_counter() - start

    def drive(self, threads: int, seconds: float) -> Load:
        """Put it under load."""
        try:
            load = drive(self._connect, self._requests, threads, seconds)
        except (CallError, OSError) as error:
            raise CallError(f"{self.name}: {error}; its log ends with\n{self._tail()}") from error
        read = {n: self._wire.read(answer, self._shape) for n, answer in load.answers.items()}
        return Load(load.latencies, load.elapsed, read)

    def close(self) -> None:
        """End it."""
        family.end(self.process, STOP_S)
        self._folder.cleanup()

    def _spawn(self, python: Path, workload: Workload, models: Path) -> psutil.Popen:
        if self.side.peer:
            settings: dict[str, object]
            module = ["-m", f"benchmarks.peers.{self.side.peer}_peer", models, *self._ports]
            settings = {"PYTHONPATH": ROOT, "PYTRITON_HOME": self._folder.name}
        else:
            module = [ROOT / "server.py"]
            names = "HTTP_PORT", "GRPC_PORT", "METRICS_PORT"
            ours: dict[str, object] = dict(zip(names, self._ports, strict=True))
            ours |= {"HOST": "127.0.0.1", "MODELS_DIR": models, "CACHE_DIR": self._folder.name}
            settings = {f"STYLESERVE_{name}": value for name, value in ours.items()}
            settings |= {**workload.environment, **self.side.environment}
        with self._log.open("w") as log:
            return psutil.Popen(
                list(map(str, [python, *module])),
                cwd=self._folder.name,
                env=os.environ | {name: str(value) for name, value in settings.items()},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _connect(self) -> Callable[[Request], Answer]:
        if self._wire.is_grpc:
            return grpc_call(self._ports[1])
        return http_call(self._ports[0])

    def _wait(self) -> None:
        """Ask until each style has answered."""
        deadline = time.monotonic() + START_S
        while True:
            try:
                call = self._connect()
                for request in self._requests[: self._styles]:
                    call(request)
                return
            except (CallError, OSError) as error:
                ended = not is_running(self.process)
                if ended or time.monotonic() > deadline:
                    raise CallError(f"{self.name} did not start: {error}\n{self._tail()}") from None
                time.sleep(POLL_S)

    def _tail(self) -> str:
        return self._log.read_text(errors="replace")[-LOG_TAIL:]
