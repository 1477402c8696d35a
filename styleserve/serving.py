"""The endpoints as Triton models: their tensors, their queues, their workers."""

import threading
from collections.abc import Sequence

import numpy as np
from pytriton.model_config import Tensor

from styleserve.binding import BoundModel
from styleserve.cache import Cache, CachedEndpoint
from styleserve.catalog import RESERVED, Catalog
from styleserve.endpoint import CatalogEndpoint, Endpoint, Limits, StyleEndpoint
from styleserve.settings import ServerSettings
from styleserve.triton import TritonProcess

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
        context = {"workspace": self._workspace, "triton_context": self._triton_context}
        size = self._settings.queue_size
        model = BoundModel(name, endpoints, inputs, outputs, size, **context)
        self._model_manager.add_model(model)
