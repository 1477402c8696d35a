"""One ONNX file as a function from picture to picture, on plain ONNX Runtime: what all peers serve.

Of styleserve it takes only the fitting of pictures (numpy and OpenCV).
"""

from pathlib import Path

import cv2
import numpy as np
import onnxruntime

from styleserve.image import Image, fit_fixed, fit_native

MULTIPLE = 4  # two strides of two, as networks of this kind have
SMALLEST_SIDE = 32
WARM_UP_SIDE = 256


class Stylise:
    """A style: uint8 HxWx3 RGB in, the same size out. Threads may call it at once."""

    def __init__(self, path: Path) -> None:
        """Load and warm up the file."""
        # All options are ONNX Runtime's defaults: a thread for each core, an arena, spinning.
        self._session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        source = self._session.get_inputs()[0]
        self._input, self._output = source.name, self._session.get_outputs()[0].name
        height, width = source.shape[2:]
        self._size = (height, width) if isinstance(height, int) else None
        self(np.zeros((*(self._size or (WARM_UP_SIDE, WARM_UP_SIDE)), 3), np.uint8))

    def __call__(self, image: Image) -> Image:
        """Return `image` in this style."""
        if self._size:
            canvas, frame = fit_fixed(image, self._size)
        else:
            canvas, frame = fit_native(image, 0, MULTIPLE, SMALLEST_SIDE)
        tensor = cv2.dnn.blobFromImage(canvas)
        planes = self._session.run([self._output], {self._input: tensor})[0][0]
        # As styleserve does it: rounded and clipped to 0..255 by cv2.add, 2^31 before that.
        zero, white = np.zeros(1), np.full(1, 255.0)
        pixels = [cv2.add(cv2.min(plane, white), zero, dtype=cv2.CV_8U) for plane in planes]
        return frame.undo(np.asarray(cv2.merge(pixels), dtype=np.uint8))


def load(folder: Path) -> dict[str, Stylise]:
    """Load all models of a folder by the names of their files."""
    return {path.stem: Stylise(path) for path in sorted(folder.glob("*.onnx"))}
