"""Runs inside Triton's Python workers, as the `model.py` of each served model.

It passes requests on to the server (see `styleserve.channel`), and answers with the status that
fits and one line where that fails. It counts failures by whose they are, as Triton's own counter
takes such an answer for a success, tells the server when a caller has gone, and publishes what the
server has counted.

`styleserve.binding` copies this file into the model store; it may import nothing of this package
but what is copied next to it.
"""

import contextlib
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

from .channel import SHM, Caller, Error, Reply
from .mailbox import FullError, parts

HOME = Path(__file__).parents[3]  # <home>/model-store/<name>/1/model.py
HIDDEN = "the server failed inside; its log has the details"
EMPTY = "an input has no values; a picture has at least one pixel"
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


class TritonPythonModel:
    """A worker: it answers one request after another."""

    def initialize(self, args: dict[str, str]) -> None:
        """Start the worker and its failure counters."""
        worker = args["model_instance_name"].rpartition("_")[2]
        self._caller = Caller(HOME, f"{args['model_name']}_{worker}")
        self._watch_over: Any = None  # the request, while there is one
        self._is_busy, self._lock = threading.Event(), threading.Lock()
        threading.Thread(target=self._watch, daemon=True).start()
        self._families: dict[str, Any] = {}
        self._metrics: dict[tuple[str, ...], Any] = {}
        self._failures = {
            is_callers: self._metric(FAILURES, {"model": args["model_name"], "reason": reason})
            for is_callers, reason in ((True, "caller"), (False, "server"))
        }

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer each request on its own, so that one failure stays one failure."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:  # noqa: ANN401  Triton's types exist in its worker only
        try:
            if any(0 in tensor.shape() for tensor in request.inputs()):
                return self._error(Error(EMPTY, is_callers=True))
            answer, error, figures = self._ask(request)
            for name, labels, value in figures:
                self._metric(name, labels).increment(value)
            if error:
                return self._error(error)
            size = sum(part.size for array in answer.values() for part in parts(array))
            if size > shutil.disk_usage(SHM).free:
                raise FullError  # Triton's write would end this process
            outputs = [pb_utils.Tensor(name, array) for name, array in answer.items()]
            return pb_utils.InferenceResponse(output_tensors=outputs)
        except Exception as error:  # noqa: BLE001  the outermost boundary of the worker
            pb_utils.Logger.log_error(f"a request failed: {error!r}")
            message = FullError.MESSAGE if isinstance(error, FullError) else HIDDEN
            return self._error(Error(message, is_callers=False))

    def _ask(self, request: Any) -> Reply:  # noqa: ANN401
        tensors = {each.name(): each.as_numpy() for each in request.inputs()}
        self._caller.send(tensors, list(request.requested_output_names()))
        with self._watched(request):
            return self._caller.receive()

    @contextlib.contextmanager
    def _watched(self, request: Any) -> Iterator[None]:  # noqa: ANN401
        with self._lock:
            self._watch_over = request
        self._is_busy.set()
        try:
            yield
        finally:
            self._is_busy.clear()
            with self._lock:
                self._watch_over = None

    def _watch(self) -> None:
        """Tell the server if a caller goes: only Triton notices, and tells nobody but this worker.

        It notices a gRPC call that is cancelled or has timed out, but no closed HTTP connection.
        """
        while self._is_busy.wait():
            time.sleep(WATCH_PERIOD_S)
            with self._lock:
                if self._watch_over and self._watch_over.is_cancelled():
                    self._caller.withdraw()
                    self._watch_over = None

    def _metric(self, name: str, labels: dict[str, str]) -> Any:  # noqa: ANN401
        if name not in self._families:
            counter = pb_utils.MetricFamily.COUNTER
            family = pb_utils.MetricFamily(name=name, description=COUNTERS[name], kind=counter)
            self._families[name] = family
        key = name, *labels.values()
        if key not in self._metrics:
            self._metrics[key] = self._families[name].Metric(labels=labels)
        return self._metrics[key]

    def _error(self, why: Error) -> Any:  # noqa: ANN401
        self._failures[why.is_callers].increment(1)
        error = pb_utils.TritonError
        code = error.INVALID_ARG if why.is_callers else error.INTERNAL
        return pb_utils.InferenceResponse(error=error(why.message, code))
