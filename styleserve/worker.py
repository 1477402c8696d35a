"""Runs inside Triton's Python workers, as the `model.py` of each served model.

PyTriton's own worker answers every failure with HTTP 500 and the traceback of the whole chain.
This one answers with the status that fits and one line, and counts the failures by whose they are:
Triton's own counter takes such an answer for a success. It also tells the server when a caller has
gone, and publishes what the server has counted (see `styleserve.ticket`).

`styleserve.serving` copies this file into the model store, next to PyTriton's; it may import
nothing of this package.
"""

import contextlib
import json
import shutil
import threading
import time
from collections.abc import Iterator
from functools import partialmethod
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

from .data import BlocksStoreManager
from .pytriton_model import TritonPythonModel as PyTritonModel

# The class that was raised tells who must act: `styleserve.errors` draws the tree.
CALLER_FAULT = "RequestError"
OUR_FAULT = "InferenceError"
HANDSHAKES, HANDSHAKE_PAUSE_S = 50, 0.1
FULL = "the server's shared memory is full; its operator must enlarge /dev/shm"
HIDDEN = "the server failed inside; its log has the details"
GONE, FIGURES = ".gone", ".figures"  # the endings of the notes
WATCH_PERIOD_S = 0.1
FAILURES = "styleserve_request_failure"
COUNTERS = {
    FAILURES: "Failed requests, by whose fault it was: caller or server",
    "styleserve_node_count": "Runs of each node of a pipeline",
    "styleserve_node_failure": "Failed runs of each node of a pipeline",
    "styleserve_node_seconds": "Seconds that the runs of each node of a pipeline took",
    "styleserve_cache_hit": "Requests answered from the cache",
    "styleserve_cache_miss": "Requests for which the cache had no answer",
}


# A process that PyTriton starts makes the shared memory, and Python names it psm_<random>. The name
# of the server's folder in front lets a clean-up find it when a kill has left it behind.
HOME = Path(__file__).parents[3]
PREFIX = f"/{HOME.name}-"
RENAME = f"""from multiprocessing import shared_memory
shared_memory._SHM_NAME_PREFIX = {PREFIX!r}
shared_memory._SHM_SAFE_NAME_LENGTH = {len(PREFIX) + 8}
"""
BlocksStoreManager.start = partialmethod(BlocksStoreManager.start, exec, (RENAME,))


class TritonPythonModel(PyTritonModel):  # type: ignore[misc]  # only Triton has it
    """PyTriton's worker with readable errors."""

    def initialize(self, args: dict[str, str]) -> None:
        """Start the worker and its failure counters."""
        self._initialize(_located(args))
        worker = args["model_instance_name"].rpartition("_")[2]
        self._gone = Path(__file__).with_name(worker + GONE)
        self._figures = Path(__file__).with_name(worker + FIGURES)
        self._watch_over: Any = None  # the request, while there is one
        self._is_busy, self._lock = threading.Event(), threading.Lock()
        threading.Thread(target=self._watch, daemon=True).start()
        self._families: dict[str, Any] = {}
        self._metrics: dict[tuple[str, ...], Any] = {}
        self._failures = {
            reason: self._metric(FAILURES, {"model": args["model_name"], "reason": reason})
            for reason in ("caller", "server")
        }

    def _initialize(self, args: dict[str, str]) -> None:
        # PyTriton's second worker of a model asks the first, and fails if that does not listen yet.
        is_first = args["model_instance_name"].endswith("_0")
        for left in reversed(range(1 if is_first else HANDSHAKES)):
            try:
                super().initialize(args)
                return
            except pb_utils.TritonModelException:
                if not left:
                    raise
                time.sleep(HANDSHAKE_PAUSE_S)

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer each request on its own, so that one failure stays one failure."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:  # noqa: ANN401  Triton's types exist in its worker only
        try:
            if any(0 in tensor.shape() for tensor in request.inputs()):
                return self._error("an input has no values; a picture has at least one pixel", True)
            if sum(map(_size, request.inputs())) > shutil.disk_usage("/dev/shm").free:
                return self._error(FULL, False)  # the write would end this process
            with self._watched(request):
                return super().execute([request])[0]
        except Exception as error:  # noqa: BLE001  the outermost boundary of the worker
            raised, _, message = str(error).strip().rpartition("\n")[2].partition(": ")
            name = raised.rpartition(".")[2]
            if name not in (CALLER_FAULT, OUR_FAULT):
                pb_utils.Logger.log_error(str(error))
                return self._error(HIDDEN, False)
            return self._error(message, name == CALLER_FAULT)
        finally:
            self._publish_figures()

    @contextlib.contextmanager
    def _watched(self, request: Any) -> Iterator[None]:  # noqa: ANN401
        with self._lock:
            self._gone.unlink(missing_ok=True)
            self._watch_over = request
        self._is_busy.set()
        try:
            yield
        finally:
            self._is_busy.clear()
            with self._lock:
                self._watch_over = None

    def _watch(self) -> None:
        """Leave a note if a caller goes: only Triton notices, and tells nobody but this worker.

        It notices a gRPC call that is cancelled or has timed out, but no closed HTTP connection.
        """
        while self._is_busy.wait():
            time.sleep(WATCH_PERIOD_S)
            with self._lock:
                if self._watch_over and self._watch_over.is_cancelled():
                    self._gone.touch()

    def _publish_figures(self) -> None:
        if not self._figures.exists():
            return
        for name, labels, value in json.loads(self._figures.read_text()):
            self._metric(name, labels).increment(value)
        self._figures.unlink()

    def _metric(self, name: str, labels: dict[str, str]) -> Any:  # noqa: ANN401
        if name not in self._families:
            counter = pb_utils.MetricFamily.COUNTER
            family = pb_utils.MetricFamily(name=name, description=COUNTERS[name], kind=counter)
            self._families[name] = family
        key = name, *labels.values()
        if key not in self._metrics:
            self._metrics[key] = self._families[name].Metric(labels=labels)
        return self._metrics[key]

    def _error(self, message: str, is_callers: bool) -> Any:  # noqa: ANN401
        self._failures["caller" if is_callers else "server"].increment(1)
        error = pb_utils.TritonError
        code = error.INVALID_ARG if is_callers else error.INTERNAL
        return pb_utils.InferenceResponse(error=error(message, code))


def _located(args: dict[str, str]) -> dict[str, str]:
    """Put back where PyTriton's sockets are, hidden from Triton, which would tell everybody."""
    config = json.loads(args["model_config"])
    config["parameters"]["workspace-path"] = {"string_value": str(HOME)}
    return {**args, "model_config": json.dumps(config)}


def _size(tensor: Any) -> int:  # noqa: ANN401
    array = tensor.as_numpy()
    return sum(map(len, array.reshape(-1))) if array.dtype == object else int(array.nbytes)
