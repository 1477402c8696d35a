"""One ONNX file as a function from a picture to planes of numbers of the same size."""

import copy
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from styleserve import image as pictures
from styleserve import metadata
from styleserve.backend import REFERENCE, Backend
from styleserve.errors import InferenceError, ModelError
from styleserve.image import Frame, Image, Mask
from styleserve.probe import SMALLEST_SIDE_PX, picture, size_multiple
from styleserve.runtime import Runtime
from styleserve.session import Session

LOGGER = logging.getLogger(__name__)

Planes = NDArray[np.float32]

WARM_UP_SIDE = 256
CHANNELS, MASK_CHANNELS = 3, 1
OUTPUT_CHANNELS = CHANNELS, MASK_CHANNELS


class Network:
    """A network from one picture, float32 1x3xHxW with RGB 0..255, to 1xCxHxW.

    Takes pictures of any size: natively if its file leaves height and width open, else by
    fitting them into its one size.
    """

    def __init__(self, path: Path, runtime: Runtime) -> None:
        """Load the file on the reference backend, and find out which sizes it keeps.

        Raises:
            ModelError: if the file cannot be loaded or is no image-to-image network.
        """
        self.path = path
        self._runtime = runtime
        self._load(REFERENCE)
        self._metadata = self._session.onnx.get_modelmeta().custom_metadata_map
        self._size = self._fixed_size()
        self._multiple = 1 if self._size else self._find_multiple()

    def on(self, backend: Backend) -> "Network":
        """Return the same file on another backend.

        Raises:
            ModelError: if that cannot load it.
        """
        other = copy.copy(self)
        other._load(backend)
        return other

    def _load(self, backend: Backend) -> None:
        self._session = Session(self.path, self._runtime, backend)
        self.fidelity: dict[str, float] = {}  # dB from the reference, by backend
        self.exact: Network | None = None  # for smooth pictures, if this one rounds

    @property
    def gives_mask(self) -> bool:
        """Tell whether the file declares one channel as its output."""
        return bool(self._session.onnx.get_outputs()[0].shape[1] == MASK_CHANNELS)

    def __call__(self, image: Image, max_side: int, channels: int) -> tuple[Planes, Frame]:
        """Run on `image`, at the most at `max_side` pixels (0: no limit).

        Returns:
            float32 channels x H x W, and how `image` lies in there.

        Raises:
            InferenceError: if the network fails or answers nonsense.
        """
        if self._size:
            canvas, frame = pictures.fit_fixed(image, self._size)
        else:
            canvas, frame = pictures.fit_native(image, max_side, self._multiple, SMALLEST_SIDE_PX)
        if self.exact and pictures.is_smooth(frame.inside(canvas)):
            LOGGER.debug("%s: in fp32, as the picture is smooth", self.path.name)
            return self.exact._run(canvas, channels), frame
        return self._run(canvas, channels), frame

    def warm_up(self, model: Callable[[Image, int], Image | Mask], promise: str) -> None:
        """Prove that `model`, made of this network, answers a picture of its own size.

        Raises:
            ModelError: that it does not hold the `promise`.
        """
        height, width = self._size or (WARM_UP_SIDE, WARM_UP_SIDE)
        try:
            model(picture(height, width), 0)
        except InferenceError as error:
            raise ModelError(f"{self.path}: {error}; {promise}") from error

    def describe(self) -> dict[str, Any]:
        """Tell size rules, provider, precision and origin."""
        return {
            "description": self._metadata.get(metadata.DESCRIPTION, ""),
            "size": "x".join(map(str, reversed(self._size))) if self._size else "any",
            "multiple": self._multiple,
            "provider": self._session.onnx.get_providers()[0],
            "precision": self._session.backend.precision,
            "psnr_db": self.fidelity,
            "opset": self._metadata.get(metadata.OPSET, "unknown"),
            "source_sha256": self._metadata.get(metadata.SOURCE_SHA256, "unknown"),
        }

    def _fixed_size(self) -> tuple[int, int] | None:
        inputs, outputs = self._session.onnx.get_inputs(), self._session.onnx.get_outputs()
        found = ", ".join(f"{t.name} {t.type} {t.shape}" for t in (*inputs, *outputs))
        one_each = len(inputs) == len(outputs) == 1
        if not one_each or not _is(inputs[0], CHANNELS) or not _is(outputs[0], *OUTPUT_CHANNELS):
            raise ModelError(
                f"{self.path}: a style model has one input and one output, both float32 "
                f"[1, 3, height, width] (or [1, 1, height, width] as output, for a mask), this "
                f"file has {found}"
            )
        size = tuple(side for side in inputs[0].shape[2:] if isinstance(side, int))
        if len(size) == 1:
            raise ModelError(
                f"{self.path}: its input {inputs[0].shape} fixes one side only; fix both or none"
            )
        return (size[0], size[1]) if size else None

    def _find_multiple(self) -> int:
        told = self._metadata.get(metadata.SIZE_MULTIPLE)
        if told and told not in map(str, range(1, 1025)):
            raise ModelError(f"{self.path}: its {metadata.SIZE_MULTIPLE} is {told!r}, no multiple")
        multiple = int(told) if told else size_multiple(self._infer)
        if multiple is None:
            raise ModelError(
                f"{self.path}: its answers differ in size from its inputs at every multiple tried; "
                f"a style model must answer a picture of the size it gets"
            )
        return multiple

    def _infer(self, tensor: Planes) -> Planes:
        return self._session.run(lambda: tensor)

    def _run(self, canvas: Image, channels: int) -> Planes:
        height, width = canvas.shape[:2]
        answer = self._session.run(
            lambda: np.asarray(cv2.dnn.blobFromImage(canvas), dtype=np.float32)
        )
        if answer.shape != (1, channels, height, width):
            raise InferenceError(f"it answered {answer.shape} to a {width}x{height} picture")
        if not np.isfinite(answer).all():
            raise InferenceError(f"it answered values that are no numbers at {width}x{height}")
        planes: Planes = answer[0]
        return planes


def _is(tensor: Any, *allowed: int) -> bool:  # noqa: ANN401  onnxruntime's NodeArg is untyped
    """Tell whether this is a float32 picture with a number of channels that is allowed."""
    if tensor.type != "tensor(float)" or len(tensor.shape) != 4:
        return False
    batch, channels = tensor.shape[:2]  # a name or None stands for any number
    return (batch == 1 or not isinstance(batch, int)) and (
        channels in allowed or not isinstance(channels, int)
    )
