"""The endpoints as Triton models: their tensors, their queues, their workers."""

import logging
import re
import shutil
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from pytriton.model_config import ModelConfig, Tensor
from pytriton.proxy.types import Request

from styleserve import machine
from styleserve.cache import Cache, CachedEndpoint
from styleserve.catalog import RESERVED, Catalog
from styleserve.endpoint import Answer, CatalogEndpoint, Endpoint, Limits, StyleEndpoint
from styleserve.errors import HIDDEN, InferenceError, RequestError
from styleserve.settings import ServerSettings
from styleserve.ticket import CURRENT, Ticket
from styleserve.triton import TritonProcess

LOGGER = logging.getLogger(__name__)

IMAGE_SHAPE = (-1, -1, 3)
STYLE_INPUTS = (
    Tensor(name="image", dtype=np.uint8, shape=IMAGE_SHAPE, optional=True),
    Tensor(name="strength", dtype=np.float32, shape=(1,), optional=True),
    Tensor(name="keep_color", dtype=np.bool_, shape=(1,), optional=True),
    Tensor(name="max_side", dtype=np.int32, shape=(1,), optional=True),
    Tensor(name="encoded", dtype=bytes, shape=(1,), optional=True),
)
STYLE_OUTPUTS = (
    Tensor(name="styled_image", dtype=np.uint8, shape=IMAGE_SHAPE),
    Tensor(name="styled_encoded", dtype=bytes, shape=(1,)),
)
CATALOG_INPUTS = (Tensor(name="name", dtype=bytes, shape=(1,), optional=True),)
CATALOG_OUTPUTS = (
    Tensor(name="names", dtype=bytes, shape=(-1,)),
    Tensor(name="details", dtype=bytes, shape=(-1,)),
)

WORKSPACE = re.compile(r'("workspace-path"\s+value \{\s+string_value: )".*"')

# While one runs a model, the other takes its next request in or its last answer out.
INSTANCES = 2


class Server(TritonProcess):
    """Triton with every endpoint of a catalog bound, not yet started."""

    def __init__(self, catalog: Catalog, settings: ServerSettings, stop: threading.Event) -> None:
        """Bind `catalog`; a set `stop` ends a start that is under way."""
        super().__init__(settings, stop)
        limits = Limits(settings.max_side, settings.max_pixels)
        cache = Cache(settings.cache_mb << 20)
        for name, stylizer in catalog.items():
            style: Endpoint = StyleEndpoint(stylizer, limits)
            if settings.cache_mb:
                style = CachedEndpoint(name, style, cache)
            self._bind(name, [style] * INSTANCES, STYLE_INPUTS, STYLE_OUTPUTS)
        self._bind(RESERVED, [CatalogEndpoint(catalog)], CATALOG_INPUTS, CATALOG_OUTPUTS)

    def _bind(
        self,
        name: str,
        endpoints: Sequence[Endpoint],
        inputs: tuple[Tensor, ...],
        outputs: tuple[Tensor, ...],
    ) -> None:
        config = ModelConfig(batching=False)
        folder = self.store(name)
        calls = [
            _Callable(name, endpoint, Ticket(folder / "1", worker))
            for worker, endpoint in enumerate(endpoints)
        ]
        self.bind(name, calls, inputs, outputs, config=config, strict=True)
        file = folder / "config.pbtxt"
        file.write_text(_configured(file.read_text(), self._settings.queue_size))
        (folder / "1" / "model.py").rename(folder / "1" / "pytriton_model.py")
        shutil.copy(Path(__file__).with_name("worker.py"), folder / "1" / "model.py")


def _configured(config: str, queue_size: int) -> str:
    """Add what is not in PyTriton's ModelConfig, and keep our path from what Triton tells callers.

    That is a queue with an end; the worker of ours finds the path by itself.
    """
    hidden = WORKSPACE.sub(r'\1""', config)
    queue = f"default_queue_policy {{ max_queue_size: {queue_size} }}"
    return f"{hidden}dynamic_batching {{ {queue} }}\n"


class _Callable:
    """What PyTriton calls with the requests of one model."""

    def __init__(self, name: str, endpoint: Endpoint, ticket: Ticket) -> None:
        self._name = name
        self._endpoint = endpoint
        self._ticket = ticket
        self.is_busy = False

    def abandon(self) -> None:
        """Let a pipeline under way end where it is."""
        self._ticket.close()

    def __call__(self, requests: list[Request]) -> list[Answer]:
        self.is_busy = True
        CURRENT.set(self._ticket)
        try:
            return [self._answer(request) for request in requests]
        finally:
            self._ticket.hand_over()
            self.is_busy = False

    def _answer(self, request: Request) -> Answer:
        start = time.perf_counter()
        try:
            answer = self._endpoint(request.data, request.requested_output_names or [])
        except RequestError as error:
            LOGGER.debug("%s: refused: %s", self._name, error)
            raise
        except InferenceError:
            LOGGER.exception("%s: a request failed", self._name)
            raise
        except Exception as error:
            LOGGER.exception("%s: a request failed", self._name)
            raise InferenceError(HIDDEN) from error
        _check_shm(answer)
        LOGGER.debug("%s: answered in %.1f ms", self._name, 1e3 * (time.perf_counter() - start))
        return answer


def _check_shm(answer: Answer) -> None:
    """Refuse what would not fit into shared memory: the write would end this process."""
    size = sum(
        sum(map(len, array)) if array.dtype == np.object_ else array.nbytes
        for array in answer.values()
    )
    if size > machine.free_shm():
        raise InferenceError(
            "the server's shared memory is full; its operator must enlarge /dev/shm"
        )
