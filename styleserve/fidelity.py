"""On which backend a model runs: the fastest that gives the pictures of ONNX Runtime's own fp32."""

import logging

from styleserve import probe
from styleserve.backend import REFERENCE, Backend
from styleserve.errors import InferenceError, ModelError
from styleserve.image import Image
from styleserve.network import CHANNELS, MASK_CHANNELS, Network
from styleserve.runtime import Runtime

LOGGER = logging.getLogger(__name__)

LEAST_DB = 45.0  # what an eye can tell apart begins some 10 dB below


def choose(reference: Network, runtime: Runtime) -> Network:
    """Return the file of `reference` on the first of the runtime's backends that is good enough.

    Raises:
        ModelError: if none is, or a GPU cannot load the file.
    """
    measured: dict[str, float] = {}
    problems: list[str] = []
    for backend in runtime.backends:
        network = _open(reference, backend, problems)
        if not network:
            continue
        if backend != REFERENCE:
            measured[str(backend)] = decibels = psnr(network, reference)
            if decibels < LEAST_DB:
                far = f"{backend} is {decibels} dB from fp32, at least {LEAST_DB:g} dB are wanted"
                LOGGER.warning("%s: %s", reference.path, far)
                problems.append(far)
                continue
        network.fidelity = measured
        network.exact = _exact(reference, backend)
        return network
    raise ModelError(f"{reference.path}: {'; '.join(problems)}; set STYLESERVE_PRECISION=auto")


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


def _open(reference: Network, backend: Backend, problems: list[str]) -> Network | None:
    if backend == REFERENCE:
        return reference
    path, file = reference.path, backend.file(reference.path)
    if not file.exists():
        command = f"python -m styleserve.quantize {path}"
        problems.append(f"for {backend} it needs a file {file.name} beside it: try {command}")
        return None
    try:
        return reference.on(backend)
    except ModelError as error:
        if backend.on_gpu:
            raise  # nobody wants to find out by its slowness that the GPU is idle
        LOGGER.warning("not on %s: %s", backend, error)
        problems.append(f"not on {backend}: {error}")
        return None
