"""What a network is used as: a style, which gives pictures, or a mask."""

import logging
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from styleserve import fidelity
from styleserve.errors import InferenceError, ModelError
from styleserve.image import Image, Mask
from styleserve.network import CHANNELS, MASK_CHANNELS, Network
from styleserve.runtime import Runtime

LOGGER = logging.getLogger(__name__)

MASK_TOLERANCE = 0.01  # beyond 0..1, which is rounding


class StyleModel:
    """A style-transfer network: a picture in, a picture out."""

    kind = "style"

    def __init__(self, network: Network) -> None:
        """Prove that `network` gives pictures, and warm it up.

        Raises:
            ModelError: if it does not.
        """
        self._network = network
        network.warm_up(
            self,
            "a style model answers a picture of the size it gets, with values from 0 to 255",
        )

    def __call__(self, image: Image, max_side: int) -> Image:
        """Return `image` in this style, at the same size.

        Args:
            image: uint8 HxWx3 RGB.
            max_side: longer side in pixels at which the network works at the most; 0 for no limit.

        Raises:
            InferenceError: if the network fails or answers nonsense.
        """
        planes, frame = self._network(image, max_side, CHANNELS)
        # cv2.add rounds and clips each value to 0..255; a cast would wrap it around.
        zero, white = np.zeros(1), np.full(1, 255.0)
        # Beyond 2^31 it would overflow, hence the limit first.
        pixels = [cv2.add(cv2.min(plane, white), zero, dtype=cv2.CV_8U) for plane in planes]
        return frame.undo(np.asarray(cv2.merge(pixels), dtype=np.uint8))

    def describe(self) -> dict[str, Any]:
        """Tell what a caller may want to know: size rules, provider, precision, origin."""
        return {"kind": self.kind, **self._network.describe()}


class MaskModel:
    """A segmentation network: a picture in, a mask out. A node of pipelines, not served alone."""

    kind = "mask"

    def __init__(self, network: Network) -> None:
        """Prove that `network` gives masks, and warm it up.

        Raises:
            ModelError: if it does not.
        """
        self._network = network
        network.warm_up(self, "a mask has the size of the picture, with values from 0 to 1")

    def __call__(self, image: Image, max_side: int) -> Mask:
        """Return the mask of `image` (uint8 HxWx3 RGB): float32 HxW from 0 to 1.

        Raises:
            InferenceError: if the network fails or answers nonsense.
        """
        (plane,), frame = self._network(image, max_side, MASK_CHANNELS)
        if plane.min() < -MASK_TOLERANCE or plane.max() > 1 + MASK_TOLERANCE:
            raise InferenceError(f"it answered values from {plane.min():.3g} to {plane.max():.3g}")
        return frame.undo(np.clip(plane, 0, 1))

    def describe(self) -> dict[str, Any]:
        """Tell the operator what was loaded."""
        return {"kind": self.kind, **self._network.describe()}


def load_model(path: Path, runtime: Runtime) -> StyleModel | MaskModel:
    """Load a file as what its output channels make it, on the fastest backend that suits it.

    Raises:
        ModelError: if it is no network of either kind, or no backend suits it.
    """
    reference = Network(path, runtime)
    if reference.gives_mask:
        return fidelity.choose(MaskModel, reference, runtime)
    return fidelity.choose(StyleModel, reference, runtime)


def load_models(
    models: Mapping[str, Path], runtime: Runtime
) -> Mapping[str, StyleModel | MaskModel]:
    """Load {name: file}, in parallel on a CPU, telling the progress in the log.

    Raises:
        ModelError: with one line for each file that cannot be served.
    """
    loaded: dict[str, StyleModel | MaskModel] = {}
    problems: list[str] = []
    at_once = 1 if runtime.on_gpu else runtime.threads  # see `replay`: a graph is recorded alone
    with ThreadPoolExecutor(max_workers=at_once) as pool:
        jobs = {name: pool.submit(_load, path, runtime) for name, path in models.items()}
        for number, (name, job) in enumerate(jobs.items(), start=1):
            try:
                loaded[name], seconds = job.result()
            except ModelError as error:
                problems.extend(error.problems)
                continue
            detail = loaded[name].describe()
            measured = ", ".join(f"{backend}: {db} dB" for backend, db in detail["psnr_db"].items())
            LOGGER.info(
                "model %d of %d ready: %s on %s, %s%s, size %s, %.2f s",
                *(number, len(models), name, detail["provider"], detail["precision"]),
                *(f" ({measured})" if measured else "", detail["size"], seconds),
            )
    if problems:
        raise ModelError(*problems)
    return loaded


def _load(path: Path, runtime: Runtime) -> tuple[StyleModel | MaskModel, float]:
    start = time.perf_counter()
    return load_model(path, runtime), time.perf_counter() - start
