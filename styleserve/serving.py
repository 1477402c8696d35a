"""The endpoints as Triton models. The only importer of pytriton, whose private parts it touches."""

import http.client
import itertools
import logging
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
from pytriton.model_config import ModelConfig, Tensor
from pytriton.proxy.types import Request
from pytriton.triton import Triton, TritonConfig, TritonLifecyclePolicy, TritonSecurityConfig
from pytriton.utils.workspace import Workspace

from styleserve import logs, machine, processes
from styleserve.catalog import RESERVED, Catalog
from styleserve.endpoint import Answer, CatalogEndpoint, Limits, StyleEndpoint, Tensors
from styleserve.errors import InferenceError, RequestError
from styleserve.settings import ServerSettings

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

START_TIMEOUT_S = 120.0
DRAIN_TIMEOUT_S = 30
POLL_S = 0.1
LINGER_S = 2.0

Endpoint = Callable[[Tensors, list[str]], Answer]


class StartError(Exception):
    """Triton did not become ready."""


class Server(Triton):  # type: ignore[misc]  # pytriton has no types
    """Triton with every endpoint of a catalog bound, but not started.

    With this policy no port opens before every model is loaded, so ready means ready.
    """

    def __init__(self, catalog: Catalog, settings: ServerSettings, stop: threading.Event) -> None:
        """Bind `catalog`; a set `stop` ends a start that is under way."""
        self.workspace = machine.new_workspace(settings.cache_dir)
        self._settings = settings
        self._stop_asked = stop
        self._members: list[psutil.Process] = []
        token = settings.access_token.get_secret_value() or None  # None makes a random one
        super().__init__(
            config=_triton_config(settings),
            workspace=self.workspace,
            triton_lifecycle_policy=TritonLifecyclePolicy(
                launch_triton_on_startup=False, local_model_store=True
            ),
            security_config=TritonSecurityConfig(token),
        )
        limits = Limits(settings.max_side, settings.max_pixels)
        for name, stylizer in catalog.items():
            style = StyleEndpoint(stylizer, limits)
            self._bind(name, style, STYLE_INPUTS, STYLE_OUTPUTS, settings.cache_mb > 0)
        self._bind(RESERVED, CatalogEndpoint(catalog), CATALOG_INPUTS, CATALOG_OUTPUTS, False)

    def start(self) -> None:
        """Start Triton and return once it is ready.

        Raises:
            StartError: if it cannot become ready, or was asked to stop.
        """
        try:
            self.run()
        except (StartError, OSError, ValueError) as error:
            # Nothing is served yet, and a tritonserver that waits for a dead worker never ends.
            processes.kill(self._members)
            raise StartError(f"Triton did not start: {error}") from error
        helpers = map(processes.helpers, self._members[1:])
        self._members += itertools.chain.from_iterable(helpers)

    def is_whole(self) -> bool:
        """Tell whether tritonserver, every worker and every thread of ours is still running."""
        return bool(self.is_alive()) and all(map(processes.is_running, self._members))

    def _bind(
        self,
        name: str,
        endpoint: Endpoint,
        inputs: tuple[Tensor, ...],
        outputs: tuple[Tensor, ...],
        cached: bool,
    ) -> None:
        config = ModelConfig(batching=False, response_cache=cached)
        self.bind(name, _Callable(name, endpoint), inputs, outputs, config=config, strict=True)
        folder = self.workspace / "model-store" / name
        # Not in PyTriton's ModelConfig: a queue with an end, and a worker with readable errors.
        with (folder / "config.pbtxt").open("a") as file:
            queue = f"default_queue_policy {{ max_queue_size: {self._settings.queue_size} }}"
            file.write(f"dynamic_batching {{ {queue} }}\n")
        (folder / "1" / "model.py").rename(folder / "1" / "pytriton_model.py")
        shutil.copy(Path(__file__).with_name("worker.py"), folder / "1" / "model.py")

    def _prepare_triton_config(self, workspace: Workspace) -> None:
        super()._prepare_triton_config(workspace)
        # Else Triton starts every worker twice, to ask the first for a configuration it has.
        self._triton_server_config["strict-model-config"] = True

    def _initialize_server(self) -> None:
        super()._initialize_server()
        self._triton_server._record_logs = logs.TritonOutput(machine.has_gpu())

    def _wait_for_server(self) -> None:
        # PyTriton's own wait goes on for minutes after tritonserver has ended, and Triton's
        # after a worker has.
        deadline = time.monotonic() + START_TIMEOUT_S
        ended: dict[psutil.Process, float] = {}
        while not self._is_ready():
            root = self._triton_server._tritonserver_running_cmd.pid
            self._members = processes.workers(root) or self._members
            now = time.monotonic()
            if self._stop_asked.wait(POLL_S):
                raise StartError("it was asked to stop")
            if not self._members or not processes.is_running(self._members[0]):
                raise StartError("tritonserver has ended")
            # What ends and is soon gone has done its work.
            found = [worker for worker in self._members if not processes.is_running(worker)]
            ended = {worker: ended.get(worker, now) for worker in found}
            if any(now - since > LINGER_S for since in ended.values()):
                raise StartError("a worker process has died")
            if now > deadline:
                raise StartError(f"it was not ready after {START_TIMEOUT_S:.0f} s")

    def _wait_for_models(self) -> None:
        """Skip PyTriton's wait: once the server is ready, every model is."""

    def _pre_stop_impl(self) -> None:
        super()._pre_stop_impl()
        # PyTriton needs up to a second for each model and takes one after another.
        models = self._model_manager._models
        with ThreadPoolExecutor(len(models)) as pool:
            list(pool.map(lambda model: model.clean(), models.values()))
        models.clear()

    def _on_tritonserver_exit(self, *_: object) -> None:
        """Leave the clean-up to `styleserve.lifecycle`, which watches this process."""

    def _is_ready(self) -> bool:
        host, port = self._url.removeprefix("http://").rsplit(":", 1)
        connection = http.client.HTTPConnection(host, int(port), timeout=5)
        try:
            connection.request("GET", "/v2/health/ready")
            return connection.getresponse().status == http.HTTPStatus.OK
        except OSError:
            return False
        finally:
            connection.close()


class _Callable:
    """What PyTriton calls with the requests of one model."""

    def __init__(self, name: str, endpoint: Endpoint) -> None:
        self._name = name
        self._endpoint = endpoint

    def __call__(self, requests: list[Request]) -> list[Answer]:
        return [self._answer(request) for request in requests]

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
            raise InferenceError("the server failed inside; its log has the details") from error
        LOGGER.debug("%s: answered in %.1f ms", self._name, 1e3 * (time.perf_counter() - start))
        return answer


def _triton_config(settings: ServerSettings) -> TritonConfig:
    return TritonConfig(
        http_address=settings.host,
        http_port=settings.http_port,
        grpc_address=settings.host,
        grpc_port=settings.grpc_port,
        metrics_address=settings.host,
        metrics_port=settings.metrics_port,
        strict_readiness=True,
        exit_on_error=True,
        exit_timeout_secs=DRAIN_TIMEOUT_S,
        # On a machine without an NVIDIA GPU the metrics' search for one fills the log with errors.
        allow_gpu_metrics=machine.has_gpu(),
        cache_config=[f"local,size={settings.cache_mb << 20}"] if settings.cache_mb else None,
    )
