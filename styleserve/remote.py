"""Calls to a running server, through its public API. The only importer of tritonclient."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any, TypeVar
from urllib.parse import quote

import numpy as np
import tritonclient.http as triton
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException

from styleserve.errors import RemoteError, RequestError
from styleserve.image import Image

CONNECT_TIMEOUT_S = 5.0
RETRY_PAUSES_S = (0.2, 0.5, 1.0, 2.0, 4.0)  # while the server's queue is full
BUSY = ("503", "queue size")

T = TypeVar("T")


@dataclass(frozen=True)
class Style:
    """A served model as the catalog tells it."""

    name: str
    description: str
    details: dict[str, Any]


@dataclass(frozen=True)
class Options:
    """How to style: see the optional inputs in the README."""

    strength: float = 1.0
    keep_color: bool = False
    max_side: int | None = None


class Remote:
    """A server at `url`, such as http://localhost:8000. Safe to share between threads.

    Every call makes a connection of its own: tritonclient's HTTP client works in the one thread
    that made it. All calls raise:
        RemoteError: if the server cannot be reached, is too slow, too busy or fails inside.
        RequestError: if the server refuses the request as it is.
    """

    def __init__(self, url: str, timeout_s: float = 300.0) -> None:
        """Call `url`; give up on an answer after `timeout_s`."""
        self.url = url
        scheme, _, address = url.rpartition("://")
        self._address, self._ssl = address.rstrip("/"), scheme == "https"
        self._timeout_s = timeout_s

    def is_ready(self) -> bool:
        """Tell whether the server answers and every model is loaded."""
        try:
            return bool(self._call(lambda client: client.is_server_ready()))
        except RemoteError:
            return False

    def styles(self) -> list[Style]:
        """List what is served."""
        answer = self._infer("catalog", {}, ("names", "details"))
        pairs = zip(answer["names"], map(json.loads, answer["details"]), strict=True)
        return [Style(name.decode(), info.get("description", ""), info) for name, info in pairs]

    def stylise(self, image: Image, style: str, options: Options | None = None) -> Image:
        """Return `image` (uint8 HxWx3 RGB) in `style`, at the same size."""
        inputs = {"image": image, **_inputs(options or Options())}
        return np.asarray(self._infer(style, inputs, ("styled_image",))["styled_image"], np.uint8)

    def stylise_file(self, file: bytes, style: str, options: Options | None = None) -> bytes:
        """Return a picture file, in the same format, for the bytes of a picture file."""
        inputs = {"encoded": np.array([file], np.object_), **_inputs(options or Options())}
        return bytes(self._infer(style, inputs, ("styled_encoded",))["styled_encoded"][0])

    def _infer(
        self, model: str, inputs: dict[str, NDArray[Any]], outputs: tuple[str, ...]
    ) -> dict[str, NDArray[Any]]:
        tensors = [_tensor(name, value) for name, value in inputs.items()]
        wanted = [triton.InferRequestedOutput(name) for name in outputs]

        def call(client: triton.InferenceServerClient) -> dict[str, NDArray[Any]]:
            result = client.infer(quote(model, safe=""), tensors, outputs=wanted)
            return {name: result.as_numpy(name) for name in outputs}

        for pause in RETRY_PAUSES_S:
            try:
                return self._call(call)
            except ServerBusyError:
                time.sleep(pause)
        return self._call(call)

    def _call(self, use: Callable[[triton.InferenceServerClient], T]) -> T:
        try:
            with triton.InferenceServerClient(
                self._address,
                ssl=self._ssl,
                connection_timeout=CONNECT_TIMEOUT_S,
                network_timeout=self._timeout_s,
            ) as client:
                return use(client)
        except InferenceServerException as error:
            raise _told(error) from error
        except HTTPException as error:
            raise RemoteError(
                f"{self.url} broke off its answer, or is no HTTP server ({error}); try again"
            ) from error
        except TimeoutError as error:
            raise RemoteError(
                f"no answer from {self.url} within {self._timeout_s:.0f} s; try a smaller picture"
            ) from error
        except (OSError, ValueError) as error:
            raise ServerAwayError(
                f"the server at {self.url} cannot be reached ({error}); start it with `make run`, "
                "or set STYLESERVE_URL"
            ) from error


class ServerBusyError(RemoteError):
    """The server's queue is full."""


class ServerAwayError(RemoteError):
    """There is no server at this address, as the operator is told."""

    @property
    def sentence(self) -> str:
        """The problem for visitors, whom addresses do not concern."""
        return "The server cannot be reached just now: try again in a minute."


def _told(error: InferenceServerException) -> RemoteError | RequestError:
    status, message = str(error.status() or ""), str(error.message())
    if any(mark in f"{status} {message}" for mark in BUSY):
        return ServerBusyError("the server is busy with other pictures; try again in a moment")
    if status in ("400", "404"):
        return RequestError(message)
    return RemoteError(f"the server failed: {message}")


def _inputs(options: Options) -> dict[str, NDArray[Any]]:
    inputs: dict[str, NDArray[Any]] = {
        "strength": np.array([options.strength], np.float32),
        "keep_color": np.array([options.keep_color]),
    }
    if options.max_side is not None:
        if not 0 < options.max_side < 1 << 31:
            raise RequestError(f"max_side must be a number of pixels, got {options.max_side}")
        inputs["max_side"] = np.array([options.max_side], np.int32)
    return inputs


def _tensor(name: str, value: NDArray[Any]) -> triton.InferInput:
    kinds = {"u": "UINT8", "f": "FP32", "b": "BOOL", "i": "INT32", "O": "BYTES"}
    tensor = triton.InferInput(name, list(value.shape), kinds[value.dtype.kind])
    tensor.set_data_from_numpy(value)
    return tensor
