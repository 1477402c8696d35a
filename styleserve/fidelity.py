"""On which backend a model runs: the fastest that gives the pictures of ONNX Runtime's own fp32."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from styleserve import probe
from styleserve.backend import REFERENCE, Backend
from styleserve.errors import InferenceError, ModelError
from styleserve.image import Image
from styleserve.network import CHANNELS, MASK_CHANNELS, Network
from styleserve.runtime import Runtime

Model = TypeVar("Model")

LOGGER = logging.getLogger(__name__)

LEAST_DB = 45.0  # what an eye can tell apart begins some 10 dB below


def choose(make: Callable[[Network], Model], reference: Network, runtime: Runtime) -> Model:
    """Return what `make` makes of `reference` on the first backend that is good enough.

    Raises:
        ModelError: if `make` refuses it, no backend suits it, or a GPU cannot load the file.
    """
    made, measured = make(reference), reference.fidelity
    problems: list[str] = []
    last_on_gpu = [backend for backend in runtime.backends if backend.on_gpu][-1:]
    for backend in runtime.backends:
        if backend == REFERENCE:
            return made
        if missing := _missing(reference.path, backend):
            problems.append(missing)
            continue
        try:
            network = reference.on(backend)
            measured[str(backend)] = decibels = psnr(network, reference)
            if decibels >= LEAST_DB:
                network.fidelity, network.exact = measured, _exact(reference, backend)
                return make(network)
            problem = f"{backend} is {decibels} dB from fp32, at least {LEAST_DB:g} dB are wanted"
        except ModelError as error:
            if backend in last_on_gpu:
                raise  # nobody wants to find out by its slowness that the GPU is idle
            problem = f"not on {backend}: {error}"
        LOGGER.warning("%s: %s", reference.path, problem)
        problems.append(problem)
    raise ModelError(
        f"{reference.path}: {'; '.join(problems)}; else set STYLESERVE_PRECISION=auto, or take "
        "this model away"
    )


def _missing(model: Path, backend: Backend) -> str:
    file = backend.file(model)
    if file.exists():
        return ""
    command = f"python -m styleserve.quantize {model}"
    return f"for {backend} it needs a file {file.name} beside it: try {command}"


def _exact(reference: Network, backend: Backend) -> Network | None:
    """Return what computes smooth pictures beside this backend: fp32, on a GPU if it is there."""
    exact = Backend(backend.providers) if backend.on_gpu else REFERENCE
    if backend == exact:
        return None
    return reference.on(exact) if backend.on_gpu else reference


def psnr(network: Network, reference: Network) -> float:
    """Return the peak signal-to-noise ratio on a photo, in dB; 0 if `network` answers nonsense.

    It is the lower one of two, for the whole photo and for a part of it, which has another size.
    """
    photo = probe.real_photo()
    try:
        return min(_psnr(network, reference, image) for image in (photo, photo[40:200, 30:]))
    except InferenceError as error:
        LOGGER.warning("%s: %s", network.path, error)
        return 0.0


def _psnr(network: Network, reference: Network, photo: Image) -> float:
    channels = MASK_CHANNELS if reference.gives_mask else CHANNELS
    answer, expected = (one(photo, 0, channels)[0] for one in (network, reference))
    return round(probe.psnr(answer, expected), 1)
