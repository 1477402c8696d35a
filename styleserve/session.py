"""A model file loaded on one backend: its runs take turns, and what they leave is given back."""

import contextlib
import logging
import math
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from styleserve import memory
from styleserve.backend import Backend
from styleserve.errors import InferenceError, ModelError, RequestError, unreadable
from styleserve.replay import record
from styleserve.runtime import Runtime, reason
from styleserve.ticket import IS_OVER

LOGGER = logging.getLogger(__name__)

POLL_S = 0.1  # between two looks at whether the caller is still there
LARGE_PIXELS = 500_000  # OpenVINO keeps what the largest picture needed
PAUSE_S = 30.0  # after the last large picture

Tensor = NDArray[np.float32]


class Session:
    """An ONNX Runtime session with one input and one output."""

    def __init__(self, path: Path, runtime: Runtime, backend: Backend) -> None:
        """Load the file.

        Raises:
            ModelError: if it cannot be loaded.
        """
        self.path = path
        self.backend = backend
        self._runtime = runtime
        self._version = self._file_version()
        self.onnx = runtime.open(path, backend)  # another one after a rest
        self._replay = record(self.onnx, path, runtime, backend)
        if self._replay:
            self.onnx = self._replay.session
        self._smallest: tuple[int, ...] = ()
        self._rest: threading.Timer | None = None
        self._lock = threading.Lock()

    def run(self, make: Callable[[], Tensor]) -> Tensor:
        """Return the answer to the tensor 1x3xHxW that `make` makes when it is this run's turn.

        Raises:
            InferenceError: if the network fails.
            RequestError: if nobody waits for the answer any more.
        """
        with self._turn():
            tensor = make()
            is_large = tensor[0, 0].size > LARGE_PIXELS
            answer = self._run(tensor, is_large)
        self._note(tensor.shape, is_large)
        return answer

    def _note(self, shape: tuple[int, ...], is_large: bool) -> None:
        """Give back later what a large picture leaves behind."""
        self._smallest = min(self._smallest or shape, shape, key=math.prod)
        if is_large:
            self._rest_in(PAUSE_S)

    def _run(self, tensor: Tensor, is_large: bool) -> Tensor:
        (given,), (asked,) = self.onnx.get_inputs(), self.onnx.get_outputs()
        options = memory.kept_after(is_large)
        try:
            if self._replay:
                return self._replay(tensor)
            (answer,) = self.onnx.run([asked.name], {given.name: tensor}, options)
        except Exception as error:
            height, width = tensor.shape[2:]
            raise InferenceError(f"it failed at {width}x{height}: {reason(error)}") from error
        return np.asarray(answer, dtype=np.float32)

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        is_over = IS_OVER.get()
        while not self._runtime.gate.acquire(timeout=POLL_S):
            _check(is_over)
        try:
            _check(is_over)
            yield
        finally:
            self._runtime.gate.release()

    def _file_version(self) -> tuple[int, int]:
        try:
            status = self.backend.file(self.path).stat()
        except OSError as error:
            raise ModelError(unreadable(error)) from error
        return status.st_ino, status.st_mtime_ns

    def _rest_in(self, pause_s: float) -> None:
        with self._lock:
            if self._rest:
                self._rest.cancel()
            self._rest = threading.Timer(pause_s, self._give_memory_back)
            self._rest.daemon = True
            self._rest.start()

    def _give_memory_back(self) -> None:
        """Forget what past pictures needed; OpenVINO does if the file is loaded anew.

        What all sessions share goes at the end of a run, but for the part in which its own answer
        lies; so one with a small picture follows.
        """
        try:
            if self.backend.keeps_memory:
                if self._file_version() != self._version:
                    raise ModelError("it has changed since")
                self.onnx = self._runtime.open(self.path, self.backend)
            with self._turn():
                self._run(np.zeros(self._smallest, np.float32), is_large=True)
        except (ModelError, InferenceError) as error:
            LOGGER.warning("%s keeps the memory of past pictures: %s", self.path, error)
        memory.give_back()


def _check(is_over: Callable[[], bool]) -> None:
    if is_over():
        raise RequestError("stopped, nobody waits for its answer any more")
