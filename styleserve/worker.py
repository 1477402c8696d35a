"""Runs inside Triton's Python workers, as the `model.py` of each served model.

PyTriton's own worker answers every failure with HTTP 500 and the traceback of the whole chain.
This one answers with the status that fits and one line. It is copied into the model store by
`styleserve.serving`, next to PyTriton's file, and may import nothing of this package.
"""

from typing import Any

import triton_python_backend_utils as pb_utils  # provided by Triton

from .pytriton_model import (  # type: ignore[import-not-found]  # PyTriton's worker, put there too
    TritonPythonModel as PyTritonModel,
)

# The class that was raised tells who must act; `styleserve.errors` draws the tree.
CALLER_FAULT = "RequestError"
OUR_FAULT = "InferenceError"
HIDDEN = "the server failed inside; its log has the details"


class TritonPythonModel(PyTritonModel):  # type: ignore[misc]
    """PyTriton's worker with readable errors."""

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer each request on its own, so that one failure stays one failure."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:  # noqa: ANN401  Triton's types exist in its worker only
        if any(0 in tensor.shape() for tensor in request.inputs()):
            return _error("an input has a side of 0; a picture must have at least one pixel", True)
        try:
            return super().execute([request])[0]
        except Exception as error:  # noqa: BLE001  the outermost boundary of the worker
            raised, _, message = str(error).strip().rpartition("\n")[2].partition(": ")
            name = raised.rpartition(".")[2]
            if name not in (CALLER_FAULT, OUR_FAULT):
                pb_utils.Logger.log_error(str(error))
                return _error(HIDDEN, False)
            return _error(message, name == CALLER_FAULT)


def _error(message: str, caller_fault: bool) -> Any:  # noqa: ANN401
    code = pb_utils.TritonError.INVALID_ARG if caller_fault else pb_utils.TritonError.INTERNAL
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(message, code))
