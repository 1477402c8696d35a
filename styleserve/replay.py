"""A network of one size on CUDA as one graph: all its kernels are launched at once, not in turn."""

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from onnxruntime import InferenceSession, OrtValue

from styleserve.backend import Backend
from styleserve.errors import ModelError
from styleserve.probe import Tensor, photo
from styleserve.runtime import Runtime, reason

LOGGER = logging.getLogger(__name__)

DEVICE = "cuda"
LARGEST_ERROR = 0.01  # of the largest value: another session may take other kernels


class Replay:
    """A session whose input and output stay at one place, as a CUDA graph demands.

    The first run records the graph; nothing else may use the GPU meanwhile. ONNX Runtime keeps one
    for each thread that runs it, so a single one does:
    https://onnxruntime.ai/docs/execution-providers/CUDA-ExecutionProvider.html#using-cuda-graphs-preview
    """

    def __init__(self, session: InferenceSession) -> None:
        """Take memory of the GPU for input and output, both of a fixed shape."""
        (given,), (asked,) = session.get_inputs(), session.get_outputs()
        self.session = session
        self._given, self._asked = (
            OrtValue.ortvalue_from_shape_and_type(tensor.shape, np.float32, DEVICE)
            for tensor in (given, asked)
        )
        self._binding = session.io_binding()
        self._binding.bind_ortvalue_input(given.name, self._given)
        self._binding.bind_ortvalue_output(asked.name, self._asked)
        self._thread = ThreadPoolExecutor(1, "replay")

    def __call__(self, tensor: Tensor) -> Tensor:
        """Return the answer to a float32 tensor of the fixed shape."""
        return self._thread.submit(self._run, tensor).result()

    def _run(self, tensor: Tensor) -> Tensor:
        self._given.update_inplace(tensor)
        self.session.run_with_iobinding(self._binding)
        return np.array(self._asked.numpy())  # a copy: on a CPU it is a view of that one place


def record(
    session: InferenceSession, path: Path, runtime: Runtime, backend: Backend
) -> Replay | None:
    """Load the file of `session` once more, as a graph, if that works and gives the same answers.

    None, with a line in the log if it was tried, leaves the session as it is.
    """
    if backend.providers[0] != "cuda":
        return None
    (given,), (asked,) = session.get_inputs(), session.get_outputs()
    if not all(isinstance(side, int) for side in (*given.shape, *asked.shape)):
        return None
    try:
        replay = Replay(runtime.open(path, backend, as_graph=True))
        height, width = given.shape[2:]
        for picture in photo(height, width, count=3):
            tensor = picture[np.newaxis]
            _compare(replay(tensor), session.run(None, {given.name: tensor})[0])
    except Exception as error:  # noqa: BLE001  ONNX Runtime's errors have no base of their own
        LOGGER.warning("%s: without a CUDA graph, which saves time: %s", path, reason(error))
        return None
    return replay


def _compare(answer: Tensor, expected: Tensor) -> None:
    error, largest = np.abs(answer - expected).max(), np.abs(expected).max()
    if not error <= LARGEST_ERROR * largest:
        raise ModelError(f"it is {error:.3g} off where the largest value is {largest:.3g}")
